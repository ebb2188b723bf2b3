//! What is measured.

use crate::contestants::Contestant;
use std::hint::black_box;
use std::time::Instant;

/// Named rates in million operations per second; none where a structure has no such operation.
pub type Figures = Vec<(String, Option<f64>)>;

/// Sizes of a run.
pub struct Workload {
    /// Records loaded.
    pub records: u64,
    /// Operations per measurement.
    pub operations: u64,
    /// Numbers of threads.
    pub threads: Vec<u64>,
    /// Measurements of lookups and scans.
    pub rounds: usize,
}

const SCAN: usize = 100;
const BATCH: usize = 1024;

/// A bijection on 64-bit numbers that looks random: keys are `mix(0)`, `mix(1)`, ..., so that no key is stored anywhere.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

impl Workload {
    /// Loads the structure and measures it.
    pub fn measure(&self, map: &dyn Contestant) -> Figures {
        let mut figures = Figures::new();
        let load = rate(self.records, || {
            (0..self.records).for_each(|i| map.insert(mix(i), i))
        });
        figures.push(("load".into(), Some(load)));
        for &threads in &self.threads {
            let get =
                self.median(|| self.on(threads, self.operations, |i| map.get(self.present(i))));
            figures.push((format!("get {threads}t"), Some(get)));
        }
        let scans = self.operations / 20;
        let scan = self.median(|| self.on(1, scans, |i| map.scan(self.present(i), SCAN)));
        figures.push(("scan100 1t".into(), map.can_scan().then_some(scan)));
        let get_batch = map.has_batches().then(|| {
            let keys: Vec<u64> = (0..self.operations).map(|i| self.present(i)).collect();
            self.median(|| {
                rate(self.operations, || {
                    keys.chunks(BATCH).for_each(|keys| {
                        black_box(map.get_batch(keys));
                    })
                })
            })
        });
        figures.push(("get_batch 1t".into(), get_batch));
        let mut next = self.records;
        for &threads in &self.threads {
            let from = next;
            next += self.operations;
            let insert = self.on(threads, self.operations, |i| {
                map.insert(mix(from + i), i);
                0
            });
            figures.push((format!("insert {threads}t"), Some(insert)));
        }
        let insert_batch = map.has_batches().then(|| {
            let records: Vec<(u64, u64)> = (next..next + self.operations)
                .map(|i| (mix(i), i))
                .collect();
            rate(self.operations, || {
                records
                    .chunks(BATCH)
                    .for_each(|records| map.insert_batch(records))
            })
        });
        figures.push(("insert_batch".into(), insert_batch));
        figures
    }

    /// A random key that is there.
    fn present(&self, i: u64) -> u64 {
        // Multiplying by an odd constant and taking the high part spreads the index over the records without a division.
        let spread = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mix(((u128::from(spread) * u128::from(self.records)) >> 64) as u64)
    }

    /// The rate of `operations`, shared between threads.
    fn on(&self, threads: u64, operations: u64, operation: impl Fn(u64) -> u64 + Sync) -> f64 {
        rate(operations, || {
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    let operation = &operation;
                    scope.spawn(move || {
                        let share =
                            operations * thread / threads..operations * (thread + 1) / threads;
                        black_box(share.fold(0_u64, |sum, i| sum.wrapping_add(operation(i))))
                    });
                }
            });
        })
    }

    fn median(&self, measure: impl Fn() -> f64) -> f64 {
        let mut rates: Vec<f64> = (0..self.rounds.max(1)).map(|_| measure()).collect();
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    }
}

fn rate(operations: u64, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    operations as f64 / start.elapsed().as_secs_f64() / 1e6
}

/// Nanoseconds per independent and per dependent read of a random line among 256 MiB.
pub fn probe_memory() -> (f64, f64) {
    const LINES: usize = 4 << 20;
    const READS: u64 = 2_000_000;
    let mut lines = vec![[0_u64; 8]; LINES];
    for (i, line) in lines.iter_mut().enumerate() {
        // A full cycle through all lines: the multiplier and increment meet the Hull-Dobell conditions.
        line[0] = (i as u64).wrapping_mul(0x5851_f42d).wrapping_add(12345) % LINES as u64;
    }
    let at = |i: u64| (mix(i) % LINES as u64) as usize;
    let independent = 1e3
        / rate(READS, || {
            black_box((0..READS).fold(0, |sum: u64, i| sum.wrapping_add(lines[at(i)][0])));
        });
    let dependent = 1e3
        / rate(READS, || {
            black_box((0..READS).fold(0, |here: u64, _| lines[here as usize][0]));
        });
    (independent, dependent)
}
