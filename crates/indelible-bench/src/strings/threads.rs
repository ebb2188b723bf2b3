//! The same operations by one thread and by several, on one map: the option `--threads` of `indelible bench strings`.

use super::contestants::{Contestant, SharedIndex};
use super::{Requests, SCAN};
use crate::report::summary::median;
use crate::together::together;
use anyhow::Result;
use std::io::Write;
use std::time::Instant;

/// What is measured: millions of operations per second, by one thread and by several.
const MEASURES: [&str; 3] = ["insert", "get", "scan 100"];

/// For each measure, the rate of one thread and that of several.
pub(super) type Rates = [[f64; 2]; MEASURES.len()];

/// What the operations are done on.
pub(super) struct Work<'a> {
    /// Keys that are not there, for one thread and for several.
    pub(super) new: [&'a Requests; 2],
    pub(super) wanted: &'a Requests,
    pub(super) threads: usize,
}

impl Work<'_> {
    pub(super) fn measure(&self, index: &dyn SharedIndex) -> Result<Rates> {
        let mut rates = Rates::default();
        for (which, threads) in [1, self.threads].into_iter().enumerate() {
            let new = self.new[which];
            rates[0][which] = rate(new, new.len(), threads, |key, value| {
                index.insert(key, value);
            })?;
            let wanted = self.wanted;
            rates[1][which] = rate(wanted, wanted.len(), threads, |key, value| {
                assert!(index.get(key) == Some(value), "a key is missing");
            })?;
            let scans = (wanted.len() / 50).max(1);
            rates[2][which] = rate(wanted, scans, threads, |key, _| {
                assert!(index.scan(key, SCAN) > 0, "nothing to scan");
            })?;
        }
        Ok(rates)
    }
}

/// Millions of operations per second: the first `count` requests, a part for each thread. The clock runs from the moment at which the first
/// thread begins until the last one is done. The threads read it themselves: one more that did so, where there are as many as cores, would
/// often come to it late.
fn rate(
    requests: &Requests,
    count: usize,
    threads: usize,
    work: impl Fn(&[u8], u64) + Sync,
) -> Result<f64> {
    let work = &work;
    let thread = |thread: usize| {
        let part = count * thread / threads..count * (thread + 1) / threads;
        move || {
            let start = Instant::now();
            requests
                .part(part)
                .for_each(|(key, value)| work(key, value));
            (start, Instant::now())
        }
    };
    let times = together((0..threads).map(thread).collect(), || {})?;
    let start = times.iter().map(|(start, _)| *start).min();
    let end = times.iter().map(|(_, end)| *end).max();
    let took = end.zip(start).map(|(end, start)| end - start);
    Ok(count as f64 / took.unwrap_or_default().as_secs_f64() / 1e6)
}

/// The rates, each with how many times as fast several threads are as one. Rounds of a contestant count by their median.
pub(super) fn table(
    entrants: &[&Contestant],
    measured: &[Vec<Rates>],
    threads: usize,
    out: &mut dyn Write,
) -> Result<()> {
    writeln!(
        out,
        "\nmillions of operations per second, by 1 thread → by {threads}; in brackets the rate of {threads} divided by that of 1, the median of the rounds"
    )?;
    writeln!(out, "| |{}|", MEASURES.join(" | "))?;
    writeln!(out, "|---|{}", "---:|".repeat(MEASURES.len()))?;
    for (entrant, rounds) in entrants.iter().zip(measured) {
        if rounds.is_empty() {
            continue;
        }
        let cells = (0..MEASURES.len()).map(|measure| {
            let of = |value: &dyn Fn(&[f64; 2]) -> f64| {
                let values: Vec<f64> = rounds.iter().map(|rates| value(&rates[measure])).collect();
                median(&values).expect("at least one round")
            };
            let [one, all] = [of(&|rates| rates[0]), of(&|rates| rates[1])];
            format!(
                "{one:.3} → {all:.3} ({:.2})",
                of(&|rates| rates[1] / rates[0])
            )
        });
        let cells: Vec<String> = cells.collect();
        writeln!(out, "| {} | {} |", entrant.name, cells.join(" | "))?;
    }
    Ok(())
}
