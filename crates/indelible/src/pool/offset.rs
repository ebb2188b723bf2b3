//! Where in a pool something lies.

use super::layout::EXTENT_BYTES;
use std::fmt;
use std::ops::Add;

/// A place in the pool: its distance from the beginning of the pool, in bytes.
///
/// A type of its own, so that no key, size or extent number is taken for an offset. An offset that was read from the file may be
/// anything: [`Space::owns`](super::Space::owns) says whether a block lies there. The metadata of the pool lie at 0, so 0 is free to
/// mean "none".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub(crate) struct Offset(u64);

impl Offset {
    /// What a durable link holds that leads nowhere.
    pub(crate) const NONE: Self = Self(0);

    /// Above every offset in a pool.
    pub(crate) const MAX: Self = Self(u64::MAX);

    /// The offset that a durable word holds.
    #[inline(always)]
    pub(crate) const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// The word that a durable link to this place holds: bytes from the beginning of the pool.
    #[inline(always)]
    pub(crate) const fn get(self) -> u64 {
        self.0
    }

    /// Whether a link that holds this leads nowhere.
    #[inline(always)]
    pub(crate) const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Where an extent begins.
    pub(crate) const fn of_extent(extent: u64) -> Self {
        Self(extent * EXTENT_BYTES)
    }

    /// The number of the extent that the place lies in.
    pub(crate) const fn extent(self) -> u64 {
        self.0 / EXTENT_BYTES
    }

    /// The distance of the place from the beginning of its extent, in bytes.
    pub(crate) const fn within_extent(self) -> u64 {
        self.0 % EXTENT_BYTES
    }
}

impl Add<u64> for Offset {
    type Output = Self;

    /// The place so many bytes further on.
    #[inline(always)]
    fn add(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

impl fmt::LowerHex for Offset {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, formatter)
    }
}
