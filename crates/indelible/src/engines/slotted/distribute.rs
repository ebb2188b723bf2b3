//! How records are distributed over new leaves.
//!
//! A leaf is divided where its right half begins, or near there, where the separator is short. Inner nodes have room for
//! [`MOST_ADDED`] more leaves, so a leaf may be divided into [`MOST_PARTS`] parts at most. With short separators preferred there may be more of
//! them: each of 20 keys may have a longer common prefix with the next key than the key before, so that one key after the other would be cut
//! off. Then the leaf is divided in the middle of its words, which always makes few enough parts:
//!
//! Let the largest heap have H words. A record has at most H/2 + 5, a low key at most H/4 + 2, and the records of a leaf and one more have at most 3H/2 + 5.
//! A cut nearest to the middle of a range leaves on each side at most half of the range and half of a record. So the first cut leaves at most
//! H + 5 on a side, and the next cuts at most 3H/4 + 5 and then 5H/8 + 5, which fits with any low key if H is 56 or more. A fifth part would need
//! more words than there are.

use super::Tree;
use super::inner::MOST_ADDED;
use super::layout::{SLOTS, prefix_of, shortest_separator};
use super::records::Records;
use super::sizes::Wanted;
use std::ops::Range;

/// Most leaves that one leaf is replaced by.
pub(super) const MOST_PARTS: usize = MOST_ADDED + 1;

/// A new leaf: which records it gets, its low key, and which sizes it may have.
pub(super) struct Part {
    pub(super) records: Range<usize>,
    pub(super) low: Vec<u8>,
    pub(super) size: Wanted,
}

/// What some records would take in a leaf.
#[derive(Clone, Copy)]
pub(super) struct Words {
    /// How many records there are.
    pub(super) count: usize,
    /// Words of the records.
    pub(super) records: usize,
    /// Words of the low key.
    pub(super) low: usize,
}

impl Words {
    pub(super) fn all(self) -> usize {
        self.records + self.low
    }

    /// Whether they fit into a heap of so many words.
    pub(super) fn fit(self, heap: usize) -> bool {
        self.count <= SLOTS && self.all() <= heap
    }
}

/// Where a leaf is divided.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// Near the middle of its words, where the separator is short.
    ShortSeparator,
    /// As near to the middle of its words as can be.
    Middle,
}

impl Tree {
    /// Words that records and the low key take in a new leaf.
    pub(super) fn words_of(
        &self,
        records: &Records,
        range: &Range<usize>,
        (low, high): (&[u8], Option<&[u8]>),
    ) -> Words {
        let prefix = prefix_of(low, high);
        Words {
            count: range.len(),
            records: range.clone().map(|at| records.words_of(at, prefix)).sum(),
            low: self.low_words(low),
        }
    }

    /// Words that a low key takes in a leaf.
    pub(super) fn low_words(&self, low: &[u8]) -> usize {
        if low.len() > self.sizes.most_key() {
            super::layout::REFERENCE_BYTES / 8
        } else {
            low.len().div_ceil(8)
        }
    }

    /// Distributes sorted records, which do not all fit into one leaf with room to spare, over leaves from left to right: two to [`MOST_PARTS`].
    pub(super) fn distribute(
        &self,
        records: &Records,
        (low, high): (&[u8], Option<&[u8]>),
    ) -> Vec<Part> {
        let all = 0..records.list.len();
        let mut parts = Vec::new();
        for how in [Cut::ShortSeparator, Cut::Middle] {
            parts.clear();
            self.divide(records, all.clone(), (low.to_vec(), high), how, &mut parts);
            if parts.len() <= MOST_PARTS {
                return parts;
            }
        }
        panic!(
            "invariant: a leaf is divided into {MOST_PARTS} parts at most, not {}",
            parts.len()
        );
    }

    fn divide(
        &self,
        records: &Records,
        range: Range<usize>,
        (low, high): (Vec<u8>, Option<&[u8]>),
        how: Cut,
        parts: &mut Vec<Part>,
    ) {
        let at = cut(records, &range, prefix_of(&low, high), how);
        let separator = shortest_separator(records.key(at - 1), records.key(at)).to_vec();
        for (range, low, high) in [
            (range.start..at, low, Some(&separator[..])),
            (at..range.end, separator.clone(), high),
        ] {
            let words = self.words_of(records, &range, (&low, high));
            if range.len() < 2 || words.fit(self.sizes.largest().heap_words()) {
                parts.push(Part {
                    size: self.size_for(words),
                    records: range,
                    low,
                });
            } else {
                self.divide(records, range, (low, high), how, parts);
            }
        }
    }
}

/// Where to divide records that share a prefix of so many bytes.
fn cut(records: &Records, range: &Range<usize>, prefix: usize, how: Cut) -> usize {
    let total: usize = range.clone().map(|at| records.words_of(at, prefix)).sum();
    let (mut before, mut best) = (0, (usize::MAX, range.start + 1));
    for at in range.start + 1..range.end {
        before += records.words_of(at - 1, prefix);
        let off_middle = (2 * before).abs_diff(total);
        let cost = match how {
            Cut::Middle => off_middle,
            Cut::ShortSeparator => {
                let separator = shortest_separator(records.key(at - 1), records.key(at)).len();
                let eighths = off_middle * 8 / total.max(1);
                // An eighth of the words is worth as much as 16 bytes of the separator.
                eighths * eighths * 16 + separator
            }
        };
        if cost < best.0 {
            best = (cost, at);
        }
    }
    best.1
}
