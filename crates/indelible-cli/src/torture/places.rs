//! The writers' spatial index: the number of a key is the payload, and its value lies in the coordinates, so that a new value moves the
//! record.

use super::{MAP, mix};
use crate::commands::spatial::everything;
use anyhow::{Context, Result, ensure};
use indelible::{Geometry, Pool, Spatial, SpatialOptions};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// A spatial index of any type of geometry, seen as a map of numbers.
pub trait Places: Send + Sync {
    fn insert(&self, key: u64, value: u64) -> Result<()>;
    fn remove(&self, key: u64) -> Result<()>;
    fn get(&self, key: u64) -> Result<Option<u64>>;
    fn first_answer(&self) -> Result<()>;
    /// In the order of their keys. A key that lies in two places is there twice.
    fn records(&self) -> Result<Vec<(u64, u64)>>;
    fn check(&self) -> indelible::Result<Vec<String>>;
    fn len(&self) -> indelible::Result<u64>;
}

pub struct PlacesOf<G: Geometry> {
    index: Spatial<G>,
    /// The values of all keys, read when the first of them is needed.
    known: Mutex<Option<HashMap<u64, u64>>>,
}

impl<G: Geometry> PlacesOf<G> {
    pub fn open(pool: &Pool, options: SpatialOptions) -> Result<Self> {
        Ok(Self {
            index: pool.spatial_with(MAP, options)?,
            known: Mutex::default(),
        })
    }

    /// Does `work` with the values of all keys. They are locked only to look one up or to note it, and each key belongs to one thread.
    fn with_known<T>(&self, work: impl FnOnce(&mut HashMap<u64, u64>) -> T) -> Result<T> {
        let known = &mut *self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let values = match known {
            Some(values) => values,
            none => {
                let records = self.records()?;
                let count = records.len();
                let values: HashMap<u64, u64> = records.into_iter().collect();
                ensure!(values.len() == count, "a key lies in two places");
                none.insert(values)
            }
        };
        Ok(work(values))
    }
}

impl<G: Geometry> Places for PlacesOf<G> {
    fn insert(&self, key: u64, value: u64) -> Result<()> {
        let to = place_of::<G>(key, value);
        match self.get(key)? {
            None => self.index.insert(to, key)?,
            Some(old) => {
                let from = place_of(key, old);
                ensure!(
                    self.index.relocate(key, from, to)?,
                    "{key} was not at {from:?}"
                );
            }
        }
        self.with_known(|values| values.insert(key, value))?;
        Ok(())
    }

    fn remove(&self, key: u64) -> Result<()> {
        let Some(old) = self.get(key)? else {
            return Ok(());
        };
        let from = place_of::<G>(key, old);
        ensure!(
            self.index.remove(from, key)?,
            "{key} was not at {from:?}, from where it was to be removed"
        );
        self.with_known(|values| values.remove(&key))?;
        Ok(())
    }

    fn get(&self, key: u64) -> Result<Option<u64>> {
        self.with_known(|values| values.get(&key).copied())
    }

    fn first_answer(&self) -> Result<()> {
        let point = G::Point::from_coordinates(|_| 0.0);
        self.index.at_point(point)?.next();
        Ok(())
    }

    fn records(&self) -> Result<Vec<(u64, u64)>> {
        let numbers = self.index.intersecting(everything::<G>())?.map(|record| {
            let value = value_of(record.payload, &record.shape);
            let value = value.with_context(|| format!("a record that nobody wrote: {record:?}"))?;
            Ok((record.payload, value))
        });
        let mut records = numbers.collect::<Result<Vec<_>>>()?;
        records.sort_unstable();
        Ok(records)
    }

    fn check(&self) -> indelible::Result<Vec<String>> {
        self.index.check()
    }

    fn len(&self) -> indelible::Result<u64> {
        self.index.len()
    }
}

