//! Distances on the sphere: longitude and latitude in degrees, metres on the ground.
//!
//! **Longitudes.** Two longitudes that differ by a multiple of 360 are the same meridian, for every distance. A *window* however compares
//! numbers: [`lonlat_windows`] and [`Metric::windows`] of the sphere give boxes for records whose longitudes are within -180..=180. Other
//! records are kept as they were given, and have correct distances, but are found only by windows that contain their numbers. A
//! longitude beyond ±2^30, infinite ones too, counts as lying on every meridian. **Latitudes** beyond ±90 in records count as the pole.
//!
//! **What is compared** is the haversine h = sin²(d/2), which is accurate for short distances, up to a quarter of the circumference
//! (h = 1/2); beyond that 1/(4·g), where g is the haversine of the distance to the antipode, so that distances near the antipode are as
//! accurate. R. W. Sinnott, "Virtues of the Haversine", Sky & Telescope 68(2), 1984.
//!
//! **The nearest point of a box** of longitudes and latitudes is not the one with the nearest longitude and the nearest latitude: a
//! meridian that is left at a right angle is met at a latitude nearer to the pole. If the point's meridian crosses the box, the distance is
//! the difference of latitudes. Otherwise the nearest point is on the edge with the smaller difference δ of longitudes. For δ up to 90° it
//! is the foot of the perpendicular, if the edge has that latitude, otherwise the end of the edge that is nearer to the foot. For larger δ
//! the nearest point is one of the edge's ends.

use super::metric::{EVERYTHING, Windows, greatest};
use super::{Geometry, Metric, Rect};
use crate::{Error, Result};
use std::f64::consts::PI;

/// The mean radius of the earth in metres: IUGG, (2a + b) / 3 of the ellipsoid GRS 80.
pub(crate) const EARTH_RADIUS: f64 = 6_371_008.8;

/// Radians of half a degree.
const HALF_DEGREE: f64 = PI / 360.0;

/// Longitudes beyond this, in degrees, have no exact difference from a multiple of 360 and count as every meridian.
const LARGEST_LONGITUDE: f64 = (1u64 << 30) as f64;

/// Bounds are lowered by this share. The haversine of a point and of a box are exact to about 20 units of 2^-53 in terms of the
/// differences of coordinates; those rise with the coordinates, with rounding as well, so they need no share.
const BOUND_MARGIN: f64 = 1.0 / (1u64 << 44) as f64;

/// Distances on the sphere from one point. The third axis of a geometry does not count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sphere {
    /// Within -180..=180.
    longitude: f64,
    /// Within -90..=90.
    latitude: f64,
    cosine: f64,
}

/// The sine squared of half an angle in degrees.
#[inline(always)]
fn haversine(degrees: f64) -> f64 {
    let sine = (degrees * HALF_DEGREE).sin();
    sine * sine
}

/// The cosine of a latitude, accurate near the poles and 0 there.
#[inline(always)]
fn cosine(latitude: f64) -> f64 {
    ((90.0 - latitude.abs()) * (2.0 * HALF_DEGREE)).sin()
}

impl Sphere {
    /// Measures from this point. The longitude may be any finite number; a latitude outside of -90..=90 is [`Error::BadOption`].
    pub(crate) fn new(longitude: f64, latitude: f64) -> Result<Self> {
        if !longitude.is_finite() {
            return Err(Error::BadOption(format!("{longitude} is no longitude")));
        }
        check_latitude(latitude)?;
        // The remainder is exact, and so is the difference.
        let mut longitude = longitude % 360.0;
        if longitude.abs() > 180.0 {
            longitude -= 360f64.copysign(longitude);
        }
        Ok(Self {
            longitude,
            latitude,
            cosine: cosine(latitude),
        })
    }

