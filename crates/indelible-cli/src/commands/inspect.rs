//! `stat`, `check`, `rm`, `shrink`.

use super::open_to_read;
use crate::output::Output;
use crate::typed::TextMap;
use anyhow::Result;
use clap::Args;
use indelible::{FactValue, MapStat, Pool, PoolOptions};
use serde_json::{Value, json};
use std::path::PathBuf;

/// What a pool and its maps consist of.
#[derive(Args)]
pub struct Stat {
    /// The pool file.
    pool: PathBuf,
    /// Only this map, in detail.
    map: Option<String>,
}

impl Stat {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let pool = open_to_read(&self.pool)?;
        if let Some(map) = &self.map {
            let stat = TextMap::open(&pool, map)?.stat()?;
            output.facts(&format!("map {map}"), &map_facts(&stat))?;
            return Ok(true);
        }
        let stat = pool.stat();
        let mut rows = Vec::new();
        for map in pool.maps() {
            let stat = TextMap::open(&pool, &map.name)?.stat()?;
            let types = format!("{} to {}", map.key, map.value);
            // As `--kind` takes it.
            let options = map.options.to_string();
            let kind = options.strip_prefix("kind=").unwrap_or(&options);
            let fill = stat.fact("fill").map(|fill| fill.value.as_f64());
            rows.push(vec![
                json!(map.name),
                json!(kind),
                json!(types),
                json!(stat.records),
                json!(stat.file_bytes),
                json!(fill.map(|fill| (fill * 1000.0).round() / 1000.0)),
            ]);
        }
        let facts = [
            ("file bytes", json!(stat.file_bytes)),
            ("extents of 2 MiB", json!(stat.extents)),
            ("free extents", json!(stat.free_extents)),
            ("generation", json!(stat.generation)),
            ("medium", json!(format!("{:?}", stat.medium))),
            ("clean when opened", json!(stat.clean_at_open)),
            // Not of the pool, but of the process that reads it.
            ("kernel", json!(indelible::kernel()?)),
        ];
        let columns = ["map", "kind", "types", "records", "file bytes", "fill"];
        if output.json {
            let maps: Vec<Value> = rows
                .into_iter()
                .map(|row| {
                    Value::Object(
                        columns
                            .iter()
                            .map(|column| (*column).to_owned())
                            .zip(row)
                            .collect(),
                    )
                })
                .collect();
            output.facts("", &[&facts[..], &[("maps", Value::Array(maps))]].concat())?;
        } else {
            output.facts(&format!("pool {}", self.pool.display()), &facts)?;
            output.table(&columns, &rows)?;
        }
        Ok(true)
    }
}

fn map_facts(stat: &MapStat) -> Vec<(&'static str, Value)> {
    let per_record = |bytes: u64| json!(bytes as f64 / stat.records.max(1) as f64);
    let mut facts = vec![
        ("kind", json!(stat.kind.to_string())),
        ("records", json!(stat.records)),
    ];
    facts.extend(stat.facts.iter().map(|fact| {
        let value = match fact.value {
            FactValue::Whole(number) => json!(number),
            other => json!(other.as_f64()),
        };
        (fact.name, value)
    }));
    facts.extend([
        ("file bytes", json!(stat.file_bytes)),
        ("file bytes per record", per_record(stat.file_bytes)),
        ("dram bytes", json!(stat.dram_bytes)),
        ("dram bytes per record", per_record(stat.dram_bytes)),
    ]);
    facts
}

/// Check every invariant of a pool.
#[derive(Args)]
pub struct Check {
    /// The pool file.
    pool: PathBuf,
    /// Accept a pool that was open when the machine went down, if it is found whole.
    #[arg(long)]
    salvage: bool,
}

impl Check {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        // Opening for writing repairs a damaged superblock copy, and lets every block be accounted for.
        let pool = PoolOptions::new().salvage(self.salvage).open(&self.pool)?;
        // Programs get every finding.
        let shown = |findings| {
            if output.json {
                findings
            } else {
                digest(findings)
            }
        };
        let mut rows = Vec::new();
        let mut add = |place: &str, findings: Vec<String>| {
            let row = |finding| vec![json!(place), json!(finding)];
            rows.extend(findings.into_iter().map(row));
        };
        let of_pool = pool.check();
        let mut sound = of_pool.is_empty();
        add("(the pool)", shown(of_pool));
        for map in pool.maps() {
            let findings = TextMap::open(&pool, &map.name)?.check()?;
            if findings.is_empty() {
                add(&map.name, vec!["sound".into()]);
            } else {
                sound = false;
                add(&map.name, shown(findings));
            }
        }
        let closed = pool.close();
        output.table(&["map", "finding"], &rows)?;
        closed?;
        Ok(sound)
    }
}

