//! What is to be measured.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// What the run is called: a preset's name, or "custom".
    pub name: String,
    /// Every random choice follows from it.
    pub seed: u64,
    /// How often everything is measured.
    pub rounds: u32,
    /// Names of contestants, in the order of the tables. `NAME@LAYOUT` is one of ours laid out otherwise.
    pub contestants: Vec<String>,
    /// What they do.
    pub experiments: Vec<Experiment>,
}

/// A data set, how it is loaded, and what is done with it then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// Its name in tables.
    pub name: String,
    /// The keys, as [`crate::data::Source`] reads and prints them.
    pub data: String,
    /// Records loaded.
    pub records: u64,
    /// How they are loaded.
    pub load: Load,
    /// Which of the plan's contestants take part; none named: all.
    #[serde(default)]
    pub contestants: Vec<String>,
    /// What is measured then, one after the other.
    pub phases: Vec<Phase>,
    /// In how many of the rounds a loaded process is killed, and what it left opened.
    pub recovery: u32,
    /// How many threads then look records up; 0 is one.
    #[serde(default)]
    pub recovery_threads: u32,
}

/// How records get in.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Load {
    /// One after the other, in random order.
    Random,
    /// One after the other, in ascending order.
    Ascending,
    /// One after the other, in descending order.
    Descending,
    /// One after the other: the sorted keys are cut into equal runs, and each run in turn gives its next key. So many
    /// ascending streams grow side by side.
    Interleaved {
        /// How many.
        runs: u32,
    },
    /// Sorted and all at once, with nodes this full. Contestants that cannot insert in ascending order.
    Bulk {
        /// From 0 to 1.
        fill: f64,
    },
}

impl Plan {
    /// The contestants of an experiment.
    #[must_use]
    pub fn contestants_of<'plan>(&'plan self, experiment: &'plan Experiment) -> &'plan [String] {
        match experiment.contestants.as_slice() {
            [] => &self.contestants,
            some => some,
        }
    }

    /// How many outcomes a run that is carried out to its end has.
    #[must_use]
    pub fn measurements(&self) -> u64 {
        let entrants = |experiment| self.contestants_of(experiment).len() as u64;
        self.experiments.iter().map(entrants).sum::<u64>() * u64::from(self.rounds)
    }
}

impl Experiment {
    /// New keys that the phases insert, at most.
    #[must_use]
    pub fn fresh_keys(&self) -> u64 {
        let of_phases = self.phases.iter().map(Phase::fresh_keys);
        of_phases.fold(0, u64::saturating_add)
    }

    /// All keys of the experiment: loaded, inserted later, and never there.
    #[must_use]
    pub fn all_keys(&self) -> u64 {
        // A sum that saturates is refused when the keys are made.
        let present = self.records.saturating_add(self.fresh_keys());
        present.saturating_add(self.missing_keys())
    }

    /// Keys that are looked up and never there.
    #[must_use]
    pub fn missing_keys(&self) -> u64 {
        let wanted = self.phases.iter().any(|phase| phase.missing > 0.0);
        if wanted {
            self.records.div_ceil(4).max(1000)
        } else {
            0
        }
    }
}

impl Phase {
    /// New keys that the phase inserts with all its numbers of threads, at most.
    #[must_use]
    pub fn fresh_keys(&self) -> u64 {
        self.threads
            .iter()
            .map(|&threads| self.fresh_keys_with(threads))
            .fold(0, u64::saturating_add)
    }

    /// New keys that the phase inserts with one number of threads, at most.
    #[must_use]
    pub fn fresh_keys_with(&self, threads: u32) -> u64 {
        match self.arrival {
            Arrival::Dense => 0,
            _ => self.keys_for(
                self.mix.insert + self.mix.insert_batch,
                threads,
                self.batch_size,
            ),
        }
    }

    /// Keys that the phase removes with one number of threads, at most.
    #[must_use]
    pub fn removed_keys_with(&self, threads: u32) -> u64 {
        self.keys_for(self.mix.remove, threads, 1)
    }

    /// Operations of all passes together.
    #[must_use]
    pub fn all_operations(&self) -> u64 {
        let latency = if self.latency_sampling > 0.0 {
            latency_operations(self.operations)
        } else {
            0
        };
        self.operations.saturating_add(latency)
    }

    /// Operations per thread that are written down at once, of 8 to 25 bytes each. Most operations of a phase that ends
    /// by the clock may never be done.
    #[must_use]
    pub fn piece(&self) -> u64 {
        if self.seconds.is_some() {
            1 << 20
        } else {
            1 << 23
        }
    }

    /// Whether it searches for points, so that its keys must be points.
    #[must_use]
    pub fn is_spatial(&self) -> bool {
        self.mix.window + self.mix.nearest > 0.0
    }