    /// The smallest difference between the point's longitude and those of a box, 0..=180. It rises weakly as the box shrinks, with
    /// rounding as well: each end has one difference to the point, and one to the multiple of 360 on either side.
    #[inline(always)]
    fn longitude_apart(&self, west: f64, east: f64) -> f64 {
        // Also true of infinite ones.
        if west < -LARGEST_LONGITUDE || east > LARGEST_LONGITUDE {
            return 0.0;
        }
        // Boxes of the smallest infinity or beyond the largest longitude on one side have both ends there.
        if west > LARGEST_LONGITUDE || east < -LARGEST_LONGITUDE {
            return 0.0;
        }
        let (first, last) = (west - self.longitude, east - self.longitude);
        // The multiple of 360 at or above the first difference.
        let mut above = (first / 360.0).ceil() * 360.0;
        if above < first {
            above += 360.0;
        } else if above - 360.0 >= first {
            above -= 360.0;
        }
        if above <= last {
            return 0.0;
        }
        (first - (above - 360.0)).min(above - last)
    }

    /// What is compared for a point at this difference of longitudes.
    #[inline(always)]
    fn at(&self, apart: f64, latitude: f64) -> f64 {
        let cosines = self.cosine * cosine(latitude);
        let near = haversine(latitude - self.latitude) + cosines * haversine(apart);
        if near <= 0.5 {
            near
        } else {
            let far = haversine(latitude + self.latitude) + cosines * haversine(180.0 - apart);
            (0.25 / far).max(0.5)
        }
    }

    /// What is compared for the nearest point of a box.
    fn nearest_of(&self, rect: &Rect) -> f64 {
        let (south, north) = (
            rect.low[1].clamp(-90.0, 90.0),
            rect.high[1].clamp(-90.0, 90.0),
        );
        let apart = self.longitude_apart(rect.low[0], rect.high[0]);
        if apart == 0.0 {
            return self.at(0.0, self.latitude.max(south).min(north));
        }
        if south == north {
            return self.at(apart, south);
        }
        if apart > 90.0 {
            return self.at(apart, south).min(self.at(apart, north));
        }
        // The foot's difference of latitudes: tan = 2h sin φ cos φ / (1 - 2h cos² φ), where h is the haversine of the longitudes'.
        let twice = 2.0 * haversine(apart);
        let sine = (self.latitude * (2.0 * HALF_DEGREE)).sin();
        let foot = (twice * sine * self.cosine)
            .atan2(1.0 - twice * self.cosine * self.cosine)
            .to_degrees();
        if foot < south - self.latitude {
            self.at(apart, south)
        } else if foot > north - self.latitude {
            self.at(apart, north)
        } else {
            // The triangle with a right angle at the foot: sin d = cos φ sin δ, and cos² d = sin² φ + cos² φ cos² δ, which is accurate where
            // d is nearly a right angle. The haversine is (1 - cos d) / 2.
            let across = self.cosine * (apart * (2.0 * HALF_DEGREE)).sin();
            let along = self.cosine * cosine(apart);
            let cosine = (sine * sine + along * along).sqrt();
            across * across / (2.0 * (1.0 + cosine))
        }
    }
}

impl Metric for Sphere {
    #[inline]
    fn comparable<G: Geometry>(&self, shape: &G) -> f64 {
        self.nearest_of(&Rect::of(shape))
    }

    #[inline]
    fn bound(&self, rect: &Rect) -> f64 {
        let nearest = self.nearest_of(rect);
        if nearest == f64::INFINITY {
            // Only the antipode is that far, and what is close to it is only nearly so.
            return f64::MAX;
        }
        // The smallest squares are subnormal, and have no share to lower them by.
        (nearest - nearest * BOUND_MARGIN - 1e-300).max(0.0)
    }

    #[inline]
    fn distance(&self, comparable: f64) -> f64 {
        if comparable <= 0.5 {
            2.0 * EARTH_RADIUS * comparable.max(0.0).sqrt().asin()
        } else {
            EARTH_RADIUS * (PI - 2.0 * (0.25 / comparable).sqrt().asin())
        }
    }

    fn comparable_of(&self, distance: f64) -> f64 {
        if distance.is_nan() || distance < 0.0 {
            return -1.0;
        }
        let half = distance / (2.0 * EARTH_RADIUS);
        if half >= PI / 2.0 {
            return f64::INFINITY;
        }
        let near = if half <= PI / 4.0 {
            half.sin() * half.sin()
        } else {
            let sine = (PI / 2.0 - half).sin();
            0.25 / (sine * sine)
        };
        greatest(near, distance, |c| self.distance(c))
    }

