//! Tables for people, JSON for programs, progress bars while something takes long.
//!
//! Everything on standard output goes through [`Output`], so that a standard output which is closed or full is an error that
//! [`Output::exit_code`] explains, and never a panic; [`note`] is for standard error.

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
pub use indelible_bench::console::{explain, note};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::cell::{Cell, RefCell, RefMut};
use std::fmt::Display;
use std::io::{self, BufWriter, ErrorKind, Stdout, Write};

/// The exit code when the reader of standard output has gone away: what a shell reports of a process that SIGPIPE ends. The signal
/// itself stays ignored, since it would end the process before its pool is closed.
const READER_IS_GONE: u8 = 128 + 13;

/// Standard output, buffered. It remembers that it was refused a write.
struct Out {
    writer: BufWriter<Stdout>,
    refused: Option<(ErrorKind, String)>,
}

impl Out {
    fn watched<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|error| self.refused = Some((error.kind(), error.to_string())))
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.writer.write(bytes);
        self.watched(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.writer.flush();
        self.watched(result)
    }
}

/// How to print, and where.
pub struct Output {
    /// JSON instead of tables.
    pub json: bool,
    out: RefCell<Out>,
    /// What the command has done, for the message of an output that fails afterwards.
    done: Cell<Option<&'static str>>,
}

impl Output {
    /// Standard output.
    pub fn new(json: bool) -> Self {
        let writer = BufWriter::new(io::stdout());
        Self {
            json,
            out: RefCell::new(Out {
                writer,
                refused: None,
            }),
            done: Cell::new(None),
        }
    }

    /// For output that is written piece by piece; [`Output::exit_code`] flushes it.
    pub fn writer(&self) -> RefMut<'_, dyn Write> {
        RefMut::map(self.out.borrow_mut(), |out| out as &mut dyn Write)
    }

    /// Notes that the command has changed something, which stays so whatever happens to its output.
    pub fn done(&self, what: &'static str) {
        self.done.set(Some(what));
    }

    /// Flushes, says what went wrong, and makes the exit code of what a command returned.
    pub fn exit_code(&self, result: Result<u8>) -> u8 {
        let is_refused = self.out.borrow().refused.is_some();
        let flushed = self.writer().flush();
        match (result, flushed) {
            (Ok(code), Ok(())) => return code,
            (Err(error), _) if !is_refused => {
                note(format_args!("indelible: {}", explain(&error)));
                return 1;
            }
            _ => {}
        }
        let done = match self.done.get() {
            Some(what) => format!("; {what} all the same"),
            None => String::new(),
        };
        match &self.out.borrow().refused {
            Some((ErrorKind::BrokenPipe, _)) => READER_IS_GONE,
            refused => {
                let reason = refused.as_ref().map_or("refused", |(_, reason)| reason);
                note(format_args!(
                    "indelible: write to standard output: {reason}{done}"
                ));
                1
            }
        }
    }

    /// Prints a line.
    pub fn line(&self, line: impl Display) -> Result<()> {
        let mut out = self.writer();
        writeln!(out, "{line}")?;
        // At once, as somebody may be watching.
        Ok(out.flush()?)
    }

    /// Prints facts, a line each, or as one JSON object.
    pub fn facts(&self, title: &str, facts: &[(&str, Value)]) -> Result<()> {
        if self.json {
            let object: serde_json::Map<String, Value> = facts
                .iter()
                .map(|(name, value)| (json_name(name), value.clone()))
                .collect();
            return self.line(Value::Object(object));
        }
        if !title.is_empty() {
            self.line(title)?;
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        for (name, value) in facts {
            table.add_row([format!("  {name}"), in_lines(value)]);
        }
        self.line(table)
    }

    /// Prints a table, or a JSON array of objects.
    pub fn table(&self, columns: &[&str], rows: &[Vec<Value>]) -> Result<()> {
        if self.json {
            let objects: Vec<Value> = rows
                .iter()
                .map(|row| {
                    columns
                        .iter()
                        .map(|column| json_name(column))
                        .zip(row.iter().cloned())
                        .collect()
                })
                .map(Value::Object)
                .collect();
            return self.line(Value::Array(objects));
        }
        let mut table = Table::new();
        table
            .load_style(presets::UTF8_HORIZONTAL_ONLY)
            .set_header(columns);
        for row in rows {
            table.add_row(row.iter().map(shown));
        }
        for (i, column) in table.column_iter_mut().enumerate() {
            if rows.iter().all(|row| row[i].is_number()) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        self.line(table)
    }

    /// A progress bar on standard error; silent with JSON or without a terminal.
    pub fn progress(&self, total: u64, what: &str) -> ProgressBar {
        if self.json {
            return ProgressBar::hidden();
        }
        let style =
            ProgressStyle::with_template("{msg:20} {wide_bar} {human_pos} / {human_len} {eta}");
        let bar = ProgressBar::new(total).with_message(what.to_owned());
        if let Ok(style) = style {
            bar.with_style(style)
        } else {
            bar
        }
    }
}

/// How JSON calls what is called so where people read it.
pub fn json_name(name: &str) -> String {
    name.replace(',', "").replace([' ', '-'], "_")
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => harmless(text),
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(whole), _) => grouped(whole),
            (None, Some(real)) => format!("{real:.3}"),
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}

/// A value that may have several lines.
fn in_lines(value: &Value) -> String {
    match value {
        Value::String(text) => text.lines().map(harmless).collect::<Vec<_>>().join("\n"),
        other => shown(other),
    }
}

/// A text without what would move the cursor of a terminal, change its colours or hide something: names of objects may have anything. As Rust
/// escapes it, but for what is to be seen as it is.
pub fn harmless(text: &str) -> String {
    let plain = ['\\', '"', '\''];
    let mut shown = String::new();
    for part in text.split_inclusive(plain) {
        let escaped = part.trim_end_matches(plain);
        shown.extend(escaped.escape_debug());
        shown.push_str(&part[escaped.len()..]);
    }
    shown
}

/// 1234567 as 1,234,567.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_shown_as_they_are_but_for_what_is_not_seen() {
        for text in ["", "é e\u{301}", "\"q\" \\ 'x'", "a\\\\\"\"b"] {
            assert_eq!(harmless(text), text);
        }
        assert_eq!(harmless("a\x1b[31m\n\t\0"), "a\\u{1b}[31m\\n\\t\\0");
        assert_eq!(
            harmless("\u{202e}\u{200b}\u{9b}"),
            "\\u{202e}\\u{200b}\\u{9b}"
        );
        assert_eq!(in_lines(&Value::from("a\rb\nc")), "a\\rb\nc");
    }
}