/// Findings of one form that are shown in full.
const SHOWN_OF_A_FORM: usize = 3;

/// The first findings of each form, and how many more there are: one damaged page can be behind hundreds that differ only in
/// their numbers.
fn digest(findings: Vec<String>) -> Vec<String> {
    let mut forms: Vec<(String, usize, Vec<String>)> = Vec::new();
    for finding in findings {
        let form = form_of(&finding);
        let at = forms.iter().position(|(known, ..)| *known == form);
        let at = at.unwrap_or_else(|| {
            forms.push((form, 0, Vec::new()));
            forms.len() - 1
        });
        let (_, count, first) = &mut forms[at];
        *count += 1;
        if first.len() < SHOWN_OF_A_FORM {
            first.push(finding);
        }
    }
    let shown = forms.into_iter().flat_map(|(_, count, mut first)| {
        match count - first.len() {
            0 => {}
            _ => first.push(format!("{count} findings like this; --json lists them all")),
        }
        first
    });
    shown.collect()
}

/// A finding without its numbers.
fn form_of(finding: &str) -> String {
    let mut form = String::new();
    let mut rest = finding;
    while let Some(next) = rest.chars().next() {
        let is_number = next.is_ascii_digit();
        let length = match rest.strip_prefix("0x") {
            Some(digits) => 2 + digits.chars().take_while(char::is_ascii_hexdigit).count(),
            None if is_number => rest.chars().take_while(char::is_ascii_digit).count(),
            None => next.len_utf8(),
        };
        form.push(if is_number { '#' } else { next });
        rest = &rest[length..];
    }
    form
}

/// Remove a map.
#[derive(Args)]
pub struct Rm {
    /// The pool file.
    pool: PathBuf,
    /// Name of the map.
    map: String,
}

impl Rm {
    /// Runs the command.
    pub fn run(self) -> Result<bool> {
        let pool = Pool::open(&self.pool)?;
        pool.drop_map(&self.map)?;
        pool.close()?;
        Ok(true)
    }
}

/// Compact the maps of a pool, and cut free space off its end.
#[derive(Args)]
pub struct Shrink {
    /// The pool file.
    pool: PathBuf,
}

impl Shrink {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let pool = Pool::open(&self.pool)?;
        let given_back = pool.shrink()?;
        let facts = [
            ("bytes given back", json!(given_back)),
            ("file bytes", json!(pool.stat().file_bytes)),
        ];
        output.done("free space was given back");
        pool.close()?;
        output.facts("", &facts)?;
        Ok(true)
    }
}

/// Copy a pool that has a log to a new file, by itself.
#[derive(Args)]
pub struct Backup {
    /// The pool file, which no process has open. (A program that has it open calls `Pool::backup`.)
    pool: PathBuf,
    /// The new file.
    to: PathBuf,
}

impl Backup {
    /// Runs the command.
    pub fn run(self) -> Result<bool> {
        let pool = Pool::open(&self.pool)?;
        pool.backup(&self.to)?;
        pool.close()?;
        // Whether it is whole is seen when it is opened.
        PoolOptions::new().open_read_only(&self.to)?;
        Ok(true)
    }
}

/// Read the log of a pool that was not closed, and change nothing; exit code 1 if the log is missing, or not this pool's.
#[derive(Args)]
pub struct Verify {
    /// The pool file.
    pool: PathBuf,
}

impl Verify {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        match PoolOptions::new().verify_log(&self.pool)? {
            Some(log) => {
                let facts = [
                    ("whole records", json!(log.records)),
                    ("bytes", json!(log.bytes)),
                ];
                output.facts("the log is applied when the pool is opened", &facts)?;
            }
            None => output.facts("the pool needs no log", &[])?,
        }
        Ok(true)
    }
}
