//! `list`, `stat`, `check`, `rename`, `rm`, `shrink`: all families of objects.

use super::{durability_text, open_to_read};
use crate::encoded;
use crate::output::{Output, explain, harmless, json_name, note};
use crate::shapes::{self, with_geometry};
use crate::strings;
use crate::typed::TextMap;
use anyhow::{Result, bail, ensure};
use clap::Args;
use indelible::{Durability, FactValue, IndexKind, IndexStat, ObjectInfo, Pool, PoolOptions};
use serde_json::{Value, json};
use std::path::PathBuf;

/// The columns that say what an object is.
const IDENTITY: [&str; 3] = ["object", "kind", "types"];

/// The columns that say how large an object is.
const MEASURES: [&str; 3] = ["records", "file bytes", "fill"];

/// What stands in the columns of [`MEASURES`] if the object cannot be opened.
const NOT_MEASURED: [Value; 3] = [Value::Null, Value::Null, Value::Null];

/// What is wrong with an object that this version does not know.
const UNKNOWN: &str = "its entry in the catalog is damaged, or of a later version of indelible";

/// What an object is, in the columns of [`IDENTITY`].
struct Object {
    name: String,
    /// As `--kind` takes it.
    kind: String,
    types: String,
    family: Family,
}

/// The family of an object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    /// Words under words.
    Map,
    Spatial,
    /// Byte strings under byte strings.
    Strings,
    /// Byte strings that are encodings of types.
    Typed,
    /// This version does not know what the catalog says of it.
    Unknown,
}

impl Object {
    /// All objects of a pool, maps first, and last those that this version does not know.
    fn all(pool: &Pool) -> Vec<Self> {
        let kind = |options: String| options.strip_prefix("kind=").unwrap_or(&options).to_owned();
        let maps = pool.maps().into_iter().map(|map| Self {
            kind: kind(map.options.to_string()),
            types: format!("{} to {}", map.key, map.value),
            name: map.name,
            family: Family::Map,
        });
        let spatials = pool.spatials().into_iter().map(|index| Self {
            kind: kind(index.options.to_string()),
            types: index.geometry.to_string(),
            name: index.name,
            family: Family::Spatial,
        });
        let strings = pool.bytes_maps().into_iter().map(|map| Self {
            kind: kind(map.options.to_string()),
            types: "byte strings".into(),
            name: map.name,
            family: Family::Strings,
        });
        let typed = pool.typed_maps().into_iter().map(|map| Self {
            kind: kind(map.options.to_string()),
            types: format!("{} to {}", map.key, map.value),
            name: map.name,
            family: Family::Typed,
        });
        let unknown = pool
            .objects()
            .into_iter()
            .filter_map(|object| match object {
                ObjectInfo::Unknown { name } => Some(Self {
                    kind: "unknown".into(),
                    types: String::new(),
                    name,
                    family: Family::Unknown,
                }),
                _ => None,
            });
        let known = maps.chain(strings).chain(typed).chain(spatials);
        known.chain(unknown).collect()
    }

    fn identity(&self) -> Vec<Value> {
        vec![json!(self.name), json!(self.kind), json!(self.types)]
    }

    /// Its records, its bytes in the file, and the share of its leaves that is used; nulls if it is unknown.
    fn measures(&self, pool: &Pool) -> Result<Vec<Value>> {
        fn of<K: IndexKind>(stat: &IndexStat<K>) -> Vec<Value> {
            let fill = stat.fact("fill").map(|fill| fill.value.as_f64());
            vec![
                json!(stat.records),
                json!(stat.file_bytes),
                json!(fill.map(|fill| (fill * 1000.0).round() / 1000.0)),
            ]
        }
        match self.family {
            Family::Map => return Ok(of(&TextMap::open(pool, &self.name)?.stat()?)),
            Family::Strings => return Ok(of(&pool.open_bytes(&self.name)?.stat()?)),
            Family::Typed => return Ok(of(&pool.open_typed_as_bytes(&self.name)?.1.stat()?)),
            Family::Unknown => return Ok(NOT_MEASURED.to_vec()),
            Family::Spatial => {}
        }
        let info = shapes::expect(pool, &self.name)?;
        with_geometry!(info.geometry, G => Ok(of(&pool.open_spatial::<G>(&self.name)?.stat()?)))
    }

