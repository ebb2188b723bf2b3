//! What an engine brings for the crash checker, and what all engines share of it. Compiled only with the `trace` feature.

mod any;
mod spatial;
mod spatial_themes;
mod strings;

pub use any::AnyKind;
pub(crate) use spatial::OtherIndex;
pub use spatial::{Corners, EVERYTHING, Lay, Places, SpatialOperation, axes};
pub(crate) use spatial_themes::{
    THEMES as SPATIAL_THEMES, THEMES_TOGETHER as SPATIAL_THEMES_TOGETHER, alone as places_alone,
    together as places_together,
};

pub use strings::Texts;
pub(crate) use strings::{
    OtherMap, anything as any_string_operation, in_catalog as in_string_catalog,
    number_of_value as new_string_value,
};

use super::{
    IndexKind, Kind, SpatialKind, StringKind, ordered_engines, spatial_engines, string_engines,
};
use crate::IndexOptions;
use crate::pmem::planted::Bug;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// A family of kinds of index, as the crash checker sees it: what is done to an index of the family, and where its records lie.
pub trait Family: IndexKind {
    /// Where the records of a history lie.
    type Keys: Copy + std::fmt::Debug + PartialEq + Send + Sync + 'static;
    /// What can be done to an index, or to its pool.
    type Operation: Clone + std::fmt::Debug + PartialEq + Send + Sync + 'static;

    /// What the crash checker has to know of this kind.
    fn suite(self) -> &'static dyn Suite<Self>;

    /// Where records lie if a history does not say.
    fn usual_keys() -> Self::Keys;

    /// A history for an engine that has none of its own.
    fn any_history(self, theme: u64, seed: u64, size: Size) -> History<Self>;
}

/// What the crash checker has to know of an engine: its planted bugs, its commit points, and histories that provoke its changes of
/// structure. Each engine's `testing` module has one.
pub trait Suite<K: Family = Kind>: Sync {
    /// The bugs that can be planted in the engine's code.
    fn bugs(&self) -> &'static [Bug];

    /// The theme of histories of several threads in which a bug of the engine shows itself soonest, if there is one.
    fn theme_of(&self, _bug: &Bug) -> Option<u64> {
        None
    }

    /// Bugs of the pool and of the host that do no harm to this engine, each with the reason.
    fn harmless_bugs(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// The names of all commit points: every name that is given to [`Pm::commit`](crate::pmem::Pm::commit) or
    /// [`Pm::publish`](crate::pmem::Pm::publish). The checker crashes on both sides of each.
    fn commits(&self) -> &'static [&'static str];

    /// The changes of structure that histories have to provoke.
    fn changes(&self) -> &'static [StructureChange];

    /// How many histories of one thread, and of several, the search of the tests explores: enough to have all of
    /// [`changes`](Self::changes) and both sides of all [`commits`](Self::commits).
    fn histories(&self) -> [u64; 2] {
        [120, 60]
    }

    /// Mutations that change nothing which a crash could show, and why.
    fn equivalent_mutants(&self) -> &'static [EquivalentMutant] {
        &[]
    }

    /// Whether operations end, with an error or an answer or a panic, whatever something else has written into the index while it was in use.
    fn ends_when_damaged_in_use(&self) -> bool {
        true
    }

    /// How many themes there are for histories of so many threads.
    fn themes(&self, threads: usize) -> u64 {
        let _ = threads;
        2
    }

    /// A history of one theme, below [`themes`](Self::themes).
    fn history(&self, kind: K, theme: u64, seed: u64, size: Size) -> History<K> {
        kind.any_history(theme, seed, size)
    }

    /// In place of the ordinary history of a seed, one that would be too slow to have often.
    fn rare_history(&self, kind: K, seed: u64, size: Size) -> Option<History<K>> {
        let _ = (kind, seed, size);
        None
    }

    /// Seeds that together have all that [`rare_history`](Self::rare_history) is for.
    fn rare_seeds(&self) -> &'static [u64] {
        &[]
    }

    /// Commit points and structure changes that no history provokes: a gap in what the checker shows, which the docs name. The search fails if
    /// one of them is provoked after all, so that the list stays true.
    fn not_provoked(&self) -> &'static [&'static str] {
        &[]
    }

    /// Histories, with the seeds of their schedules, in which planted bugs are looked for besides some of each theme.
    fn hunts(&self, kind: K) -> Vec<(History<K>, u64)> {
        let _ = kind;
        Vec::new()
    }

    /// What fills a pool that is then damaged, so that it has nodes of every sort.
    fn varied(&self, kind: K) -> History<K> {
        let mut history = self.history(kind, 0, 0, Size::alone(200));
        let operations = history.threads.drain(..).flatten();
        history.before.extend(operations);
        history
    }
}

