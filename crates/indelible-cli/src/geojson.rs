//! GeoJSON (RFC 7946) as a source of records.

use anyhow::{Context, Result, bail, ensure};
use indelible::Geometry;
use indelible_bench::data::files::open;
use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::fmt::{self, Formatter};
use std::path::Path;

use crate::shapes::{ANTIMERIDIAN, MAX_AXES, expect_on_globe};
use crate::text::{quoted, without_mark};

/// Most geometry collections inside each other: what is deeper is refused and does not exhaust the stack.
const MAX_DEPTH: usize = 32;

/// The features of a file that have a geometry.
pub struct Features {
    shapes: Vec<Shape>,
    /// How many features have no geometry.
    empty: usize,
}

/// The bounding box of a feature, and what is stored beside it.
struct Shape {
    bounds: Bounds,
    /// Its western and its eastern meridian on the globe; the western one is the greater number if the box crosses the antimeridian.
    meridians: [f64; 2],
    /// Its place in the file, from 0.
    number: usize,
    is_point: bool,
    payload: u64,
}

/// The bounding box of the positions that have been seen.
struct Bounds {
    low: [f64; MAX_AXES],
    high: [f64; MAX_AXES],
    /// The number of axes that all positions have; 0 if there is no position.
    axes: usize,
    /// The longitudes of each part that is connected: west, east.
    parts: Vec<[f64; 2]>,
}

impl Features {
    /// Reads a file whose top is a feature collection, a feature, or a geometry. Features are read one after the other: memory is needed
    /// for their boxes alone. The payload is the number of the feature, from 0, or what `payload` names: the feature's `id`, or one of its
    /// properties.
    pub fn read(path: &Path, payload: Option<&str>) -> Result<Self> {
        let name = path.display();
        let mut features = Self {
            shapes: Vec::new(),
            empty: 0,
        };
        let text = without_mark(open(path)?)?;
        let mut reader = serde_json::Deserializer::from_reader(text);
        let top = Top {
            features: &mut features,
            payload,
        };
        let read = reader.deserialize_map(top).and_then(|top| {
            reader.end()?;
            Ok(top)
        });
        let top = match read {
            Ok(top) => top,
            // What is JSON, but not GeoJSON.
            Err(error) if error.is_data() => return Err(error).with_context(|| name.to_string()),
            Err(error) => return Err(error).with_context(|| format!("{name} is not JSON")),
        };
        let top = Value::Object(top);
        match top["type"].as_str() {
            Some("FeatureCollection") if top["features"].is_null() => {
                bail!("{name}: a feature collection without \"features\"")
            }
            Some("FeatureCollection") => {}
            Some("Feature") => features
                .add(&top, payload)
                .with_context(|| name.to_string())?,
            Some(_) => {
                let feature = serde_json::json!({"type": "Feature", "geometry": top});
                features
                    .add(&feature, payload)
                    .with_context(|| name.to_string())?;
            }
            None => bail!("{name} is not GeoJSON: its top has no \"type\""),
        }
        Ok(features)
    }

    fn add(&mut self, feature: &Value, payload: Option<&str>) -> Result<()> {
        let number = self.shapes.len() + self.empty;
        let place = || format!("feature {number}");
        let Some(mut bounds) = bounds_of(feature).with_context(place)? else {
            self.empty += 1;
            return Ok(());
        };
        let meridians = meridians(&std::mem::take(&mut bounds.parts));
        let payload = match payload {
            None => number as u64,
            Some(name) => payload_of(feature, name).with_context(place)?,
        };
        let is_point = feature["geometry"]["type"] == "Point";
        self.shapes.push(Shape {
            bounds,
            meridians,
            number,
            is_point,
            payload,
        });
        Ok(())
    }

    /// How many features have no geometry.
    pub fn empty(&self) -> usize {
        self.empty
    }

    /// Whether every feature that has a geometry is a single point.
    pub fn are_points(&self) -> bool {
        self.shapes.iter().all(|shape| shape.is_point)
    }

    /// The bounding boxes as geometries of an index, with what is stored beside them. On the globe (`is_lonlat`), a feature that crosses the antimeridian
    /// has two boxes, one on each side.
    pub fn records<G: Geometry>(&self, is_lonlat: bool) -> Result<Vec<(G, u64)>> {
        let mut records = Vec::with_capacity(self.shapes.len());
        for shape in &self.shapes {
            let place = || format!("feature {}", shape.number);
            let is_box = G::COORDINATES > G::AXES;
            let meridians = (is_lonlat && is_box).then_some(shape.meridians);
            let coordinates = shape.bounds.coordinates::<G>(meridians, is_lonlat);
            for coordinates in on_both_sides::<G>(&coordinates.with_context(place)?) {
                records.push((G::from_coordinates(|i| coordinates[i]), shape.payload));
            }
        }
        Ok(records)
    }
}

