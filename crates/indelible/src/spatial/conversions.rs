//! Points and boxes made of what programs have, and what is asked of a box without an index.

use super::{Box2, Box3, Point2, Point3};

macro_rules! conversions {
    ($Point:ident, $Box:ident, $axes:literal, $Tuple:ty: $($axis:ident)+; $in_words:literal) => {
        impl From<[f64; $axes]> for $Point {
            fn from([$($axis),+]: [f64; $axes]) -> Self {
                Self { $($axis),+ }
            }
        }

        impl From<$Tuple> for $Point {
            fn from(($($axis),+): $Tuple) -> Self {
                Self { $($axis),+ }
            }
        }

        impl From<$Point> for [f64; $axes] {
            fn from(point: $Point) -> Self {
                [$(point.$axis),+]
            }
        }

        impl From<$Point> for $Box {
            /// The box that has this point only.
            fn from(point: $Point) -> Self {
                Self::new(point, point)
            }
        }

        impl $Box {
            #[doc = concat!("The whole of ", $in_words, ": a window that every geometry meets.")]
            pub const EVERYTHING: Self = Self::new(
                $Point { $($axis: f64::NEG_INFINITY),+ },
                $Point { $($axis: f64::INFINITY),+ },
            );

            /// The box around a point whose faces are `distance` away from it. Of longitudes and latitudes, `distance` is in degrees.
            ///
            /// # Examples
            ///
            /// ```
            #[doc = concat!("use indelible::{", stringify!($Box), ", ", stringify!($Point), "};")]
            #[doc = concat!("let window = ", stringify!($Box), "::around(", stringify!($Point), "::from([5.0; ", $axes, "]), 2.0);")]
            #[doc = concat!("assert_eq!(window.low, ", stringify!($Point), "::from([3.0; ", $axes, "]));")]
            #[doc = concat!("assert!(window.contains(", stringify!($Point), "::from([7.0; ", $axes, "])));")]
            /// ```
            #[must_use]
            pub fn around(centre: $Point, distance: f64) -> Self {
                Self::new(
                    $Point { $($axis: centre.$axis - distance),+ },
                    $Point { $($axis: centre.$axis + distance),+ },
                )
            }

            /// The middle of the box.
            ///
            /// # Examples
            ///
            /// ```
            #[doc = concat!("use indelible::{", stringify!($Box), ", ", stringify!($Point), "};")]
            #[doc = concat!("let window = ", stringify!($Box), "::new([0.0; ", $axes, "].into(), [4.0; ", $axes, "].into());")]
            #[doc = concat!("assert_eq!(window.centre(), ", stringify!($Point), "::from([2.0; ", $axes, "]));")]
            /// ```
            #[must_use]
            pub fn centre(&self) -> $Point {
                $Point { $($axis: self.low.$axis.midpoint(self.high.$axis)),+ }
            }

            /// Whether the point lies in the box. Its faces belong to it, as they do in searches.
            ///
            /// # Examples
            ///
            /// ```
            #[doc = concat!("use indelible::", stringify!($Box), ";")]
            #[doc = concat!("let window = ", stringify!($Box), "::new([0.0; ", $axes, "].into(), [4.0; ", $axes, "].into());")]
            #[doc = concat!("assert!(window.contains([4.0; ", $axes, "]) && !window.contains([5.0; ", $axes, "]));")]
            /// ```
            #[must_use]
            pub fn contains(&self, point: impl Into<$Point>) -> bool {
                let point = point.into();
                $(self.low.$axis <= point.$axis && point.$axis <= self.high.$axis)&&+
            }
        }
    };
}

conversions!(Point2, Box2, 2, (f64, f64): x y; "the plane");
conversions!(Point3, Box3, 3, (f64, f64, f64): x y z; "space");