    /// What is wrong with it. An error if it cannot be opened.
    fn check(&self, pool: &Pool) -> Result<Vec<String>> {
        match self.family {
            Family::Map => return TextMap::open(pool, &self.name)?.check(),
            Family::Strings => return Ok(pool.open_bytes(&self.name)?.check()?),
            Family::Typed => return Ok(pool.open_typed_as_bytes(&self.name)?.1.check()?),
            Family::Unknown => return Ok(vec![UNKNOWN.into()]),
            Family::Spatial => {}
        }
        let info = shapes::expect(pool, &self.name)?;
        with_geometry!(info.geometry, G => Ok(pool.open_spatial::<G>(&self.name)?.check()?))
    }
}

/// The maps and the spatial indexes of a pool. None is opened.
#[derive(Args)]
pub struct List {
    /// The pool file.
    pool: PathBuf,
}

impl List {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let pool = open_to_read(&self.pool)?;
        let objects = Object::all(&pool);
        let rows: Vec<Vec<Value>> = objects.iter().map(Object::identity).collect();
        output.table(&IDENTITY, &rows)?;
        Ok(true)
    }
}

/// What a pool, its maps and its spatial indexes consist of.
#[derive(Args)]
pub struct Stat {
    /// The pool file.
    pool: PathBuf,
    /// Only this map or spatial index, in detail.
    #[arg(value_name = "NAME")]
    object: Option<String>,
}

impl Stat {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let pool = open_to_read(&self.pool)?;
        if let Some(name) = &self.object {
            return stat_of(&pool, name, output);
        }
        let stat = pool.stat();
        let facts = [
            ("file bytes", json!(stat.file_bytes)),
            ("extents of 2 MiB", json!(stat.extents)),
            ("free extents", json!(stat.free_extents)),
            ("generation", json!(stat.generation)),
            ("medium", json!(format!("{:?}", stat.medium))),
            ("durability", json!(durability_text(stat.durability))),
            ("clean when opened", json!(stat.clean_at_open)),
            // Not of the pool, but of the process that reads it.
            ("kernel", json!(indelible::kernel()?)),
        ];
        let mut rows = Vec::new();
        let mut all_open = true;
        for object in Object::all(&pool) {
            // One that is damaged hides nothing of the others.
            let measures = object.measures(&pool).unwrap_or_else(|error| {
                note(format_args!("{:?}: {}", object.name, explain(&error)));
                all_open = false;
                NOT_MEASURED.to_vec()
            });
            rows.push((object.family, [object.identity(), measures].concat()));
        }
        if !output.json {
            output.facts(&format!("pool {}", self.pool.display()), &facts)?;
            let rows: Vec<Vec<Value>> = rows.into_iter().map(|(_, row)| row).collect();
            output.table(&[&IDENTITY[..], &MEASURES[..]].concat(), &rows)?;
            return Ok(all_open);
        }
        // An array for each family; what an object is called there says which one.
        let family = |wanted: Family, called: &str, types: &str| {
            let names = [&[called, "kind", types], &MEASURES[..]].concat();
            let object = |row: &Vec<Value>| {
                let names = names.iter().map(|name| json_name(name));
                Value::Object(names.zip(row.iter().cloned()).collect())
            };
            let rows = rows.iter().filter(|(family, _)| *family == wanted);
            Value::Array(rows.map(|(_, row)| object(row)).collect())
        };
        let families = [
            ("maps", family(Family::Map, "map", "types")),
            ("strings", family(Family::Strings, "map", "types")),
            ("typed", family(Family::Typed, "map", "types")),
            ("spatials", family(Family::Spatial, "spatial", "geometry")),
            ("unknown", family(Family::Unknown, "object", "types")),
        ];
        output.facts("", &[&facts[..], &families[..]].concat())?;
        Ok(all_open)
    }
}

