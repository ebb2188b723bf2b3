//! What may be chosen about an index of the kind APEX.

use crate::{Error, Result};

/// How a new map of the kind [`Apex`](crate::Kind::Apex) is laid out. The defaults are best for most; to measure others is what this
/// is for (APEX, section 6.5). It is recorded in the pool with the map, and read when nodes are laid out, never by an operation.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{ApexTuning, Kind, MapOptions, Pool};
/// let apex = ApexTuning { max_data_bytes: 16 << 10, ..ApexTuning::default() };
/// let options = MapOptions { kind: Kind::Apex, apex, ..MapOptions::default() };
/// let map = Pool::in_memory()?.map_with::<u64, u64>("small nodes", options)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApexTuning {
    /// Bytes of the largest data node: a power of two, from 1 KiB to 256 KiB, the default. There are no larger ones: a slot's
    /// number has 14 bits.
    pub max_data_bytes: u32,
    /// Bytes that the slots of the largest inner node take: a power of two, from 512 to 16 MiB, the default.
    pub max_inner_bytes: u32,
    /// Slots of a data node that are stash, in percent: 1 to 90. `None`, the default: 5 to 30, by how many of the node's keys
    /// overflow (section 4.5).
    pub stash_percent: Option<u8>,
    /// Records per slot in a data node that has just been laid out for inserts, at most, in percent: 40 to 80, 65 by default. As sizes
    /// of nodes are powers of two, it is three quarters of that on average. More saves space, and nodes change more often.
    pub fill_percent: u8,
}

const MAX_DATA_BYTES: u32 = 256 << 10;
const MAX_INNER_BYTES: u32 = 16 << 20;
const FILL_PERCENT: u8 = 65;

impl Default for ApexTuning {
    fn default() -> Self {
        Self {
            max_data_bytes: MAX_DATA_BYTES,
            max_inner_bytes: MAX_INNER_BYTES,
            stash_percent: None,
            fill_percent: FILL_PERCENT,
        }
    }
}

impl ApexTuning {
    /// The word of the catalog for it, a byte for each choice, 0 for the default.
    pub(crate) fn to_word(self) -> Result<u32> {
        let size = |what: &str, bytes: u32, least: u32, most: u32| {
            if bytes.is_power_of_two() && (least..=most).contains(&bytes) {
                Ok(most.ilog2() - bytes.ilog2())
            } else {
                Err(Error::BadOption(format!(
                    "the largest {what} node has a power of two of bytes, {least} to {most}, not {bytes}"
                )))
            }
        };
        let percent = |what: &str, percent: u8, least: u8, most: u8| {
            if (least..=most).contains(&percent) {
                Ok(u32::from(percent))
            } else {
                Err(Error::BadOption(format!(
                    "{what} {least} to {most} percent, not {percent}"
                )))
            }
        };
        let data = size("data", self.max_data_bytes, 1 << 10, MAX_DATA_BYTES)?;
        let inner = size("inner", self.max_inner_bytes, 512, MAX_INNER_BYTES)?;
        let stash = match self.stash_percent {
            Some(share) => percent("a stash takes", share, 1, 90)?,
            None => 0,
        };
        let fill = match self.fill_percent {
            FILL_PERCENT => 0,
            fill => percent("nodes are laid out to be full to", fill, 40, 80)?,
        };
        Ok(data | inner << 8 | stash << 16 | fill << 24)
    }

    /// The opposite, for words from the file.
    pub(crate) fn from_word(word: u32) -> Result<Self> {
        let [data, inner, stash, fill] = word.to_le_bytes();
        let halved = |bytes: u32, times: u8| bytes.checked_shr(times.into()).unwrap_or(0);
        let tuning = Self {
            max_data_bytes: halved(MAX_DATA_BYTES, data),
            max_inner_bytes: halved(MAX_INNER_BYTES, inner),
            stash_percent: (stash > 0).then_some(stash),
            fill_percent: if fill == 0 { FILL_PERCENT } else { fill },
        };
        match tuning.to_word() {
            Ok(known) if known == word => Ok(tuning),
            _ => Err(Error::Damaged(format!(
                "{word:#x} does not say how a map is laid out"
            ))),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn words_say_what_was_chosen() {
        assert_eq!(ApexTuning::default().to_word().unwrap(), 0);
        for (data, inner, stash, fill) in [
            (1 << 10, 512, Some(1), 40),
            (4 << 10, 16 << 20, Some(90), 80),
            (256 << 10, 4096, None, 65),
        ] {
            let tuning = ApexTuning {
                max_data_bytes: data,
                max_inner_bytes: inner,
                stash_percent: stash,
                fill_percent: fill,
            };
            let word = tuning.to_word().unwrap();
            assert_eq!(ApexTuning::from_word(word).unwrap(), tuning);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let default = ApexTuning::default();
        for tuning in [
            ApexTuning {
                max_data_bytes: 0,
                ..default
            },
            ApexTuning {
                max_data_bytes: 5000,
                ..default
            },
            ApexTuning {
                max_data_bytes: 512 << 10,
                ..default
            },
            ApexTuning {
                max_inner_bytes: 256,
                ..default
            },
            ApexTuning {
                max_inner_bytes: u32::MAX,
                ..default
            },
            ApexTuning {
                stash_percent: Some(0),
                ..default
            },
            ApexTuning {
                stash_percent: Some(91),
                ..default
            },
            ApexTuning {
                fill_percent: 39,
                ..default
            },
            ApexTuning {
                fill_percent: 0,
                ..default
            },
            ApexTuning {
                fill_percent: 100,
                ..default
            },
        ] {
            let refused = tuning.to_word();
            assert!(matches!(refused, Err(Error::BadOption(_))), "{tuning:?}");
        }
        for word in [9, 255, 99 << 8, 91 << 16, 65 << 24, 100 << 24] {
            let read = ApexTuning::from_word(word);
            assert!(matches!(read, Err(Error::Damaged(_))), "{word:#x}");
        }
    }
}
