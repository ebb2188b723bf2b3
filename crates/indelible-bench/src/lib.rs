//! Side by side: indelible's maps and the structures that people would use instead, measured in one run.
//!
//! **A run** is a [`plan::Plan`]: experiments (a data set, how it is loaded, phases of operations), contestants and rounds. Every
//! round measures every contestant on every experiment, so that drift of the machine hits all alike, and medians over
//! the rounds are what is reported. Each measurement is a *job* in a process of its own ([`job`]): memory is clean, its
//! peak is the contestant's, a contestant that fails takes nothing with it, and one that is to be killed really is.
//!
//! **A phase** first writes its operations down, then starts the clock, so that drawing keys costs the measurement nothing
//! ([`workload`]). Throughput and latency are measured apart: a clock read before and after an operation keeps the
//! processor from overlapping it with its neighbours.
//!
//! **The outcome** ([`outcome::Run`]) is one JSON file, with the machine, the command and every round. [`report`] draws it, and
//! [`compare`] says what differs between two of them beyond the noise.
//!
//! Method and vocabulary: "Evaluating Persistent Memory Range Indexes: Part Two" (He, Lu, Huang, Wang, Wang, PVLDB 15(11),
//! 2022), section 6, and PiBench, whose names for options are kept.

// The command line gives a writer to print to: `println!` and `eprintln!` panic when their stream is closed or full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod command;
pub mod compare;
pub mod console;
pub mod contestants;
pub mod data;
pub mod execute;
pub mod index;
pub mod job;
pub mod machine;
pub mod outcome;
pub mod phase;
pub mod plan;
pub mod preset;
pub mod race;
pub mod report;
pub mod stop;
mod strings;
mod together;
pub mod workload;
