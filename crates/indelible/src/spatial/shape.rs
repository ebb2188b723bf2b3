//! Points and boxes.

use crate::{Error, Result};

/// Most axes of a geometry.
pub(crate) const MAX_AXES: usize = 3;

/// Most coordinates of a geometry: two corners with three axes each.
pub(crate) const MAX_COORDINATES: usize = 2 * MAX_AXES;

mod sealed {
    pub trait Sealed {}
}

macro_rules! geometry_types {
    ($($(#[$doc:meta])+ $variant:ident = $code:literal;)+) => {
        /// The type of the geometries of a spatial index, as the catalog records it.
        ///
        /// # Examples
        ///
        /// ```
        /// # fn main() -> indelible::Result<()> {
        /// use indelible::{Box3, Geometry, GeometryType};
        /// assert_eq!(Box3::TYPE, GeometryType::Box3);
        /// assert_eq!(Box3::TYPE.to_string(), "box3");
        /// assert_eq!("box3".parse::<GeometryType>()?, GeometryType::Box3);
        /// assert_eq!(GeometryType::Box3.axes(), 3);
        /// # Ok(())
        /// # }
        /// ```
        // The codes of types of keys and values are below 128: so no word of the catalog is read as both.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum GeometryType {
            $($(#[$doc])+ $variant = $code,)+
        }

        impl GeometryType {
            /// All types of this version, in the order of their codes.
            #[must_use]
            pub const fn all() -> &'static [Self] {
                &[$(Self::$variant,)+]
            }

            /// The name of the type on a command line: `point2`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $variant::NAME,)+
                }
            }

            /// Number of axes: 2 or 3.
            #[must_use]
            pub const fn axes(self) -> usize {
                match self {
                    $(Self::$variant => $variant::AXES,)+
                }
            }
        }

        $(impl sealed::Sealed for $variant {})+

        /// Does the work with `$G` as the type that a [`GeometryType`] stands for.
        macro_rules! with_geometry {
            ($of:expr, $G:ident => $work:expr) => {
                match $of {
                    $($crate::spatial::GeometryType::$variant => {
                        type $G = $crate::spatial::$variant;
                        $work
                    })+
                }
            };
        }
        pub(crate) use with_geometry;
    };
}
geometry_types! {
    /// [`Point2`]
    Point2 = 129;
    /// [`Point3`]
    Point3 = 130;
    /// [`Box2`]
    Box2 = 131;
    /// [`Box3`]
    Box3 = 132;
}

impl GeometryType {
    /// The type with this code in the catalog, if this version knows it.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        let all = Self::all().iter().copied();
        all.into_iter().find(|known| *known as u8 == code)
    }
}

impl std::fmt::Display for GeometryType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for GeometryType {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = Self::all();
        let found = known.iter().copied().find(|of| of.name() == name);
        found.ok_or_else(|| {
            let known: Vec<&str> = known.iter().map(|of| of.name()).collect();
            let known = known.join(", ");
            Error::BadOption(format!(
                "{name:?} is no type of geometry; known are {known}"
            ))
        })
    }
}

/// A geometry that a spatial index can hold: [`Point2`], [`Point3`], [`Box2`] or [`Box3`].
///
/// Coordinates are `f64`. Infinite ones are allowed; NaN, and boxes whose lower corner is above the upper one on some axis, are refused with
/// [`Error::BadGeometry`] by every operation that takes a geometry. Negative zero is zero.
pub trait Geometry:
    Copy + PartialEq + std::fmt::Debug + Send + Sync + 'static + sealed::Sealed
{
    /// Number of axes: 2 or 3.
    const AXES: usize;

    /// Number of coordinates in a record: [`AXES`](Self::AXES) for a point, twice as many for a box.
    const COORDINATES: usize;

    /// The name of the type on a command line: `point2`.
    const NAME: &'static str;

    /// The type's code in the catalog.
    const TYPE: GeometryType;

    /// A point with as many axes: [`Point2`] or [`Point3`].
    type Point: Geometry<Point = Self::Point, Window = Self::Window>;

    /// A box with as many axes, which is what searches take: [`Box2`] or [`Box3`].
    type Window: Geometry<Point = Self::Point, Window = Self::Window>;

    /// Coordinate `i`: those of the lower corner by axis, then, for a box, those of the upper corner.
    #[doc(hidden)]
    fn coordinate(&self, i: usize) -> f64;

    /// The geometry whose coordinates these are, as [`coordinate`](Self::coordinate) numbers them.
    #[doc(hidden)]
    fn from_coordinates(coordinates: impl Fn(usize) -> f64) -> Self;
}

