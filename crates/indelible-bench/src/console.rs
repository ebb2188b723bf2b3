//! What is said on standard error: notes, and errors in one sentence.

use std::fmt::Display;
use std::io::Write;

/// Writes a line to standard error. A standard error that is closed or full loses the line and nothing else: `eprintln!` would
/// panic.
pub fn note(line: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// An error and its causes in one line. A cause that the text before already tells is left out: many error types, those of
/// `indelible` and `csv` among them, name their cause and return it as their source as well.
#[must_use]
pub fn explain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    let mut last = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text.clone_from(&cause);
        } else if !last.contains(&cause) {
            text = format!("{text}: {cause}");
        } else {
            continue;
        }
        last = cause;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn a_cause_is_told_once() {
        let refused = || std::io::Error::from_raw_os_error(2);
        let io = indelible::Error::Io {
            action: "open",
            path: "x.pool".into(),
            source: refused(),
        };
        let told = "open x.pool: No such file or directory (os error 2)";
        assert_eq!(explain(&io.into()), told);
        let plain: anyhow::Result<()> = Err(refused()).context("open x.csv");
        assert_eq!(
            explain(&plain.unwrap_err()),
            "open x.csv: No such file or directory (os error 2)"
        );
    }
}
