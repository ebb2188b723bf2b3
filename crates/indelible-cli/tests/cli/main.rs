//! Tests of the command line: the program is run as users run it.
//!
//! One program, since each program takes long to compile and to link.

mod bench;
mod commands;
mod kill;
mod output;
mod refused;
#[path = "../../../indelible/tests/shared/skipped.rs"]
mod skipped;
mod spatial;
mod types;
