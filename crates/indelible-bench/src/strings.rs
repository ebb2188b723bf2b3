//! Maps of byte strings side by side: `indelible bench strings`.
//!
//! A small race of its own beside the plans, whose operations are on words. Every round builds every contestant anew, in one process and in turn, so
//! that drift of the machine hits all alike; reported are medians over the rounds, each with its ratio to the first peer. A round loads the
//! keys in random order, inserts further ones one by one and in batches of 100, looks up keys that are there, alone and in batches of 100 (a
//! contestant without batches does them one by one), and reads 100 records each from keys that are there.
//! With `--threads` the contestants that take several writers then do the same once by one thread and once by so many.
//! Values have 8 bytes. A scan hands each key and value to a function, which looks at the last byte of the key: an iterator that only passes
//! by the addresses of keys has not read them. The keys of all operations lie side by side in the order of the operations, as requests do
//! in a buffer, so that fetching them from memory is no part of what is measured.
//!
//! | file | what it owns |
//! |---|---|
//! | this one | the command, the race and its table |
//! | `contestants` | ours and the peers, behind one trait |
//! | `texts` | the keys |
//! | `threads` | the same operations by one thread and by several |

mod contestants;
mod texts;
mod threads;

use crate::console::note;
use crate::machine;
use crate::race::Home;
use crate::report::summary::median;
use crate::stop::Stop;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use contestants::Contestant;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;
use texts::Texts;
use threads::{Rates, Work};

/// Records of a scan.
const SCAN: usize = 100;
/// What the name of the directory begins with.
const DIRECTORY: &str = "indelible-strings-";
/// Keys of a batch.
const BATCH: usize = 100;

/// What `indelible bench strings` can be asked.
#[derive(Args)]
pub(crate) struct StringsArguments {
    /// Sets of keys: urls, paths, uuids, or the lines of a file, given by its path.
    #[arg(long, value_delimiter = ',', default_value = "urls,paths,uuids")]
    data: Vec<Texts>,
    /// Records loaded.
    #[arg(short = 'n', long, default_value_t = 2_000_000)]
    records: usize,
    /// Lookups; a tenth as many inserts, and a fiftieth as many scans.
    #[arg(short = 'p', long, default_value_t = 1_000_000)]
    operations: usize,
    /// How often everything is measured.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Threads that do the operations together, beside one alone, in a second table.
    #[arg(short = 't', long, default_value_t = 1)]
    threads: usize,
    /// Contestants, by name.
    #[arg(long, visible_alias = "only", value_delimiter = ',')]
    contestants: Vec<String>,
    /// Directory of the contestants' files.
    #[arg(long, visible_alias = "pool_path", default_value_os_t = super::command::fast_directory())]
    pool_path: PathBuf,
    /// Seed for random generators.
    #[arg(long, default_value_t = 1729)]
    seed: u64,
}

/// What is measured of one contestant: nanoseconds per operation, then bytes per key.
const MEASURES: [&str; 6] = [
    "insert",
    "insert_batch",
    "get",
    "get_batch",
    "scan 100",
    "bytes/key",
];
/// The measures that are times.
const TIMES: usize = MEASURES.len() - 1;

impl StringsArguments {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<bool> {
        let known = contestants::all();
        let wanted = |one: &&Contestant| {
            self.contestants.is_empty() || self.contestants.iter().any(|name| name == one.name)
        };
        let entrants: Vec<&Contestant> = known.iter().filter(wanted).collect();
        let is_known = |name: &&String| known.iter().any(|one| one.name == name.as_str());
        if let Some(unknown) = self.contestants.iter().find(|name| !is_known(name)) {
            let names: Vec<_> = known.iter().map(|one| one.name).collect();
            bail!(
                "no contestant is called {unknown:?}; there are {}",
                names.join(", ")
            );
        }
        ensure!(self.operations > 0, "there is at least one operation");
        let home = Home::create(&self.pool_path, DIRECTORY)?;
        let path = home.path.clone();
        Stop::after(move || {
            let _ = std::fs::remove_dir_all(path);
        })?;
        let waits = |one: &&&Contestant| one.name.ends_with("-durable");
        if let Some(durable) = entrants.iter().find(waits)
            && machine::file_system(&self.pool_path) == "tmpfs"
        {
            note(format_args!(
                "{} is tmpfs: {} does not wait for a disk there; see --pool-path",
                self.pool_path.display(),
                durable.name
            ));
        }
        for texts in &self.data {
            self.race(texts, &entrants, &home, out)?;
        }
        Ok(true)
    }

