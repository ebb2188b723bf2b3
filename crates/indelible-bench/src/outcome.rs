//! What was measured: the file that a run writes.

use crate::plan::Plan;
use serde::{Deserialize, Serialize};

/// The format of [`Run`]; a file of another one is refused.
pub const FORMAT: u32 = 1;

/// Everything about a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// [`FORMAT`].
    pub format: u32,
    /// The command line.
    pub command: String,
    /// When it began, in UTC: `2026-11-21 13:46`.
    pub date: String,
    /// How long it took.
    pub seconds: f64,
    /// Where.
    pub machine: Machine,
    /// What was asked for.
    pub plan: Plan,
    /// About the contestants, in the order of the plan.
    pub contestants: Vec<Described>,
    /// About the keys of each experiment.
    pub data: Vec<DataFacts>,
    /// One per experiment, contestant and round.
    pub outcomes: Vec<Outcome>,
}

/// A machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Cores that the run could use.
    pub cores: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The operating system.
    pub system: String,
    /// The directories of contestants' files, and the file systems that they are on.
    #[serde(default)]
    pub files: String,
    /// The version of indelible, and the kind of build.
    pub build: String,
    /// The kernel of indelible that contestants use whose names do not say another one: `avx512`, `avx2` or `portable`.
    #[serde(default)]
    pub kernel: String,
}

impl Machine {
    /// The build and the kernel. Files that older versions wrote do not say the kernel.
    #[must_use]
    pub fn build_and_kernel(&self) -> String {
        match self.kernel.as_str() {
            "" => self.build.clone(),
            kernel => format!("{}, kernel {kernel}", self.build),
        }
    }
}

/// A contestant, for readers of the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Described {
    /// As in the plan.
    pub name: String,
    /// What it is, and with which settings.
    pub about: String,
    /// "nothing", "kill -9" or "power cut".
    pub survives: String,
    /// Whether it is indelible.
    pub is_ours: bool,
}

/// A set of keys.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DataFacts {
    /// As in the plan.
    pub experiment: String,
    /// Where the keys come from.
    pub source: String,
    /// How many there are, those that are only inserted later included.
    pub keys: u64,
    /// Pieces that a piecewise linear function through the loaded keys needs if it may be wrong by 32 places.
    pub segments_32: u64,
    /// The same for 4096 places.
    pub segments_4096: u64,
}

/// One contestant in one round of one experiment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// As in the plan.
    pub experiment: String,
    /// As in the plan.
    pub contestant: String,
    /// From 0.
    pub round: u32,
    /// Why there is nothing more; all else is as far as it got.
    pub error: Option<String>,
    /// Nanoseconds per independent and per dependent read of a random line, at the beginning of the round: the machine's
    /// mood.
    pub probe: Probe,
    /// The load.
    pub load: Option<Measured>,
    /// Each phase with each number of threads, in order.
    pub phases: Vec<Measured>,
    /// Space after the load.
    pub space: Option<Space>,
    /// Opening after a kill.
    pub recovery: Option<Recovery>,
}

/// Times of memory itself, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Per read if others overlap.
    pub independent_ns: f64,
    /// Per read if the next waits for it.
    pub dependent_ns: f64,
}

/// A phase with a number of threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The phase's name, or "load".
    pub phase: String,
    /// Threads at once.
    pub threads: u32,
    /// Operations done.
    pub operations: u64,
    /// From the first to the last.
    pub seconds: f64,
    /// Operations that found what they asked for, or changed something; records for scans.
    pub hits: u64,
    /// Operations done since the start, at times in seconds since the start.
    pub timeline: Vec<(f64, u64)>,
    /// How long single operations took, in a pass of its own.
    pub latency: Option<Latency>,
    /// What an operation cost on average; only ours count.
    pub cost: Option<Cost>,
    /// What the contestant is made of afterwards, if the phase changes that and the contestant can tell; only ours can.
    #[serde(default)]
    pub statistics: Option<Statistics>,
}

