//! `create`.

use super::{MapArgs, PoolArguments};
use crate::typed::{create, type_by_name};
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
    /// u64, i64, u32, i32, f64, f32 or bytes8.
    #[arg(long, default_value = "u64", value_parser = type_by_name)]
    key_type: Type,
    /// The same, or unit for a set.
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
            create(pool, &self.map, self.key_type, self.value_type, options)?;
            Ok(true)
        })
    }
}
