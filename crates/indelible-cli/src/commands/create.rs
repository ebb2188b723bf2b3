//! `create`.

use super::{ObjectArgs, PoolArguments, TypeArgs};
use crate::encoded::EncodedMap;
use crate::shapes::with_geometry;
use crate::typed::TextMap;
use anyhow::{Context, Result};
use clap::Args;
use indelible::{GeometryType, SpatialOptions};

/// Create an empty map, or an empty spatial index.
#[derive(Args)]
pub struct Create {
    #[command(flatten)]
    pool: PoolArguments,
    /// Name of the map or of the spatial index.
    name: String,
    /// Create a spatial index of such shapes: point2, point3, box2 or box3.
    #[arg(long, conflicts_with_all = ["key_type", "value_type"])]
    geometry: Option<GeometryType>,
    #[command(flatten)]
    types: TypeArgs,
    #[command(flatten)]
    new: ObjectArgs,
}

impl Create {
    /// Runs the command.
    pub fn run(self) -> Result<bool> {
        if let Some(geometry) = self.geometry {
            let options = self.new.of_spatial(SpatialOptions::default())?;
            return self.pool.change(&self.name, |pool| {
                with_geometry!(geometry, G => anyhow::Ok(pool.spatial_with::<G>(&self.name, options)?.len()?))?;
                Ok(true)
            });
        }
        if let Some(types) = self.types.of_typed(self.new.of_strings()) {
            let options = self.new.of_typed()?;
            return self.pool.change(&self.name, |pool| {
                EncodedMap::create(pool, &self.name, Some(types), options)?;
                Ok(true)
            });
        }
        if let Some(options) = self.new.of_strings() {
            return self.pool.change(&self.name, |pool| {
                pool.bytes_with(&self.name, options)?;
                Ok(true)
            });
        }
        let (key, value) = self.types.words().context("the map is no map of words")?;
        let options = self.new.of_map()?;
        self.pool.change(&self.name, |pool| {
            TextMap::create(pool, &self.name, key, value, options)?;
            Ok(true)
        })
    }
}
