//! Points on the globe, each written as a key of 64 bits, so that everything in the bench that deals with keys deals with points, too.
//!
//! The upper half of a key is the longitude and the lower half the latitude, in steps of 10^-7 degrees (OpenStreetMap's precision, about
//! a centimetre), so sorted keys are sorted by longitude. The point of a key is exact: every contestant computes with equal `f64`s.
//! Points of one set are distinct.

use super::PointSet;
use super::cities;
use super::draw::{Random, distinct};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::io::BufReader;
use std::path::Path;

/// Longitude and latitude in degrees.
pub type Point = [f64; 2];

/// Steps in a degree.
const STEPS: f64 = 1e7;
/// What is added to a coordinate in steps, so that the sum is not negative.
const BIAS: i64 = 1 << 31;

/// Centres of [`PointSet::Clustered`].
pub const CLUSTERS: u64 = 1000;
/// The extent of a city in degrees, as in the sets of keys that are made of cities.
const CITY: f64 = 0.05;
/// How far points that a file is grown by lie from those of the file, in degrees: half a kilometre, so that a coast stays a coast.
const FILE: f64 = 0.005;
/// The side of the widest windows, in steps: three fifths of the way around the earth.
const WIDEST: u32 = 1 << 31;
/// Loaded points around which windows are tried out.
const CENTRES: usize = 500;

/// The key of a point in degrees, which is rounded to a step.
#[must_use]
pub fn key([longitude, latitude]: Point) -> u64 {
    let steps = |degrees: f64| ((degrees * STEPS).round() as i64 + BIAS).clamp(0, 0xffff_ffff);
    (steps(longitude) as u64) << 32 | steps(latitude) as u64
}

/// The point of a key.
#[inline]
#[must_use]
pub fn point(key: u64) -> Point {
    let (x, y) = steps_of(key);
    [degrees(x), degrees(y)]
}

/// The corners of the square window around the point of a key.
#[inline]
#[must_use]
pub fn window(centre: u64, side: u32) -> (Point, Point) {
    let (x, y) = steps_of(centre);
    let half = i64::from(side / 2);
    (
        [degrees(x - half), degrees(y - half)],
        [degrees(x + half), degrees(y + half)],
    )
}

