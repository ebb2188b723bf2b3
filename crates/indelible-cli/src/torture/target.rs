//! What the writers write to: a map of words, or a map of byte strings whose keys and values stand for words.

use super::{MAP, mix};
use crate::commands::ObjectArgs;
use anyhow::{Context, Result};
use indelible::{BytesMap, Map, Pool};

/// The writers' map.
#[derive(Clone)]
pub enum Target {
    Words(Map<u64, u64>),
    Strings(BytesMap),
}

impl Target {
    /// The map of a pool, which a writer that was killed early may not have made.
    pub fn open(pool: &Pool, new: &ObjectArgs) -> Result<Self> {
        Ok(match new.of_strings() {
            Some(options) => Self::Strings(pool.bytes_with(MAP, options)?),
            None => Self::Words(pool.map_with(MAP, new.of_map()?)?),
        })
    }

    pub fn insert(&self, key: u64, value: u64) -> indelible::Result<()> {
        match self {
            Self::Words(map) => map.insert(key, value).map(drop),
            Self::Strings(map) => map.insert(key_of(key), value_of(value)).map(drop),
        }
    }

    pub fn remove(&self, key: u64) -> indelible::Result<()> {
        match self {
            Self::Words(map) => map.remove(key).map(drop),
            Self::Strings(map) => map.remove(key_of(key)).map(drop),
        }
    }

    pub fn get(&self, key: u64) -> Result<Option<u64>> {
        match self {
            Self::Words(map) => Ok(map.get(key)?),
            Self::Strings(map) => {
                let value = map.get(key_of(key))?;
                value.map(|value| number_of_value(&value)).transpose()
            }
        }
    }

    /// All records, in the order of the numbers that their keys stand for.
    pub fn records(&self) -> Result<Vec<(u64, u64)>> {
        match self {
            Self::Words(map) => Ok(map.iter().collect::<indelible::Result<_>>()?),
            Self::Strings(map) => {
                let numbers = map.iter().map(|record| {
                    let (key, value) = record?;
                    Ok((number_of_key(&key)?, number_of_value(&value)?))
                });
                let mut records = numbers.collect::<Result<Vec<_>>>()?;
                records.sort_unstable();
                Ok(records)
            }
        }
    }

    pub fn check(&self) -> indelible::Result<Vec<String>> {
        match self {
            Self::Words(map) => map.check(),
            Self::Strings(map) => map.check(),
        }
    }

    pub fn len(&self) -> indelible::Result<u64> {
        match self {
            Self::Words(map) => map.len(),
            Self::Strings(map) => map.len(),
        }
    }
}

/// What all keys begin with.
const HOST: &str = "https://example.org/";

/// The key of a number: most have 40 to 60 bytes, and some are so long that they are blobs.
fn key_of(number: u64) -> Vec<u8> {
    let random = mix(number);
    let segments = if random.is_multiple_of(32) {
        40
    } else {
        random >> 8 & 3
    };
    let tail = "segment/".repeat(segments as usize);
    format!("{HOST}{:02x}/{number:016x}/{tail}", random >> 40 & 15).into_bytes()
}

fn number_of_key(key: &[u8]) -> Result<u64> {
    let from = HOST.len() + 3;
    let digits = key
        .get(from..from + 16)
        .and_then(|digits| std::str::from_utf8(digits).ok());
    digits
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .filter(|&number| key_of(number) == key)
        .with_context(|| format!("a key that nobody wrote: {key:?}"))
}

/// The value of a number: the number, and bytes that depend on it. Most have 8 bytes, and some are blobs of various sizes.
fn value_of(number: u64) -> Vec<u8> {
    let random = mix(number ^ 0x5bd1);
    let more = match random % 16 {
        0..9 => 0,
        9..13 => random >> 8 & 127,
        13..15 => random >> 8 & 1023,
        _ => random >> 8 & 0x3fff,
    };
    let mut value = number.to_ne_bytes().to_vec();
    value.extend((0..more).map(|at| (number + at) as u8));
    value
}

fn number_of_value(value: &[u8]) -> Result<u64> {
    value
        .first_chunk()
        .map(|&bytes| u64::from_ne_bytes(bytes))
        .filter(|&number| value_of(number) == value)
        .with_context(|| format!("a value of {} bytes that nobody wrote", value.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_stand_for_their_numbers() {
        for number in (0..5_000).chain([u64::MAX, 1 << 40]) {
            assert_eq!(number_of_key(&key_of(number)).unwrap(), number);
            assert_eq!(number_of_value(&value_of(number)).unwrap(), number);
        }
        assert!(number_of_key(b"https://example.org/").is_err());
        assert!(number_of_value(&[1; 9]).is_err());
    }
}