/// A change of structure, by the name under which the engine notes it (`Pm::note`).
#[derive(Clone, Copy, Debug)]
pub struct StructureChange {
    /// Its name.
    pub name: &'static str,
    /// How many variants of it there have to be, at least.
    pub variants: usize,
    /// Which variants count.
    pub counts: fn(u64) -> bool,
}

impl StructureChange {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self::with_variants(name, 1)
    }

    pub(crate) const fn with_variants(name: &'static str, variants: usize) -> Self {
        Self {
            name,
            variants,
            counts: |_| true,
        }
    }
}

/// How long a history is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Operations of all threads together.
    pub operations: usize,
    /// Threads.
    pub threads: usize,
}

impl Size {
    /// One thread.
    #[must_use]
    pub const fn alone(operations: usize) -> Self {
        Self {
            operations,
            threads: 1,
        }
    }
}

/// What is done to an index "m" and its pool.
#[derive(Clone, Debug)]
pub struct History<K: Family = Kind> {
    /// How the index is created.
    pub options: IndexOptions<K>,
    /// The keys that are used, or where records lie.
    pub keys: K::Keys,
    /// Before the recording.
    pub before: Vec<K::Operation>,
    /// Under the recorder: what each thread does.
    pub threads: Vec<Vec<K::Operation>>,
}

impl<K: Family> History<K> {
    pub(crate) fn new(kind: K) -> Self {
        Self {
            options: kind.into(),
            keys: K::usual_keys(),
            before: Vec::new(),
            threads: Vec::new(),
        }
    }
}

/// A mutation of what was recorded: a flush or a fence is left out, a commit is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Flushes of this name are left out.
    NoFlush(&'static str),
    /// Fences of this name are left out.
    NoFence(&'static str),
    /// Commits of this name come before what they depend on.
    EarlyCommit(&'static str),
    /// Of two commits in a row the first is durable only after the second. A `*` in a name stands for any text.
    Swapped(&'static str, &'static str),
}

/// A mutation that changes nothing which a crash could show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EquivalentMutant {
    /// The mutation.
    pub mutant: Mutant,
    /// Why no crash shows it.
    pub reason: &'static str,
    /// A crash can show the mutation after all, but so seldom that some sets of recordings do not contain such a crash.
    pub is_seldom_found: bool,
}

impl EquivalentMutant {
    pub(crate) const fn new(mutant: Mutant, reason: &'static str) -> Self {
        Self {
            mutant,
            reason,
            is_seldom_found: false,
        }
    }

    pub(crate) const fn seldom(mutant: Mutant, reason: &'static str) -> Self {
        Self {
            is_seldom_found: true,
            ..Self::new(mutant, reason)
        }
    }
}

/// Whether `name` matches `pattern`: a whole name, or one in which `*` stands for any text.
#[must_use]
pub fn is_named(name: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        Some((beginning, end)) => name
            .strip_prefix(beginning)
            .is_some_and(|rest| rest.ends_with(end)),
        None => name == pattern,
    }
}

