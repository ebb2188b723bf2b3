//! Maps of byte strings on the command line.

use crate::text::quoted;
use crate::unfinished::{SETS_THEM_AGAIN, add_in_steps};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use indelible::{BytesInfo, BytesMap, Pool};
use std::fmt::Write;

/// How byte strings are typed and printed.
#[derive(Args, Clone, Copy)]
pub struct Form {
    /// Keys and values of a map of byte strings, and the text and the bytes of a typed map, as hexadecimal digits. Without it they are text in
    /// which `\xNN` is any byte, and `\\`, `\n`, `\r`, `\t` and `\0` are what they are in C. (An array, `bytesN`, is text that is
    /// filled up with zeros, or `0x` and all of its digits.)
    #[arg(long)]
    pub hex: bool,
}

impl Form {
    /// The bytes that a text stands for.
    pub fn parse(self, text: &str) -> Result<Vec<u8>> {
        if self.hex {
            return from_hex(text);
        }
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.chars();
        while let Some(next) = rest.next() {
            if next != '\\' {
                bytes.extend_from_slice(next.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
            match rest.next() {
                Some('\\') => bytes.push(b'\\'),
                Some('n') => bytes.push(b'\n'),
                Some('r') => bytes.push(b'\r'),
                Some('t') => bytes.push(b'\t'),
                Some('0') => bytes.push(0),
                Some('x') => {
                    let digits: String = rest.by_ref().take(2).collect();
                    let byte = from_hex(&digits).with_context(|| quoted(text))?;
                    ensure!(byte.len() == 1, "{}: \\x needs two digits", quoted(text));
                    bytes.extend(byte);
                }
                _ => bail!("{}: no such escape", quoted(text)),
            }
        }
        Ok(bytes)
    }

    /// A text that [`parse`](Self::parse) reads as these bytes, in one line.
    pub fn show(self, bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len());
        // Writing to a string does not fail.
        let mut add = |part: std::fmt::Arguments<'_>| {
            let _ = text.write_fmt(part);
        };
        if self.hex {
            bytes
                .iter()
                .for_each(|byte| add(format_args!("{byte:02x}")));
            return text;
        }
        for chunk in bytes.utf8_chunks() {
            for next in chunk.valid().chars() {
                match next {
                    '\\' => add(format_args!("\\\\")),
                    '\n' => add(format_args!("\\n")),
                    '\r' => add(format_args!("\\r")),
                    '\t' => add(format_args!("\\t")),
                    _ if next.is_control() => {
                        let mut buffer = [0; 4];
                        for byte in next.encode_utf8(&mut buffer).bytes() {
                            add(format_args!("\\x{byte:02x}"));
                        }
                    }
                    _ => add(format_args!("{next}")),
                }
            }
            for byte in chunk.invalid() {
                add(format_args!("\\x{byte:02x}"));
            }
        }
        text
    }
}

fn from_hex(text: &str) -> Result<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
        bail!("{} is not pairs of hexadecimal digits", quoted(text));
    }
    let pair = |at: usize| u8::from_str_radix(&text[at..at + 2], 16);
    Ok((0..text.len())
        .step_by(2)
        .map(pair)
        .collect::<Result<_, _>>()?)
}

/// What the pool knows of the map of byte strings of this name, if there is one.
pub fn find(pool: &Pool, name: &str) -> Option<BytesInfo> {
    pool.bytes_maps().into_iter().find(|map| map.name == name)
}

/// The map of byte strings of this name, if there is one.
pub fn open(pool: &Pool, name: &str) -> Result<Option<BytesMap>> {
    match find(pool, name) {
        Some(_) => Ok(Some(pool.open_bytes(name)?)),
        None => Ok(None),
    }
}

/// Adds records in any order, by a bulk load if the map is empty; of equal keys the last one counts. Returns how many keys came again.
pub fn load(map: &BytesMap, mut records: Vec<(Vec<u8>, Vec<u8>)>, fill: f64) -> Result<usize> {
    let read = records.len();
    // Stable, so that equal keys stay in the order of the file; the last one is moved to the front of its run.
    records.reverse();
    records.sort_by(|a, b| a.0.cmp(&b.0));
    records.dedup_by(|later, first| later.0 == first.0);
    let repeated = read - records.len();
    if map.is_empty()? {
        map.bulk_load(records, fill)?;
    } else {
        let (name, count) = (map.name(), records.len());
        let insert = || map.extend(records);
        add_in_steps(&name, count, SETS_THEM_AGAIN, || map.len(), insert)?;
    }
    Ok(repeated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_as_they_are_shown() {
        let all: Vec<u8> = (0..=255).collect();
        let texts: [&[u8]; 5] = [b"", b"plain", "\u{e4}\\ \n\t".as_bytes(), &all, b"\xff\0a"];
        for hex in [false, true] {
            let form = Form { hex };
            for bytes in texts {
                let shown = form.show(bytes);
                assert!(!shown.contains('\n'));
                assert_eq!(form.parse(&shown).unwrap(), bytes);
            }
        }
        assert_eq!(Form { hex: false }.show(b"a\xffb"), "a\\xffb");
        assert!(Form { hex: true }.parse("abc").is_err());
        assert!(Form { hex: false }.parse("\\q").is_err());
        assert!(Form { hex: false }.parse("\\x1").is_err());
        assert!(Form { hex: false }.parse("a\\x").is_err());
    }
}
