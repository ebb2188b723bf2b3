//! Keys that are byte strings: made up, or the lines of a file.

use anyhow::{Context, Result};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A set of keys.
#[derive(Clone, Debug)]
pub(super) enum Texts {
    Urls,
    Paths,
    Uuids,
    Lines(PathBuf),
}

impl FromStr for Texts {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "urls" => Self::Urls,
            "paths" => Self::Paths,
            "uuids" => Self::Uuids,
            path => Self::Lines(path.into()),
        })
    }
}

impl fmt::Display for Texts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Urls => f.write_str("urls"),
            Self::Paths => f.write_str("paths"),
            Self::Uuids => f.write_str("uuids"),
            Self::Lines(path) => path.display().fmt(f),
        }
    }
}

const WORDS: [&str; 16] = [
    "about", "archive", "blog", "category", "docs", "en", "images", "index", "news", "page",
    "people", "product", "search", "static", "tag", "wiki",
];

/// The finalizer of MurmurHash3.
fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

fn word(random: u64) -> &'static str {
    WORDS[random as usize % WORDS.len()]
}

/// A page of one of some 30,000 hosts, of which few have many pages.
fn url(number: u64) -> String {
    let random = mix(number);
    let host = mix(30_000 >> (random % 15)) % 90_000 + (random >> 8) % (2 << (random % 15));
    let (a, b) = (word(random >> 24), word(random >> 32));
    format!(
        "https://www.{}{host}.example/{a}/{b}/{number}.html",
        word(host)
    )
}

/// A file of one of some thousand packages.
fn path(number: u64) -> String {
    let random = mix(number);
    let package = random % 4_000;
    let (name, a, b) = (word(package), word(random >> 24), word(random >> 32));
    let top = ["lib", "share", "share/doc", "include"][(random >> 16) as usize % 4];
    format!("/usr/{top}/{name}-{package}/{a}/{b}_{number}.txt")
}

/// Random bytes, as text.
fn uuid(number: u64) -> String {
    let [a, b] = [mix(number), mix(!number)];
    let (c, d) = (a >> 48, b >> 48);
    let (a, b) = (a & 0xffff_ffff, b & 0xffff_ffff_ffff);
    format!(
        "{a:08x}-{c:04x}-4{:03x}-{d:04x}-{b:012x}",
        number >> 20 & 0xfff
    )
}

impl Texts {
    /// Different keys, so many at most. A file with more of them gives a random choice: its first ones in their order would have more in
    /// common than all have.
    pub(super) fn keys(&self, count: usize, random: &mut SmallRng) -> Result<Vec<Box<[u8]>>> {
        let made_up = |make: fn(u64) -> String| {
            let keys = (0..count as u64).map(|number| make(number).into_bytes().into());
            Ok(keys.collect())
        };
        match self {
            Self::Urls => made_up(url),
            Self::Paths => made_up(path),
            Self::Uuids => made_up(uuid),
            Self::Lines(path) => {
                let file = std::fs::read(path).with_context(|| path.display().to_string())?;
                let lines = file
                    .split(|&byte| byte == b'\n')
                    .filter(|line| !line.is_empty());
                let mut keys: Vec<Box<[u8]>> = lines.map(Into::into).collect();
                keys.sort_unstable();
                keys.dedup();
                if keys.len() > count {
                    keys.shuffle(random);
                    keys.truncate(count);
                }
                Ok(keys)
            }
        }
    }
}

/// Sorts the keys, and returns how many bytes each begins with that the key before begins with too, on average.
pub(super) fn shared_prefix(keys: &mut [Box<[u8]>]) -> f64 {
    keys.sort_unstable();
    let shared = |pair: &[Box<[u8]>]| {
        pair[0]
            .iter()
            .zip(&*pair[1])
            .take_while(|(a, b)| a == b)
            .count()
    };
    let sum: usize = keys.windows(2).map(shared).sum();
    sum as f64 / keys.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn a_file_with_more_keys_gives_a_choice_from_all_of_them() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines: Vec<String> = (0..1000).map(|number| format!("{number:04}")).collect();
        std::fs::write(file.path(), lines.join("\n") + "\n\n0000\n").unwrap();
        let texts = Texts::Lines(file.path().into());
        let keys = |count| {
            let keys = texts.keys(count, &mut SmallRng::seed_from_u64(1)).unwrap();
            let distinct: std::collections::BTreeSet<_> = keys.iter().cloned().collect();
            assert_eq!(distinct.len(), keys.len());
            keys
        };
        assert_eq!(keys(2000).len(), 1000);
        let chosen = keys(100);
        let late = chosen.iter().filter(|key| &key[..] >= b"0500".as_slice());
        assert!(chosen.len() == 100 && (30..70).contains(&late.count()));
        assert_eq!(chosen, keys(100), "the same for the same seed");
    }
}
