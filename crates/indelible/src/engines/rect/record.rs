//! Records as they lie in nodes: words.

use crate::spatial::{Geometry, Rect};

/// Most words in a record: two corners with three axes, and the payload.
pub(in crate::engines) const MAX_WORDS: usize = 7;

/// A record: coordinates as the words of a leaf hold them, then the payload. Words behind those of the geometry are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engines) struct Record([u64; MAX_WORDS]);

impl Record {
    /// The record that these words are.
    #[inline(always)]
    pub(in crate::engines) fn from_words(words: [u64; MAX_WORDS]) -> Self {
        Self(words)
    }

    /// The words of the record.
    #[inline(always)]
    pub(in crate::engines) fn words(&self) -> &[u64; MAX_WORDS] {
        &self.0
    }

    #[inline(always)]
    pub(in crate::engines) fn new<G: Geometry>(shape: &G, payload: u64) -> Self {
        let mut words = [0; MAX_WORDS];
        for (i, word) in words.iter_mut().enumerate().take(G::COORDINATES) {
            *word = shape.coordinate(i).to_bits();
        }
        words[G::COORDINATES] = payload;
        Self(words)
    }

    #[inline(always)]
    pub(in crate::engines) fn shape<G: Geometry>(&self) -> G {
        G::from_coordinates(|i| f64::from_bits(self.0[i]))
    }

    #[inline(always)]
    pub(in crate::engines) fn payload<G: Geometry>(&self) -> u64 {
        self.0[G::COORDINATES]
    }

    #[inline(always)]
    pub(in crate::engines) fn rect<G: Geometry>(&self) -> Rect {
        Rect::of(&self.shape::<G>())
    }

    /// A hash of all words, which orders records of one code. Records that are equal have equal hashes, and nothing else is asked of it:
    /// records of one code and one hash are found too, if more slowly.
    #[inline(always)]
    pub(in crate::engines) fn tie<G: Geometry>(&self) -> u64 {
        // Each step is invertible, so that no word is lost; the multiplier is that of Fibonacci hashing.
        let mix = |hash: u64, word: &u64| {
            let mixed = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^ mixed >> 32
        };
        self.0[..G::COORDINATES + 1].iter().fold(0, mix)
    }
}
