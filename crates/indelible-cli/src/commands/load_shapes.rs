//! `load` into a spatial index: from columns of a CSV file, or from GeoJSON.

use super::load::described;
use super::{ObjectArgs, PoolArguments, csv_file};
use crate::geojson::Features;
use crate::output::{Output, harmless};
use crate::shapes::{self, with_geometry};
use crate::text::Text;
use crate::unfinished::{ADDS_THEM_AGAIN, add_in_steps};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use indelible::{Geometry, GeometryType, HilbertOptions, Pool, Spatial, SpatialOptions};
use indelible_bench::data::files::{column, open};
use serde_json::json;
use std::path::Path;
use std::time::Instant;

/// Where the coordinates are.
#[derive(Args)]
pub struct ShapeArgs {
    /// Load points into a spatial index: the column of the longitudes, by its name or its number from 1. To load boxes: two columns,
    /// WEST,EAST.
    #[arg(long, value_name = "COLUMN", value_delimiter = ',', requires = "lat", conflicts_with_all = ["x", "key", "value"])]
    lon: Vec<String>,
    /// The column of the latitudes; for boxes, SOUTH,NORTH.
    #[arg(long, value_name = "COLUMN", value_delimiter = ',', requires = "lon")]
    lat: Vec<String>,
    /// As --lon, for points or boxes of the plane or of space.
    #[arg(long, value_name = "COLUMN", value_delimiter = ',', requires = "y", conflicts_with_all = ["key", "value"])]
    x: Vec<String>,
    /// As --lat, for points or boxes of the plane or of space.
    #[arg(long, value_name = "COLUMN", value_delimiter = ',', requires = "x")]
    y: Vec<String>,
    /// The column of the third coordinate, for points of space; for boxes, LOWEST,HIGHEST.
    #[arg(long, value_name = "COLUMN", value_delimiter = ',', requires = "x")]
    z: Vec<String>,
    /// What is stored beside each shape: a column of a CSV file, or the `id` or a property of GeoJSON features, a whole number. Default: the
    /// number of the row or the feature, from 0.
    #[arg(long, value_name = "COLUMN")]
    payload: Option<String>,
    /// Type of the shapes of a new spatial index from GeoJSON: box2 stores bounding boxes. Default: point2 if all features are points,
    /// otherwise box2.
    #[arg(long)]
    geometry: Option<GeometryType>,
}

impl ShapeArgs {
    /// Whether the command line has one of these options.
    pub fn are_given(&self) -> bool {
        !self.axes().is_empty() || self.payload.is_some() || self.geometry.is_some()
    }

    /// The columns of each axis: one for points, two for boxes.
    fn axes(&self) -> Vec<&[String]> {
        let all = [&self.lon, &self.lat, &self.x, &self.y, &self.z];
        let given = all.into_iter().filter(|columns| !columns.is_empty());
        given.map(Vec::as_slice).collect()
    }

    /// The geometry that the columns make.
    fn geometry_of_columns(&self) -> Result<GeometryType> {
        let axes = self.axes();
        let columns = axes.first().map_or(0, |columns| columns.len());
        ensure!(
            axes.iter().all(|of_axis| of_axis.len() == columns),
            "each axis has one column for points, or two for boxes"
        );
        Ok(match (axes.len(), columns) {
            (2, 1) => GeometryType::Point2,
            (3, 1) => GeometryType::Point3,
            (2, 2) => GeometryType::Box2,
            (3, 2) => GeometryType::Box3,
            _ => bail!(
                "say which columns have the coordinates: --lon and --lat, or --x, --y and --z, \
                 with one column each for points, or two for boxes"
            ),
        })
    }
}

/// What kind of file the shapes come from.
pub enum Source {
    Csv { has_header: bool, delimiter: u8 },
    Geojson,
}

/// A load into a spatial index.
pub struct Load<'a> {
    pub name: &'a str,
    pub file: &'a Path,
    pub source: Source,
    pub shapes: &'a ShapeArgs,
    pub fill: f64,
    pub new: &'a ObjectArgs,
}