macro_rules! suites {
    ($Kind:ident; $($(#[$doc:meta])+ $variant:ident = $code:literal, $name:literal, $folder:ident, $options:ident;)+) => {
        impl $Kind {
            /// What the crash checker has to know of this kind.
            #[must_use]
            pub fn suite(self) -> &'static dyn Suite<Self> {
                match self {
                    $(Self::$variant => &super::$folder::testing::Testing,)+
                }
            }
        }
    };
}
ordered_engines!(suites, {
    Kind;
});
spatial_engines!(suites, {
    SpatialKind;
});
string_engines!(suites, {
    StringKind;
});

impl Family for Kind {
    type Keys = Keys;
    type Operation = Operation;

    fn suite(self) -> &'static dyn Suite {
        Self::suite(self)
    }

    fn usual_keys() -> Keys {
        Keys::Dense
    }

    fn any_history(self, theme: u64, seed: u64, size: Size) -> History {
        any_history(self, theme, seed, size)
    }
}

/// Bugs, commit points and structure changes of the pool and the host.
pub mod common {
    use super::Mutant::{EarlyCommit, NoFence, NoFlush, Swapped};
    use super::{EquivalentMutant, StructureChange};
    use crate::pmem::planted::Bug;

    /// Bugs that can be planted in the pool and in the host.
    pub fn bugs() -> impl Iterator<Item = &'static Bug> {
        crate::pool::Bug::ALL.iter().chain(crate::host::Bug::ALL)
    }

    /// Commit points of the pool and the host.
    pub const COMMITS: &[&str] = &[
        "pool.create",
        "pool.drop",
        "pool.free",
        "pool.rename",
        "pool.take",
        "pool.take-run",
        "pool.wipe",
    ];

    /// Changes of the superblock, which commit by its checksum and not by one store.
    pub const CHECKSUMS: &[&str] = &["pool.open", "pool.grow", "pool.shrink", "pool.close"];

    /// Names of stores that commit nothing, but that the lists of equivalent mutants refer to.
    pub const OTHER_NAMES: &[&str] = &["host.count", "pool.free-continuations"];

    /// Changes of structure that the histories of some kind of index have to provoke.
    pub const CHANGES: &[StructureChange] = &[
        StructureChange::new("open"),
        StructureChange::new("object created"),
        StructureChange::new("object dropped"),
        StructureChange::with_variants("object renamed", 2),
        StructureChange::new("extent taken"),
        StructureChange::new("extent freed"),
        StructureChange::new("file growth"),
        StructureChange::new("file shrink"),
        StructureChange::new("clean close"),
    ];

    const WIPE: &str = "what is not wiped for good is wiped again";
    const HEADLESS: &str = "a continuation without a head is free";
    const HINT: &str = "a number that is not durable is not believed";

    /// Mutations of the pool and the host that no crash shows.
    pub const EQUIVALENT: &[EquivalentMutant] = &[
        EquivalentMutant::new(NoFlush("host.count"), HINT),
        EquivalentMutant::new(NoFence("host.count"), HINT),
        EquivalentMutant::new(NoFlush("pool.wipe"), WIPE),
        EquivalentMutant::new(NoFence("pool.wipe"), WIPE),
        EquivalentMutant::new(NoFlush("pool.free-continuations"), HEADLESS),
        EquivalentMutant::new(NoFence("pool.free-continuations"), HEADLESS),
        EquivalentMutant::new(EarlyCommit("pool.drop"), "a removal depends on nothing"),
        EquivalentMutant::new(
            EarlyCommit("pool.take"),
            "nothing lies in the extent as yet",
        ),
        EquivalentMutant::seldom(
            Swapped("pool.free", "pool.take*"),
            "nothing lies in the extent as yet, unless it begins a run that takes in one that was freed",
        ),
        EquivalentMutant::new(
            Swapped("*", "pool.take*"),
            "nothing lies in the extent as yet",
        ),
        EquivalentMutant::new(
            Swapped("pool.free", "*.load"),
            "an extent that is found owned is swept",
        ),
    ];
}

