//! What spatial indexes compute with: geometries and boxes, the Hilbert curve, distances. Nothing here is durable.
//!
//! | file | what it owns |
//! |---|---|
//! | `metric` | distances from a point, and lower bounds of them |
//! | `shape` | points and boxes in two and three dimensions, and the box that bounds them |

mod metric;
mod shape;

pub(crate) use metric::Metric;
pub use shape::{Box2, Box3, Geometry, Point2, Point3};
pub(crate) use shape::{MAX_AXES, MAX_COORDINATES, Rect, accept};
