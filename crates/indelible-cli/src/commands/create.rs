//! `create`.

use super::PoolArguments;
use crate::typed::{create, type_by_name};
use anyhow::Result;
use clap::Args;
use indelible::{Kind, MapOptions, Type};

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
    /// Kind of index: lbtree or apex.
    #[arg(long, default_value_t)]
    kind: Kind,
    /// 256, 512, 768 or 1024, for an lbtree.
    #[arg(long, default_value_t = 256)]
    leaf_bytes: u32,
}

impl Create {
    /// Runs the command.
    pub fn run(self) -> Result<bool> {
        let pool = self.pool.open_or_create()?;
        let options = MapOptions {
            kind: self.kind,
            leaf_bytes: self.leaf_bytes,
            ..MapOptions::default()
        };
        drop(create(
            &pool,
            &self.map,
            self.key_type,
            self.value_type,
            options,
        )?);
        pool.close()?;
        Ok(true)
    }
}
