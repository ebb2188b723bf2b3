//! Distances.

use super::{Geometry, MAX_AXES, Rect};

/// A way to measure distances from one point.
pub(crate) trait Metric {
    /// The distance to a geometry, in a form that is cheap to compute and in the order of distances: its square, say.
    fn comparable<G: Geometry>(&self, shape: &G) -> f64;

    /// A lower bound of [`comparable`](Self::comparable) for all geometries in a box.
    fn bound(&self, rect: &Rect) -> f64;

    /// The distance that a comparable one stands for.
    fn distance(&self, comparable: f64) -> f64;

    /// The greatest comparable distance that is not above `distance`.
    fn comparable_of(&self, distance: f64) -> f64;
}

/// Distances in the plane or in space.
pub(crate) struct Euclidean {
    centre: [f64; MAX_AXES],
}

impl Euclidean {
    /// From this point, which is finite; the third coordinate is zero if there are two axes.
    pub(crate) fn new(centre: [f64; MAX_AXES]) -> Self {
        Self { centre }
    }
}

impl Metric for Euclidean {
    fn comparable<G: Geometry>(&self, shape: &G) -> f64 {
        self.bound(&Rect::of(shape))
    }

    fn bound(&self, rect: &Rect) -> f64 {
        (0..MAX_AXES).fold(0.0, |sum, axis| {
            let centre = self.centre[axis];
            let off = (rect.low[axis] - centre)
                .max(centre - rect.high[axis])
                .max(0.0);
            sum + off * off
        })
    }

    fn distance(&self, comparable: f64) -> f64 {
        comparable.sqrt()
    }

    fn comparable_of(&self, distance: f64) -> f64 {
        distance * distance
    }
}

/// Metres on the sphere, for degrees of longitude and latitude.
pub(crate) struct Sphere {
    centre: [f64; MAX_AXES],
}

impl Sphere {
    /// From this longitude and latitude.
    pub(crate) fn new(centre: [f64; MAX_AXES]) -> Self {
        Self { centre }
    }
}

impl Metric for Sphere {
    // For points alone, until the real one is there.
    fn comparable<G: Geometry>(&self, shape: &G) -> f64 {
        let rect = Rect::of(shape);
        let [lon, lat, _] = self.centre;
        let lon_at = lon.clamp(rect.low[0], rect.high[0]);
        let lat_at = lat.clamp(rect.low[1], rect.high[1]);
        let half = |degrees: f64| (degrees.to_radians() / 2.0).sin().powi(2);
        let h = half(lat_at - lat)
            + lat.to_radians().cos() * lat_at.to_radians().cos() * half(lon_at - lon);
        h.min(1.0)
    }

    fn bound(&self, _: &Rect) -> f64 {
        0.0
    }

    fn distance(&self, comparable: f64) -> f64 {
        2.0 * 6_371_008.8 * comparable.sqrt().asin()
    }

    fn comparable_of(&self, distance: f64) -> f64 {
        let half = distance / (2.0 * 6_371_008.8);
        if half >= std::f64::consts::FRAC_PI_2 {
            return 1.0;
        }
        half.sin().powi(2)
    }
}
