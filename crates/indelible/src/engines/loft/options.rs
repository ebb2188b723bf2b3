//! What can be chosen about a LOFT.

use crate::engines::{
    EngineOptions, OptionBytes, OptionInfo, bytes_text, parse_bytes, parse_number,
};
use crate::pmem::geometry::sized_in_tests;
use crate::{Error, Result};

/// How a new LOFT is laid out. It is recorded in the pool with the map, and read when nodes are laid out, never by a lookup.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{LoftOptions, Pool};
/// let options = LoftOptions::default().max_data_bytes(8 << 10);
/// let map = Pool::in_memory()?.map_with::<u64, u64>("small nodes", options)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoftOptions {
    max_data_bytes: u32,
    expansion_percent: u16,
    window: u8,
}

/// What takes longest of all that a thread does for others is to replace the largest node: a fraction of a millisecond.
const MAX_DATA_BYTES: u32 = 256 << 10;
/// The largest that there is: a full node becomes 16 at least, and with few records per node an operation waits for the node's part in DRAM too.
const DATA_BYTES: u32 = MAX_DATA_BYTES;
/// The default of maps that were made before format [`LARGE_NODES`].
const OLD_DATA_BYTES: u32 = 32 << 10;
const EXPANSION_PERCENT: u16 = 150;
const WINDOW: u8 = 32;

/// Bytes of the largest data node under the crash checker and in the library's own tests, whatever the options say.
const SMALL_DATA_BYTES: usize = 1 << 10;

impl Default for LoftOptions {
    fn default() -> Self {
        Self {
            max_data_bytes: DATA_BYTES,
            expansion_percent: EXPANSION_PERCENT,
            window: WINDOW,
        }
    }
}

impl LoftOptions {
    /// Bytes of the largest data node: a power of two, from 1 KiB to 256 KiB, which is the default. (In maps that were made before
    /// version 4 of the kind's format the default is 32 KiB.)
    #[must_use]
    pub fn max_data_bytes(mut self, bytes: u32) -> Self {
        self.max_data_bytes = bytes;
        self
    }

    /// Slots of a new data node per hundred records, at least: 105 to 300, 150 by default. The paper's expansion factor.
    #[must_use]
    pub fn expansion_percent(mut self, percent: u16) -> Self {
        self.expansion_percent = percent;
        self
    }

    /// Slots in which a record may lie, from its predicted place on: a multiple of 4, from 8 to 72; 32 by default. The paper's predicted
    /// range.
    #[must_use]
    pub fn window(mut self, slots: u8) -> Self {
        self.window = slots;
        self
    }

    pub(super) fn data_bytes(self) -> u64 {
        let chosen = self.max_data_bytes as usize;
        sized_in_tests(chosen, SMALL_DATA_BYTES).min(chosen) as u64
    }

    pub(super) fn expansion(self) -> u64 {
        self.expansion_percent.into()
    }

    pub(super) fn window_lines(self) -> u64 {
        u64::from(self.window) / 4
    }
}

/// The version of the format from which on blocks have sizes between powers of two.
pub(super) const STEPPED_SIZES: u32 = 2;

/// The version of the format from which on a data node is replaced at once, so that a crash may leave slots frozen and closed in a node that links to
/// no other.
pub(super) const WHOLE_MOVES: u32 = 3;

/// The version of the format from which on data nodes have up to 256 KiB, by default, in sizes between powers of two up to there, and models of
/// pieces.
pub(super) const LARGE_NODES: u32 = 4;

impl EngineOptions for LoftOptions {
    const FORMAT: u32 = LARGE_NODES;

    const LIST: &'static [OptionInfo] = &[
        OptionInfo::new(
            "data",
            "a power of two, 1K to 256K",
            "bytes of the largest data node",
        ),
        OptionInfo::new(
            "expansion",
            "105 to 300",
            "slots of a new data node per hundred records, at least",
        ),
        OptionInfo::new(
            "window",
            "a multiple of 4, 8 to 72",
            "slots in which a record may lie, from its predicted place on",
        ),
    ];

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "data" => self.max_data_bytes = parse_bytes(name, value)?,
            "expansion" => self.expansion_percent = parse_number(name, value)?,
            _ => self.window = parse_number(name, value)?,
        }
        Ok(())
    }

    fn get(&self, name: &str) -> String {
        match name {
            "data" => bytes_text(self.max_data_bytes),
            "expansion" => self.expansion_percent.to_string(),
            _ => self.window.to_string(),
        }
    }

    /// Byte 0: the binary logarithm of the data bytes; bytes 1 and 2: the expansion; byte 3: the window. Each 0 for the default.
    fn encode(&self) -> Result<OptionBytes> {
        let refuse = |what: String| Err(Error::BadOption(what));
        let bytes = self.max_data_bytes;
        if !bytes.is_power_of_two() || !(1 << 10..=MAX_DATA_BYTES).contains(&bytes) {
            return refuse(format!(
                "the largest data node has a power of two of bytes, 1024 to {MAX_DATA_BYTES}, not {bytes}"
            ));
        }
        if !(105..=300).contains(&self.expansion_percent) {
            return refuse(format!(
                "a node has 105 to 300 slots per hundred records, not {}",
                self.expansion_percent
            ));
        }
        if !(8..=72).contains(&self.window) || !self.window.is_multiple_of(4) {
            return refuse(format!(
                "a window has 8 to 72 slots, a multiple of 4, not {}",
                self.window
            ));
        }
        let mut encoded = OptionBytes::default();
        if bytes != DATA_BYTES {
            encoded[0] = bytes.ilog2() as u8;
        }
        if self.expansion_percent != EXPANSION_PERCENT {
            encoded[1..3].copy_from_slice(&self.expansion_percent.to_le_bytes());
        }
        if self.window != WINDOW {
            encoded[3] = self.window;
        }
        Ok(encoded)
    }

    fn decode(format: u32, bytes: &OptionBytes) -> Result<Self> {
        let damaged = || Error::Damaged("the options of a LOFT".into());
        let mut options = Self::default();
        if bytes[0] != 0 {
            options.max_data_bytes = 1_u32.checked_shl(bytes[0].into()).ok_or_else(damaged)?;
        }
        let expansion = u16::from_le_bytes([bytes[1], bytes[2]]);
        if expansion != 0 {
            options.expansion_percent = expansion;
        }
        if bytes[3] != 0 {
            options.window = bytes[3];
        }
        match options.encode() {
            Ok(known) if known == *bytes => {}
            _ => return Err(damaged()),
        }
        if format < LARGE_NODES && bytes[0] == 0 {
            options.max_data_bytes = OLD_DATA_BYTES;
        }
        Ok(options)
    }

    fn extremes() -> Vec<Self> {
        vec![
            Self::default().max_data_bytes(1 << 10).window(8),
            Self::default()
                .max_data_bytes(64 << 10)
                .expansion_percent(300)
                .window(72),
            Self::default().expansion_percent(105),
        ]
    }
}