/// Reads the top of a file: adds the elements of `features`, and returns all other members.
struct Top<'a> {
    features: &'a mut Features,
    payload: Option<&'a str>,
}

impl<'de> Visitor<'de> for Top<'_> {
    type Value = serde_json::Map<String, Value>;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("an object of GeoJSON")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut others = serde_json::Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let value = if name == "features" {
                members.next_value_seed(&mut self)?;
                // It stands for the elements that have been added.
                Value::Bool(true)
            } else {
                members.next_value()?
            };
            others.insert(name, value);
        }
        Ok(others)
    }
}

impl<'de> DeserializeSeed<'de> for &mut Top<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, elements: D) -> Result<(), D::Error> {
        elements.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for &mut Top<'_> {
    type Value = ();

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("an array of features")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        while let Some(feature) = elements.next_element::<Value>()? {
            let added = self.features.add(&feature, self.payload);
            added.map_err(|error| A::Error::custom(format!("{error:#}")))?;
        }
        Ok(())
    }
}

/// The bounding box of a feature; `None` if the feature has no geometry, or one without positions.
fn bounds_of(feature: &Value) -> Result<Option<Bounds>> {
    ensure!(
        feature["type"] == "Feature",
        "its \"type\" is {}, not \"Feature\"",
        feature["type"]
    );
    let geometry = &feature["geometry"];
    if geometry.is_null() {
        return Ok(None);
    }
    let mut bounds = Bounds {
        low: [f64::INFINITY; MAX_AXES],
        high: [f64::NEG_INFINITY; MAX_AXES],
        axes: 0,
        parts: Vec::new(),
    };
    bounds.add_geometry(geometry, 0)?;
    Ok((bounds.axes > 0).then_some(bounds))
}

/// The coordinates of a shape. A box whose western meridian is greater than its eastern one crosses the antimeridian: two boxes.
fn on_both_sides<G: Geometry>(coordinates: &[f64]) -> Vec<Vec<f64>> {
    let crosses = coordinates
        .get(G::AXES)
        .is_some_and(|&east| coordinates[0] > east);
    if !crosses {
        return vec![coordinates.to_vec()];
    }
    let mut both = [coordinates.to_vec(), coordinates.to_vec()];
    both[0][G::AXES] = ANTIMERIDIAN;
    both[1][0] = -ANTIMERIDIAN;
    both.into()
}

