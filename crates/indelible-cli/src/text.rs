//! Keys and values as text.

use crate::output::harmless;
use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader, Read};

/// Characters of a text that messages show.
const SHOWN: usize = 40;

/// A text as messages show it: quoted, and only its beginning if it is long.
pub fn quoted(text: &str) -> String {
    let (beginning, more) = cut(text);
    format!("{beginning:?}{more}")
}

/// Likewise without quotes.
pub fn beginning(text: &str) -> String {
    let (beginning, more) = cut(text);
    harmless(beginning) + more
}

/// The characters of a text that messages show, and what stands for the others.
fn cut(text: &str) -> (&str, &'static str) {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => (&text[..end], "…"),
        None => (text, ""),
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

by_standard_library!(u128, i128, u64, i64, u32, i32, u16, i16, u8, i8, bool);

macro_rules! floats {
    ($($type:ty),*) => {$(
        impl Text for $type {
            fn parse(text: &str) -> Result<Self> {
                let text = text.trim();
                let parsed: Self = text
                    .parse()
                    .with_context(|| format!("{} is not a {}", quoted(text), stringify!($type)))?;
                let is_said = text.trim_start_matches(['+', '-']).starts_with(['i', 'I']);
                ensure!(
                    !parsed.is_infinite() || is_said,
                    "{} is larger than any {}; infinity is inf",
                    quoted(text),
                    stringify!($type)
                );
                Ok(parsed)
            }

            /// As Rust has it, but for the sign of NaN, which counts in the order of keys.
            fn show(&self) -> String {
                match self.is_nan() && self.is_sign_negative() {
                    true => "-NaN".into(),
                    false => self.to_string(),
                }
            }
        }
    )*};
}

floats!(f64, f32);

impl Text for char {
    /// One character as it is, or `U+` and the hexadecimal digits of its code point.
    fn parse(text: &str) -> Result<Self> {
        let by_code = || {
            let code = u32::from_str_radix(text.strip_prefix("U+")?, 16).ok()?;
            char::from_u32(code)
        };
        let found = text.parse().ok().or_else(by_code);
        found.with_context(|| format!("{} is not a char", quoted(text)))
    }

    fn show(&self) -> String {
        if self.is_control() {
            format!("U+{:04X}", u32::from(*self))
        } else {
            self.to_string()
        }
    }
}

impl<const N: usize> Text for [u8; N] {
    /// Up to N bytes of text, filled up with zero bytes, or `0x` and 2 N hexadecimal digits.
    fn parse(text: &str) -> Result<Self> {
        let mut bytes = [0; N];
        fill(&mut bytes, text)?;
        Ok(bytes)
    }

    fn show(&self) -> String {
        show_filled(self)
    }
}

/// Fills an array with what a text stands for: the bytes of the text and zeros, or, of as many hexadecimal digits as the array has behind `0x`, these.
pub fn fill(bytes: &mut [u8], text: &str) -> Result<()> {
    let length = bytes.len();
    let digits = text.strip_prefix("0x").map(str::as_bytes);
    if let Some(digits) = digits.filter(|digits| digits.len() == 2 * length) {
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            let (high, low) = digit(0)
                .zip(digit(1))
                .with_context(|| format!("{} is not hexadecimal", quoted(text)))?;
            *byte = (high * 16 + low) as u8;
        }
        return Ok(());
    }
    let Some(start) = bytes.get_mut(..text.len()) else {
        let plural = if length == 1 { "" } else { "s" };
        bail!("{} has more than {length} byte{plural}", quoted(text))
    };
    start.copy_from_slice(text.as_bytes());
    Ok(())
}

/// A text that [`fill`] makes these bytes of.
pub fn show_filled(bytes: &[u8]) -> String {
    let end = bytes
        .iter()
        .rposition(|&byte| byte != 0)
        .map_or(0, |last| last + 1);
    match str::from_utf8(&bytes[..end]) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("0x{digits}")
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

/// A reader of a text file, without the mark that some programs write in front of it.
pub fn without_mark(file: impl Read) -> std::io::Result<impl BufRead> {
    let mut text = BufReader::with_capacity(1 << 20, file);
    if text.fill_buf()?.starts_with("\u{feff}".as_bytes()) {
        text.consume("\u{feff}".len());
    }
    Ok(text)
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
        assert!(u8::parse("256").is_err() && bool::parse("1").is_err());
        for text in ["", "\u{e9}", "0x", "0x001", "0xff00ff"] {
            let parsed = <[u8; 3]>::parse(text);
            match text {
                "0x001" => assert!(parsed.is_err()),
                _ => assert_eq!(parsed.unwrap().show(), text),
            }
        }
        assert!(<[u8; 1]>::parse("0x+f").is_err());
        for text in ["NaN", "-NaN", "inf", "-inf", "-0", "1e-320"] {
            let parsed = f64::parse(text).unwrap();
            assert_eq!(
                f64::parse(&parsed.show()).unwrap().to_bits(),
                parsed.to_bits()
            );
        }
        assert_eq!(f64::parse("-NaN").unwrap().show(), "-NaN");
        assert!(f64::parse("1e400").is_err() && f64::parse("-1e400").is_err());
        assert!(f32::parse("1e39").is_err() && f32::parse("+Infinity").is_ok());
        for text in ["a", " ", "\u{10ffff}", "U+000A", "U+0000"] {
            assert_eq!(char::parse(text).unwrap().show(), text);
        }
        assert_eq!(char::parse("U+61").unwrap(), 'a');
        for text in ["", "ab", "U+", "U+D800", "U+110000"] {
            assert!(char::parse(text).is_err(), "{text}");
        }
    }
}
