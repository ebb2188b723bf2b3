//! `get`, `put`, `del`, `scan`.

use super::open_to_read;
use crate::output::{Output, note};
use crate::typed::{self, TextMap};
use anyhow::Result;
use clap::Args;
use indelible::Pool;
use serde_json::{Value, json};
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
}

impl Get {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let pool = open_to_read(&self.pool)?;
        let map = TextMap::open(&pool, &self.map)?;
        let mut all_there = true;
        let mut rows = Vec::new();
        for key in self.keys {
            let value = map.get(&key)?;
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
}

impl Put {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let pool = Pool::open(&self.pool)?;
        let map = TextMap::open(&pool, &self.map)?;
        let before = map.put(&self.key, &self.value)?;
        output.done("the record was set");
        drop(map);
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
}

impl Del {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let pool = Pool::open(&self.pool)?;
        let map = TextMap::open(&pool, &self.map)?;
        // All are removed before any is printed: an output that fails does not leave it half done.
        let mut removed = Vec::new();
        let mut all = || -> Result<()> {
            for key in &self.keys {
                removed.push((key, map.del(key)?));
            }
            Ok(())
        };
        let result = all();
        drop(map);
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
}

impl Scan {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let pool = open_to_read(&self.pool)?;
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
}
