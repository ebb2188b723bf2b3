//! `get`, `put`, `del`, `scan`.

use super::open_to_read;
use crate::encoded::EncodedMap;
use crate::output::{Output, note};
use crate::strings::Form;
use crate::text::quoted;
use crate::typed::{self, TextMap};
use anyhow::{Error, Result, anyhow, bail, ensure};
use clap::Args;
use indelible::Pool;
use serde_json::{Value, json};
use std::path::PathBuf;

/// A map, its keys and values as text.
enum Texts {
    /// Of byte strings, or of encodings.
    Bytes(EncodedMap),
    Words(TextMap),
}

impl Texts {
    fn open(pool: &Pool, name: &str, form: Form) -> Result<Self> {
        let (has_bytes, map) = match EncodedMap::open(pool, name, form)? {
            Some(map) => (map.has_bytes(), Self::Bytes(map)),
            None => (false, Self::Words(TextMap::open(pool, name)?)),
        };
        ensure!(
            has_bytes || !form.hex,
            "--hex is for maps of byte strings and for typed maps with text or bytes, and {name:?} is none"
        );
        Ok(map)
    }

    fn get(&self, key: &str) -> Result<Option<String>> {
        match self {
            Self::Bytes(map) => map.get(key),
            Self::Words(map) => map.get(key),
        }
    }

    /// Sets a value, and returns the one before.
    fn put(&self, key: &str, value: &str) -> Result<Option<String>> {
        match self {
            Self::Bytes(map) => map.put(key, value),
            Self::Words(map) => map.put(key, value),
        }
    }

    /// Whether the keys have no values.
    fn is_set(&self) -> bool {
        match self {
            Self::Bytes(map) => map.is_set(),
            Self::Words(map) => map.is_set(),
        }
    }

    /// Whether the empty text is a value as good as any.
    fn has_empty_values(&self) -> bool {
        match self {
            Self::Bytes(map) => map.has_empty_values(),
            Self::Words(_) => false,
        }
    }

    /// Removes a key, and returns its value.
    fn del(&self, key: &str) -> Result<Option<String>> {
        match self {
            Self::Bytes(map) => map.del(key),
            Self::Words(map) => map.del(key),
        }
    }
}

/// Print the values of keys.
#[derive(Args)]
pub struct Get {
    /// The pool file.
    pool: PathBuf,
    /// Name of the map.
    map: String,
    /// The keys. Behind `--`, also ones that look like options.
    #[arg(required = true, allow_negative_numbers = true)]
    keys: Vec<String>,
    #[command(flatten)]
    form: Form,
}

impl Get {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let pool = open_to_read(&self.pool)?;
        let map = Texts::open(&pool, &self.map, self.form)?;
        let mut rows = Vec::new();
        for key in &self.keys {
            rows.push((key.as_str(), map.get(key)?));
        }
        print_values(&rows, output)
    }
}

/// Prints the values that keys have, or had; whether all were there.
fn print_values(rows: &[(&str, Option<String>)], output: &Output) -> Result<bool> {
    if output.json {
        let row = |(key, value): &_| json!({"key": key, "value": value});
        output.line(Value::Array(rows.iter().map(row).collect()))?;
    } else {
        for (key, value) in rows {
            match value {
                Some(value) => output.line(value)?,
                None => note(format_args!("{key}: not there")),
            }
        }
    }
    Ok(rows.iter().all(|(_, value)| value.is_some()))
}

/// Set the value of a key.
#[derive(Args)]
pub struct Put {
    /// The pool file.
    pool: PathBuf,
    /// Name of the map; see `create` and `load` for making one.
    map: String,
    /// The key. Behind `--`, also one that looks like an option; likewise the value.
    #[arg(allow_negative_numbers = true)]
    key: String,
    /// The value. A map whose values are `()` needs none.
    #[arg(allow_negative_numbers = true)]
    value: Option<String>,
    #[command(flatten)]
    form: Form,
}

impl Put {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let pool = Pool::open(&self.pool)?;
        let map = Texts::open(&pool, &self.map, self.form)?;
        let before = map.put(&self.key, self.value_for(&map)?)?;
        drop(map);
        output.done("the record was set");
        pool.close()?;
        if output.json {
            output.line(json!({"before": before}))?;
        } else if let Some(before) = before {
            output.line(before)?;
        }
        Ok(true)
    }
}

impl Put {
    /// The value to set, which a set does not have, and every other map does.
    fn value_for(&self, map: &Texts) -> Result<&str> {
        match self.value.as_deref() {
            None | Some("" | "()") if map.is_set() => Ok(""),
            Some(_) if map.is_set() => bail!("{:?} is a set: its keys have no values", self.map),
            None => {
                // A number, say, has no text that is empty.
                let hint = match map.has_empty_values() {
                    true => "; '' is the empty one",
                    false => "",
                };
                bail!(
                    "a value is missing for the key {} of {:?}{hint}",
                    quoted(&self.key),
                    self.map
                )
            }
            Some(value) => Ok(value),
        }
    }
}

