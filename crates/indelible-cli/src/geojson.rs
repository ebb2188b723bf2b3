//! GeoJSON (RFC 7946) as a source of records.

use anyhow::{Context, Result, bail, ensure};
use indelible::Geometry;
use serde_json::Value;
use std::path::Path;

use crate::shapes::MAX_AXES;
use crate::text::quoted;

/// Most geometry collections inside each other: what is deeper is refused and does not exhaust the stack.
const MAX_DEPTH: usize = 32;

/// The features of a file.
pub struct Features {
    features: Vec<Value>,
}

/// The bounding box of the positions that have been seen.
struct Bounds {
    low: [f64; MAX_AXES],
    high: [f64; MAX_AXES],
    positions: usize,
}

impl Features {
    /// Reads a file whose top is a feature collection, a feature, or a geometry.
    pub fn read(path: &Path) -> Result<Self> {
        let name = || path.display().to_string();
        let text = std::fs::read(path).with_context(|| format!("open {}", path.display()))?;
        let mut top: Value = serde_json::from_slice(&text)
            .with_context(|| format!("{} is not JSON", path.display()))?;
        let features = match top["type"].as_str() {
            Some("FeatureCollection") => match top["features"].take() {
                Value::Array(features) => features,
                _ => bail!("{}: a feature collection without \"features\"", name()),
            },
            Some("Feature") => vec![top],
            Some(_) => vec![serde_json::json!({"type": "Feature", "geometry": top})],
            None => bail!("{} is not GeoJSON: its top has no \"type\"", name()),
        };
        Ok(Self { features })
    }

    /// Whether every feature that has a geometry is a single point.
    pub fn are_points(&self) -> bool {
        let mut kinds = self
            .features
            .iter()
            .map(|feature| &feature["geometry"])
            .filter(|geometry| !geometry.is_null())
            .map(|geometry| geometry["type"].as_str());
        kinds.all(|kind| kind == Some("Point"))
    }

    /// The bounding boxes of all features that have a geometry, and how many have none. The payload is the number of the feature, from 0,
    /// or what `payload` names: the feature's `id`, or one of its properties.
    pub fn records<G: Geometry>(&self, payload: Option<&str>) -> Result<(Vec<(G, u64)>, usize)> {
        let mut records = Vec::with_capacity(self.features.len());
        let mut empty = 0;
        for (number, feature) in self.features.iter().enumerate() {
            let place = || format!("feature {number}");
            let Some(shape) = shape_of(feature).with_context(place)? else {
                empty += 1;
                continue;
            };
            let payload = match payload {
                None => number as u64,
                Some(name) => payload_of(feature, name).with_context(place)?,
            };
            records.push((shape, payload));
        }
        Ok((records, empty))
    }
}

/// The bounding box of a feature as a geometry; `None` if the feature has none.
fn shape_of<G: Geometry>(feature: &Value) -> Result<Option<G>> {
    ensure!(
        feature["type"] == "Feature",
        "its \"type\" is {}, not \"Feature\"",
        feature["type"]
    );
    let mut bounds = Bounds {
        low: [f64::INFINITY; MAX_AXES],
        high: [f64::NEG_INFINITY; MAX_AXES],
        positions: 0,
    };
    let geometry = &feature["geometry"];
    if geometry.is_null() {
        return Ok(None);
    }
    bounds.add_geometry(geometry, G::AXES, 0)?;
    if bounds.positions == 0 {
        return Ok(None);
    }
    let is_point = G::COORDINATES == G::AXES;
    ensure!(
        !is_point || bounds.low == bounds.high,
        "a {} is no point; its bounding box fits an index of box{}",
        geometry["type"].as_str().unwrap_or("geometry"),
        G::AXES
    );
    let shape = G::from_coordinates(|i| match i.checked_sub(G::AXES) {
        None => bounds.low[i],
        Some(axis) => bounds.high[axis],
    });
    Ok(Some(shape))
}

/// A whole number that is not negative, or the text of one.
fn payload_of(feature: &Value, name: &str) -> Result<u64> {
    let property = &feature["properties"][name];
    let value = match name {
        "id" if property.is_null() => &feature["id"],
        _ => property,
    };
    ensure!(!value.is_null(), "there is no property {}", quoted(name));
    let number = match value {
        Value::String(text) => text.trim().parse().ok(),
        other => other.as_u64(),
    };
    number.with_context(|| {
        format!(
            "the property {} is {}, which is not a u64",
            quoted(name),
            quoted(&value.to_string())
        )
    })
}

impl Bounds {
    fn add_geometry(&mut self, geometry: &Value, axes: usize, depth: usize) -> Result<()> {
        ensure!(
            depth < MAX_DEPTH,
            "geometry collections in {MAX_DEPTH} levels"
        );
        let depth_of_coordinates = match geometry["type"].as_str() {
            Some("Point") => 0,
            Some("MultiPoint" | "LineString") => 1,
            Some("MultiLineString" | "Polygon") => 2,
            Some("MultiPolygon") => 3,
            Some("GeometryCollection") => {
                let Some(members) = geometry["geometries"].as_array() else {
                    bail!("a geometry collection without \"geometries\"");
                };
                for member in members {
                    self.add_geometry(member, axes, depth + 1)?;
                }
                return Ok(());
            }
            Some(other) => bail!("{} is no type of geometry", quoted(other)),
            None => bail!("its geometry has no \"type\""),
        };
        self.add_coordinates(&geometry["coordinates"], depth_of_coordinates, axes)
    }

    fn add_coordinates(&mut self, coordinates: &Value, depth: usize, axes: usize) -> Result<()> {
        let Some(list) = coordinates.as_array() else {
            bail!("its coordinates are not lists of numbers as deep as its type asks for");
        };
        if depth > 0 {
            return list
                .iter()
                .try_for_each(|inner| self.add_coordinates(inner, depth - 1, axes));
        }
        // An empty point is how some programs write that there is none.
        if list.is_empty() {
            return Ok(());
        }
        self.positions += 1;
        for axis in 0..axes {
            let Some(coordinate) = list.get(axis).and_then(Value::as_f64) else {
                bail!(
                    "the position {} has not {axes} numbers",
                    quoted(&coordinates.to_string())
                );
            };
            self.low[axis] = self.low[axis].min(coordinate);
            self.high[axis] = self.high[axis].max(coordinate);
        }
        // Axes that the index has not stay equal, so that a point is one.
        for axis in axes..MAX_AXES {
            (self.low[axis], self.high[axis]) = (0.0, 0.0);
        }
        Ok(())
    }
}
