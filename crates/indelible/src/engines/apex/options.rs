//! What can be chosen about an APEX.

use crate::engines::{
    EngineOptions, OptionBytes, OptionInfo, bytes_text, parse_bytes, parse_number,
};
use crate::{Error, Result};

/// How a new APEX is laid out. The defaults are best for most; to measure others is what this is for (APEX, section 6.5). It is
/// recorded in the pool with the map, and read when nodes are laid out, never by an operation.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{ApexOptions, Pool};
/// let options = ApexOptions::default().max_data_bytes(16 << 10);
/// let map = Pool::in_memory()?.map_with::<u64, u64>("small nodes", options)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApexOptions {
    max_data_bytes: u32,
    max_inner_bytes: u32,
    stash_percent: Option<u8>,
    fill_percent: u8,
}

const MAX_DATA_BYTES: u32 = 256 << 10;
const MAX_INNER_BYTES: u32 = 16 << 20;
const FILL_PERCENT: u8 = 65;

impl Default for ApexOptions {
    fn default() -> Self {
        Self {
            max_data_bytes: MAX_DATA_BYTES,
            max_inner_bytes: MAX_INNER_BYTES,
            stash_percent: None,
            fill_percent: FILL_PERCENT,
        }
    }
}

impl ApexOptions {
    /// Bytes of the largest data node: a power of two, from 1 KiB to 256 KiB, the default. There are no larger ones: a slot's
    /// number has 14 bits.
    #[must_use]
    pub fn max_data_bytes(mut self, bytes: u32) -> Self {
        self.max_data_bytes = bytes;
        self
    }

    /// Bytes that the slots of the largest inner node take: a power of two, from 512 to 16 MiB, the default.
    #[must_use]
    pub fn max_inner_bytes(mut self, bytes: u32) -> Self {
        self.max_inner_bytes = bytes;
        self
    }

    /// Slots of a data node that are stash, in percent: 1 to 90. `None`, the default: 5 to 30, by how many of the node's keys
    /// overflow (section 4.5).
    #[must_use]
    pub fn stash_percent(mut self, percent: impl Into<Option<u8>>) -> Self {
        self.stash_percent = percent.into();
        self
    }

    /// Records per slot in a data node that has just been laid out for inserts, at most, in percent: 40 to 80, 65 by default. As sizes
    /// of nodes are powers of two, it is three quarters of that on average. More saves space, and nodes change more often.
    #[must_use]
    pub fn fill_percent(mut self, percent: u8) -> Self {
        self.fill_percent = percent;
        self
    }

    pub(super) fn data_bytes(self) -> u32 {
        self.max_data_bytes
    }

    pub(super) fn inner_bytes(self) -> u32 {
        self.max_inner_bytes
    }

    pub(super) fn stash(self) -> Option<u8> {
        self.stash_percent
    }

    pub(super) fn fill(self) -> u8 {
        self.fill_percent
    }

    /// The word of the catalog for it, a byte for each choice, 0 for the default.
    fn to_word(self) -> Result<u32> {
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
    fn from_word(word: u32) -> Result<Self> {
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

impl EngineOptions for ApexOptions {
    /// 2 since neither the key of a free slot nor the word of a slot without a link is ever zero; see `format`.
    const FORMAT: u32 = 2;

    const LIST: &'static [OptionInfo] = &[
        OptionInfo::new(
            "data",
            "a power of two, 1K to 256K",
            "bytes of the largest data node",
        ),
        OptionInfo::new(
            "inner",
            "a power of two, 512 to 16M",
            "bytes of the slots of the largest inner node",
        ),
        OptionInfo::new(
            "stash",
            "auto, or 1 to 90",
            "percent of a data node's slots that are stash",
        ),
        OptionInfo::new(
            "fill",
            "40 to 80",
            "records per slot of a new data node, at most, in percent",
        ),
    ];

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "data" => self.max_data_bytes = parse_bytes(name, value)?,
            "inner" => self.max_inner_bytes = parse_bytes(name, value)?,
            "stash" if value == "auto" => self.stash_percent = None,
            "stash" => self.stash_percent = Some(parse_number(name, value)?),
            _ => self.fill_percent = parse_number(name, value)?,
        }
        Ok(())
    }

    fn get(&self, name: &str) -> String {
        match name {
            "data" => bytes_text(self.max_data_bytes),
            "inner" => bytes_text(self.max_inner_bytes),
            "stash" => self
                .stash_percent
                .map_or("auto".into(), |percent| percent.to_string()),
            _ => self.fill_percent.to_string(),
        }
    }

    /// The first four bytes are a byte for each choice, 0 for the default.
    fn encode(&self) -> Result<OptionBytes> {
        let mut bytes = OptionBytes::default();
        bytes[..4].copy_from_slice(&self.to_word()?.to_le_bytes());
        Ok(bytes)
    }

    fn decode(_: u32, bytes: &OptionBytes) -> Result<Self> {
        let ([a, b, c, d], rest) = bytes.split_first_chunk().expect("there are more bytes");
        if rest.iter().any(|&byte| byte != 0) {
            return Err(Error::Damaged("the options of an APEX".into()));
        }
        Self::from_word(u32::from_le_bytes([*a, *b, *c, *d]))
    }

    fn extremes() -> Vec<Self> {
        vec![
            Self::default().max_data_bytes(1 << 10).max_inner_bytes(512),
            Self::default().stash_percent(1).fill_percent(80),
            Self::default().stash_percent(90).fill_percent(40),
        ]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn words_say_what_was_chosen() {
        assert_eq!(ApexOptions::default().to_word().unwrap(), 0);
        for (data, inner, stash, fill) in [
            (1 << 10, 512, Some(1), 40),
            (4 << 10, 16 << 20, Some(90), 80),
            (256 << 10, 4096, None, 65),
        ] {
            let tuning = ApexOptions {
                max_data_bytes: data,
                max_inner_bytes: inner,
                stash_percent: stash,
                fill_percent: fill,
            };
            let word = tuning.to_word().unwrap();
            assert_eq!(ApexOptions::from_word(word).unwrap(), tuning);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let default = ApexOptions::default();
        for tuning in [
            ApexOptions {
                max_data_bytes: 0,
                ..default
            },
            ApexOptions {
                max_data_bytes: 5000,
                ..default
            },
            ApexOptions {
                max_data_bytes: 512 << 10,
                ..default
            },
            ApexOptions {
                max_inner_bytes: 256,
                ..default
            },
            ApexOptions {
                max_inner_bytes: u32::MAX,
                ..default
            },
            ApexOptions {
                stash_percent: Some(0),
                ..default
            },
            ApexOptions {
                stash_percent: Some(91),
                ..default
            },
            ApexOptions {
                fill_percent: 39,
                ..default
            },
            ApexOptions {
                fill_percent: 0,
                ..default
            },
            ApexOptions {
                fill_percent: 100,
                ..default
            },
        ] {
            let refused = tuning.to_word();
            assert!(matches!(refused, Err(Error::BadOption(_))), "{tuning:?}");
        }
        for word in [9, 255, 99 << 8, 91 << 16, 65 << 24, 100 << 24] {
            let read = ApexOptions::from_word(word);
            assert!(matches!(read, Err(Error::Damaged(_))), "{word:#x}");
        }
    }
}
