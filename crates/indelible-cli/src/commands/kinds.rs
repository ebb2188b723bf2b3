//! `kinds`.

use super::long_help_of_objects;
use crate::output::Output;
use anyhow::Result;
use clap::Args;
use indelible::{IndexKind, Kind, SpatialKind, StringKind};
use serde_json::{Value, json};

/// List the kinds of index, and the options of each, that `--kind` takes.
#[derive(Args)]
#[command(after_long_help = long_help_of_objects())]
pub struct Kinds {}

impl Kinds {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        if output.json {
            let rows = [
                rows::<Kind>("map"),
                rows::<StringKind>("map of byte strings"),
                rows::<SpatialKind>("spatial index"),
            ];
            output.table(&["kind", "of", "description", "options"], &rows.concat())?;
        } else {
            output.line(long_help_of_objects().trim_end())?;
        }
        Ok(true)
    }
}

/// A row for each kind of a family.
fn rows<K: IndexKind>(family: &str) -> Vec<Vec<Value>> {
    let row = |kind: &K| {
        let options = kind.options().iter();
        let options = options.map(|option| {
            let (name, values, meaning) = (option.name, option.values, option.meaning);
            json!({"name": name, "values": values, "meaning": meaning})
        });
        vec![
            kind.name().into(),
            family.into(),
            kind.description().into(),
            options.collect(),
        ]
    };
    K::all().iter().map(row).collect()
}
