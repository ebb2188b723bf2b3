//! What the writers write to: a map of words, a map of byte strings whose keys and values stand for words, or a spatial index whose
//! records do.

use super::places::{Places, PlacesOf};
use super::{MAP, mix};
use crate::commands::{MapArgs, ObjectArgs};
use crate::shapes::with_geometry;
use anyhow::{Context, Result};
use clap::Args;
use indelible::{BytesMap, GeometryType, Map, Pool, SpatialOptions};
use std::sync::Arc;

/// What the writers' object is.
#[derive(Args, Clone)]
pub struct TargetArgs {
    #[command(flatten)]
    object: ObjectArgs,
    /// The shapes of a spatial index: point2, point3, box2 or box3; point2 if not given.
    #[arg(long)]
    geometry: Option<GeometryType>,
}

impl From<MapArgs> for TargetArgs {
    fn from(args: MapArgs) -> Self {
        Self {
            object: args.into(),
            geometry: None,
        }
    }
}

impl TargetArgs {
    /// The words of a command line that say the same.
    pub fn words(&self) -> Vec<String> {
        let mut words = self.object.words();
        if let Some(geometry) = self.geometry {
            words.extend(["--geometry".into(), geometry.to_string()]);
        }
        words
    }

    /// What the command line says, or what it is if that says nothing.
    pub fn text(&self) -> Result<String> {
        Ok(match self.of_spatial() {
            Some(geometry) => format!("{} of {geometry}", self.spatial_options()?),
            None => self.object.text(),
        })
    }

    fn spatial_options(&self) -> Result<SpatialOptions> {
        self.object.of_spatial(SpatialOptions::default())
    }

    /// The shapes of the spatial index, if it is one.
    fn of_spatial(&self) -> Option<GeometryType> {
        let usual = self.object.is_spatial().then_some(GeometryType::Point2);
        self.geometry.or(usual)
    }
}

/// The writers' object.
#[derive(Clone)]
pub enum Target {
    Words(Map<u64, u64>),
    Strings(BytesMap),
    Places(Arc<dyn Places>),
}

impl Target {
    /// The object of a pool, which a writer that was killed early may not have made.
    pub fn open(pool: &Pool, new: &TargetArgs) -> Result<Self> {
        if let Some(geometry) = new.of_spatial() {
            let options = new.spatial_options()?;
            return with_geometry!(geometry, G => {
                Ok(Self::Places(Arc::new(PlacesOf::<G>::open(pool, options)?)))
            });
        }
        Ok(match new.object.of_strings() {
            Some(options) => Self::Strings(pool.bytes_with(MAP, options)?),
            None => Self::Words(pool.map_with(MAP, new.object.of_map()?)?),
        })
    }

    pub fn insert(&self, key: u64, value: u64) -> Result<()> {
        match self {
            Self::Words(map) => drop(map.insert(key, value)?),
            Self::Strings(map) => drop(map.insert(key_of(key), value_of(value))?),
            Self::Places(places) => places.insert(key, value)?,
        }
        Ok(())
    }

    pub fn remove(&self, key: u64) -> Result<()> {
        match self {
            Self::Words(map) => drop(map.remove(key)?),
            Self::Strings(map) => drop(map.remove(key_of(key))?),
            Self::Places(places) => places.remove(key)?,
        }
        Ok(())
    }

    /// Asks for something, whatever the answer.
    pub fn first_answer(&self, key: u64) -> Result<()> {
        match self {
            Self::Places(places) => places.first_answer(),
            _ => self.get(key).map(drop),
        }
    }

    pub fn get(&self, key: u64) -> Result<Option<u64>> {
        match self {
            Self::Words(map) => Ok(map.get(key)?),
            Self::Strings(map) => {
                let value = map.get(key_of(key))?;
                value.map(|value| number_of_value(&value)).transpose()
            }
            Self::Places(places) => places.get(key),
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
            Self::Places(places) => places.records(),
        }
    }

    pub fn check(&self) -> indelible::Result<Vec<String>> {
        match self {
            Self::Words(map) => map.check(),
            Self::Strings(map) => map.check(),
            Self::Places(places) => places.check(),
        }
    }

    pub fn len(&self) -> indelible::Result<u64> {
        match self {
            Self::Words(map) => map.len(),
            Self::Strings(map) => map.len(),
            Self::Places(places) => places.len(),
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
