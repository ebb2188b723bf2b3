//! What coordinates mean.

use super::{Geometry, MAX_AXES, Rect, accept};
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

/// A window, as one box or, across the antimeridian, as two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Windows {
    rects: [Rect; 2],
    are: usize,
}

impl Windows {
    fn one(rect: Rect) -> Self {
        Self {
            rects: [rect; 2],
            are: 1,
        }
    }

    /// The boxes, of which no two have a point in common.
    pub(crate) fn rects(&self) -> &[Rect] {
        &self.rects[..self.are]
    }
}

impl Coordinates {
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
                "{shape:?}, where longitudes are from -180 to 180 and latitudes from -90 to 90"
            )));
        }
        Ok(shape)
    }

    /// The point, from which distances are measured: as [`accept`](Self::accept) has it, and finite.
    pub(crate) fn centre<P: Geometry>(self, point: &P) -> Result<[f64; MAX_AXES]> {
        let point = self.accept(point)?;
        let centre = Rect::of(&point).low;
        if centre.iter().all(|coordinate| coordinate.is_finite()) {
            return Ok(centre);
        }
        Err(Error::BadGeometry(format!(
            "{point:?}, infinitely far away, to measure distances from"
        )))
    }

    /// The boxes of a window. A window of longitudes and latitudes whose western edge is east of its eastern one crosses the
    /// antimeridian; its edges may be infinite.
    pub(crate) fn windows<W: Geometry>(self, window: &W) -> Result<Windows> {
        let rect = Rect::of(window);
        if self == Self::Plane || rect.low[0] <= rect.high[0] {
            let rect = Rect::of(&accept(window)?);
            return Ok(Windows::one(rect)).and_then(|windows| self.on_the_globe(window, windows));
        }
        let (mut west, mut east) = (rect, rect);
        west.high[0] = WORLD.high[0];
        east.low[0] = WORLD.low[0];
        let is_window = |rect: &Rect| (0..W::AXES).all(|axis| rect.low[axis] <= rect.high[axis]);
        if !is_window(&west) || !is_window(&east) {
            return Err(Error::BadGeometry(format!("{window:?}")));
        }
        let windows = Windows {
            rects: [west, east],
            are: 2,
        };
        self.on_the_globe(window, windows)
    }

    /// An error if a finite edge of a window is not a longitude or a latitude.
    fn on_the_globe<W: Geometry>(self, window: &W, windows: Windows) -> Result<Windows> {
        let is_out = |axis: usize, edge: f64| {
            edge.is_finite() && !(WORLD.low[axis]..=WORLD.high[axis]).contains(&edge)
        };
        let rects = windows.rects();
        let has_outer = |rect: &Rect| {
            (0..W::AXES).any(|axis| is_out(axis, rect.low[axis]) || is_out(axis, rect.high[axis]))
        };
        if self == Self::LonLat && rects.iter().any(has_outer) {
            return Err(Error::BadGeometry(format!(
                "{window:?}, where longitudes are from -180 to 180 and latitudes from -90 to 90"
            )));
        }
        Ok(windows)
    }
}

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
        let rect = |of: Box2| Rect::of(&of);
        assert_eq!(
            windows.rects(),
            [
                rect(window(170.0, -10.0, 180.0, 10.0)),
                rect(window(-180.0, -10.0, -170.0, 10.0))
            ]
        );
        let plain = window(-10.0, -10.0, 10.0, 10.0);
        let windows = Coordinates::LonLat.windows(&plain).unwrap();
        assert_eq!(windows.rects(), [rect(plain)]);
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
                window(1.0, 1.0, 0.0, 0.0),
                window(f64::NAN, 0.0, 1.0, 1.0),
                window(0.0, 0.0, 1.0, f64::NAN),
                window(infinity, 0.0, 1.0, 1.0),
                window(0.0, 0.0, -infinity, 1.0),
            ] {
                let refused = coordinates.windows(&bad);
                assert!(matches!(refused, Err(Error::BadGeometry(_))), "{bad:?}");
            }
        }
        for bad in [
            window(0.0, 0.0, 1.0, 90.5),
            window(-181.0, 0.0, 1.0, 1.0),
            window(181.0, 0.0, 1.0, 1.0),
        ] {
            assert!(Coordinates::LonLat.windows(&bad).is_err(), "{bad:?}");
        }
        assert!(Coordinates::LonLat.accept(&Point2::new(0.0, 90.5)).is_err());
        assert!(
            Coordinates::LonLat
                .accept(&Point2::new(180.0, -90.0))
                .is_ok()
        );
        assert!(
            Coordinates::Plane
                .accept(&Point2::new(infinity, 900.0))
                .is_ok()
        );
        assert!(
            Coordinates::Plane
                .centre(&Point2::new(infinity, 0.0))
                .is_err()
        );
    }
}
