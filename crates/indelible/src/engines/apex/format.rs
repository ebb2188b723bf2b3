//! The words of a map that differ between formats: the marker of free slots, and the slots of inner nodes that hold no
//! link.
//!
//! The catalog says which format a map has. In format 1 both are zero in most nodes, so a lost page, which reads as
//! zeros, looks like free slots, or like slots of a child group. In format 2 neither is ever zero, so a check reports
//! every lost page.

/// The format of a map, from the word `object_format` of its catalog entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Format {
    /// Of maps that were made before the catalog had that word, also of the nodes that are added to them later.
    One,
    /// Of maps that are made now.
    Two,
}

/// The word of an inner node's slot that holds no link, in format 2. It is no link, as blocks are aligned to 256 bytes.
const CONTINUED: u64 = 2;

impl Format {
    /// The format of this version in the catalog. Newer versions never come here: the host refuses them.
    pub(super) fn of(version: u32) -> Self {
        match version {
            1 => Self::One,
            _ => Self::Two,
        }
    }

    /// The word of an inner node's slot that holds no link.
    pub(super) fn continued(self) -> u64 {
        match self {
            Self::One => 0,
            Self::Two => CONTINUED,
        }
    }

    /// What the header of a data node says of its marker.
    pub(super) fn stored_marker(self, marker: u64) -> u64 {
        match self {
            Self::One => 0,
            Self::Two => marker,
        }
    }
}

/// Whether the word of an inner node's slot is a link to a child.
#[inline(always)]
pub(super) fn is_link(word: u64) -> bool {
    word & !CONTINUED != 0
}

/// The marker of free slots in a data node whose range is `low` to `high`: a key outside of that range (data I3). No data
/// node has all keys in its range.
///
/// In format 2 it is never zero: the node with the highest key in its range does not begin at key 1 (see
/// [`NodeImage::new`](super::build::NodeImage::new)).
#[inline(always)]
pub(super) fn marker_of(format: Format, low: u64, high: u64) -> u64 {
    match format {
        Format::One if low == 0 => u64::MAX,
        Format::One => 0,
        // A damaged node may say that it has all keys in its range. It is refused later.
        Format::Two if high == u64::MAX => low.wrapping_sub(1),
        Format::Two => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_marker_is_a_key_of_its_node_and_in_format_2_none_is_zero() {
        for (low, high) in [
            (0, 0),
            (0, u64::MAX - 1),
            (1, 5),
            (2, u64::MAX),
            (1 << 63, u64::MAX),
            (u64::MAX, u64::MAX),
        ] {
            for format in [Format::One, Format::Two] {
                let marker = marker_of(format, low, high);
                assert!(!(low..=high).contains(&marker), "{format:?} {low} {high}");
                assert!(format == Format::One || marker != 0, "{low} {high}");
            }
        }
    }

    #[test]
    fn links_are_told_from_what_is_none() {
        assert!(!is_link(0) && !is_link(CONTINUED));
        assert!(is_link(4096) && is_link(4097) && is_link(1));
    }
}