/// The western and the eastern meridian of the parts of a feature on the globe. RFC 7946 wants what crosses the antimeridian to be cut into parts
/// there; some programs go on beyond 180 instead. Either way, parts on both sides that touch it belong together, and the box is the one that
/// leaves out the widest gap between the parts.
fn meridians(parts: &[[f64; 2]]) -> [f64; 2] {
    let mut arcs = Vec::with_capacity(parts.len());
    for &[west, east] in parts {
        match (west, east) {
            _ if east - west >= 2.0 * ANTIMERIDIAN => arcs.push([-ANTIMERIDIAN, ANTIMERIDIAN]),
            _ if east > ANTIMERIDIAN && west > ANTIMERIDIAN => {
                arcs.push([west, east].map(|it| it - 2.0 * ANTIMERIDIAN));
            }
            _ if west < -ANTIMERIDIAN && east < -ANTIMERIDIAN => {
                arcs.push([west, east].map(|it| it + 2.0 * ANTIMERIDIAN));
            }
            _ if east > ANTIMERIDIAN => {
                arcs.push([west, ANTIMERIDIAN]);
                arcs.push([-ANTIMERIDIAN, east - 2.0 * ANTIMERIDIAN]);
            }
            _ if west < -ANTIMERIDIAN => {
                arcs.push([west + 2.0 * ANTIMERIDIAN, ANTIMERIDIAN]);
                arcs.push([-ANTIMERIDIAN, east]);
            }
            _ => arcs.push([west, east]),
        }
    }
    arcs.sort_by(|a, b| a[0].total_cmp(&b[0]));
    let west = arcs.first().map_or(f64::INFINITY, |arc| arc[0]);
    let mut reached = f64::NEG_INFINITY;
    let (mut widest, mut gap) = (0.0, None);
    for &[begin, end] in &arcs {
        if begin - reached > widest && reached >= -ANTIMERIDIAN {
            (widest, gap) = (begin - reached, Some([begin, reached]));
        }
        reached = reached.max(end);
    }
    let touches_on_both_sides = west == -ANTIMERIDIAN && reached == ANTIMERIDIAN;
    gap.filter(|_| touches_on_both_sides)
        .unwrap_or([west, reached])
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
    /// The coordinates of the box as a geometry of an index, with other meridians if it is on the globe: the western one may be the greater number then.
    fn coordinates<G: Geometry>(
        &self,
        meridians: Option<[f64; 2]>,
        is_lonlat: bool,
    ) -> Result<Vec<f64>> {
        ensure!(
            self.axes >= G::AXES,
            "a position has {} numbers, and a {} needs {}",
            self.axes,
            G::NAME,
            G::AXES
        );
        let is_point = G::COORDINATES == G::AXES;
        ensure!(
            !is_point || self.low[..G::AXES] == self.high[..G::AXES],
            "it is no point; its bounding box fits an index of box{}",
            G::AXES
        );
        let mut coordinates = [&self.low[..G::AXES], &self.high[..G::AXES]].concat();
        if let Some([west, east]) = meridians {
            (coordinates[0], coordinates[G::AXES]) = (west, east);
        }
        for (at, &coordinate) in coordinates.iter().enumerate().filter(|_| is_lonlat) {
            expect_on_globe(at % G::AXES, coordinate)?;
        }
        coordinates.truncate(G::COORDINATES);
        Ok(coordinates)
    }

    fn add_geometry(&mut self, geometry: &Value, depth: usize) -> Result<()> {
        ensure!(
            depth < MAX_DEPTH,
            "geometry collections in {MAX_DEPTH} levels"
        );
        // How deep the lists are, and how deep those of one part.
        let (depth, of_part) = match geometry["type"].as_str() {
            Some("Point") => (0, 0),
            Some("MultiPoint") => (1, 0),
            Some("LineString") => (1, 1),
            Some("MultiLineString") => (2, 1),
            Some("Polygon") => (2, 2),
            Some("MultiPolygon") => (3, 2),
            Some("GeometryCollection") => {
                let Some(members) = geometry["geometries"].as_array() else {
                    bail!("a geometry collection without \"geometries\"");
                };
                let mut members = members.iter();
                return members.try_for_each(|member| self.add_geometry(member, depth + 1));
            }
            Some(other) => bail!("{} is no type of geometry", quoted(other)),
            None => bail!("its geometry has no \"type\""),
        };
        self.add_coordinates(&geometry["coordinates"], depth, of_part)
    }

    fn add_coordinates(&mut self, coordinates: &Value, depth: usize, of_part: usize) -> Result<()> {
        let Some(list) = coordinates.as_array() else {
            bail!("its coordinates are not lists of numbers as deep as its type asks for");
        };
        if depth == of_part && !list.is_empty() {
            self.parts.push([f64::INFINITY, f64::NEG_INFINITY]);
        }
        if depth > 0 {
            let mut inner = list.iter();
            return inner.try_for_each(|inner| self.add_coordinates(inner, depth - 1, of_part));
        }
        // An empty point is how some programs write that there is none.
        if list.is_empty() {
            return Ok(());
        }
        // RFC 7946: numbers after the third one have no meaning.
        let axes = list.len().min(MAX_AXES);
        let refused = || format!("{} is no position", quoted(&coordinates.to_string()));
        ensure!(axes >= 2, refused());
        for (axis, coordinate) in list[..axes].iter().enumerate() {
            let coordinate = coordinate.as_f64().with_context(refused)?;
            self.low[axis] = self.low[axis].min(coordinate);
            self.high[axis] = self.high[axis].max(coordinate);
            if let Some([west, east]) = self.parts.last_mut().filter(|_| axis == 0) {
                (*west, *east) = (west.min(coordinate), east.max(coordinate));
            }
        }
        self.axes = match self.axes {
            0 => axes,
            before => before.min(axes),
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::meridians;

    #[test]
    fn what_touches_the_antimeridian_on_both_sides_crosses_it() {
        let whole = [-180.0, 180.0];
        for (parts, expected) in [
            (&[[177.0, 180.0], [-180.0, -178.0]][..], [177.0, -178.0]),
            // Russia, say: the widest gap is left out.
            (
                &[[-180.0, -169.0], [19.0, 23.0], [27.0, 180.0]],
                [19.0, -169.0],
            ),
            // Beyond 180, on either side.
            (&[[170.0, 190.0]], [170.0, -170.0]),
            (&[[-190.0, -170.0]], [170.0, -170.0]),
            (&[[185.0, 190.0]], [-175.0, -170.0]),
            (&[[-190.0, -185.0]], [170.0, 175.0]),
            // Around the pole, or around the globe.
            (&[whole], whole),
            (&[whole, [10.0, 20.0]], whole),
            (&[[-180.0, 10.0], [5.0, 180.0]], whole),
            (&[[0.0, 400.0]], whole),
            // Elsewhere.
            (&[[10.0, 20.0], [-5.0, -3.0]], [-5.0, 20.0]),
            (&[[170.0, 180.0], [-179.0, -170.0]], [-179.0, 180.0]),
            (&[[180.0, 180.0]], [180.0, 180.0]),
        ] {
            assert_eq!(meridians(parts), expected, "{parts:?}");
        }
    }
}