    /// For records with longitudes within -180..=180; at the poles, all longitudes.
    fn windows(&self, distance: f64) -> Windows {
        if distance.is_nan() || distance < 0.0 {
            return Windows::NONE;
        }
        // More than all errors of rounding, and less than a hundredth of a millimetre on the earth.
        let degrees = (distance / EARTH_RADIUS).to_degrees() * (1.0 + 1e-12) + 1e-11;
        let (south, north) = (self.latitude - degrees, self.latitude + degrees);
        let mut rect = EVERYTHING;
        if south > -90.0 {
            rect.low[1] = south;
        }
        if north < 90.0 {
            rect.high[1] = north;
        }
        // A circle that contains no pole touches two meridians, at this difference of longitudes.
        let sine = (degrees * (2.0 * HALF_DEGREE)).sin() / self.cosine * (1.0 + 1e-12);
        if south <= -90.0 || north >= 90.0 || sine >= 1.0 {
            return Windows::one(rect);
        }
        let apart = sine.asin().to_degrees() + 1e-11;
        let (west, east) = (self.longitude - apart, self.longitude + apart);
        let (west, east) = (
            if west < -180.0 { west + 360.0 } else { west },
            if east > 180.0 { east - 360.0 } else { east },
        );
        across(rect, west, east)
    }
}

/// The windows from `west` eastwards to `east`, both within -180..=180, with the latitudes of `rect`. The meridians 180 and -180 are one.
fn across(mut rect: Rect, west: f64, east: f64) -> Windows {
    let between = |west, east| Rect {
        low: [west, rect.low[1], rect.low[2]],
        high: [east, rect.high[1], rect.high[2]],
    };
    if west > east {
        Windows::two(between(west, 180.0), between(-180.0, east))
    } else if west > -180.0 && east < 180.0 {
        Windows::one(between(west, east))
    } else if west > -180.0 {
        Windows::two(between(west, east), between(-180.0, -180.0))
    } else if east < 180.0 {
        Windows::two(between(180.0, 180.0), between(west, east))
    } else {
        (rect.low[0], rect.high[0]) = (f64::NEG_INFINITY, f64::INFINITY);
        Windows::one(rect)
    }
}

fn check_latitude(latitude: f64) -> Result<()> {
    if (-90.0..=90.0).contains(&latitude) {
        return Ok(());
    }
    Err(Error::BadOption(format!(
        "latitude {latitude} is outside of -90..=90"
    )))
}

/// The windows from the meridian `west` eastwards to `east`, between two latitudes: two, if they cross the antimeridian, which is so if
/// `west` is greater than `east`, or one of them is beyond 180. Longitudes are within -360..=360; a difference of 360 or more is all
/// longitudes. Other numbers, and a southern latitude above the northern one, are [`Error::BadOption`].
pub(crate) fn lonlat_windows(west: f64, south: f64, east: f64, north: f64) -> Result<Windows> {
    check_latitude(south)?;
    check_latitude(north)?;
    if south > north {
        return Err(Error::BadOption(format!(
            "latitude {south} is north of {north}"
        )));
    }
    for longitude in [west, east] {
        if !(-360.0..=360.0).contains(&longitude) {
            return Err(Error::BadOption(format!(
                "longitude {longitude} is outside of -360..=360"
            )));
        }
    }
    let mut rect = EVERYTHING;
    // What is beyond a pole counts as the pole.
    rect.low[1] = if south == -90.0 { rect.low[1] } else { south };
    rect.high[1] = if north == 90.0 { rect.high[1] } else { north };
    if east - west >= 360.0 {
        return Ok(Windows::one(rect));
    }
    // The difference is exact.
    let within = |longitude: f64| {
        if longitude.abs() > 180.0 {
            longitude - 360f64.copysign(longitude)
        } else {
            longitude
        }
    };
    Ok(across(rect, within(west), within(east)))
}

#[cfg(test)]
mod tests;
