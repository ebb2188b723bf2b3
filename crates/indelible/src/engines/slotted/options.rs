//! What can be chosen when a map of byte strings is created.

use super::layout::MAX_WORDS;
use crate::engines::{
    EngineOptions, OptionBytes, OptionInfo, STRING_OPTION_BYTES, bytes_text, parse_bytes,
};
use crate::pmem::geometry::sized;
use crate::{Error, Result};

/// Sizes of a leaf.
const SIZES: [u32; 3] = [512, 1024, 2048];
/// The usual size of a leaf.
const USUAL_BYTES: u32 = sized(1024, 512) as u32;

const _: () = assert!(SIZES[2] as usize == 8 * MAX_WORDS);

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlottedOptions {
    leaf_bytes: u32,
}

impl Default for SlottedOptions {
    fn default() -> Self {
        Self {
            leaf_bytes: USUAL_BYTES,
        }
    }
}

impl SlottedOptions {
    /// Bytes in a leaf: 512, 1024 or 2048. Keys of up to a quarter of a leaf, and values of up to a quarter, lie in the leaf; longer ones lie in
    /// blocks of their own.
    ///
    /// # Examples
    ///
    /// ```
    /// let options = indelible::SlottedOptions::default().leaf_bytes(2048);
    /// assert_ne!(options, indelible::SlottedOptions::default());
    /// ```
    #[must_use]
    pub fn leaf_bytes(self, bytes: u32) -> Self {
        Self { leaf_bytes: bytes }
    }

    pub(super) fn bytes(&self) -> usize {
        self.leaf_bytes as usize
    }
}

impl EngineOptions for SlottedOptions {
    const FORMAT: u32 = 1;

    const LIST: &'static [OptionInfo] = &[OptionInfo::new(
        "leaf",
        "512, 1024 or 2048 bytes",
        "bytes in a leaf: keys and values of up to a quarter of it lie in the leaf",
    )];

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        self.leaf_bytes = parse_bytes(name, value)?;
        Ok(())
    }

    fn get(&self, _: &str) -> String {
        bytes_text(self.leaf_bytes)
    }

    fn encode(&self) -> Result<OptionBytes> {
        if !SIZES.contains(&self.leaf_bytes) {
            return Err(Error::BadOption(format!(
                "a leaf has 512, 1024 or 2048 bytes, not {}",
                self.leaf_bytes
            )));
        }
        let mut bytes = OptionBytes::default();
        if *self != Self::default() {
            bytes[0] = (self.leaf_bytes / 256) as u8;
        }
        Ok(bytes)
    }

    fn decode(_: u32, bytes: &OptionBytes) -> Result<Self> {
        let leaf_bytes = match bytes[0] {
            0 => USUAL_BYTES,
            size => u32::from(size) * 256,
        };
        if !SIZES.contains(&leaf_bytes)
            || bytes[1..STRING_OPTION_BYTES].iter().any(|&byte| byte != 0)
        {
            return Err(Error::Damaged("no options of a map of byte strings".into()));
        }
        Ok(Self { leaf_bytes })
    }

    fn extremes() -> Vec<Self> {
        SIZES.map(|leaf_bytes| Self { leaf_bytes }).into()
    }
}