    /// Keys that steps with this share of the operations take, in batches of up to `batch`, at most.
    fn keys_for(&self, share: f64, threads: u32, batch: u32) -> u64 {
        if share <= 0.0 {
            return 0;
        }
        // In a mix the number of steps of a kind is drawn: six standard deviations above its mean it never lies. Wide
        // steps, of this kind or of others, are few, so it varies more.
        let operations = self.all_operations() as f64;
        let has_batches = self.mix.get_batch + self.mix.insert_batch > 0.0;
        let wide = if has_batches {
            f64::from(self.batch_size.max(1))
        } else {
            1.0
        };
        let spread = 6.0 * (operations * share * (1.0 - share).max(0.0) * wide).sqrt();
        let drawn = (operations * share + spread).min(operations);
        // Each thread may begin a last batch just before it is through, in each piece of the phase and of its pass for latencies.
        let pieces = 2 + self.all_operations() / (self.piece() * u64::from(threads));
        let last = if batch > 1 {
            (pieces * u64::from(threads)).saturating_mul(batch.into())
        } else {
            0
        };
        (drawn.ceil() as u64).saturating_add(last)
    }
}

impl Experiment {
    /// Why the experiment cannot be run, if it cannot.
    ///
    /// # Errors
    ///
    /// If there is nothing to load or to do, if it would remove more than there is, or two measurements had one name.
    pub fn check(&self) -> Result<()> {
        ensure!(self.records > 0, "at least one record must be loaded");
        let mut names = BTreeSet::new();
        let mut removed: u64 = 0;
        for phase in &self.phases {
            ensure!(phase.operations > 0, "a phase has at least one operation");
            for &threads in &phase.threads {
                ensure!(threads > 0, "a phase has at least one thread");
                removed = removed.saturating_add(phase.removed_keys_with(threads));
                ensure!(
                    names.insert((&phase.name, threads)),
                    "{} with {threads} threads is in {} twice",
                    phase.name,
                    self.name
                );
            }
        }
        ensure!(
            removed < self.records,
            "{removed} records may be removed, {} are loaded: load more, or do less",
            self.records
        );
        Ok(())
    }
}

/// Operations of the pass that takes latencies, for a phase of `operations`.
#[must_use]
pub fn latency_operations(operations: u64) -> u64 {
    operations.div_ceil(4)
}

/// Operations of one kind or a mix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Its name in tables, without the number of threads.
    pub name: String,
    /// Shares of the operations.
    pub mix: Mix,
    /// Which of the present keys.
    pub distribution: Distribution,
    /// Where new keys go.
    pub arrival: Arrival,
    /// The share of lookups that ask for a key that is not there, from 0 to 1.
    pub missing: f64,
    /// Operations of all threads together. A batch of `n` keys is `n` operations.
    pub operations: u64,
    /// Ends the phase early.
    pub seconds: Option<f64>,
    /// Numbers of threads, each a measurement.
    pub threads: Vec<u32>,
    /// Records per scan.
    pub scan_size: u32,
    /// Whether scans have all lengths up to `scan_size`, as YCSB's have.
    pub scan_varies: bool,
    /// Keys per batch.
    pub batch_size: u32,
    /// Loaded points that a window contains on average.
    #[serde(default)]
    pub window_hits: u32,
    /// Points that a search for the nearest ones asks for.
    #[serde(default)]
    pub neighbours: u32,
    /// The share of operations whose latency is taken in a pass of its own; 0 for no such pass.
    pub latency_sampling: f64,
}

/// Shares of kinds of operations, from 0 to 1, together 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mix {
    /// Lookups.
    pub get: f64,
    /// Inserts of new keys.
    pub insert: f64,
    /// New values for present keys.
    pub update: f64,
    /// Removals of present keys.
    pub remove: f64,
    /// Scans.
    pub scan: f64,
    /// Lookups in batches.
    pub get_batch: f64,
    /// Inserts of new keys in batches.
    pub insert_batch: f64,
    /// A lookup, then an update of the same key (YCSB F).
    pub read_modify_write: f64,
    /// Searches for the points in a window; of sets of points only.
    #[serde(default)]
    pub window: f64,
    /// Searches for the nearest points; of sets of points only.
    #[serde(default)]
    pub nearest: f64,
}

/// Which of the present keys an operation takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Distribution {
    /// All alike.
    Uniform,
    /// Few often, many rarely; the frequent ones are scattered over the keys.
    Zipfian {
        /// The exponent; YCSB takes 0.99.
        theta: f64,
    },
    /// A share `skew` of the keys gets `1 - skew` of the accesses, and so within it; scattered over the keys.
    SelfSimilar {
        /// 0.2 gives 80/20.
        skew: f64,
    },
    /// Zipfian over age: the youngest most often.
    Latest,
    /// One after the other in ascending order.
    Sequential,
    /// 90 % of the accesses go to one stretch of neighbouring keys, this share of all.
    HotSpot {
        /// From 0 to 1.
        share: f64,
    },
}

/// Where new keys go.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Arrival {
    /// They come from the same data set, in random order.
    Random,
    /// They come from the same data set, in ascending order within each thread.
    Ascending,
    /// Each thread inserts neighbouring numbers at a place of its own (LB+-Tree section 4.2); one thread alone appends
    /// behind the greatest key.
    Dense,
}