/// A point of the plane.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point2 {
    /// First coordinate; degrees of longitude on the sphere.
    pub x: f64,
    /// Second coordinate; degrees of latitude on the sphere.
    pub y: f64,
}

/// A point of space.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point3 {
    /// First coordinate.
    pub x: f64,
    /// Second coordinate.
    pub y: f64,
    /// Third coordinate.
    pub z: f64,
}

/// A box of the plane, with its edges.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Box2 {
    /// The lower corner.
    pub low: Point2,
    /// The upper corner.
    pub high: Point2,
}

/// A box of space, with its faces.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Box3 {
    /// The lower corner.
    pub low: Point3,
    /// The upper corner.
    pub high: Point3,
}

impl Point2 {
    /// The point with these coordinates.
    #[must_use]
    pub const fn new(x: f64, y: f64) -> Self {
        Self { x, y }
    }
}

impl Point3 {
    /// The point with these coordinates.
    #[must_use]
    pub const fn new(x: f64, y: f64, z: f64) -> Self {
        Self { x, y, z }
    }
}

impl Box2 {
    /// The box with these corners.
    #[must_use]
    pub const fn new(low: Point2, high: Point2) -> Self {
        Self { low, high }
    }
}

impl Box3 {
    /// The box with these corners.
    #[must_use]
    pub const fn new(low: Point3, high: Point3) -> Self {
        Self { low, high }
    }
}

impl Geometry for Point2 {
    const AXES: usize = 2;
    const COORDINATES: usize = 2;
    const NAME: &'static str = "point2";
    const TYPE: GeometryType = GeometryType::Point2;

    type Point = Point2;
    type Window = Box2;

    #[inline(always)]
    fn coordinate(&self, i: usize) -> f64 {
        [self.x, self.y][i]
    }

    #[inline(always)]
    fn from_coordinates(coordinates: impl Fn(usize) -> f64) -> Self {
        Self::new(coordinates(0), coordinates(1))
    }
}

impl Geometry for Point3 {
    const AXES: usize = 3;
    const COORDINATES: usize = 3;
    const NAME: &'static str = "point3";
    const TYPE: GeometryType = GeometryType::Point3;

    type Point = Point3;
    type Window = Box3;

    #[inline(always)]
    fn coordinate(&self, i: usize) -> f64 {
        [self.x, self.y, self.z][i]
    }

    #[inline(always)]
    fn from_coordinates(coordinates: impl Fn(usize) -> f64) -> Self {
        Self::new(coordinates(0), coordinates(1), coordinates(2))
    }
}

impl Geometry for Box2 {
    const AXES: usize = 2;
    const COORDINATES: usize = 4;
    const NAME: &'static str = "box2";
    const TYPE: GeometryType = GeometryType::Box2;

    type Point = Point2;
    type Window = Box2;

    #[inline(always)]
    fn coordinate(&self, i: usize) -> f64 {
        [self.low.x, self.low.y, self.high.x, self.high.y][i]
    }

    #[inline(always)]
    fn from_coordinates(c: impl Fn(usize) -> f64) -> Self {
        Self::new(Point2::new(c(0), c(1)), Point2::new(c(2), c(3)))
    }
}

impl Geometry for Box3 {
    const AXES: usize = 3;
    const COORDINATES: usize = 6;
    const NAME: &'static str = "box3";
    const TYPE: GeometryType = GeometryType::Box3;

    type Point = Point3;
    type Window = Box3;

