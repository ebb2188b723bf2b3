//! What can be chosen when an object is created: each engine names, parses, validates and encodes its own options.

use crate::pool::OPTION_BYTES;
use crate::{Error, Result};

/// The options of an object, as they lie in its catalog entry. All zero must mean the defaults.
pub(crate) type OptionBytes = [u8; OPTION_BYTES];

/// What an option is, for help texts.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::Kind;
/// for kind in Kind::all() {
///     println!("{kind}: {}", kind.description());
///     for option in kind.options() {
///         println!("  {}={}: {}", option.name, option.values, option.meaning);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OptionInfo {
    /// Its name on a command line: `leaf`.
    pub name: &'static str,
    /// What values it takes: `256, 512, 768 or 1024 bytes`.
    pub values: &'static str,
    /// What it chooses.
    pub meaning: &'static str,
}

/// The options of one engine, and what the list of kinds has to know of the engine.
pub(crate) trait EngineOptions:
    Clone + Default + PartialEq + std::fmt::Debug + Send + Sync + 'static
{
    /// The version of the engine's format that new objects get. 1 is that of pools of format 1.
    const FORMAT: u32 = 1;

    /// What there is to choose. An engine with something to choose brings the five functions below, too.
    const LIST: &'static [OptionInfo] = &[];

    /// Whether the engine is there to be read, and not to be fast: the bench leaves it out where nobody asks for it.
    const IS_EXAMPLE: bool = false;

    /// Sets the option `name`, which is one of [`LIST`](Self::LIST). An error says what is wrong with `value`.
    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        Err(Error::BadOption(format!(
            "{name}={value}: nothing can be chosen"
        )))
    }

    /// The option `name` as [`set`](Self::set) would read it.
    fn get(&self, name: &str) -> String {
        let _ = name;
        String::new()
    }

    /// Validates the options, and encodes them.
    fn encode(&self) -> Result<OptionBytes> {
        Ok(OptionBytes::default())
    }

    /// Decodes options from a catalog entry, which may hold any bytes, for an object of version `format` of the engine's format.
    fn decode(format: u32, bytes: &OptionBytes) -> Result<Self> {
        let _ = format;
        match *bytes == OptionBytes::default() {
            true => Ok(Self::default()),
            false => Err(Error::Damaged("options of a map that has none".into())),
        }
    }

    /// Options at the ends of their ranges, with which all tests of the contract must pass too.
    fn extremes() -> Vec<Self> {
        Vec::new()
    }
}

impl OptionInfo {
    pub(crate) const fn new(
        name: &'static str,
        values: &'static str,
        meaning: &'static str,
    ) -> Self {
        Self {
            name,
            values,
            meaning,
        }
    }
}

/// A whole number.
pub(crate) fn parse_number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T> {
    value
        .parse()
        .map_err(|_| Error::BadOption(format!("{name}={value}: not a whole number in range")))
}

/// A number of bytes: digits, and K, M or G for powers of 1024.
pub(crate) fn parse_bytes(name: &str, value: &str) -> Result<u32> {
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &value[digits.len()..] {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        _ => {
            return Err(Error::BadOption(format!(
                "{name}={value}: no number of bytes"
            )));
        }
    };
    let number: u32 = parse_number(name, digits)?;
    number
        .checked_shl(shift)
        .filter(|bytes| bytes >> shift == number)
        .ok_or_else(|| Error::BadOption(format!("{name}={value}: too many bytes")))
}

/// A number of bytes as [`parse_bytes`] reads it.
pub(crate) fn bytes_text(bytes: u32) -> String {
    match bytes {
        0 => "0".into(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}
