//! Spatial indexes whose type of geometry is known only at run time, and shapes as text and as GeoJSON.

use crate::text::{Text, quoted};
use anyhow::{Context, Result, bail, ensure};
use indelible::{Geometry, GeometryType, Pool, Record, Spatial, SpatialInfo};
use serde_json::{Value, json};

/// Most axes of a geometry.
pub const MAX_AXES: usize = 3;

/// Does the work with `$G` as the type that a [`GeometryType`] stands for. The work is a [`Result`].
macro_rules! with_geometry {
    ($of:expr, $G:ident => $work:expr) => {
        match $of {
            indelible::GeometryType::Point2 => {
                type $G = indelible::Point2;
                $work
            }
            indelible::GeometryType::Point3 => {
                type $G = indelible::Point3;
                $work
            }
            indelible::GeometryType::Box2 => {
                type $G = indelible::Box2;
                $work
            }
            indelible::GeometryType::Box3 => {
                type $G = indelible::Box3;
                $work
            }
            other => Err(anyhow::anyhow!(
                "this command line does not know the geometry {other}"
            )),
        }
    };
}
pub(crate) use with_geometry;

/// What the catalog says of the spatial index `name`, if there is one.
pub fn find(pool: &Pool, name: &str) -> Option<SpatialInfo> {
    let mut all = pool.spatials().into_iter();
    all.find(|info| info.name == name)
}

/// What the catalog says of the spatial index `name`; an error if there is no object of this name, or it is a map.
pub fn expect(pool: &Pool, name: &str) -> Result<SpatialInfo> {
    if let Some(info) = find(pool, name) {
        return Ok(info);
    }
    if pool.maps().iter().any(|map| map.name == name) {
        bail!("{name:?} is a map, not a spatial index");
    }
    bail!("there is no spatial index {name:?}")
}

/// Whether coordinates are degrees of longitude and latitude.
pub fn is_lonlat<G: Geometry>(index: &Spatial<G>) -> bool {
    index.options().get("coordinates").as_deref() == Some("lonlat")
}

/// The coordinates of a type of geometry, as help and errors name them.
pub fn form<G: Geometry>() -> &'static str {
    match G::TYPE {
        GeometryType::Point2 => "X,Y",
        GeometryType::Point3 => "X,Y,Z",
        GeometryType::Box2 => "XMIN,YMIN,XMAX,YMAX",
        _ => "XMIN,YMIN,ZMIN,XMAX,YMAX,ZMAX",
    }
}

/// A shape from text: its coordinates, separated by commas, those of the lower corner first.
pub fn parse<G: Geometry>(text: &str) -> Result<G> {
    let numbers: Result<Vec<f64>> = text.split(',').map(f64::parse).collect();
    let numbers = numbers.with_context(|| format!("{} is not {}", quoted(text), form::<G>()))?;
    if numbers.len() != G::COORDINATES {
        bail!(
            "{} has {} numbers; a {} is {}",
            quoted(text),
            numbers.len(),
            G::NAME,
            form::<G>()
        );
    }
    Ok(G::from_coordinates(|i| numbers[i]))
}

/// The coordinates of a shape.
pub fn coordinates<G: Geometry>(shape: &G) -> Vec<f64> {
    (0..G::COORDINATES).map(|i| shape.coordinate(i)).collect()
}

/// A shape as [`parse`] reads it.
pub fn show<G: Geometry>(shape: &G) -> String {
    let numbers: Vec<String> = coordinates(shape).iter().map(f64::show).collect();
    numbers.join(",")
}

/// The meridian where longitudes end.
pub const ANTIMERIDIAN: f64 = 180.0;

/// An error if a number is no longitude (axis 0), or no latitude.
pub fn expect_on_globe(axis: usize, coordinate: f64) -> Result<()> {
    let (most, what) = [(ANTIMERIDIAN, "longitudes"), (90.0, "latitudes")][axis.min(1)];
    ensure!(
        coordinate.abs() <= most,
        "{coordinate} is out of range: {what} are from -{most} to {most}"
    );
    Ok(())
}

/// The lower and the upper corner on the first two axes: west, south, east, north.
pub fn flat<G: Geometry>(shape: &G) -> [f64; 4] {
    let upper = G::COORDINATES - G::AXES;
    [0, 1, upper, upper + 1].map(|i| shape.coordinate(i))
}

/// A number of JSON, which has no infinite ones: those become strings.
pub fn number(of: f64) -> Value {
    if of.is_finite() {
        json!(of)
    } else {
        json!(of.show())
    }
}

