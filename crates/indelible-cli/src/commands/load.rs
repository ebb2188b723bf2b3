//! `load`.

use super::{ObjectArgs, PoolArguments, TypeArgs, csv_file, load_shapes};
use crate::encoded::{self, EncodedMap};
use crate::output::{Output, harmless, note};
use crate::strings;
use crate::text::{quoted, without_mark};
use crate::typed::{self, Columns, LoadOptions, Row, TextMap};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use indelible::{Pool, Type};
use indelible_bench::data::files::{Sosd, column, open};
use serde_json::json;
use std::fs::File;
use std::io::BufRead;
use std::path::PathBuf;
use std::time::Instant;

/// Load a CSV or SOSD file into a map, or a CSV or GeoJSON file into a spatial index.
///
/// An object without records is loaded in one step: a load that fails, or is killed, changes nothing. Into one that has records, records are inserted: a load
/// that fails then, on a full disk say, says how many were added and stay. Another load of the same file then goes on in a map; to a spatial index it adds them a
/// second time.
#[derive(Args)]
pub struct Load {
    #[command(flatten)]
    pool: PoolArguments,
    /// Name of the map or of the spatial index, which is created if it is not there. A map that is there knows its types.
    map: String,
    /// The file; `-` or `/dev/stdin` is what another program prints, but for SOSD files.
    file: PathBuf,
    /// CSV; SOSD's binary format: a count, then that many keys, u64 or u32 little-endian each; GeoJSON, for spatial indexes; or lines, each
    /// of them a key of a map of byte strings. Default: GeoJSON if the file's name ends with .geojson, otherwise CSV.
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Column of the keys: its name, or its number from 1; default: the first one. Once for each field, if the key of a typed map is a tuple and not a
    /// JSON array in one column.
    #[arg(long)]
    key: Vec<String>,
    /// Column of the values; default: the number of the row, from 0.
    #[arg(long)]
    value: Option<String>,
    /// Into a map of byte strings, or a typed map with values that are strings: the value is the whole row, as a JSON object of its cells by the names of their columns.
    #[arg(long, conflicts_with = "value")]
    row_as_json: bool,
    #[command(flatten)]
    types: TypeArgs,
    /// The CSV file has no line with names.
    #[arg(long)]
    no_header: bool,
    /// What separates columns: one ASCII character, `\t` or `tab`; default: a comma.
    #[arg(long, value_parser = delimiter)]
    delimiter: Option<u8>,
    /// Share of each leaf to fill when the map is empty, from 0.1 to 1. Into one that is not, records are inserted.
    #[arg(long, default_value_t = 0.7, value_parser = fill, allow_negative_numbers = true)]
    fill: f64,
    #[command(flatten)]
    shapes: load_shapes::ShapeArgs,
    #[command(flatten)]
    new: ObjectArgs,
}

/// A column by its number, and its name if it has one.
pub(super) fn described(header: &csv::StringRecord, at: usize) -> String {
    match header.get(at) {
        Some(name) => format!("column {} ({})", at + 1, quoted(name)),
        None => format!("column {}", at + 1),
    }
}

/// A byte that separates columns.
fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        _ if text == "tab" || text == "\\t" => Ok(b'\t'),
        [b'"' | b'\r' | b'\n' | 0] => Err(format!("{text:?} has another meaning in a CSV file")),
        [byte] if byte.is_ascii() => Ok(*byte),
        _ => Err(format!(
            "{} is not one ASCII character, and neither \\t nor tab",
            quoted(text)
        )),
    }
}

/// A share of a leaf, as bulk loads take it, whether there will be one or not.
fn fill(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(fill) if (0.1..=1.0).contains(&fill) => Ok(fill),
        _ => Err("expected a number from 0.1 to 1".into()),
    }
}

