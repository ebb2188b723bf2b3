//! Keys and values as text.

use anyhow::{Context, Result, bail};

/// Characters of a text that messages show.
const SHOWN: usize = 40;

/// A text as messages show it: quoted, and only its beginning if it is long.
pub fn quoted(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// A type that can be typed and printed.
pub trait Text: Sized {
    /// From text.
    fn parse(text: &str) -> Result<Self>;
    /// To text.
    fn show(&self) -> String;
}

macro_rules! by_standard_library {
    ($($type:ty),*) => {$(
        impl Text for $type {
            fn parse(text: &str) -> Result<Self> {
                text.trim().parse().with_context(|| format!("{} is not a {}", quoted(text), stringify!($type)))
            }

            fn show(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

by_standard_library!(u64, i64, u32, i32, f64, f32);

impl Text for [u8; 8] {
    /// Up to eight bytes of text, filled up with zero bytes, or `0x` and sixteen hexadecimal digits.
    fn parse(text: &str) -> Result<Self> {
        if let Some(digits) = text.strip_prefix("0x").filter(|digits| digits.len() == 16) {
            let number = u64::from_str_radix(digits, 16)
                .with_context(|| format!("{} is not hexadecimal", quoted(text)))?;
            return Ok(number.to_be_bytes());
        }
        let mut bytes = [0; 8];
        let Some(start) = bytes.get_mut(..text.len()) else {
            bail!("{} has more than 8 bytes", quoted(text))
        };
        start.copy_from_slice(text.as_bytes());
        Ok(bytes)
    }

    fn show(&self) -> String {
        let end = self
            .iter()
            .rposition(|&byte| byte != 0)
            .map_or(0, |last| last + 1);
        match std::str::from_utf8(&self[..end]) {
            Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
            _ => format!("0x{:016x}", u64::from_be_bytes(*self)),
        }
    }
}

impl Text for () {
    fn parse(_: &str) -> Result<Self> {
        Ok(())
    }

    fn show(&self) -> String {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_comes_back() {
        for text in ["", "abc", "12345678", "0x00000000000000ff"] {
            assert_eq!(<[u8; 8]>::parse(text).unwrap().show(), text);
        }
        assert!(<[u8; 8]>::parse("123456789").is_err());
        assert_eq!(i64::parse(" -5").unwrap(), -5);
        assert!(u64::parse("-5").is_err());
    }
}
