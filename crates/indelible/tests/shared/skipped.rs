//! Says what a test has left out.

use std::io::Write;

/// Says it also if the test passes: of such a test the harness shows nothing that `println!` and `eprintln!` print.
pub fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}