/// Prints what one object consists of.
fn stat_of(pool: &Pool, name: &str, output: &Output) -> Result<bool> {
    if let Some(map) = strings::open(pool, name)? {
        output.facts(
            &format!("map of byte strings {}", harmless(name)),
            &facts_of(&map.stat()?),
        )?;
        return Ok(true);
    }
    if let Some((info, map)) = encoded::open(pool, name)? {
        let mut facts = vec![("types", json!(format!("{} to {}", info.key, info.value)))];
        facts.extend(facts_of(&map.stat()?));
        output.facts(&format!("typed map {}", harmless(name)), &facts)?;
        return Ok(true);
    }
    let Some(info) = shapes::find(pool, name) else {
        let stat = TextMap::open(pool, name)?.stat()?;
        output.facts(&format!("map {}", harmless(name)), &facts_of(&stat))?;
        return Ok(true);
    };
    with_geometry!(info.geometry, G => {
        let index = pool.open_spatial::<G>(name)?;
        let mut facts = vec![
            ("geometry", json!(info.geometry.to_string())),
            ("options", json!(info.options.to_string())),
        ];
        facts.extend(facts_of(&index.stat()?));
        let bounds = index.bounds()?.map(|bounds| shapes::show(&bounds));
        facts.push(("bounds", bounds.map_or(Value::Null, Value::String)));
        output.facts(&format!("spatial index {}", harmless(name)), &facts)
    })?;
    Ok(true)
}

fn facts_of<K: IndexKind>(stat: &IndexStat<K>) -> Vec<(&'static str, Value)> {
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
        for object in Object::all(&pool) {
            let findings = object.check(&pool);
            // One that cannot be opened hides nothing of the others.
            let findings = findings.unwrap_or_else(|error| vec![explain(&error)]);
            if findings.is_empty() {
                add(&object.name, vec!["sound".into()]);
            } else {
                sound = false;
                add(&object.name, shown(findings));
            }
        }
        let closed = pool.close().map_err(anyhow::Error::from);
        if let Err(error) = &closed {
            // What was found may not be what the pool has.
            rows.retain(|row| row[1] != "sound");
            rows.push(vec![json!("(the pool)"), json!(explain(error))]);
        }
        output.table(&["object", "finding"], &rows)?;
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

/// Remove a map or a spatial index.
#[derive(Args)]
pub struct Rm {
    /// The pool file.
    pool: PathBuf,
    /// Name of the map or of the spatial index.
    name: String,
}

impl Rm {
    /// Runs the command.
    pub fn run(self) -> Result<bool> {
        let pool = Pool::open(&self.pool)?;
        pool.drop_object(&self.name)?;
        pool.close()?;
        Ok(true)
    }
}

/// Give a map or a spatial index another name.
#[derive(Args)]
pub struct Rename {
    /// The pool file.
    pool: PathBuf,
    /// Name of the map or of the spatial index.
    from: String,
    /// Its new name.
    to: String,
}

impl Rename {
    /// Runs the command.
    pub fn run(self) -> Result<bool> {
        let pool = Pool::open(&self.pool)?;
        ensure!(self.from != self.to, "both names are {:?}", self.from);
        pool.rename_object(&self.from, &self.to)?;
        pool.close()?;
        Ok(true)
    }
}

/// Compact the maps and the spatial indexes of a pool, and cut free space off its end.
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
        if let Durability::Process = pool.stat().durability {
            bail!(
                "{} has no log, and nobody has it open now: copy its file",
                self.pool.display()
            );
        }
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
                output.facts("the log is read when the pool is opened", &facts)?;
            }
            // The same names, so that a program can ask for them.
            None if output.json => {
                let facts = ["whole records", "bytes"].map(|name| (name, Value::Null));
                output.facts("", &facts)?;
            }
            None => output.line("the pool needs no log")?,
        }
        Ok(true)
    }
}