/// A row as a JSON object. Without a header the names of columns are their numbers from 1.
fn row_as_json(header: &csv::StringRecord, row: &csv::ByteRecord) -> Result<Vec<u8>> {
    let mut object = serde_json::Map::new();
    for (at, cell) in row.iter().enumerate() {
        let number = (at + 1).to_string();
        let name = header.get(at).unwrap_or(&number);
        let cell = std::str::from_utf8(cell)
            .with_context(|| format!("{} is not UTF-8", described(header, at)))?;
        let before = object.insert(name.to_owned(), cell.into());
        ensure!(
            before.is_none(),
            "two columns have the name {}",
            quoted(name)
        );
    }
    Ok(serde_json::to_vec(&object)?)
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Csv,
    Sosd,
    Geojson,
    Lines,
}

/// A CSV file, and the columns of keys and values in it. Without a column of values these are the numbers of the rows.
struct Table {
    reader: csv_file::Reader,
    lines: csv_file::Lines,
    header: csv::StringRecord,
    /// One column, or one for each field of the key.
    key: Vec<usize>,
    value: Option<usize>,
}

impl Load {
    /// Runs the command.
    pub fn run(mut self, output: &Output) -> Result<bool> {
        let start = Instant::now();
        // A file that is called so is `./-`.
        if self.file.as_os_str() == "-" {
            self.file = "/dev/stdin".into();
        }
        self.expect_useful_options()?;
        if self.is_spatial() {
            return self.load_shapes(output);
        }
        let load = |pool: &Pool| match self.format() {
            format if self.is_encoded(pool) => self.load_encoded(pool, format, output),
            _ if self.row_as_json => {
                bail!("--row-as-json is for maps of byte strings: --kind slotted makes one")
            }
            Format::Sosd => {
                let name = || self.file.display().to_string();
                self.load_sosd(pool, output).with_context(name)
            }
            Format::Lines => {
                bail!("lines are loaded into maps of byte strings: --kind slotted makes one")
            }
            _ => self.load_csv(pool, output),
        };
        let (records, repeated) = self.pool.change(&self.map, load)?;
        output.done("the records were loaded");
        let seconds = start.elapsed().as_secs_f64();
        let facts = [
            ("records read", json!(records)),
            ("keys repeated", json!(repeated)),
            ("seconds", json!(seconds)),
            (
                "records per second",
                json!((records as f64 / seconds) as u64),
            ),
        ];
        output.facts(
            &format!(
                "loaded {} into {}",
                self.file.display(),
                harmless(&self.map)
            ),
            &facts,
        )?;
        Ok(true)
    }

    fn format(&self) -> Format {
        let is_geojson = self
            .file
            .extension()
            .is_some_and(|ending| ending == "geojson");
        self.format.unwrap_or(if is_geojson {
            Format::Geojson
        } else {
            Format::Csv
        })
    }

    /// An error if the command line has an option that this load would not look at.
    fn expect_useful_options(&self) -> Result<()> {
        let is_csv = matches!(self.format(), Format::Csv);
        let is_map = !self.is_spatial();
        let of_columns = [
            ("--key", !self.key.is_empty()),
            ("--value", self.value.is_some()),
            ("--row-as-json", self.row_as_json),
        ];
        let of_types = [
            ("--key-type", self.types.key_type.is_some()),
            ("--value-type", self.types.value_type.is_some()),
        ];
        let of_csv = [
            ("--delimiter", self.delimiter.is_some()),
            ("--no-header", self.no_header),
        ];
        for (options, is_useful, place) in [
            (
                &of_columns[..],
                is_csv && is_map,
                "CSV files that are loaded into maps",
            ),
            (&of_types, is_map, "maps"),
            (&of_csv, is_csv, "CSV files"),
        ] {
            let given = options.iter().find(|(_, is_given)| *is_given);
            if let Some((option, _)) = given {
                ensure!(is_useful, "{option} is for {place}");
            }
        }
        Ok(())
    }

    /// Whether the command line asks for a spatial index.
    fn is_spatial(&self) -> bool {
        let is_geojson = matches!(self.format(), Format::Geojson);
        is_geojson || self.shapes.are_given() || self.new.is_spatial()
    }

