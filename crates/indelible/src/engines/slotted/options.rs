//! What can be chosen when a map of byte strings is created.

use super::layout::MAX_WORDS;
use super::sizes::{BYTES, Size, Sizes};
use crate::engines::{
    EngineOptions, OptionBytes, OptionInfo, STRING_OPTION_BYTES, bytes_text, parse_bytes,
};
use crate::pmem::geometry::sized;
use crate::{Error, Result};

/// The usual size of a leaf.
const USUAL_BYTES: u32 = sized(1024, 512) as u32;
/// The option's value for leaves whose size follows from their records.
const ANY: &str = "any";
/// The format since which leaves of a map may differ in size.
const FORMAT_OF_SIZES: u32 = 2;

const _: () = assert!(BYTES[BYTES.len() - 1] as usize == 8 * MAX_WORDS);

/// Options of a map of byte strings whose records lie in slotted leaves.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{Pool, SlottedOptions};
/// let pool = Pool::in_memory()?;
/// let map = pool.bytes_with("names", SlottedOptions::default().leaf_bytes(2048))?;
/// map.insert("key", "value")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlottedOptions {
    /// Bytes in a leaf, if all have the same size.
    leaf_bytes: Option<u32>,
}

impl SlottedOptions {
    /// Bytes in every leaf: 512, 1024 or 2048. Keys of up to a quarter of a leaf, and values of up to a quarter, lie in the leaf; longer ones lie in
    /// blocks of their own.
    ///
    /// By default the size of a leaf follows from its records, and keys of up to 256 and values of up to 512 bytes lie in the leaf. A map
    /// that was made with the default by an earlier version has leaves of 1024 bytes, and values of up to 256 bytes lie in them.
    ///
    /// # Examples
    ///
    /// ```
    /// let options = indelible::SlottedOptions::default().leaf_bytes(2048);
    /// assert_ne!(options, indelible::SlottedOptions::default());
    /// ```
    #[must_use]
    pub fn leaf_bytes(self, bytes: u32) -> Self {
        Self {
            leaf_bytes: Some(bytes),
        }
    }

    /// The sizes of the leaves of a map with these options.
    pub(super) fn sizes(&self) -> Sizes {
        let usual = self.leaf_bytes.unwrap_or(USUAL_BYTES);
        Sizes {
            usual: Size::of_bytes(usual).expect("`decode` and `encode` know the sizes"),
            differ: self.leaf_bytes.is_none(),
        }
    }
}

impl EngineOptions for SlottedOptions {
    const FORMAT: u32 = FORMAT_OF_SIZES;

    const LIST: &'static [OptionInfo] = &[OptionInfo::new(
        "leaf",
        "any, 512, 1024 or 2048 bytes",
        "bytes in a leaf: keys and values of up to a quarter of it lie in the leaf; any: as its records need them",
    )];

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        self.leaf_bytes = match value {
            ANY => None,
            _ => Some(parse_bytes(name, value)?),
        };
        Ok(())
    }

    fn get(&self, _: &str) -> String {
        self.leaf_bytes.map_or_else(|| ANY.into(), bytes_text)
    }

    fn encode(&self) -> Result<OptionBytes> {
        let mut bytes = OptionBytes::default();
        if let Some(leaf_bytes) = self.leaf_bytes {
            if !BYTES.contains(&leaf_bytes) {
                return Err(Error::BadOption(format!(
                    "a leaf has 512, 1024 or 2048 bytes, not {leaf_bytes}"
                )));
            }
            bytes[0] = (leaf_bytes / 256) as u8;
        }
        Ok(bytes)
    }

    fn decode(format: u32, bytes: &OptionBytes) -> Result<Self> {
        let leaf_bytes = match bytes[0] {
            // The default was the usual size then, and was encoded as 0 when it was asked for, too.
            0 if format < FORMAT_OF_SIZES => Some(USUAL_BYTES),
            0 => None,
            size => Some(u32::from(size) * 256),
        };
        if leaf_bytes.is_some_and(|bytes| !BYTES.contains(&bytes))
            || bytes[1..STRING_OPTION_BYTES].iter().any(|&byte| byte != 0)
        {
            return Err(Error::Damaged("no options of a map of byte strings".into()));
        }
        Ok(Self { leaf_bytes })
    }

    fn extremes() -> Vec<Self> {
        let fixed = BYTES.map(|bytes| Self::default().leaf_bytes(bytes));
        fixed.into_iter().chain([Self::default()]).collect()
    }
}
