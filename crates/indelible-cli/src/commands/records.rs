//! `get`, `put`, `del`, `scan`.

use super::open_to_read;
use crate::output::{Output, note};
use crate::strings::{self, Form};
use crate::typed::{self, TextMap};
use anyhow::{Result, ensure};
use clap::Args;
use indelible::{BytesMap, Pool};
use serde_json::{Value, json};
use std::ops::Bound;
use std::path::PathBuf;

/// Print the values of keys.
#[derive(Args)]
pub struct Get {
    /// The pool file.
    pool: PathBuf,
    /// Name of the map.
    map: String,
    /// The keys.
    #[arg(required = true, allow_hyphen_values = true)]
    keys: Vec<String>,
    #[command(flatten)]
    form: Form,
}

impl Get {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let pool = open_to_read(&self.pool)?;
        let strings = strings::open(&pool, &self.map)?;
        let words = match &strings {
            Some(_) => None,
            None => Some(TextMap::open(&pool, &self.map)?),
        };
        let mut all_there = true;
        let mut rows = Vec::new();
        for key in self.keys {
            let value = match (&strings, &words) {
                (Some(map), _) => {
                    let value = map.get(self.form.parse(&key)?)?;
                    value.map(|value| self.form.show(&value))
                }
                (None, Some(map)) => map.get(&key)?,
                (None, None) => None,
            };
            all_there &= value.is_some();
            rows.push((key, value));
        }
        if output.json {
            let rows: Vec<Value> = rows
                .iter()
                .map(|(key, value)| json!({"key": key, "value": value}))
                .collect();
            output.line(Value::Array(rows))?;
        } else {
            for (key, value) in rows {
                match value {
                    Some(value) => output.line(value)?,
                    None => note(format_args!("{key}: not there")),
                }
            }
        }
        Ok(all_there)
    }
}

/// Set the value of a key.
#[derive(Args)]
pub struct Put {
    /// The pool file.
    pool: PathBuf,
    /// Name of the map; see `create` and `load` for making one.
    map: String,
    /// The key.
    #[arg(allow_hyphen_values = true)]
    key: String,
    /// The value.
    #[arg(allow_hyphen_values = true, default_value = "")]
    value: String,
    #[command(flatten)]
    form: Form,
}

impl Put {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let pool = Pool::open(&self.pool)?;
        let before = match strings::open(&pool, &self.map)? {
            Some(map) => {
                let (key, value) = (self.form.parse(&self.key)?, self.form.parse(&self.value)?);
                let before = map.replace(key, value)?;
                before.map(|value| self.form.show(&value))
            }
            None => TextMap::open(&pool, &self.map)?.put(&self.key, &self.value)?,
        };
        output.done("the record was set");
        pool.close()?;
        if let Some(before) = before {
            output.line(before)?;
        }
        Ok(true)
    }
}

/// Remove keys.
#[derive(Args)]
pub struct Del {
    /// The pool file.
    pool: PathBuf,
    /// Name of the map.
    map: String,
    /// The keys.
    #[arg(required = true, allow_hyphen_values = true)]
    keys: Vec<String>,
    #[command(flatten)]
    form: Form,
}

impl Del {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let pool = Pool::open(&self.pool)?;
        let strings = strings::open(&pool, &self.map)?;
        let words = match &strings {
            Some(_) => None,
            None => Some(TextMap::open(&pool, &self.map)?),
        };
        // All are removed before any is printed: an output that fails does not leave it half done.
        let mut removed = Vec::new();
        let mut all = || -> Result<()> {
            for key in &self.keys {
                let value = match (&strings, &words) {
                    (Some(map), _) => {
                        let value = map.take(self.form.parse(key)?)?;
                        value.map(|value| self.form.show(&value))
                    }
                    (None, Some(map)) => map.del(key)?,
                    (None, None) => None,
                };
                removed.push((key, value));
            }
            Ok(())
        };
        let result = all();
        drop((strings, words));
        pool.close()?;
        if removed.iter().any(|(_, value)| value.is_some()) {
            output.done("the records were removed");
        }
        let mut all_there = true;
        for (key, value) in removed {
            match value {
                Some(value) => output.line(value)?,
                None => {
                    note(format_args!("{key}: not there"));
                    all_there = false;
                }
            }
        }
        result.map(|()| all_there)
    }
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
    /// Of a map of byte strings: only keys that begin so.
    #[arg(long, allow_hyphen_values = true, conflicts_with_all = ["from", "to"])]
    prefix: Option<String>,
    #[command(flatten)]
    form: Form,
}

impl Scan {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let pool = open_to_read(&self.pool)?;
        if let Some(map) = strings::open(&pool, &self.map)? {
            return self.scan_strings(&map, output);
        }
        ensure!(
            self.prefix.is_none(),
            "--prefix is for maps of byte strings, and {:?} is none",
            self.map
        );
        let map = TextMap::open(&pool, &self.map)?;
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

    fn scan_strings(&self, map: &BytesMap, output: &Output) -> Result<bool> {
        let bound = |text: &Option<String>| -> Result<Bound<Vec<u8>>> {
            Ok(match text {
                Some(text) => Bound::Included(self.form.parse(text)?),
                None => Bound::Unbounded,
            })
        };
        let range = match &self.prefix {
            Some(prefix) => map.prefix(self.form.parse(prefix)?),
            None => map.range((bound(&self.from)?, bound(&self.to)?)),
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
            let [key, value] = [record.0, record.1].map(|bytes| self.form.show(&bytes));
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