    fn load_shapes(&self, output: &Output) -> Result<bool> {
        let source = match self.format() {
            Format::Geojson => load_shapes::Source::Geojson,
            Format::Csv => load_shapes::Source::Csv {
                has_header: !self.no_header,
                delimiter: self.delimiter(),
            },
            Format::Sosd => bail!("a SOSD file has keys and no coordinates"),
            Format::Lines => bail!("a file of lines has keys and no coordinates"),
        };
        let load = load_shapes::Load {
            name: &self.map,
            file: &self.file,
            source,
            shapes: &self.shapes,
            fill: self.fill,
            new: &self.new,
        };
        load.run(&self.pool, output)
    }

    fn load_csv(&self, pool: &Pool, output: &Output) -> Result<(u64, usize)> {
        let (key, value) = self
            .types
            .words_over(pool, &self.map)
            .context("the map is no map of words")?;
        let map = TextMap::create(pool, &self.map, key, value, self.new.of_map()?)?;
        let file = open(&self.file)?;
        let name = self.file.display().to_string();
        let progress = output.progress(file.metadata()?.len(), "reading");
        let Table {
            mut reader,
            lines,
            header,
            key,
            value,
        } = self.table(file, &name)?;
        let [key] = *key else {
            bail!(
                "a key of {} columns is for typed maps: --key-type '(u32, String)' makes one",
                key.len()
            )
        };
        if header
            .get(key)
            .is_some_and(|cell| cell.trim().parse::<f64>().is_ok())
        {
            note(format_args!(
                "the first row of {name} is taken for the names of the columns; with --no-header it is a record"
            ));
        }
        let columns = Columns {
            key: described(&header, key),
            value: value.map_or_else(
                || "the number of the row".into(),
                |at| described(&header, at),
            ),
        };
        let mut number = 0_u64;
        let mut rows = reader.records().map(|row| {
            let row = row?;
            let line = lines.at(row.position());
            progress.set_position(row.position().map_or(0, csv::Position::byte));
            let field = |at: usize| {
                row.get(at)
                    .map(str::to_owned)
                    .with_context(|| format!("line {line} has no {}", described(&header, at)))
            };
            let value = value.map_or_else(|| Ok(number.to_string()), field)?;
            number += 1;
            let key = field(key)?;
            Ok(Row { line, key, value })
        });
        let written = |_| {};
        let options = LoadOptions {
            fill: self.fill,
            written: &written,
        };
        let repeated = map
            .load(&mut rows, &columns, &options)
            .with_context(|| name.clone())?;
        progress.finish_and_clear();
        Ok((number, repeated))
    }

    fn delimiter(&self) -> u8 {
        self.delimiter.unwrap_or(b',')
    }

    /// The CSV file, which is called `name`, read up to the end of its header.
    fn table(&self, file: File, name: &str) -> Result<Table> {
        let (mut reader, lines) = csv_file::reader(file, !self.no_header, self.delimiter())
            .with_context(|| name.to_owned())?;
        let header = if self.no_header {
            csv::StringRecord::new()
        } else {
            reader.headers().with_context(|| name.to_owned())?.clone()
        };
        let value = self.value.as_ref().map(|name| column(&header, name));
        let mut key = Vec::new();
        for name in &self.key {
            let found = column(&header, name);
            key.push(match name.contains(',') {
                true => found.context(
                    "a --key is one column: name each field of a tuple with a --key of its own",
                )?,
                false => found?,
            });
        }
        if key.is_empty() {
            key.push(0);
        }
        Ok(Table {
            key,
            value: value.transpose()?,
            reader,
            lines,
            header,
        })
    }

    /// Whether the records go into a typed map or a map of byte strings: one that is there, or that the command line asks for.
    fn is_encoded(&self, pool: &Pool) -> bool {
        let is_asked_for = self.types.words().is_none() || self.new.of_strings().is_some();
        is_asked_for
            || strings::find(pool, &self.map).is_some()
            || encoded::find(pool, &self.map).is_some()
    }

