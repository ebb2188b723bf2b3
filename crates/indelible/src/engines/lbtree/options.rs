//! What can be chosen about an LB+-Tree.

use super::layout::{BLOCK_BYTES, MAX_BLOCKS};
use crate::engines::{EngineOptions, OptionBytes, OptionInfo, parse_bytes};
use crate::{Error, Result};

/// How a new LB+-Tree is laid out.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{LbTreeOptions, Pool};
/// let map = Pool::in_memory()?.map_with::<u64, u64>("wide", LbTreeOptions::default().leaf_bytes(1024))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LbTreeOptions {
    leaf_bytes: u32,
}

impl Default for LbTreeOptions {
    fn default() -> Self {
        Self { leaf_bytes: 256 }
    }
}

impl LbTreeOptions {
    /// Bytes in a leaf: 256, 512, 768 or 1024 (LB+-Tree, section 3.4). Default 256, the paper's choice for insert-heavy work
    /// (figure 13).
    #[must_use]
    pub fn leaf_bytes(mut self, bytes: u32) -> Self {
        self.leaf_bytes = bytes;
        self
    }

    pub(super) fn bytes(self) -> u32 {
        self.leaf_bytes
    }
}

impl EngineOptions for LbTreeOptions {
    const FORMAT: u32 = 1;

    const LIST: &'static [OptionInfo] = &[OptionInfo::new(
        "leaf",
        "256, 512, 768 or 1024",
        "bytes in a leaf",
    )];

    fn set(&mut self, _: &str, value: &str) -> Result<()> {
        self.leaf_bytes = parse_bytes("leaf", value)?;
        Ok(())
    }

    fn get(&self, _: &str) -> String {
        self.leaf_bytes.to_string()
    }

    /// The first four bytes are the bytes in a leaf.
    fn encode(&self) -> Result<OptionBytes> {
        let blocks = self.leaf_bytes as usize / BLOCK_BYTES;
        if !(1..=MAX_BLOCKS).contains(&blocks)
            || !(self.leaf_bytes as usize).is_multiple_of(BLOCK_BYTES)
        {
            return Err(Error::BadOption(format!(
                "a leaf has 256, 512, 768 or 1024 bytes, not {}",
                self.leaf_bytes
            )));
        }
        let mut bytes = OptionBytes::default();
        bytes[..4].copy_from_slice(&self.leaf_bytes.to_le_bytes());
        Ok(bytes)
    }

    fn decode(_: u32, bytes: &OptionBytes) -> Result<Self> {
        let [a, b, c, d, ..] = *bytes;
        let options = Self::default().leaf_bytes(u32::from_le_bytes([a, b, c, d]));
        match options.encode() {
            Ok(known) if known == *bytes => Ok(options),
            _ => Err(Error::Damaged("the options of an LB+-Tree".into())),
        }
    }

    fn extremes() -> Vec<Self> {
        [512, 768, 1024]
            .map(|bytes| Self::default().leaf_bytes(bytes))
            .into()
    }
}
