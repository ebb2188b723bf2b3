//! Tables for people, JSON for programs, progress bars while something takes long.

use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

/// How to print.
pub struct Output {
    /// JSON instead of tables.
    pub json: bool,
}

impl Output {
    /// Prints facts, a line each, or as one JSON object.
    pub fn facts(&self, title: &str, facts: &[(&str, Value)]) {
        if self.json {
            let object: serde_json::Map<String, Value> = facts
                .iter()
                .map(|(name, value)| ((*name).replace(' ', "_"), value.clone()))
                .collect();
            return println!("{}", Value::Object(object));
        }
        if !title.is_empty() {
            println!("{title}");
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        for (name, value) in facts {
            table.add_row([format!("  {name}"), shown(value)]);
        }
        println!("{table}");
    }

    /// Prints a table, or a JSON array of objects.
    pub fn table(&self, columns: &[&str], rows: &[Vec<Value>]) {
        if self.json {
            let objects: Vec<Value> = rows
                .iter()
                .map(|row| {
                    columns
                        .iter()
                        .map(|column| column.replace(' ', "_"))
                        .zip(row.iter().cloned())
                        .collect()
                })
                .map(Value::Object)
                .collect();
            return println!("{}", Value::Array(objects));
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
        println!("{table}");
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

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(whole), _) => grouped(whole),
            (None, Some(real)) => format!("{real:.3}"),
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
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
