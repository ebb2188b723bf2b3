//! `create`.

use super::{MapArgs, PoolArguments};
use crate::typed::{TextMap, key_type_by_name, type_by_name, type_names};
use anyhow::Result;
use clap::Args;
use indelible::Type;

/// Create an empty map.
#[derive(Args)]
pub struct Create {
    #[command(flatten)]
    pool: PoolArguments,
    /// Name of the map.
    map: String,
    #[arg(long, default_value = "u64", value_parser = key_type_by_name, help = format!("Type of the keys: {}", type_names()))]
    key_type: Type,
    /// Type of the values: one of those of keys, or unit for a set.
    #[arg(long, default_value = "u64", value_parser = type_by_name)]
    value_type: Type,
    #[command(flatten)]
    new: MapArgs,
}

impl Create {
    /// Runs the command.
    pub fn run(self) -> Result<bool> {
        let options = self.new.options();
        self.pool.change(&self.map, |pool| {
            TextMap::create(pool, &self.map, self.key_type, self.value_type, options)?;
            Ok(true)
        })
    }
}