/// Remove keys, or all keys of a range.
#[derive(Args)]
pub struct Del {
    /// The pool file.
    pool: PathBuf,
    /// Name of the map.
    map: String,
    /// The keys. Behind `--`, also ones that look like options.
    #[arg(
        required_unless_present_any = ["from", "to", "prefix"],
        conflicts_with_all = ["from", "to", "prefix"],
        allow_negative_numbers = true
    )]
    keys: Vec<String>,
    /// Instead of keys: remove the records from this key on, one by one, and print how many there were.
    #[arg(long, allow_hyphen_values = true)]
    from: Option<String>,
    /// Likewise, up to this key.
    #[arg(long, allow_hyphen_values = true)]
    to: Option<String>,
    /// Likewise, those whose keys begin so; as for `scan`.
    #[arg(long, allow_hyphen_values = true, conflicts_with_all = ["from", "to"])]
    prefix: Option<String>,
    #[command(flatten)]
    form: Form,
}

impl Del {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let pool = Pool::open(&self.pool)?;
        let map = Texts::open(&pool, &self.map, self.form)?;
        if self.keys.is_empty() {
            let removed = self.remove_range(&map);
            drop(map);
            pool.close()?;
            let removed = removed?;
            output.done("the records were removed");
            output.facts("", &[("records removed", json!(removed))])?;
            return Ok(true);
        }
        // All are removed before any is printed: an output that fails does not leave it half done.
        let mut removed = Vec::new();
        let mut all = || -> Result<()> {
            for key in &self.keys {
                let value = map.del(key)?;
                removed.push((key.as_str(), value));
            }
            Ok(())
        };
        let result = all();
        drop(map);
        pool.close()?;
        if removed.iter().any(|(_, value)| value.is_some()) {
            output.done("the records were removed");
        }
        let all_there = print_values(&removed, output)?;
        result.map(|()| all_there)
    }
}

impl Del {
    fn remove_range(&self, map: &Texts) -> Result<u64> {
        let (from, to) = (self.from.as_deref(), self.to.as_deref());
        match (map, &self.prefix) {
            (Texts::Bytes(map), Some(prefix)) => map.remove_prefix(prefix),
            (Texts::Bytes(map), None) => map.remove_range(from, to),
            (Texts::Words(_), Some(_)) => Err(no_prefixes(&self.map)),
            (Texts::Words(map), None) => map.remove_range(from, to),
        }
    }
}

/// The error for `--prefix` and a map of words.
fn no_prefixes(map: &str) -> Error {
    anyhow!("--prefix is for maps of byte strings and typed maps, and {map:?} is none")
}

/// Print records in key order.
#[derive(Args)]
pub struct Scan {
    /// The pool file.
    pool: PathBuf,
    /// Name of the map.
    map: String,
    /// The smallest key.
    #[arg(long, allow_hyphen_values = true)]
    from: Option<String>,
    /// The largest key.
    #[arg(long, allow_hyphen_values = true)]
    to: Option<String>,
    /// Records at most.
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    limit: u64,
    /// From the largest key down.
    #[arg(long)]
    reverse: bool,
    /// Of a map of byte strings, or of a typed map with strings as keys: only keys that begin so. Of one with tuples: only keys with these first
    /// fields, a JSON array.
    #[arg(long, allow_hyphen_values = true, conflicts_with_all = ["from", "to"])]
    prefix: Option<String>,
    #[command(flatten)]
    form: Form,
}

impl Scan {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let pool = open_to_read(&self.pool)?;
        let map = match Texts::open(&pool, &self.map, self.form)? {
            Texts::Bytes(map) => return self.scan_bytes(&map, output),
            Texts::Words(map) => map,
        };
        if self.prefix.is_some() {
            return Err(no_prefixes(&self.map));
        }
        let scan = typed::Scan {
            from: self.from.as_deref(),
            to: self.to.as_deref(),
            reverse: self.reverse,
        };
        let mut left = self.limit;
        let mut out = output.writer();
        let mut written = Ok(());
        if left > 0 {
            // One JSON object per line, so that a long scan can be read as it comes.
            map.scan(&scan, &mut |key, value| {
                written = if output.json {
                    writeln!(out, "{}", json!({"key": key, "value": value}))
                } else {
                    writeln!(out, "{key}\t{value}")
                };
                left -= 1;
                left > 0 && written.is_ok()
            })?;
        }
        written?;
        Ok(true)
    }

    fn scan_bytes(&self, map: &EncodedMap, output: &Output) -> Result<bool> {
        let range = match &self.prefix {
            Some(prefix) => map.prefix(prefix)?,
            None => map.range(self.from.as_deref(), self.to.as_deref())?,
        };
        let mut range: Box<dyn Iterator<Item = _>> = if self.reverse {
            Box::new(range.rev())
        } else {
            Box::new(range)
        };
        let mut out = output.writer();
        let mut left = self.limit;
        while left > 0 {
            let Some(record) = range.next().transpose()? else {
                break;
            };
            let [key, value] = map.show(&record.0, &record.1)?;
            if output.json {
                writeln!(out, "{}", json!({"key": key, "value": value}))?;
            } else {
                writeln!(out, "{key}\t{value}")?;
            }
            left -= 1;
        }
        Ok(true)
    }
}
