//! `insert`, `remove`, `relocate`, `query`: records of spatial indexes.

use super::open_to_read;
use crate::output::{Output, note};
use crate::shapes::{self, with_geometry};
use anyhow::{Result, bail};
use clap::Args;
use indelible::{Geometry, Pool, Record, Spatial};
use std::path::PathBuf;

/// Records that `--near` reports unless `--k` or `--within` says otherwise.
const DEFAULT_NEAREST: usize = 10;

/// Add a point or a box to a spatial index.
#[derive(Args)]
pub struct Insert {
    /// The pool file.
    pool: PathBuf,
    /// Name of the spatial index; see `create` and `load` for making one.
    name: String,
    /// Its coordinates: X,Y or LON,LAT for a point, XMIN,YMIN,XMAX,YMAX for a box; three axes alike.
    #[arg(allow_hyphen_values = true)]
    shape: String,
    /// The number that is stored beside it.
    payload: u64,
}

impl Insert {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let pool = Pool::open(&self.pool)?;
        let info = shapes::expect(&pool, &self.name)?;
        with_geometry!(info.geometry, G => {
            let index = pool.open_spatial::<G>(&self.name)?;
            index.insert(shapes::parse(&self.shape)?, self.payload)?;
            anyhow::Ok(())
        })?;
        output.done("the record was added");
        pool.close()?;
        Ok(true)
    }
}

/// Remove a point or a box from a spatial index.
#[derive(Args)]
pub struct Remove {
    /// The pool file.
    pool: PathBuf,
    /// Name of the spatial index.
    name: String,
    /// Its coordinates, exactly as they were added.
    #[arg(allow_hyphen_values = true)]
    shape: String,
    /// The number that is stored beside it.
    payload: u64,
}

impl Remove {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let pool = Pool::open(&self.pool)?;
        let info = shapes::expect(&pool, &self.name)?;
        let removed = with_geometry!(info.geometry, G => {
            let index = pool.open_spatial::<G>(&self.name)?;
            anyhow::Ok(index.remove(shapes::parse(&self.shape)?, self.payload)?)
        })?;
        finish(output, pool, removed, "the record was removed", &self.shape)
    }
}

/// Move a point or a box of a spatial index, in one atomic step.
#[derive(Args)]
pub struct Relocate {
    /// The pool file.
    pool: PathBuf,
    /// Name of the spatial index.
    name: String,
    /// The number that is stored beside it.
    payload: u64,
    /// Its coordinates, exactly as they were added.
    #[arg(allow_hyphen_values = true)]
    from: String,
    /// Its new coordinates.
    #[arg(allow_hyphen_values = true)]
    to: String,
}

impl Relocate {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let pool = Pool::open(&self.pool)?;
        let info = shapes::expect(&pool, &self.name)?;
        let moved = with_geometry!(info.geometry, G => {
            let index = pool.open_spatial::<G>(&self.name)?;
            let (from, to) = (shapes::parse(&self.from)?, shapes::parse(&self.to)?);
            anyhow::Ok(index.relocate(self.payload, from, to)?)
        })?;
        finish(output, pool, moved, "the record was moved", &self.from)
    }
}

/// Closes the pool, and says it if the record was not there.
fn finish(
    output: &Output,
    pool: Pool,
    was_there: bool,
    done: &'static str,
    shape: &str,
) -> Result<bool> {
    pool.close()?;
    if was_there {
        output.done(done);
    } else {
        note(format_args!("{shape} with this payload: not there"));
    }
    Ok(was_there)
}

