//! Real places, grown to any size.
//!
//! The carried file has 144,563 of them, each with coordinates to five decimals. They come in random order, first all as
//! they are; then again and again, each time a little elsewhere, normally distributed with a standard deviation of
//! [`EXTENT`] degrees: where people live, as addresses of a city lie around its middle. So sets of more keys look like the
//! places of OpenStreetMap that ALEX and APEX measure with (APEX section 6.1), and with their precision of 10^-7 degrees.
//!
//! Degrees are encoded as the library encodes `f64`, and all structures get the codes. Half as far from 0, a degree takes
//! twice as many of them, so that a line through the codes bends at every power of two where one through the degrees
//! would not.

use super::cities::{self, hilbert_key};
use super::draw::{Random, distinct};
use anyhow::Result;
use indelible::Key;

/// The extent of a city, in degrees: about 5 kilometres from its middle to the north.
const EXTENT: f64 = 0.05;

/// Steps per degree of OpenStreetMap's coordinates.
const PRECISION: f64 = 1e7;

pub fn longitudes(count: usize, random: &mut Random) -> Result<Vec<u64>> {
    grow(count, random, |longitude, _| code(longitude))
}

pub fn lon_lat(count: usize, random: &mut Random) -> Result<Vec<u64>> {
    grow(count, random, |longitude, latitude| {
        code(180.0 * longitude.floor() + latitude)
    })
}

pub fn hilbert(count: usize, random: &mut Random) -> Result<Vec<u64>> {
    grow(count, random, hilbert_key)
}

fn code(number: f64) -> u64 {
    number.encode().expect("a place is a number")
}

fn grow(count: usize, random: &mut Random, key: impl Fn(f64, f64) -> u64) -> Result<Vec<u64>> {
    let mut places: Vec<(f64, f64)> = cities::all()?
        .iter()
        .map(|city| (city.longitude, city.latitude))
        .collect();
    for end in (2..=places.len()).rev() {
        places.swap(end - 1, random.below(end as u64) as usize);
    }
    let mut drawn = 0;
    distinct(count, || {
        let (mut longitude, mut latitude) = places[drawn % places.len()];
        if drawn >= places.len() {
            longitude = around_the_earth(precise(longitude + EXTENT * random.normal()));
            latitude = precise(latitude + EXTENT * random.normal()).clamp(-90.0, 90.0);
        }
        drawn += 1;
        key(longitude, latitude)
    })
}

fn precise(degrees: f64) -> f64 {
    (degrees * PRECISION).round() / PRECISION
}

/// East of 180 degrees is west.
fn around_the_earth(longitude: f64) -> f64 {
    match longitude {
        180.0.. => longitude - 360.0,
        ..-180.0 => longitude + 360.0,
        _ => longitude,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_keys_are_places_of_the_file() {
        let file: std::collections::HashSet<u64> = cities::all()
            .unwrap()
            .iter()
            .map(|city| code(city.longitude))
            .collect();
        let keys = longitudes(1000, &mut Random::new(5)).unwrap();
        assert!(keys.iter().filter(|key| file.contains(key)).count() > 990);
    }

    #[test]
    fn grown_places_stay_on_earth() {
        let keys = longitudes(400_000, &mut Random::new(5)).unwrap();
        assert!(
            keys.iter()
                .all(|&key| (-180.0..180.0).contains(&f64::decode(key).unwrap()))
        );
        assert_eq!(around_the_earth(180.5), -179.5);
        assert_eq!(around_the_earth(-180.5), 179.5);
    }
}
