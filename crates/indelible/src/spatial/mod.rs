//! What spatial indexes compute with: geometries and boxes, the Hilbert curve, distances. Nothing here is durable.
//!
//! | file | what it owns |
//! |---|---|
//! | `coordinates` | what coordinates mean: the plane, or degrees on the sphere; which geometries and windows there are |
//! | `metric` | distances from a point, and lower bounds of them |
//! | `shape` | points and boxes in two and three dimensions, and the box that bounds them |
//! | `sphere` | distances on the sphere, and windows of longitudes and latitudes |

mod coordinates;
mod metric;
mod shape;
mod sphere;

pub(crate) use coordinates::{AnyMetric, Coordinates, with_metric};
pub(crate) use metric::{Euclidean, Metric, Windows};
pub use shape::{Box2, Box3, Geometry, GeometryType, Point2, Point3};
pub(crate) use shape::{MAX_AXES, MAX_COORDINATES, Rect, accept, with_geometry};
pub(crate) use sphere::{Sphere, lonlat_windows};