/// Search a spatial index.
///
/// Prints one record per line: its shape, its payload and, with --near, its distance. Without a condition: all records.
#[derive(Args)]
pub struct Query {
    /// The pool file.
    pool: PathBuf,
    /// Name of the spatial index.
    name: String,
    /// Records that have a point in common with this box: W,S,E,N, the lower corner and then the upper one. Of longitudes and latitudes, W
    /// may be east of E: the box crosses the antimeridian.
    #[arg(long, value_name = "W,S,E,N", allow_hyphen_values = true)]
    window: Option<String>,
    /// Only records that lie in the window with all of their points.
    #[arg(long, requires = "window")]
    contained: bool,
    /// Records that contain this point.
    #[arg(
        long,
        value_name = "X,Y",
        allow_hyphen_values = true,
        conflicts_with = "window"
    )]
    at: Option<String>,
    /// Records in the order of their distances from this point.
    #[arg(long, value_name = "LON,LAT", allow_hyphen_values = true, conflicts_with_all = ["window", "at"])]
    near: Option<String>,
    /// With --near: so many records at most; without it and without --within, 10.
    #[arg(long, value_name = "RECORDS", requires = "near")]
    k: Option<usize>,
    /// With --near: only records at most so far away: 500m or 5km on the globe, a number without a unit in the plane.
    #[arg(
        long,
        value_name = "DISTANCE",
        allow_hyphen_values = true,
        requires = "near"
    )]
    within: Option<String>,
    /// Print a feature collection of GeoJSON.
    #[arg(long, conflicts_with = "json")]
    geojson: bool,
}

/// What a search has found, with the distance if it was asked for.
type Found<G> = Vec<(Record<G>, Option<f64>)>;

impl Query {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let pool = open_to_read(&self.pool)?;
        let info = shapes::expect(&pool, &self.name)?;
        with_geometry!(info.geometry, G => {
            let index = pool.open_spatial::<G>(&self.name)?;
            self.print(output, &self.search(&index)?)
        })?;
        Ok(true)
    }

    fn search<G: Geometry>(&self, index: &Spatial<G>) -> Result<Found<G>> {
        if let Some(near) = &self.near {
            return self.nearest(index, shapes::parse(near)?);
        }
        let found = if let Some(at) = &self.at {
            index.at_point(shapes::parse(at)?)?
        } else if let Some(window) = &self.window {
            let window = shapes::parse::<G::Window>(window)?;
            if self.contained {
                index.contained_in(window)?
            } else {
                index.intersecting(window)?
            }
        } else {
            index.intersecting(everything::<G>())?
        };
        Ok(found.map(|record| (record, None)).collect())
    }

    fn nearest<G: Geometry>(&self, index: &Spatial<G>, point: G::Point) -> Result<Found<G>> {
        let mut nearest = index.nearest(point)?;
        if let Some(within) = &self.within {
            nearest = nearest.within(shapes::distance(within, shapes::is_lonlat(index))?)?;
        }
        let most = match (self.k, &self.within) {
            (Some(0), _) => bail!("--k 0 asks for no records"),
            (Some(k), _) => k,
            (None, Some(_)) => usize::MAX,
            (None, None) => DEFAULT_NEAREST,
        };
        let found = nearest.take(most).map(|found| {
            let (distance, record) = found?;
            Ok((record, Some(distance)))
        });
        found.collect()
    }

    fn print<G: Geometry>(&self, output: &Output, found: &Found<G>) -> Result<()> {
        if self.geojson {
            // All are made before any is printed, since GeoJSON has no infinite coordinates.
            let features: Vec<_> = found
                .iter()
                .map(|(record, distance)| shapes::to_feature(record, *distance))
                .collect::<Result<_>>()?;
            let mut out = output.writer();
            writeln!(out, "{{\"type\":\"FeatureCollection\",\"features\":[")?;
            for (number, feature) in features.iter().enumerate() {
                let comma = if number + 1 < features.len() { "," } else { "" };
                writeln!(out, "{feature}{comma}")?;
            }
            writeln!(out, "]}}")?;
            return Ok(());
        }
        let mut out = output.writer();
        for (record, distance) in found {
            if output.json {
                writeln!(out, "{}", shapes::to_json(record, *distance))?;
                continue;
            }
            write!(out, "{}\t{}", shapes::show(&record.shape), record.payload)?;
            match distance {
                Some(distance) => writeln!(out, "\t{}", rounded(*distance))?,
                None => writeln!(out)?,
            }
        }
        Ok(())
    }
}

/// A distance with at most three decimals.
fn rounded(distance: f64) -> f64 {
    (distance * 1000.0).round() / 1000.0
}

/// The window that contains all records.
pub fn everything<G: Geometry>() -> G::Window {
    G::Window::from_coordinates(|i| {
        if i < G::AXES {
            f64::NEG_INFINITY
        } else {
            f64::INFINITY
        }
    })
}