/// Bits of a number that is a coordinate, so few that sums and products with powers of two are exact.
const NUMBER_BITS: u32 = 48;
/// Half of the extent on each axis. The coordinates may be longitudes and latitudes.
const HALF: f64 = 64.0;
/// What makes of numbers that follow each other numbers that lie far apart. It is odd, so different numbers stay different.
const SPREAD: u32 = 0x9e37_79b9;
/// The number by which a product with [`SPREAD`] has to be multiplied to get the other factor.
const GATHER: u32 = inverse(SPREAD);

const fn inverse(odd: u32) -> u32 {
    // Each step doubles the number of low bits that are right.
    let (mut inverse, mut step) = (odd, 0);
    while step < 5 {
        inverse = inverse.wrapping_mul(2_u32.wrapping_sub(odd.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}

fn coordinate(number: u64) -> f64 {
    let number = number & ((1 << NUMBER_BITS) - 1);
    number as f64 * (2.0 * HALF / (1_u64 << NUMBER_BITS) as f64) - HALF
}

/// Whether the values of a key lie near each other, and not anywhere: half of all keys.
fn stays_near(random: u64) -> bool {
    random & 1 == 0
}

/// Where a key lies when it has this value. Its second coordinate says the value.
fn place_of<G: Geometry>(key: u64, value: u64) -> G {
    // Of each key 2^32 values can be told apart. A thread comes to some millions.
    let value = value as u32;
    let random = mix(key);
    let of_value = match stays_near(random) {
        true => random << 32 | u64::from(value),
        false => u64::from(value.wrapping_mul(SPREAD)) << 16,
    };
    let numbers = [random >> 16, of_value, random.rotate_left(24)];
    G::from_coordinates(|i| {
        let axis = i % G::AXES;
        let low = coordinate(numbers[axis]);
        match i < G::AXES {
            true => low,
            // The upper corner of a box.
            false => low + (random >> (8 * axis) & 0xff) as f64 / 256.0,
        }
    })
}

/// The value of a key that lies there; `None` if no value leads there.
fn value_of<G: Geometry>(key: u64, place: &G) -> Option<u64> {
    let number = (place.coordinate(1) + HALF) * ((1_u64 << NUMBER_BITS) as f64 / (2.0 * HALF));
    let number = number as u64;
    let value = match stays_near(mix(key)) {
        true => number as u32,
        false => ((number >> 16) as u32).wrapping_mul(GATHER),
    };
    let value = u64::from(value);
    (place_of::<G>(key, value) == *place).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use indelible::{Box2, Box3, Point2, Point3};

    fn places_say_their_values_as<G: Geometry>() {
        for key in 0..400 {
            for value in (0..50).chain([0xffff_ffff, 0x8000_0000]) {
                let place = place_of::<G>(key << 20, value);
                assert_eq!(value_of(key << 20, &place), Some(value), "{place:?}");
                assert!((0..G::COORDINATES).all(|i| place.coordinate(i).abs() <= HALF + 1.0));
            }
            let moved = G::from_coordinates(|i| place_of::<G>(key, 7).coordinate(i) + 1e-6);
            assert_eq!(value_of(key, &moved), None);
        }
    }

    #[test]
    fn places_say_their_values() {
        places_say_their_values_as::<Point2>();
        places_say_their_values_as::<Point3>();
        places_say_their_values_as::<Box2>();
        places_say_their_values_as::<Box3>();
    }

    #[test]
    fn a_key_in_two_places_is_told() {
        let pool = Pool::in_memory().unwrap();
        let places = PlacesOf::<Point2>::open(&pool, SpatialOptions::default()).unwrap();
        places.insert(1, 5).unwrap();
        places.insert(1, 6).unwrap();
        assert_eq!(places.records().unwrap(), [(1, 6)]);
        places.index.insert(place_of(1, 5), 1).unwrap();
        assert_eq!(places.records().unwrap(), [(1, 5), (1, 6)]);
        let again = PlacesOf::<Point2>::open(&pool, SpatialOptions::default()).unwrap();
        assert!(again.get(1).unwrap_err().to_string().contains("two places"));
    }
}