    fn race(
        &self,
        texts: &Texts,
        entrants: &[&Contestant],
        home: &Home,
        out: &mut dyn Write,
    ) -> Result<()> {
        let mut random = SmallRng::seed_from_u64(self.seed);
        let inserts = (self.operations / 10).max(1);
        // One by one, in batches, by one of several threads, and by all of them.
        let sets = if self.threads > 1 { 4 } else { 2 };
        let mut keys = texts.keys(self.records + sets * inserts, &mut random)?;
        ensure!(
            keys.len() > sets * inserts,
            "{texts} has {} keys only",
            keys.len()
        );
        let bytes: usize = keys.iter().map(|key| key.len()).sum();
        let shared = texts::shared_prefix(&mut keys);
        keys.shuffle(&mut random);
        let (loaded, new) = keys.split_at(keys.len() - sets * inserts);
        writeln!(
            out,
            "\n{texts}: {} keys of {:.1} bytes on average, of which {shared:.1} are shared with the key before; values of 8 bytes; nanoseconds",
            loaded.len(),
            bytes as f64 / keys.len() as f64,
        )?;
        let mut measured = vec![Vec::new(); entrants.len()];
        let mut rates = vec![Vec::new(); entrants.len()];
        let new: Vec<Requests> = (new.chunks(inserts))
            .map(|new| Requests::new(new.iter().zip(0..)))
            .collect();
        for _ in 0..self.rounds.max(1) {
            let wanted = (0..self.operations).map(|_| random.random_range(0..loaded.len()));
            let wanted = Requests::new(wanted.map(|at| (&loaded[at], at as u64)));
            for (at, entrant) in entrants.iter().enumerate() {
                let (figures, of_threads) = self.measure(entrant, home, loaded, &new, &wanted)?;
                measured[at].push(figures);
                rates[at].extend(of_threads);
            }
        }
        let medians: Vec<[f64; MEASURES.len()]> = measured
            .into_iter()
            .map(|rounds| medians(&rounds))
            .collect();
        table(entrants, &medians, out)?;
        if self.threads > 1 {
            threads::table(entrants, &rates, self.threads, out)?;
        }
        Ok(out.flush()?)
    }

