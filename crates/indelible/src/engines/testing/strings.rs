//! What is done to maps of byte strings under the checker. A history speaks of keys and values by numbers, as one of a map of words does; [`Texts`] says
//! which byte strings they stand for.

use super::{Family, History, Operation, Size, Suite};
use crate::engines::StringKind;
use Operation::{
    CompareExchange, CreateOther, DropOther, Get, GetBatch, Insert, InsertBatch, InsertNew,
    Range as RangeOf, Remove, RenameOther, Reopen, Shrink, Update,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Which byte strings the keys of a history are. Numbers are below 65,536, and the order of the strings is that of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Texts {
    /// Two bytes, and 14 more.
    Short,
    /// Every eighth key is the beginning of the seven after it, which have zeros behind it. The first one is empty.
    Stairs,
    /// What follows a prefix that all share.
    Prefixed,
    /// Every third key is so long that it is a blob, and many separators are.
    Long,
}

/// Bytes of the values that stand for numbers, by the last three bits of the number: in the leaf, in blobs of several classes, in a run of
/// extents. All are even.
const VALUE_BYTES: [usize; 8] = [2, 8, 8, 8, 40, 100, 300, 5000];

impl Texts {
    /// All ways.
    pub const ALL: &[Self] = &[Self::Short, Self::Stairs, Self::Prefixed, Self::Long];

    /// The key of a number.
    #[must_use]
    pub fn key(self, number: u64) -> Vec<u8> {
        let [.., high, low] = number.to_be_bytes();
        let mut key = Vec::new();
        match self {
            Self::Short => {
                key.extend([high, low]);
                key.resize(16, b's');
            }
            Self::Stairs => {
                let [.., high, low] = (number / 8).to_be_bytes();
                if number >= 8 {
                    key.extend([high, low]);
                }
                key.resize(key.len() + (number % 8) as usize, 0);
            }
            Self::Prefixed => {
                key.resize(90, b'p');
                key.extend([high, low]);
            }
            Self::Long => {
                key.resize(if number < 64 { 3 } else { 150 }, b'l');
                key.extend([high, low]);
                let tail = if number.is_multiple_of(3) { 200 } else { 10 };
                key.resize(key.len() + tail, b't');
            }
        }
        key
    }

    /// The number whose key this is.
    #[must_use]
    pub fn number(self, key: &[u8]) -> Option<u64> {
        let at = |from: usize| {
            let pair = key.get(from..from + 2)?;
            Some(u64::from(pair[0]) << 8 | u64::from(pair[1]))
        };
        let number = match self {
            Self::Short => at(0)?,
            Self::Stairs if key.len() < 2 || key[..2] == [0, 0] => key.len() as u64,
            Self::Stairs => at(0)? * 8 + key.len() as u64 - 2,
            Self::Prefixed => at(90)?,
            Self::Long => {
                let short = at(3).filter(|&number| number < 64 && self.key(number) == key);
                short.or_else(|| at(150))?
            }
        };
        (self.key(number) == key).then_some(number)
    }

    /// The value of a number below 65,536.
    #[must_use]
    pub fn value(number: u64) -> Vec<u8> {
        let [low, high, ..] = number.to_le_bytes();
        [low, high].repeat(VALUE_BYTES[number as usize % 8] / 2)
    }

    /// The number whose value this is.
    #[must_use]
    pub fn number_of_value(value: &[u8]) -> Option<u64> {
        let (&pair, _) = value.split_first_chunk::<2>()?;
        let number = u64::from(u16::from_le_bytes(pair));
        // Without making the value: this is asked of every value of every image.
        let is_whole = value.len() == VALUE_BYTES[number as usize % 8];
        (is_whole && value.chunks(2).all(|other| other == pair)).then_some(number)
    }
}

impl Family for StringKind {
    type Keys = Texts;
    type Operation = Operation;

    fn suite(self) -> &'static dyn Suite<Self> {
        Self::suite(self)
    }

    fn usual_keys() -> Texts {
        Texts::Short
    }

    /// Theme 0 grows and shrinks the map, theme 1 has everything.
    fn any_history(self, theme: u64, seed: u64, size: Size) -> History<Self> {
        let mut random = SmallRng::seed_from_u64(seed);
        let keys = Texts::ALL[random.random_range(0..Texts::ALL.len())];
        let most: u64 = [20, 60, 120][random.random_range(0..3)];
        let before = random.random_range(0..most);
        let mut other = OtherMap::Absent;
        let mut counter = before;
        let mut one = |i: u64| {
            counter += 1;
            let value = number_of_value(counter, &mut random);
            match theme {
                0 if random.random_ratio(1, 16) => Get(i % most),
                0 if (i / most).is_multiple_of(2) => Insert(i % most, value),
                0 => Remove(i % most),
                _ => anything(most, value, size.threads < 2, &mut random, &mut other),
            }
        };
        let threads = size.threads.max(1) as u64;
        let per_thread = (size.operations as u64 / threads).max(1);
        let threads = (0..threads)
            .map(|_| (0..per_thread).map(&mut one).collect())
            .collect();
        History {
            keys,
            before: (0..before).map(|i| Insert(i, i * 8 + 1)).collect(),
            threads,
            ..History::new(self)
        }
    }
}

/// A number for a new value, different for each operation of a history; long values are rarer.
pub(crate) fn number_of_value(counter: u64, random: &mut SmallRng) -> u64 {
    let class = [0, 1, 1, 2, 3, 3, 4, 4, 5, 6, 6, 7][random.random_range(0..12)];
    counter % 8000 * 8 + class
}

/// What has become of the other map.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OtherMap {
    Absent,
    There,
    HasSecondName,
}

/// An operation on the pool rather than the map.
pub(crate) fn in_catalog(random: &mut SmallRng, other: &mut OtherMap) -> Operation {
    let (operation, now) = match (random.random_range(0..8), *other) {
        (0..3, now) => (Shrink, now),
        (_, OtherMap::Absent) => (CreateOther, OtherMap::There),
        (3, OtherMap::There) => (RenameOther(true), OtherMap::HasSecondName),
        (3, OtherMap::HasSecondName) => (RenameOther(false), OtherMap::There),
        _ => (DropOther, OtherMap::Absent),
    };
    *other = now;
    operation
}

/// Some operation on keys below `most`. Those on the catalog, and closing the pool, only if one thread runs.
pub(crate) fn anything(
    most: u64,
    value: u64,
    is_alone: bool,
    random: &mut SmallRng,
    other: &mut OtherMap,
) -> Operation {
    let key = random.random_range(0..most);
    match random.random_range(0..20) {
        0..6 => Insert(key, value),
        6..9 => Remove(key),
        9 => InsertNew(key, value),
        10 | 11 => Update(key, value),
        12 => CompareExchange(key, None, Some(value)),
        13 => Get(key),
        14 => {
            let from = random.random_range(0..most);
            let to = random.random_range(from..most);
            RangeOf((from..=to).collect(), value % 16 < 8)
        }
        15 => GetBatch((key..(key + 4).min(most)).collect()),
        16 => {
            let keys = (0..4).map(|i| (key + 3 * i) % most);
            let mut records: Vec<_> = keys.zip((0..).map(|i| value + 8 * i)).collect();
            records.sort_unstable();
            records.dedup_by_key(|record| record.0);
            InsertBatch(records)
        }
        17 if is_alone => in_catalog(random, other),
        18 if is_alone => Reopen,
        _ => Shrink,
    }
}