/// An operation on the map of a [`History`], or on its pool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Operation {
    Get(u64),
    GetBatch(Vec<u64>),
    Insert(u64, u64),
    InsertNew(u64, u64),
    Update(u64, u64),
    Remove(u64),
    CompareExchange(u64, Option<u64>, Option<u64>),
    /// The value is read in parts, of a map of byte strings.
    GetInParts(u64),
    /// The value is written in parts, to a map of byte strings, while another writer of the key is given up.
    InsertInParts(u64, u64),
    InsertBatch(Vec<(u64, u64)>),
    /// From the first to the last of these keys, which are all that there may be in between; backwards.
    Range(Vec<u64>, bool),
    BulkLoad(Vec<(u64, u64)>),
    /// Another map is created, which takes an extent.
    CreateOther,
    /// The other map gets its second name, or its first one again.
    RenameOther(bool),
    /// The other map is dropped, and its extents become free.
    DropOther,
    Shrink,
    /// The part of the map in DRAM is freed, as far as it can be rebuilt.
    ReleaseMemory,
    /// The other map, which has no run of extents, takes one, as a large block would.
    TakeRun(u64),
    /// The other map frees its run of extents.
    FreeRun,
    /// The pool is closed cleanly and opened again.
    Reopen,
}

use Operation::{
    BulkLoad, CompareExchange, CreateOther, DropOther, FreeRun, Get, GetBatch, Insert, InsertBatch,
    InsertNew, Range as RangeOf, ReleaseMemory, Remove, RenameOther, Reopen, Shrink, TakeRun,
    Update,
};

/// How the keys of a history lie in their domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Side by side, from 0 on.
    Dense,
    /// Equally far apart, over a part of the domain that has a simple beginning.
    Even,
    /// Anywhere, in no order.
    Wide,
    /// 32 close together, and the next ones far away.
    Clusters,
    /// Ever farther apart.
    Ladder,
    /// At both ends of the domain.
    Ends,
    /// Equally far apart, up to the end of the domain, for numbers up to 1,150.
    Top,
    /// In ever longer stretches, for numbers from 900 on.
    Octaves,
    /// Equally far apart, from the middle of the domain, where the first node of a map is divided, for numbers from 870 on.
    Middle,
}

/// Keys of a stretch of [`Keys::Octaves`].
const OCTAVE: u64 = 32;

impl Keys {
    /// All ways.
    pub const ALL: &[Self] = &[
        Self::Dense,
        Self::Even,
        Self::Wide,
        Self::Clusters,
        Self::Ladder,
        Self::Ends,
        Self::Top,
        Self::Octaves,
        Self::Middle,
    ];

    /// The key of a number.
    #[must_use]
    pub fn key(self, number: u64) -> u64 {
        match self {
            Self::Dense => number,
            Self::Even => (1 << 62) + (number << 40),
            Self::Wide => number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            Self::Clusters => ((number / 32) << 44) + number % 32 * (1 + number / 32 % 3),
            Self::Ladder => (1 << (number % 48 + 12)) + number / 48,
            Self::Octaves => {
                let number = number.saturating_sub(900);
                (OCTAVE + number % OCTAVE) << (number / OCTAVE + 20).min(50)
            }
            Self::Top => u64::MAX - ((1_150_u64.saturating_sub(number)) << 40),
            Self::Middle => (1 << 63) + (number.saturating_sub(870) << 40),
            Self::Ends if number.is_multiple_of(2) => number / 2,
            Self::Ends => u64::MAX - number / 2,
        }
    }

    /// The first number that the others are told from: of the numbers before it, some have the same key.
    #[must_use]
    pub fn first(self) -> u64 {
        match self {
            Self::Octaves => 900,
            Self::Middle => 870,
            Self::Top => 900,
            _ => 0,
        }
    }

