//! What spatial indexes compute with: geometries and boxes, the Hilbert curve, distances. Nothing here is durable.
//!
//! | file | what it owns |
//! |---|---|
//! | `conversions` | points and boxes made of arrays, and what is asked of a box without an index |
//! | `coordinates` | what coordinates mean: the plane, or degrees on the sphere; which geometries and windows there are |
//! | `grid` | the map from coordinates to cells, and from points to Hilbert codes |
//! | `hilbert` | the Hilbert curve: from cells to codes and back |
//! | `metric` | distances from a point, and lower bounds of them |
//! | `outward` | rounding to `f32` that no box loses anything by |
//! | `quadrant` | aligned sets of cells, which are intervals of codes; the next code in a window |
//! | `shape` | points and boxes in two and three dimensions, and the box that bounds them |
//! | `sphere` | distances on the sphere, and windows of longitudes and latitudes |

mod conversions;
mod coordinates;
mod grid;
mod hilbert;
mod metric;
mod outward;
mod quadrant;
mod shape;
mod sphere;

pub(crate) use coordinates::{AnyMetric, Coordinates, with_metric};
pub(crate) use grid::{Grid, box_of_centres, centre};
pub(crate) use metric::{Euclidean, Metric, Windows};
pub(crate) use outward::{f32_above, f32_below};
pub(crate) use quadrant::Quadrant;
pub use shape::{Box2, Box3, Geometry, GeometryType, Point2, Point3};
pub(crate) use shape::{MAX_AXES, MAX_COORDINATES, Rect, accept, in_words, with_geometry};
pub(crate) use sphere::{Sphere, lonlat_windows};