    fn load_encoded(&self, pool: &Pool, format: Format, output: &Output) -> Result<(u64, usize)> {
        // Where the command line says others than a map has that is there, or the map is none of types, the library refuses them.
        let known = encoded::find(pool, &self.map);
        let types = match &known {
            Some(known) => Some(self.types.names_over([&known.key, &known.value])),
            None if strings::find(pool, &self.map).is_some() => {
                self.types.are_given().then(|| self.types.names())
            }
            None => self.types.of_typed(self.new.of_strings()),
        };
        let map = EncodedMap::create(pool, &self.map, types, self.new.of_typed()?)?;
        let name = self.file.display().to_string();
        let file = open(&self.file)?;
        let progress = output.progress(file.metadata()?.len(), "reading");
        let mut records: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        let place = |line: u64| format!("{name}: line {line}");
        match format {
            Format::Lines => {
                let text = without_mark(file).with_context(|| name.clone())?;
                for (line, number) in text.split(b'\n').zip(0_u64..) {
                    let mut line = line.with_context(|| name.clone())?;
                    if line.last() == Some(&b'\r') {
                        line.pop();
                    }
                    let record = map.record(&[&line], number.to_string().as_bytes());
                    records.push(record.with_context(|| place(number + 1))?);
                }
            }
            Format::Csv => {
                let again = file.try_clone()?;
                let mut table = self.table(file, &name)?;
                let mut row = csv::ByteRecord::new();
                let mut last = None;
                while table
                    .reader
                    .read_byte_record(&mut row)
                    .with_context(|| name.clone())?
                {
                    let line = table.lines.at(row.position());
                    last = row.position().map(|at| (line, at.byte()));
                    progress.set_position(row.position().map_or(0, csv::Position::byte));
                    let record = self.encoded_record(&map, &table, &row, records.len());
                    records.push(record.with_context(|| place(line))?);
                }
                if let Some((line, begin)) = last {
                    let closed = csv_file::expect_closed_quotes(again, begin);
                    closed.with_context(|| place(line))?;
                }
            }
            Format::Sosd | Format::Geojson => {
                bail!("{} has keys of any length: load CSV or lines", self.map)
            }
        }
        let count = records.len() as u64;
        let repeated = map.load(records, self.fill).with_context(|| name)?;
        progress.finish_and_clear();
        Ok((count, repeated))
    }

    /// The record of a row of a CSV file, which has `number` rows before it.
    fn encoded_record(
        &self,
        map: &EncodedMap,
        table: &Table,
        row: &csv::ByteRecord,
        number: usize,
    ) -> Result<(Vec<u8>, Vec<u8>)> {
        let header = &table.header;
        let cell = |&at: &usize| {
            row.get(at)
                .with_context(|| format!("the line has no {}", described(header, at)))
        };
        let key: Vec<&[u8]> = table.key.iter().map(cell).collect::<Result<_>>()?;
        match table.value {
            _ if self.row_as_json => map.record(&key, &row_as_json(header, row)?),
            Some(at) => map.record(&key, cell(&at)?),
            None => map.record(&key, number.to_string().as_bytes()),
        }
    }

    fn load_sosd(&self, pool: &Pool, output: &Output) -> Result<(u64, usize)> {
        if self.types.words() != Some((Type::U64, Type::U64)) {
            bail!("a SOSD file has u64 keys; its values are their positions, u64 too");
        }
        let keys = Sosd::open(&self.file)?;
        let count = keys.left();
        let progress = output.progress(2 * count, "loading");
        let mut records = Vec::with_capacity(count as usize);
        for (position, key) in (0_u64..).zip(keys) {
            let key = key?;
            records.push((key, position));
            if position.is_multiple_of(1 << 16) {
                progress.set_position(position);
            }
        }
        let map = pool.map_with::<u64, u64>(&self.map, self.new.of_map()?)?;
        let written = |records| progress.inc(records);
        let repeated = typed::load_records(
            &map,
            records,
            &LoadOptions {
                fill: self.fill,
                written: &written,
            },
        )?;
        progress.finish_and_clear();
        Ok((count, repeated))
    }
}