    /// The keys of some numbers, in order.
    pub fn some(self, numbers: impl Iterator<Item = u64>) -> Vec<u64> {
        let mut keys: Vec<u64> = numbers.map(|number| self.key(number)).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

/// Keys in a batch of [`any_history`].
const BATCH: u64 = 12;

/// A history for an engine that has none of its own: on few keys, so that threads meet; theme 0 grows and shrinks the map, theme 1
/// has everything.
pub(crate) fn any_history(kind: Kind, theme: u64, seed: u64, size: Size) -> History {
    let mut random = SmallRng::seed_from_u64(seed);
    let keys = Keys::ALL[random.random_range(0..Keys::ALL.len())];
    let most: u64 = [20, 60, 120][random.random_range(0..3)];
    let before = random.random_range(0..most);
    let (mut other, mut has_second_name) = (Other::Absent, false);
    let mut value = 0;
    // A range names every key that there may be between its ends: batches go a little beyond the other operations.
    let all = keys.some(0..most + BATCH);
    let mut one = |i: u64| {
        value += 1;
        let number = random.random_range(0..most);
        let key = keys.key(number);
        let some = |count| keys.some(number..number + count);
        match (theme, random.random_range(0..16)) {
            (0, 0..14) if (i / most).is_multiple_of(2) => Insert(keys.key(i % most), value),
            (0, 0..14) => Remove(keys.key(i % most)),
            (_, 0..4) => Insert(key, value),
            (_, 4..6) => Remove(key),
            (_, 6) => InsertNew(key, value),
            (_, 7) => Update(key, value),
            (_, 8) => CompareExchange(key, None, Some(value)),
            (_, 9) => CompareExchange(key, Some(value / 2), None),
            (_, 10) => Get(key),
            (_, 11) => RangeOf(all.clone(), value % 2 == 0),
            (_, 12) => GetBatch(some(BATCH)),
            (_, 13) if size.threads < 2 && value % 4 == 0 => Reopen,
            (_, 13 | 14) => InsertBatch(some(BATCH).into_iter().map(|key| (key, value)).collect()),
            _ if size.threads > 1 => Shrink,
            _ if other != Other::Absent && value % 2 == 0 => {
                has_second_name = !has_second_name;
                RenameOther(has_second_name)
            }
            _ => {
                let operation = in_catalog(false, &mut random, &mut other);
                has_second_name &= other != Other::Absent;
                operation
            }
        }
    };
    let threads = size.threads.max(1) as u64;
    let per_thread = (size.operations as u64 / threads).max(1);
    let threads = (0..threads)
        .map(|_| (0..per_thread).map(&mut one).collect())
        .collect();
    History {
        keys,
        before: (0..before).map(|i| Insert(keys.key(i), i)).collect(),
        threads,
        ..History::new(kind)
    }
}

/// What has become of the other map.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Other {
    Absent,
    There,
    HasRun,
}

/// An operation on the pool rather than the map. An index with blocks of all sizes sweeps runs that it does not know, so
/// those are only taken for one without.
pub(crate) fn in_catalog(has_runs: bool, random: &mut SmallRng, other: &mut Other) -> Operation {
    let most = if has_runs { 9 } else { 6 };
    let (operation, now) = match (random.random_range(0..most), *other) {
        (0..3, now) => (Shrink, now),
        (_, Other::Absent) => (CreateOther, Other::There),
        (6..9, Other::There) => (TakeRun(random.random_range(2..4)), Other::HasRun),
        (6..9, Other::HasRun) => (FreeRun, Other::There),
        _ => (DropOther, Other::Absent),
    };
    *other = now;
    operation
}

/// Now and then the mirrors are given up, and are made anew on first touch.
pub(crate) fn with_releases(threads: &mut [Vec<Operation>], random: &mut SmallRng) {
    for operations in threads {
        let own = std::mem::take(operations);
        for operation in own {
            if random.random_ratio(1, 8) {
                operations.push(ReleaseMemory);
            }
            operations.push(operation);
        }
    }
}

/// Removes whatever is there before each bulk load.
pub(crate) fn only_loads_into_empty(operations: Vec<Operation>) -> Vec<Operation> {
    let mut present = std::collections::BTreeSet::new();
    let mut result = Vec::new();
    for operation in operations {
        match &operation {
            BulkLoad(records) => {
                // From both ends, so that leaves merge with either neighbour.
                let keys: Vec<u64> = std::mem::take(&mut present).into_iter().collect();
                let (low, high) = keys.split_at(keys.len() / 2);
                result.extend(low.iter().chain(high.iter().rev()).map(|&key| Remove(key)));
                present.extend(records.iter().map(|record| record.0));
            }
            Remove(key) => {
                present.remove(key);
            }
            _ => {}
        }
        result.push(operation);
    }
    result
}