    fn measure(
        &self,
        entrant: &Contestant,
        home: &Home,
        loaded: &[Key],
        new: &[Requests],
        wanted: &Requests,
    ) -> Result<([f64; MEASURES.len()], Option<Rates>)> {
        let directory = home.path.join("files");
        std::fs::create_dir(&directory).with_context(|| directory.display().to_string())?;
        let mut index = (entrant.create)(&directory)?;
        index.load(loaded);
        let each = |start: Instant, count: usize| start.elapsed().as_nanos() as f64 / count as f64;
        let start = Instant::now();
        for (key, value) in new[0].iter() {
            index.insert(key, value);
        }
        let insert = each(start, new[0].len());
        let records: Vec<(&[u8], u64)> = new[1].iter().collect();
        let start = Instant::now();
        for records in records.chunks(BATCH) {
            index.insert_batch(records);
        }
        let insert_batch = each(start, records.len());
        let start = Instant::now();
        let found = wanted
            .iter()
            .filter(|&(key, value)| index.get(key) == Some(value));
        ensure!(
            found.count() == wanted.len(),
            "{}: a key is missing",
            entrant.name
        );
        let get = each(start, wanted.len());
        let keys: Vec<(&[u8], u64)> = wanted.iter().collect();
        let start = Instant::now();
        let found: usize = keys.chunks(BATCH).map(|keys| index.get_batch(keys)).sum();
        let batch = each(start, wanted.len());
        ensure!(
            found == wanted.len(),
            "{}: a batch misses a key",
            entrant.name
        );
        let scans = (wanted.len() / 50).max(1);
        let (start, mut read) = (Instant::now(), 0);
        for (key, _) in wanted.iter().take(scans) {
            read += index.scan(key, SCAN);
        }
        let scan = each(start, scans);
        ensure!(read > 0, "{}: nothing to scan", entrant.name);
        let records = loaded.len() + new[0].len() + new[1].len();
        let bytes = index.bytes(&directory) as f64 / records as f64;
        let rates = match (index.shared(), new) {
            (Some(shared), [_, _, one, all]) => {
                let (new, threads) = ([one, all], self.threads);
                let work = Work {
                    new,
                    wanted,
                    threads,
                };
                Some(work.measure(shared)?)
            }
            _ => None,
        };
        drop(index);
        std::fs::remove_dir_all(&directory)?;
        Ok(([insert, insert_batch, get, batch, scan, bytes], rates))
    }
}

/// The keys of operations, side by side, each with its value.
struct Requests {
    bytes: Vec<u8>,
    /// Where each key ends, and its value.
    list: Vec<(usize, u64)>,
}

impl Requests {
    fn new<'k>(requests: impl Iterator<Item = (&'k Key, u64)>) -> Self {
        let (mut bytes, mut list) = (Vec::new(), Vec::new());
        for (key, value) in requests {
            bytes.extend_from_slice(key);
            list.push((bytes.len(), value));
        }
        Self { bytes, list }
    }

    fn len(&self) -> usize {
        self.list.len()
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.part(0..self.len())
    }

    /// Some of the requests, from here to there.
    fn part(&self, part: std::ops::Range<usize>) -> impl Iterator<Item = (&[u8], u64)> {
        let begin = part.start.checked_sub(1).map_or(0, |at| self.list[at].0);
        self.list[part].iter().scan(begin, |from, &(to, value)| {
            let key = &self.bytes[*from..to];
            *from = to;
            Some((key, value))
        })
    }
}

/// A key of a text.
type Key = Box<[u8]>;

fn medians(rounds: &[[f64; MEASURES.len()]]) -> [f64; MEASURES.len()] {
    std::array::from_fn(|measure| {
        let all: Vec<f64> = rounds.iter().map(|round| round[measure]).collect();
        median(&all).expect("at least one round")
    })
}

/// Each figure with how many times as fast it is as that of `btreemap`.
fn table(
    entrants: &[&Contestant],
    medians: &[[f64; MEASURES.len()]],
    out: &mut dyn Write,
) -> Result<()> {
    let peer = entrants
        .iter()
        .position(|entrant| entrant.name == "btreemap");
    writeln!(out, "| |{}|", MEASURES.join(" | "))?;
    writeln!(out, "|---|{}", "---:|".repeat(MEASURES.len()))?;
    for (entrant, figures) in entrants.iter().zip(medians) {
        let cells = figures.iter().enumerate().map(|(measure, figure)| {
            match peer.filter(|_| measure < TIMES) {
                Some(peer) => format!("{figure:.0} ({:.2})", medians[peer][measure] / figure),
                // A database that keeps all in its cache has no file to speak of.
                None if *figure < 1.0 => "–".into(),
                None => format!("{figure:.1}"),
            }
        });
        let cells: Vec<String> = cells.collect();
        writeln!(out, "| {} | {} |", entrant.name, cells.join(" | "))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_rounds_the_mean_counts() {
        let round = |figure| [figure; MEASURES.len()];
        assert_eq!(medians(&[round(1.0), round(4.0)]), round(2.5));
        assert_eq!(medians(&[round(9.0), round(1.0), round(4.0)]), round(4.0));
    }
}
