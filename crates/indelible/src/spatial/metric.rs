//! Distances.

use super::{Geometry, Rect};

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