/// A point in the window around the point of a key: always the same one for one key, and hardly ever a point of the set.
#[inline]
#[must_use]
pub fn beside(centre: u64, side: u32) -> Point {
    let (x, y) = steps_of(centre);
    let mixed = (centre ^ centre >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let off =
        |bits: u64| (((bits & 0xffff_ffff) * u64::from(side)) >> 32) as i64 - i64::from(side / 2);
    [degrees(x + off(mixed >> 32)), degrees(y + off(mixed))]
}

/// The side of the square windows around `loaded` points, which are in random order, that contain `hits` of them on average; `sorted`
/// are the same points in the order of their keys.
#[must_use]
pub fn window_side(loaded: &[u64], sorted: &[u64], hits: u32) -> u32 {
    let centres = &loaded[..loaded.len().min(CENTRES)];
    if u64::from(hits) > loaded.len() as u64 {
        // Not even all points are enough, and to find that out would take a look at all of them for each side and centre.
        return WIDEST;
    }
    let wanted = u64::from(hits) * centres.len() as u64;
    let has_enough = |side: u32| {
        let mut found = 0;
        centres.iter().any(|&centre| {
            found += hits_of(sorted, centre, side);
            found >= wanted
        })
    };
    // The widest windows look at all points, so they are tried last.
    let widest = (0..32)
        .map(|bit| 2 << bit)
        .find(|&side| side == WIDEST || has_enough(side));
    let (mut below, mut enough) = (widest.unwrap_or(2) / 2, widest.unwrap_or(2));
    while below + 1 < enough {
        let middle = below + (enough - below) / 2;
        if has_enough(middle) {
            enough = middle;
        } else {
            below = middle;
        }
    }
    enough
}

/// Points in a window.
fn hits_of(sorted: &[u64], centre: u64, side: u32) -> u64 {
    let half = i64::from(side / 2);
    let (x, y) = steps_of(centre);
    let column = |x: i64| ((x + BIAS).clamp(0, 0xffff_ffff) as u64) << 32;
    let from = sorted.partition_point(|&key| key < column(x - half));
    let to = sorted.partition_point(|&key| key <= column(x + half) | 0xffff_ffff);
    let inside = |key: &&u64| (steps_of(**key).1 - y).abs() <= half;
    sorted[from..to].iter().filter(inside).count() as u64
}

#[inline]
fn steps_of(key: u64) -> (i64, i64) {
    ((key >> 32) as i64 - BIAS, (key & 0xffff_ffff) as i64 - BIAS)
}

#[inline]
fn degrees(steps: i64) -> f64 {
    steps as f64 / STEPS
}

/// `count` distinct points, as keys in ascending order.
pub(super) fn generate(set: &PointSet, count: usize, random: &mut Random) -> Result<Vec<u64>> {
    let anywhere =
        |random: &mut Random| [360.0 * random.unit() - 180.0, 180.0 * random.unit() - 90.0];
    match set {
        PointSet::Uniform => distinct(count, || key(anywhere(random))),
        PointSet::Clustered => {
            // Widths from a hundredth of a degree to a degree, as many of each order of magnitude.
            let cluster =
                |random: &mut Random| (anywhere(random), libm::pow(10.0, -2.0 * random.unit()));
            let clusters: Vec<(Point, f64)> = (0..CLUSTERS).map(|_| cluster(random)).collect();
            distinct(count, || {
                let (centre, width) = clusters[random.below(CLUSTERS) as usize];
                key(near(centre, width, random))
            })
        }
        PointSet::Cities => {
            let cities = cities::all()?;
            let places = cities.iter().map(|city| [city.longitude, city.latitude]);
            grow(places.collect(), CITY, count, random)
        }
        PointSet::File(path) => {
            let places = read(path).with_context(|| path.display().to_string())?;
            grow(places, FILE, count, random)
        }
    }
}

/// A point around another one, on the globe.
fn near([longitude, latitude]: Point, width: f64, random: &mut Random) -> Point {
    let longitude = longitude + width * random.normal();
    let latitude = latitude + width * random.normal();
    [longitude.clamp(-180.0, 180.0), latitude.clamp(-90.0, 90.0)]
}

/// The places in random order, first as they are, then again and again a little elsewhere.
fn grow(mut places: Vec<Point>, width: f64, count: usize, random: &mut Random) -> Result<Vec<u64>> {
    ensure!(!places.is_empty(), "there are no points");
    for end in (2..=places.len()).rev() {
        places.swap(end - 1, random.below(end as u64) as usize);
    }
    let mut drawn = 0;
    distinct(count, || {
        let place = places[drawn % places.len()];
        drawn += 1;
        if drawn <= places.len() {
            key(place)
        } else {
            key(near(place, width, random))
        }
    })
}

/// All positions of a file: a CSV file with columns of longitudes and latitudes, or else GeoJSON or TopoJSON.
fn read(path: &Path) -> Result<Vec<Point>> {
    let is_csv = path
        .extension()
        .is_some_and(|ending| ending.eq_ignore_ascii_case("csv"));
    let file = BufReader::with_capacity(1 << 20, super::files::open(path)?);
    let points = if is_csv {
        csv_points(csv::Reader::from_reader(file))?
    } else {
        let text: Value = serde_json::from_reader(file).context("neither CSV nor JSON")?;
        let mut points = Vec::new();
        match text.get("arcs") {
            Some(arcs) => topology(&text, arcs, &mut points).context("no TopoJSON")?,
            None => positions(&text, &mut points),
        }
        points
    };
    let on_the_globe = |[x, y]: &Point| (-180.0..=180.0).contains(x) && (-90.0..=90.0).contains(y);
    if let Some(point) = points.iter().find(|point| !on_the_globe(point)) {
        bail!("{point:?} is no longitude and latitude in degrees");
    }
    Ok(points)
}

fn csv_points(mut rows: csv::Reader<impl std::io::Read>) -> Result<Vec<Point>> {
    let head = rows.headers()?.clone();
    let find = |names: &[&str]| {
        let is_one = |column: &str| names.contains(&column.trim().to_ascii_lowercase().as_str());
        let found = head.iter().position(is_one);
        found.with_context(|| format!("no column is called {}", names.join(" or ")))
    };
    let columns = [
        find(&["lon", "lng", "long", "longitude", "x"])?,
        find(&["lat", "latitude", "y"])?,
    ];
    let mut points = Vec::new();
    for row in rows.records() {
        let row = row?;
        let number = |column: usize| -> Result<f64> {
            let field = row.get(column).unwrap_or_default();
            let line = row.position().map_or(0, csv::Position::line);
            let number = field.trim().parse();
            number.with_context(|| format!("line {line}: {field:?} is not a number"))
        };
        points.push([number(columns[0])?, number(columns[1])?]);
    }
    Ok(points)
}

/// Every position below any member `coordinates`.
fn positions(value: &Value, points: &mut Vec<Point>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if name == "coordinates" {
                    coordinates(member, points);
                } else {
                    positions(member, points);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| positions(item, points)),
        _ => {}
    }
}

fn coordinates(value: &Value, points: &mut Vec<Point>) {
    let Some(items) = value.as_array() else {
        return;
    };
    match pair(value) {
        Some(point) => points.push(point),
        None => items.iter().for_each(|item| coordinates(item, points)),
    }
}

/// Two numbers at the beginning of a list.
fn pair(value: &Value) -> Option<Point> {
    Some([value.get(0)?.as_f64()?, value.get(1)?.as_f64()?])
}

