//! What coordinates mean.

use super::{Euclidean, Geometry, Rect, Sphere, Windows, accept, in_words, lonlat_windows};
use crate::{Error, Result};

/// What the coordinates of a spatial index mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Coordinates {
    /// Positions in the plane or in space, in any unit; distances are Euclidean.
    #[default]
    Plane,
    /// Degrees of longitude and latitude on the sphere; distances are in metres.
    LonLat,
}

/// What degrees of longitude and latitude lie between.
const WORLD: Rect = Rect {
    low: [-180.0, -90.0, 0.0],
    high: [180.0, 90.0, 0.0],
};

impl Coordinates {
    /// What an option named `coordinates` of a spatial engine takes.
    pub(crate) const VALUES: &'static str = "plane or lonlat";

    /// What the value of an option named `coordinates` means.
    pub(crate) fn parse(value: &str) -> Result<Self> {
        match value {
            "plane" => Ok(Self::Plane),
            "lonlat" => Ok(Self::LonLat),
            _ => Err(Error::BadOption(format!(
                "coordinates={value}: known are plane and lonlat"
            ))),
        }
    }

    /// The value of the option, as [`parse`](Self::parse) reads it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plane => "plane",
            Self::LonLat => "lonlat",
        }
    }

    /// [`Error::BadOption`] if geometries with so many axes have no such coordinates.
    pub(crate) fn expect_axes(self, axes: usize) -> Result<()> {
        if self == Self::LonLat && axes != 2 {
            return Err(Error::BadOption(format!(
                "coordinates=lonlat: the geometries have {axes} axes"
            )));
        }
        Ok(())
    }

    /// The extent of all coordinates, if it is known.
    pub(crate) fn extent(self) -> Option<Rect> {
        match self {
            Self::Plane => None,
            Self::LonLat => Some(WORLD),
        }
    }

    /// The geometry as it is stored; an error if it is none, or lies outside the world.
    #[inline]
    pub(crate) fn accept<G: Geometry>(self, shape: &G) -> Result<G> {
        let shape = accept(shape)?;
        if self == Self::LonLat && !WORLD.contains(&Rect::of(&shape)) {
            return Err(Error::BadGeometry(format!(
                "{}: longitudes are from -180 to 180, latitudes from -90 to 90",
                in_words(&shape)
            )));
        }
        Ok(shape)
    }

    /// The boxes of a window, whose edges may be infinite. A window of longitudes and latitudes whose western edge is east of its eastern one
    /// crosses the antimeridian, where the longitudes 180 and -180 are one.
    pub(crate) fn windows<W: Geometry>(self, window: &W) -> Result<Windows> {
        let rect = Rect::of(window);
        let refused = |why: Error| {
            let why = match why {
                Error::BadOption(why) => why,
                why => why.to_string(),
            };
            Error::BadGeometry(format!("the window {}: {why}", in_words(window)))
        };
        match self {
            Self::Plane => Ok(Windows::one(Rect::of(&accept(window)?))),
            Self::LonLat => {
                let west = instead_of(f64::NEG_INFINITY, rect.low[0], WORLD.low[0]);
                let south = instead_of(f64::NEG_INFINITY, rect.low[1], WORLD.low[1]);
                let east = instead_of(f64::INFINITY, rect.high[0], WORLD.high[0]);
                let north = instead_of(f64::INFINITY, rect.high[1], WORLD.high[1]);
                lonlat_windows(west, south, east, north).map_err(refused)
            }
        }
    }

    /// How distances from a point are measured, which may be infinite unless coordinates are longitudes and latitudes.
    pub(crate) fn metric<P: Geometry>(self, point: &P) -> Result<AnyMetric> {
        let [x, y, z] = Rect::of(&self.accept(point)?).low;
        Ok(match self {
            Self::Plane => AnyMetric::Euclidean(Euclidean { point: [x, y, z] }),
            Self::LonLat => AnyMetric::Sphere(Sphere::new(x, y)?),
        })
    }
}

/// `edge`, unless it is `infinity`.
fn instead_of(infinity: f64, edge: f64, finite: f64) -> f64 {
    if edge == infinity { finite } else { edge }
}

/// How distances are measured, and from where.
pub(crate) enum AnyMetric {
    Euclidean(Euclidean),
    Sphere(Sphere),
}

/// Does the work with the metric inside.
macro_rules! with_metric {
    ($any:expr, $metric:ident => $work:expr) => {
        match $any {
            $crate::spatial::AnyMetric::Euclidean($metric) => $work,
            $crate::spatial::AnyMetric::Sphere($metric) => $work,
        }
    };
}
pub(crate) use with_metric;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Box2, Point2};

    fn window(west: f64, south: f64, east: f64, north: f64) -> Box2 {
        Box2::new(Point2::new(west, south), Point2::new(east, north))
    }

    #[test]
    fn windows_across_the_antimeridian_are_two() {
        let across = window(170.0, -10.0, -170.0, 10.0);
        let windows = Coordinates::LonLat.windows(&across).unwrap();
        let edges = windows.as_slice().iter().map(|of| [of.low[0], of.high[0]]);
        let edges: Vec<[f64; 2]> = edges.collect();
        assert_eq!(edges, [[170.0, 180.0], [-180.0, -170.0]]);
        let plain = window(-10.0, -10.0, 10.0, 10.0);
        let windows = Coordinates::LonLat.windows(&plain).unwrap();
        assert_eq!(windows.as_slice().len(), 1);
        assert!(Coordinates::Plane.windows(&across).is_err());
    }

    #[test]
    fn what_is_not_on_the_globe_is_refused() {
        let infinity = f64::INFINITY;
        let everything = window(-infinity, -infinity, infinity, infinity);
        for coordinates in [Coordinates::Plane, Coordinates::LonLat] {
            assert!(coordinates.windows(&everything).is_ok());
            for bad in [
                window(0.0, 1.0, 1.0, 0.0),
                window(f64::NAN, 0.0, 1.0, 1.0),
                window(0.0, 0.0, 1.0, f64::NAN),
                window(infinity, 0.0, 1.0, 1.0),
                window(0.0, 0.0, -infinity, 1.0),
            ] {
                let refused = coordinates.windows(&bad);
                assert!(matches!(refused, Err(Error::BadGeometry(_))), "{bad:?}");
            }
        }
        for bad in [window(0.0, 0.0, 1.0, 90.5), window(-361.0, 0.0, 1.0, 1.0)] {
            assert!(Coordinates::LonLat.windows(&bad).is_err(), "{bad:?}");
        }
        let (north, pole) = (Point2::new(0.0, 90.5), Point2::new(180.0, -90.0));
        assert!(Coordinates::LonLat.accept(&north).is_err());
        assert!(Coordinates::LonLat.metric(&north).is_err());
        assert!(Coordinates::LonLat.accept(&pole).is_ok());
        let far = Point2::new(infinity, 900.0);
        assert!(Coordinates::Plane.accept(&far).is_ok() && Coordinates::Plane.metric(&far).is_ok());
    }
}