/// A record as a JSON object.
pub fn to_json<G: Geometry>(record: &Record<G>, distance: Option<f64>) -> Value {
    let shape: Vec<Value> = coordinates(&record.shape).into_iter().map(number).collect();
    let mut object = json!({"shape": shape, "payload": record.payload});
    if let Some(distance) = distance {
        object["distance"] = number(distance);
    }
    object
}

/// A record as a feature of GeoJSON: a point, or a polygon with the four corners of a box. A box of space becomes the polygon of its floor
/// and has its corners in `bbox`.
pub fn to_feature<G: Geometry>(record: &Record<G>, distance: Option<f64>) -> Result<Value> {
    let all = coordinates(&record.shape);
    if all.iter().any(|coordinate| !coordinate.is_finite()) {
        bail!(
            "{} has an infinite coordinate, which GeoJSON cannot say",
            show(&record.shape)
        );
    }
    let geometry = if G::COORDINATES == G::AXES {
        json!({"type": "Point", "coordinates": all})
    } else {
        let [west, south, east, north] = flat(&record.shape);
        let corners = [(west, south), (east, south), (east, north), (west, north)];
        // A ring of GeoJSON ends where it begins.
        let ring: Vec<Vec<f64>> = corners
            .iter()
            .chain(&corners[..1])
            .map(|&(x, y)| [&[x, y], &all[2..G::AXES]].concat())
            .collect();
        json!({"type": "Polygon", "coordinates": [ring]})
    };
    let mut properties = json!({"payload": record.payload});
    if let Some(distance) = distance {
        properties["distance"] = number(distance);
    }
    let mut feature = json!({"type": "Feature", "id": record.payload, "geometry": geometry, "properties": properties});
    if G::COORDINATES != G::AXES {
        feature["bbox"] = json!(all);
    }
    Ok(feature)
}

/// A distance: a number in the unit of the coordinates, or with the unit `m` or `km`, which only longitudes and latitudes have.
pub fn distance(text: &str, is_lonlat: bool) -> Result<f64> {
    let text = text.trim();
    let (digits, metres) = match text.strip_suffix('m') {
        Some(rest) => match rest.strip_suffix('k') {
            Some(digits) => (digits, Some(1000.0)),
            None => (rest, Some(1.0)),
        },
        None => (text, None),
    };
    if metres.is_some() && !is_lonlat {
        bail!(
            "{text} is a distance on the globe; this index has coordinates of the plane: give a number without a unit"
        );
    }
    let number = f64::parse(digits).with_context(|| {
        format!(
            "{} is not a distance such as 500m, 5km or 2.5",
            quoted(text)
        )
    })?;
    if metres.is_none() && is_lonlat {
        bail!(
            "{} has no unit: on the globe a distance is 500m or 5km",
            quoted(text)
        );
    }
    Ok(number * metres.unwrap_or(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use indelible::{Box2, Box3, Point2, Point3};

    #[test]
    fn shapes_come_back_from_text() {
        assert_eq!(parse::<Point2>("1.5, -2").unwrap(), Point2::new(1.5, -2.0));
        assert_eq!(show(&parse::<Point3>("1,2,inf").unwrap()), "1,2,inf");
        assert_eq!(show(&parse::<Box3>("1,2,3,4,5,6").unwrap()), "1,2,3,4,5,6");
        assert_eq!(
            flat(&parse::<Box3>("1,2,3,4,5,6").unwrap()),
            [1.0, 2.0, 4.0, 5.0]
        );
        let few = parse::<Box2>("1,2,3").unwrap_err().to_string();
        assert_eq!(
            few,
            "\"1,2,3\" has 3 numbers; a box2 is XMIN,YMIN,XMAX,YMAX"
        );
        let word = parse::<Point2>("1,here").unwrap_err();
        assert_eq!(
            format!("{word:#}"),
            "\"1,here\" is not X,Y: \"here\" is not a f64: invalid float literal"
        );
    }

    #[test]
    fn distances_have_units_on_the_globe_only() {
        for (text, metres) in [("5km", 5000.0), ("0.5 km", 500.0), ("20m", 20.0)] {
            assert_eq!(distance(text, true).unwrap(), metres, "{text}");
        }
        assert_eq!(distance("7", false).unwrap(), 7.0);
        assert!(distance("7m", false).is_err());
        for text in ["7", "7miles", "m"] {
            assert!(distance(text, true).is_err(), "{text}");
        }
    }
}
