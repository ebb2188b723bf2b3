//! Groups of the separators in an inner node: what makes eight bytes of each enough to search most nodes.
//!
//! The separators of a node often share more than the node's prefix and the eight bytes behind it, but not all of them the same: those of URLs, say,
//! share a host each with some neighbours. So they are divided into up to [`GROUPS`] *groups* of neighbours. A group has a *column*, up to which all of its
//! separators are equal, and the *head* of a separator is taken from the column of its group. A group is found by its *bound*: the 8 bytes
//! behind the node's prefix of its first separator.
//!
//! ```text
//! separators           prefix "www."  group  bound     column  head
//! www.aarhus.dk/a      aarhus.dk/a    0      aarhus.d  10      a
//! www.aarhus.dk/m      aarhus.dk/m    0                10      m
//! www.zagreb.hr/c      zagreb.hr/c    1      zagreb.h  10      c
//! www.zagreb.hr/news   zagreb.hr/news 1                10      news
//! ```

use super::inner::head_of;
use super::layout::common_prefix;

/// Groups of a node: their bounds fill a line.
pub(super) const GROUPS: usize = 8;
/// Bytes of a separator that heads have room for.
pub(super) const HEAD_BYTES: usize = 8;
/// The largest column: it is noted in a byte.
const MOST_COLUMN: usize = u8::MAX as usize;

/// The groups of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Groups {
    pub(super) count: usize,
    /// The slot of the first separator of each group.
    pub(super) starts: [u8; GROUPS],
    /// Bytes behind the node's prefix that the separators of each group share.
    pub(super) columns: [u8; GROUPS],
    pub(super) bounds: [u64; GROUPS],
}

impl Groups {
    pub(super) const NONE: Self = Self {
        count: 0,
        starts: [0; GROUPS],
        columns: [0; GROUPS],
        bounds: [u64::MAX; GROUPS],
    };

    /// Divides the separators of a node, which begin in slot 1 and share `prefix` bytes, where neighbours share the least. Only where their bounds differ,
    /// of course.
    pub(super) fn of(separators: &[&[u8]], prefix: usize) -> Self {
        let mut groups = Self::NONE;
        if separators.is_empty() {
            return groups;
        }
        // The places with the fewest shared bytes, and how many these are; in order of that.
        let mut cuts = [(usize::MAX, 0); GROUPS - 1];
        for (at, pair) in separators.windows(2).enumerate() {
            let shared = common_prefix(&pair[0][prefix..], &pair[1][prefix..]);
            if shared < HEAD_BYTES
                && shared < cuts[GROUPS - 2].0
                && bound(pair[0], prefix) != bound(pair[1], prefix)
            {
                cuts[GROUPS - 2] = (shared, at + 1);
                cuts.sort_unstable();
            }
        }
        let mut starts = [0; GROUPS];
        for (start, cut) in starts[1..].iter_mut().zip(cuts) {
            if cut.1 > 0 {
                *start = cut.1;
                groups.count += 1;
            }
        }
        groups.count += 1;
        starts[..groups.count].sort_unstable();
        for group in 0..groups.count {
            let start = starts[group];
            let is_last = group + 1 == groups.count;
            let end = if is_last {
                separators.len()
            } else {
                starts[group + 1]
            };
            groups.starts[group] = start as u8 + 1;
            groups.columns[group] = column(separators[start], separators[end - 1], prefix) as u8;
            groups.bounds[group] = bound(separators[start], prefix);
        }
        groups
    }
}

/// The 8 bytes of a separator behind the prefix, which it has.
pub(super) fn bound(separator: &[u8], prefix: usize) -> u64 {
    head_of(&separator[prefix..])
}

/// The column of a group from its first separator and its last one.
fn column(first: &[u8], last: &[u8], prefix: usize) -> usize {
    let shared = common_prefix(first, last);
    let column = if shared == first.len() && shared == last.len() {
        // One separator: all of its end is in the head, and a byte behind it, so that longer keys are above it.
        shared.saturating_sub(HEAD_BYTES - 1).max(prefix)
    } else {
        shared
    };
    (column - prefix).min(MOST_COLUMN)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn separators_are_divided_where_they_share_the_least() {
        let separators: [&[u8]; 5] = [
            b"www.aarhus.dk/a",
            b"www.aarhus.dk/m",
            b"www.zagreb.hr/c",
            b"www.zagreb.hr/news/1",
            b"www.zagreb.hr/news/2",
        ];
        let groups = Groups::of(&separators, 4);
        // The last two cannot be told from the one before them by their bounds.
        assert_eq!(groups.count, 2);
        assert_eq!(groups.starts[..2], [1, 3]);
        assert_eq!(groups.columns[..2], [10, 10]);
        assert_eq!(groups.bounds[1], u64::from_be_bytes(*b"zagreb.h"));
        assert_eq!(Groups::of(&[], 0), Groups::NONE);
        let one = Groups::of(&separators[4..], 4);
        assert_eq!((one.count, one.columns[0]), (1, 9));
    }
}