impl Measured {
    /// Million operations per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds / 1e6
    }
}

/// Quantiles of [`Latency::quantiles`]: the share of operations that took no longer.
pub const QUANTILES: [f64; 10] = [
    0.1, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999,
];

/// Times of single operations. A batch is one operation here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Operations timed.
    pub samples: u64,
    /// What reading the clock twice took; it is contained in all figures.
    pub clock_ns: u64,
    /// Nanoseconds at each of [`QUANTILES`], as far as ten of the operations timed took longer.
    pub quantiles: Vec<u64>,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
    /// The mean, in nanoseconds.
    pub mean_ns: f64,
}

/// Exact counts per operation, structure changes included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Lines of 64 bytes flushed.
    pub lines_flushed: f64,
    /// Store fences.
    pub fences: f64,
    /// Lines written past the caches.
    pub lines_streamed: f64,
    /// Blocks of 256 bytes written, the unit of Optane media.
    pub blocks_written: f64,
    /// Bytes allocated from the pool.
    pub bytes_allocated: f64,
}

/// What a map of ours is made of, as [`indelible::MapStat`] says it. Files of earlier versions have other members here, which are
/// left out when such a file is read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Statistics {
    /// The name of the kind of index.
    pub kind: String,
    /// Records.
    pub records: u64,
    /// Bytes of the file, in whole extents.
    pub file_bytes: u64,
    /// Bytes of DRAM.
    pub dram_bytes: u64,
    /// What the kind of index says of itself.
    pub facts: Vec<Fact>,
}

impl Statistics {
    /// The fact of this name, if the kind of index has it.
    #[must_use]
    pub fn fact(&self, name: &str) -> Option<&Fact> {
        self.facts.iter().find(|fact| fact.name == name)
    }
}

/// One thing that a kind of index says of a map, as [`indelible::Fact`] has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    /// Its name, unique in the list.
    pub name: String,
    /// "count", "bytes", "ns", "share", as [`indelible::Unit`] is printed.
    pub unit: String,
    /// The number.
    pub value: Number,
    /// Whether the number adds up what has happened since the map was made. Then a fact of nanoseconds is the time that the
    /// changes took which the fact before it counts.
    pub since_open: bool,
    /// What it means, in a sentence or a part of one.
    pub meaning: String,
}

/// A number, whole in the file if it is whole.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Number {
    /// A whole one.
    Whole(u64),
    /// Any.
    Real(f64),
}

impl Number {
    /// As a float.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        match self {
            Self::Whole(number) => number as f64,
            Self::Real(number) => number,
        }
    }
}

/// Bytes taken after the load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Space {
    /// Records in it.
    pub records: u64,
    /// Bytes of its files on their file system.
    pub file_bytes: u64,
    /// Bytes of volatile memory: what the process's anonymous memory grew by.
    pub dram_bytes: u64,
    /// The most memory the process had at any time during the load, mapped files included, less what it had before.
    pub peak_bytes: u64,
}

/// After a real `kill -9` of a process with a loaded map.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recovery {
    /// Records that the killed process had acknowledged.
    pub records: u64,
    /// Milliseconds until the map was open.
    pub open_ms: f64,
    /// Milliseconds until the first lookup was answered, opening included.
    pub first_get_ms: f64,
    /// Lookups answered since the map was opened, at times in milliseconds since opening began.
    pub warm_up: Vec<(f64, u64)>,
    /// Acknowledged records that are not there. Anything but 0 is a defect.
    pub lost: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_are_written() {
        for (number, text) in [
            (Number::Whole(u64::MAX), "18446744073709551615"),
            (Number::Real(1.0), "1.0"),
        ] {
            assert_eq!(serde_json::to_string(&number).unwrap(), text);
            assert_eq!(serde_json::from_str::<Number>(text).unwrap(), number);
        }
    }
}
