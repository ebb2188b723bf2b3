//! `demo`: the main job on real data, with kills; `places` has its spatial act, and `power_cut` the one on a disk.

use super::{MapArgs, places, power_cut};
use crate::output::{Output, grouped};
use crate::torture::{Outcome, Victim};
use anyhow::{Context, Result, ensure};
use clap::Args;
use indelible::pmem::count;
use indelible::{Durability, Map, MapOptions, Pool};
use indelible_bench::data::cities::{self, City};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Index cities, kill the writers, prove that nothing was lost.
#[derive(Args)]
pub struct Demo {
    /// Where the pools go; by default a temporary directory, which is removed afterwards.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// How often the writers are killed.
    #[arg(long, default_value_t = 6)]
    kills: u32,
    /// How often the power of the disk is cut, in simulation.
    #[arg(long, default_value_t = 6)]
    power_cuts: u64,
    /// Writer threads.
    #[arg(long, default_value_t = 2)]
    threads: u64,
    /// Milliseconds from the first acknowledged operation to the kill.
    #[arg(long, default_value_t = 500)]
    run_ms: u64,
    #[command(flatten)]
    new: MapArgs,
}

impl Demo {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let mut builder = tempfile::Builder::new();
        builder.prefix("indelible-demo-");
        let directory = match &self.directory {
            Some(directory) => builder.tempdir_in(directory),
            None => builder.tempdir(),
        };
        let directory = directory.context("make a directory for the pools")?;
        let mut indexed = index_cities(directory.path(), &self.new.options())?;
        let places = places::act(directory.path())?;
        indexed.narration.push(String::new());
        indexed.narration.extend(places.narration);
        indexed.facts.extend(places.facts);
        if self.power_cuts > 0 {
            let new = self.new.clone().into();
            let power = power_cut::act(directory.path(), new, self.threads, self.power_cuts)?;
            indexed.narration.push(String::new());
            indexed.narration.extend(power.narration);
            indexed.facts.extend(power.facts);
        }
        if !output.json {
            output.line(format_args!("{}\n", indexed.narration.join("\n")))?;
            output.line(format_args!(
                "Now {} threads write to another pool, in a process of their own, which is killed (SIGKILL)\n\
                 while they write. After each kill the pool is opened again and compared, record by record,\n\
                 with the operations that had returned.\n",
                self.threads
            ))?;
        }
        let mut victim = Victim::new(
            directory.path(),
            Durability::Process,
            self.new.clone().into(),
            self.threads,
            7,
        )?;
        let mut outcomes = Vec::new();
        for _ in 0..self.kills {
            outcomes.push(victim.kill_once(Duration::from_millis(self.run_ms), false)?);
        }
        print_kills(output, &outcomes)?;
        print_summary(output, &indexed, &outcomes)?;
        Ok(true)
    }
}