impl Load<'_> {
    /// Runs the command.
    pub fn run(&self, pool: &PoolArguments, output: &Output) -> Result<bool> {
        let start = Instant::now();
        let (loaded, empty) = pool.change(self.name, |pool| self.load(pool, output))?;
        output.done("the records were loaded");
        let seconds = start.elapsed().as_secs_f64();
        let mut facts = vec![
            ("records read", json!(loaded)),
            ("seconds", json!(seconds)),
            (
                "records per second",
                json!((loaded as f64 / seconds) as u64),
            ),
        ];
        if matches!(self.source, Source::Geojson) {
            facts.insert(1, ("features without geometry", json!(empty)));
        }
        let title = format!(
            "loaded {} into {}",
            self.file.display(),
            harmless(self.name)
        );
        output.facts(&title, &facts)?;
        Ok(true)
    }

    /// Returns how many records were loaded, and how many features have no geometry.
    fn load(&self, pool: &Pool, output: &Output) -> Result<(usize, usize)> {
        let known = shapes::find(pool, self.name).map(|info| info.geometry);
        let in_file = || format!("{}", self.file.display());
        let Source::Csv {
            has_header,
            delimiter,
        } = self.source
        else {
            ensure!(
                self.shapes.axes().is_empty(),
                "GeoJSON says itself where the coordinates are: leave out --lon, --lat, --x, --y and --z"
            );
            let features = Features::read(self.file, self.shapes.payload.as_deref())?;
            let default = if features.are_points() {
                GeometryType::Point2
            } else {
                GeometryType::Box2
            };
            let geometry = self.shapes.geometry.or(known).unwrap_or(default);
            return with_geometry!(geometry, G => {
                let index = self.index::<G>(pool)?;
                let records = features.records::<G>(shapes::is_lonlat(&index)).with_context(in_file)?;
                Ok((self.write(&index, records)?, features.empty()))
            });
        };
        let reader =
            csv_file::reader(open(self.file)?, has_header, delimiter).with_context(in_file)?;
        let geometry = self.shapes.geometry_of_columns()?;
        if let Some(asked) = self.shapes.geometry.filter(|&asked| asked != geometry) {
            bail!("columns of a CSV file make a {geometry}, not a {asked}");
        }
        with_geometry!(geometry, G => {
            let records = self.read_csv::<G>(reader, has_header, output).with_context(in_file)?;
            Ok((self.write(&self.index::<G>(pool)?, records)?, 0))
        })
    }

    fn read_csv<G: Geometry>(
        &self,
        (mut reader, lines): (csv_file::Reader, csv_file::Lines),
        has_header: bool,
        output: &Output,
    ) -> Result<Vec<(G, u64)>> {
        let progress = output.progress(std::fs::metadata(self.file)?.len(), "reading");
        let header = if has_header {
            reader.headers()?.clone()
        } else {
            csv::StringRecord::new()
        };
        // In the order of a geometry's coordinates: the lower corner by axis, then, for a box, the upper one.
        let axes = self.shapes.axes();
        let names = (0..G::COORDINATES).map(|i| &axes[i % G::AXES][i / G::AXES]);
        let columns: Vec<usize> = names
            .map(|name| column(&header, name))
            .collect::<Result<_>>()?;
        let payload = self.shapes.payload.as_deref();
        let payload = payload.map(|name| column(&header, name)).transpose()?;
        let mut records = Vec::new();
        for (number, row) in reader.records().enumerate() {
            let row = row?;
            let line = lines.at(row.position());
            progress.set_position(row.position().map_or(0, csv::Position::byte));
            let mut coordinates = [0.0; 2 * shapes::MAX_AXES];
            for (i, &at) in columns.iter().enumerate() {
                coordinates[i] = cell(&row, line, &header, at)?;
                let place = || format!("line {line}, {}", described(&header, at));
                self.expect_coordinate(i % G::AXES, coordinates[i])
                    .with_context(place)?;
                let low = coordinates[i % G::AXES];
                if coordinates[i] < low {
                    bail!(
                        "line {line}, {}: {} is less than {low}, where the box begins",
                        described(&header, at),
                        coordinates[i]
                    );
                }
            }
            let payload = match payload {
                None => number as u64,
                Some(at) => cell(&row, line, &header, at)?,
            };
            records.push((G::from_coordinates(|i| coordinates[i]), payload));
        }
        progress.finish_and_clear();
        Ok(records)
    }

    /// An error if a number is no coordinate of this axis.
    fn expect_coordinate(&self, axis: usize, coordinate: f64) -> Result<()> {
        ensure!(!coordinate.is_nan(), "NaN is no coordinate");
        if self.shapes.lon.is_empty() {
            return Ok(());
        }
        shapes::expect_on_globe(axis, coordinate)
    }

    /// The index, which is created if it is not there.
    fn index<G: Geometry>(&self, pool: &Pool) -> Result<Spatial<G>> {
        // Longitudes and latitudes, unless the columns are those of a plane. GeoJSON has no others.
        let is_lonlat = self.shapes.x.is_empty() && G::AXES == 2;
        let default = match is_lonlat {
            true => SpatialOptions::from(HilbertOptions::default().lonlat()),
            false => SpatialOptions::default(),
        };
        let options = self.new.of_spatial(default)?;
        let index = pool.spatial_with::<G>(self.name, options)?;
        if shapes::is_lonlat(&index) {
            ensure!(
                self.shapes.x.is_empty(),
                "{} has longitudes and latitudes: say --lon and --lat instead of --x and --y",
                self.name
            );
        } else {
            ensure!(
                self.shapes.lon.is_empty(),
                "{} has coordinates of the plane: say --x and --y instead of --lon and --lat",
                self.name
            );
        }
        Ok(index)
    }

    /// Adds the records: in bulk if the index is empty.
    fn write<G: Geometry>(&self, index: &Spatial<G>, records: Vec<(G, u64)>) -> Result<usize> {
        let count = records.len();
        if index.is_empty()? {
            index.bulk_load(records, self.fill)?;
        } else {
            let insert = || index.insert_batch(&records);
            add_in_steps(self.name, count, ADDS_THEM_AGAIN, || index.len(), insert)?;
        }
        Ok(count)
    }
}

/// The cell of a row, parsed.
fn cell<T: Text>(
    row: &csv::StringRecord,
    line: u64,
    header: &csv::StringRecord,
    at: usize,
) -> Result<T> {
    let text = row
        .get(at)
        .with_context(|| format!("line {line} has no {}", described(header, at)))?;
    T::parse(text).with_context(|| format!("line {line}, {}", described(header, at)))
}