/// The positions of the arcs of a topology. If there is a transform, each is written as the difference to the one before it.
fn topology(text: &Value, arcs: &Value, points: &mut Vec<Point>) -> Option<()> {
    let transform = match text.get("transform") {
        Some(transform) => Some((
            pair(transform.get("scale")?)?,
            pair(transform.get("translate")?)?,
        )),
        None => None,
    };
    for arc in arcs.as_array()? {
        let mut at = [0.0; 2];
        for position in arc.as_array()? {
            let step = pair(position)?;
            let place = |axis: usize| match transform {
                Some((scale, origin)) => (at[axis] + step[axis]) * scale[axis] + origin[axis],
                None => step[axis],
            };
            points.push([place(0), place(1)]);
            at = [at[0] + step[0], at[1] + step[1]];
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_of_keys_are_those_that_the_keys_were_made_of() {
        for place in [
            [-180.0, -90.0],
            [180.0, 90.0],
            [0.0, 0.0],
            [139.767_125_1, 35.681_236],
        ] {
            assert_eq!(point(key(place)), place);
        }
        assert!(key([-1.0, 5.0]) < key([-0.5, -5.0]));
        let (low, high) = window(key([1.0, 2.0]), 20_000_000);
        assert_eq!((low, high), ([0.0, 1.0], [2.0, 3.0]));
        let [x, y] = beside(key([1.0, 2.0]), 20_000_000);
        assert!((0.0..=2.0).contains(&x) && (1.0..=3.0).contains(&y));
    }

    #[test]
    fn windows_have_the_hits_that_are_wanted() {
        for set in [PointSet::Uniform, PointSet::Clustered, PointSet::Cities] {
            let sorted = generate(&set, 20_000, &mut Random::new(1)).unwrap();
            let mut loaded = sorted.clone();
            let random = &mut Random::new(2);
            for end in (2..=loaded.len()).rev() {
                loaded.swap(end - 1, random.below(end as u64) as usize);
            }
            let side = window_side(&loaded, &sorted, 24);
            let centres = &loaded[..CENTRES];
            let hits: u64 = centres
                .iter()
                .map(|&centre| hits_of(&sorted, centre, side))
                .sum();
            let mean = hits as f64 / CENTRES as f64;
            assert!((23.0..26.0).contains(&mean), "{set:?}: {mean}");
            let brute = |centre: u64| {
                let (low, high) = window(centre, side);
                let inside = |key: &&u64| {
                    let [x, y] = point(**key);
                    low[0] <= x && x <= high[0] && low[1] <= y && y <= high[1]
                };
                sorted.iter().filter(inside).count() as u64
            };
            assert_eq!(hits_of(&sorted, loaded[0], side), brute(loaded[0]));
        }
        // More than there are: the widest window that is tried, and no endless search.
        assert!(window_side(&[key([1.0, 1.0])], &[key([1.0, 1.0])], 5) >= 1 << 30);
    }

    fn of_file(ending: &str, text: &str) -> Result<Vec<Point>> {
        let file = tempfile::Builder::new().suffix(ending).tempfile()?;
        std::fs::write(file.path(), text)?;
        read(file.path())
    }

    #[test]
    fn points_are_read_from_csv_geojson_and_topojson() {
        let csv = of_file(".csv", "name,Latitude,lng\na,35.5,139\nb,-1, -2.25\n").unwrap();
        assert_eq!(csv, [[139.0, 35.5], [-2.25, -1.0]]);
        let geojson = r#"{"type":"FeatureCollection","features":[
            {"geometry":{"type":"Point","coordinates":[1,2,7]}},
            {"geometry":{"type":"Polygon","coordinates":[[[3,4],[5,6]]]}}]}"#;
        let expected = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]];
        assert_eq!(of_file(".geojson", geojson).unwrap(), expected);
        let topology = r#"{"type":"Topology","transform":{"scale":[0.5,2],"translate":[-10,10]},
            "arcs":[[[2,1],[4,-1]],[[0,0]]]}"#;
        let expected = [[-9.0, 12.0], [-7.0, 10.0], [-10.0, 10.0]];
        assert_eq!(of_file(".json", topology).unwrap(), expected);
    }

    #[test]
    fn files_without_points_on_the_globe_are_refused() {
        for (ending, text, says) in [
            (".csv", "a,b\n1,2\n", "no column is called lon"),
            (".csv", "lon,lat\n1,north\n", "line 2"),
            (".csv", "lon,lat\n512345.0,4\n", "degrees"),
            (".json", "lon", "JSON"),
            (".json", r#"{"arcs":[[["a",1]]]}"#, "TopoJSON"),
        ] {
            let error = format!("{:#}", of_file(ending, text).unwrap_err());
            assert!(error.contains(says), "{error}");
        }
        let empty = PointSet::File("/dev/null".into());
        assert!(generate(&empty, 10, &mut Random::new(1)).is_err());
    }
}