/// What indexing the cities showed.
struct Indexed {
    narration: Vec<String>,
    facts: Vec<(&'static str, Value)>,
}

fn index_cities(directory: &Path, options: &MapOptions) -> Result<Indexed> {
    let cities = cities::all()?;
    let path = directory.join("cities.pool");
    let pool = Pool::create(&path)?;
    let map = pool.map_with::<u64, u32>("cities by place", options)?;
    let before = count::here();
    let start = Instant::now();
    // Two places with the same coordinates: the second one moves on by one step, 9 millimetres.
    for (row, city) in cities.iter().enumerate() {
        let mut key = city.key();
        while !map.insert_new(key, row as u32)? {
            key += 1;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let cost = count::here() - before;
    let stat = map.stat()?;
    ensure!(
        stat.records == cities.len() as u64,
        "not every city was indexed"
    );
    let file_bytes = stat.file_bytes;
    drop(map);
    pool.close()?;

    let start = Instant::now();
    let pool = Pool::open(&path)?;
    let map = pool.map_with::<u64, u32>("cities by place", options)?;
    let zurich = cities
        .iter()
        .find(|city| city.name == "Zurich" || city.name == "Zürich")
        .context("no Zurich")?;
    let near = neighbours(&map, &cities, zurich)?;
    let first_answer = start.elapsed();
    let per_insert = |count: u64| count as f64 / cities.len() as f64;
    let narration = vec![
        format!(
            "Indexed {} places from GeoNames by their place on a Hilbert curve, one insert each, in {:.0} ms.",
            grouped(cities.len() as u64),
            seconds * 1e3
        ),
        format!(
            "Closed the pool and opened it again; {:.2} ms later:",
            first_answer.as_secs_f64() * 1e3
        ),
        format!("  near Zurich along the curve: {}", near.join(", ")),
    ];
    let facts = vec![
        ("cities indexed", json!(cities.len())),
        (
            "inserts per second",
            json!((cities.len() as f64 / seconds) as u64),
        ),
        (
            "lines flushed per insert, splits included",
            json!(per_insert(cost.lines_flushed)),
        ),
        (
            "fences per insert, splits included",
            json!(per_insert(cost.fences)),
        ),
        (
            "bytes of file per record",
            json!(file_bytes as f64 / cities.len() as f64),
        ),
        (
            "reopened, first answer after, ms",
            json!(first_answer.as_secs_f64() * 1e3),
        ),
    ];
    Ok(Indexed { narration, facts })
}

/// The names of the three places before and after `city` on the curve.
fn neighbours(map: &Map<u64, u32>, cities: &[City], city: &City) -> Result<Vec<String>> {
    let before = map.range(..city.key())?.rev().take(3);
    let mut rows: Vec<u32> = before
        .map(|record| record.map(|(_, row)| row))
        .collect::<Result<_, _>>()?;
    rows.reverse();
    for record in map.range(city.key() + 1..)?.take(3) {
        rows.push(record?.1);
    }
    Ok(rows
        .iter()
        .map(|&row| &cities[row as usize])
        .map(|city| format!("{} ({})", city.name, city.country))
        .collect())
}

fn milliseconds(duration: Duration) -> Value {
    json!((duration.as_secs_f64() * 1e5).round() / 1e2)
}

fn print_kills(output: &Output, outcomes: &[Outcome]) -> Result<()> {
    let rows: Vec<Vec<Value>> = outcomes
        .iter()
        .enumerate()
        .map(|(kill, outcome)| {
            vec![
                json!(kill + 1),
                json!(outcome.acknowledged),
                json!((outcome.acknowledged as f64 / outcome.running.as_secs_f64()) as u64),
                json!(outcome.records),
                milliseconds(outcome.open),
                milliseconds(outcome.first_answer),
                json!(0),
            ]
        })
        .collect();
    if !output.json {
        let columns = [
            "kill",
            "acknowledged",
            "operations/s",
            "records",
            "open, ms",
            "first answer, ms",
            "lost",
        ];
        output.table(&columns, &rows)?;
    }
    Ok(())
}

fn print_summary(output: &Output, indexed: &Indexed, outcomes: &[Outcome]) -> Result<()> {
    let acknowledged: u64 = outcomes.iter().map(|outcome| outcome.acknowledged).sum();
    let slowest =
        |time: fn(&Outcome) -> Duration| outcomes.iter().map(time).max().unwrap_or_default();
    let mut facts = indexed.facts.clone();
    facts.extend([
        ("kills", json!(outcomes.len())),
        ("operations acknowledged", json!(acknowledged)),
        ("operations lost", json!(0)),
        (
            "slowest open after a kill, ms",
            milliseconds(slowest(|outcome| outcome.open)),
        ),
        (
            "slowest first answer after a kill, ms",
            milliseconds(slowest(|outcome| outcome.first_answer)),
        ),
    ]);
    let title = format!(
        "\n{} operations were acknowledged before {} kills; every one of them is there.",
        grouped(acknowledged),
        outcomes.len()
    );
    output.facts(&title, &facts)
}
