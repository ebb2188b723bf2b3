//! The data set that ships with the programs: 144,563 places from GeoNames (see data/ATTRIBUTION.md).

use anyhow::Result;

const CSV: &str = include_str!("../../../../data/cities.csv");

/// A place with more than 1000 inhabitants.
pub struct City {
    /// Degrees north.
    pub latitude: f64,
    /// Degrees east.
    pub longitude: f64,
    /// Its name.
    pub name: String,
    /// Its country's two letters.
    pub country: String,
}

impl City {
    /// Its [`hilbert_key`].
    #[must_use]
    pub fn key(&self) -> u64 {
        hilbert_key(self.longitude, self.latitude)
    }
}

/// A place on a Hilbert curve over the whole earth, from degrees east and north: places near each other have keys near
/// each other.
#[must_use]
pub fn hilbert_key(longitude: f64, latitude: f64) -> u64 {
    let scale = |degrees: f64, span: f64| ((degrees / span + 0.5) * f64::from(u32::MAX)) as u32;
    hilbert(scale(longitude, 360.0), scale(latitude, 180.0))
}

/// All of them, in the order of the file.
///
/// # Errors
///
/// None, as long as the carried file is a list of places.
pub fn all() -> Result<Vec<City>> {
    let mut reader = csv::Reader::from_reader(CSV.as_bytes());
    let mut cities = Vec::new();
    for row in reader.records() {
        let row = row?;
        cities.push(City {
            latitude: row[0].parse()?,
            longitude: row[1].parse()?,
            name: row[2].to_owned(),
            country: row[5].to_owned(),
        });
    }
    Ok(cities)
}

/// The distance along a Hilbert curve of order 32.
fn hilbert(mut x: u32, mut y: u32) -> u64 {
    let mut distance = 0;
    for bit in (0..32).rev() {
        let side = 1 << bit;
        let (right, top) = (u32::from(x & side != 0), u32::from(y & side != 0));
        distance = distance << 2 | u64::from((3 * right) ^ top);
        if top == 0 {
            if right == 1 {
                (x, y) = (!x, !y);
            }
            (x, y) = (y, x);
        }
    }
    distance
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_the_rows_that_its_attribution_says() {
        assert_eq!(all().unwrap().len(), 144_563);
    }

    #[test]
    fn neighbours_on_the_curve_are_neighbours_on_the_plane() {
        let mut cells: Vec<(u64, u32, u32)> = (0..64_u32)
            .flat_map(|x| (0..64_u32).map(move |y| (hilbert(x << 26, y << 26), x, y)))
            .collect();
        cells.sort_unstable();
        for pair in cells.windows(2) {
            assert_eq!(
                pair[0].1.abs_diff(pair[1].1) + pair[0].2.abs_diff(pair[1].2),
                1
            );
        }
    }
}