    #[inline(always)]
    fn coordinate(&self, i: usize) -> f64 {
        let (low, high) = (&self.low, &self.high);
        [low.x, low.y, low.z, high.x, high.y, high.z][i]
    }

    #[inline(always)]
    fn from_coordinates(c: impl Fn(usize) -> f64) -> Self {
        Self::new(Point3::new(c(0), c(1), c(2)), Point3::new(c(3), c(4), c(5)))
    }
}

/// A box of space. What has two axes only lies at zero on the third one, so that the same comparisons serve both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rect {
    pub(crate) low: [f64; MAX_AXES],
    pub(crate) high: [f64; MAX_AXES],
}

impl Rect {
    /// The box of nothing: the neutral element of [`join`](Self::join).
    pub(crate) const NOTHING: Self = Self {
        low: [f64::INFINITY; MAX_AXES],
        high: [f64::NEG_INFINITY; MAX_AXES],
    };

    /// The box of all that there can be.
    pub(crate) const EVERYTHING: Self = Self {
        low: [f64::NEG_INFINITY; MAX_AXES],
        high: [f64::INFINITY; MAX_AXES],
    };

    /// The box that bounds a geometry.
    #[inline(always)]
    pub(crate) fn of<G: Geometry>(shape: &G) -> Self {
        let mut rect = Self {
            low: [0.0; MAX_AXES],
            high: [0.0; MAX_AXES],
        };
        for axis in 0..G::AXES {
            rect.low[axis] = shape.coordinate(axis);
            rect.high[axis] = shape.coordinate(axis + G::COORDINATES - G::AXES);
        }
        rect
    }

    /// The box as a geometry; its third axis is left out if there are two.
    #[inline(always)]
    pub(crate) fn window<W: Geometry>(&self) -> W {
        W::from_coordinates(|i| match i.checked_sub(W::AXES) {
            None => self.low[i],
            Some(axis) => self.high[axis],
        })
    }

    /// The smallest box that contains both.
    #[inline(always)]
    pub(crate) fn join(mut self, other: &Self) -> Self {
        for axis in 0..MAX_AXES {
            self.low[axis] = self.low[axis].min(other.low[axis]);
            self.high[axis] = self.high[axis].max(other.high[axis]);
        }
        self
    }

    /// Whether the boxes have a point in common; edges belong to them.
    #[inline(always)]
    pub(crate) fn intersects(&self, other: &Self) -> bool {
        (0..MAX_AXES).fold(true, |all, axis| {
            all & (self.low[axis] <= other.high[axis]) & (other.low[axis] <= self.high[axis])
        })
    }

    /// Whether `other` lies in this box; edges belong to it.
    #[inline(always)]
    pub(crate) fn contains(&self, other: &Self) -> bool {
        (0..MAX_AXES).fold(true, |all, axis| {
            all & (self.low[axis] <= other.low[axis]) & (other.high[axis] <= self.high[axis])
        })
    }
}

/// The geometry as it is stored, with positive zeros; an error if a coordinate is NaN or a box is inverted.
pub(crate) fn accept<G: Geometry>(shape: &G) -> Result<G> {
    let rect = Rect::of(shape);
    // A comparison with NaN is false.
    if (0..G::AXES).all(|axis| rect.low[axis] <= rect.high[axis]) {
        // Adding positive zero turns a negative zero into a positive one and changes nothing else.
        return Ok(G::from_coordinates(|i| shape.coordinate(i) + 0.0));
    }
    Err(Error::BadGeometry(format!(
        "{}: a coordinate is NaN, or the lower corner is above the upper one",
        in_words(shape)
    )))
}

/// The coordinates of a point, or those of the corners of a box, as messages have them.
pub(crate) fn in_words<G: Geometry>(shape: &G) -> String {
    let corner = |first: usize| {
        let coordinates = (first..first + G::AXES).map(|i| shape.coordinate(i).to_string());
        coordinates.collect::<Vec<_>>().join(", ")
    };
    if G::COORDINATES == G::AXES {
        return format!("({})", corner(0));
    }
    format!("({}) to ({})", corner(0), corner(G::AXES))
}
