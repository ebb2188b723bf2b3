//! What shrinks under test.
//!
//! The crash checker builds the library with the feature `small`: nodes of a few records and extents of 4 KiB, so that every
//! change of structure happens within a few hundred operations. A constant that shrinks is written where it belongs, as
//! `sized(real, small)` or, if the library's own tests shrink it too, as `sized_in_tests(real, small)`. These two functions
//! are the only place that asks for the feature.

/// Whether the library is built with small nodes and extents.
pub(crate) const SMALL: bool = cfg!(feature = "small");

/// Whether the library is built with small nodes and extents, or these are the library's own tests.
pub(crate) const SMALL_IN_TESTS: bool = SMALL || cfg!(test);

/// `real`, or `small` for the crash checker.
pub(crate) const fn sized(real: usize, small: usize) -> usize {
    if SMALL { small } else { real }
}

/// `real`, or `small` for the crash checker and in the library's own tests.
pub(crate) const fn sized_in_tests(real: usize, small: usize) -> usize {
    if SMALL_IN_TESTS { small } else { real }
}
