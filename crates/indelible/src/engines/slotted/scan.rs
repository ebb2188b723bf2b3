//! Ranges, in both directions.
//!
//! A range reads one leaf after the other: the leaf is copied once and validated, its records are ranked by the first 8 bytes after the prefix of
//! the leaf, and their keys and values go into the buffer of the range, without memory for each of them. Between two reads it holds no lock and
//! no guard, only the key to go on from. Every key belongs to exactly one leaf at any time, and no key is asked for twice, so splits and merges do not
//! disturb a range.
//!
//! A range that goes on remembers the bottom node, its version, and the slot of the next leaf there, and descends again only when the bottom node
//! has changed or has been read to its end. While a leaf is read, the caches are asked for the next one.

use super::Tree;
use super::inner::{Inner, Seek};
use super::ranked::Ranked;
use super::records::Snapshot;
use super::search::Spot;
use crate::concurrency::epochs;
use crate::engines::inner_nodes::InnerNode;
use crate::engines::{StringBookmark, StringBuffer, StringRange};
use crate::{Error, Result};
use std::ops::Bound;

impl Tree {
    /// See [`Strings::read_on`](crate::engines::Strings::read_on).
    pub(super) fn read_on(
        &self,
        up: bool,
        unread: &mut StringRange,
        buffer: &mut StringBuffer,
        with_values: bool,
    ) -> Result<()> {
        buffer.clear();
        while buffer.is_empty() && !unread.is_done {
            let _guard = epochs::pin();
            let Some(spot) = self.next_spot(up, unread)? else {
                unread.is_done = true;
                break;
            };
            let beside = self.beside(up, &spot);
            let Some(goes_on_from) = self.read_leaf(up, &spot, unread, (buffer, with_values))?
            else {
                continue;
            };
            unread.bookmarks[usize::from(!up)] = beside;
            match goes_on_from {
                None => unread.is_done = true,
                Some(key) if up => unread.low = Bound::Included(reused(&mut unread.low, key)),
                Some(key) => unread.high = Bound::Excluded(reused(&mut unread.high, key)),
            }
        }
        Ok(())
    }

    /// Where a range goes on; nothing if no key can be left. Its bookmark is taken. The caller is pinned.
    #[inline]
    fn next_spot(&self, up: bool, unread: &mut StringRange) -> Result<Option<Spot<'_>>> {
        if let Some(mark) = unread.bookmarks[usize::from(!up)].take() {
            let parent: &Inner = self.arena.recall_any(mark.node);
            let spot = Spot {
                parent,
                version: mark.version,
                slot: mark.slot,
                child: parent.child(mark.slot),
                // There is another separator to the right of the slot in the same node.
                end: None,
            };
            if spot.is_current() {
                return Ok(Some(spot));
            }
        }
        let Some(seek) = next_of(up, unread) else {
            return Ok(None);
        };
        self.locate(seek).map(Some)
    }

    /// A bookmark of the next leaf under the same bottom node, if there is one that is indexed. Its lines are asked for.
    #[inline]
    fn beside(&self, up: bool, spot: &Spot<'_>) -> Option<StringBookmark> {
        let slot = if up {
            // The upper end of the last leaf is not in this node.
            let slot = spot.parent.after(spot.slot)?;
            spot.parent.after(slot)?;
            slot
        } else {
            spot.parent.before(spot.slot)?
        };
        let child = spot.parent.child(slot);
        if child.is_unindexed() || !spot.is_current() {
            return None;
        }
        self.prefetch_leaf(child);
        // The ends of that leaf: this one's is the other end already.
        let end = if up { slot + 1 } else { slot };
        spot.parent.prefetch_separator(end, crate::pmem::LINE / 2);
        Some(StringBookmark {
            node: self.arena.remember(spot.parent).without_type(),
            version: spot.version,
            slot,
        })
    }

    /// Adds the records of a leaf that are in the range to the buffer. Returns where the range goes on, if it does; nothing if the leaf has
    /// changed meanwhile, and then nothing was added.
    fn read_leaf<'a>(
        &self,
        up: bool,
        spot: &Spot<'a>,
        unread: &StringRange,
        (buffer, with_values): (&mut StringBuffer, bool),
    ) -> Result<Option<Option<&'a [u8]>>> {
        let (low, high) = (spot.low(), spot.high());
        let lock = self.locks.of(spot.child.offset().get());
        let version = lock.read();
        // While the bottom node is unchanged the leaf holds exactly the keys between its separators.
        if !spot.is_current() {
            return Ok(None);
        }
        let snapshot = Snapshot::of(self.leaf(spot.child.offset()));
        if !lock.validate(version) {
            return Ok(None);
        }
        let mut ranked = Ranked::of(&snapshot, low, &self.blobs)?;
        ranked.rank(self.simd)?;
        if !ranked.is_between(low, high) {
            return Err(Error::Damaged(format!(
                "leaf {:#x} has a key that does not belong there",
                spot.child.offset()
            )));
        }
        // Of a leaf that lies within the range no key is compared with its ends.
        if !unread.is_from_low([low, &[]]) || !is_up_to_end(high, &unread.high) {
            ranked.trim(
                |key| unread.is_from_low(key),
                |key| unread.is_up_to_high(key),
            );
        }
        ranked.hand_out(up, buffer, with_values);
        Ok(Some(match up {
            true => high.filter(|high| is_before_end(high, &unread.high)),
            false => Some(low).filter(|low| !low.is_empty() && is_after_begin(low, &unread.low)),
        }))
    }
}

/// What a range has to read next; nothing if no key can be left.
fn next_of(up: bool, unread: &StringRange) -> Option<Seek<'_>> {
    Some(match (up, &unread.low, &unread.high) {
        (true, Bound::Included(key) | Bound::Excluded(key), _)
        | (false, _, Bound::Included(key)) => Seek::At(key),
        (true, Bound::Unbounded, _) => Seek::At(&[]),
        (false, _, Bound::Excluded(key)) if key.is_empty() => return None,
        (false, _, Bound::Excluded(key)) => Seek::Below(key),
        (false, _, Bound::Unbounded) => Seek::Last,
    })
}

/// A key, in the memory that a bound has.
fn reused(bound: &mut Bound<Vec<u8>>, key: &[u8]) -> Vec<u8> {
    let mut memory = match std::mem::replace(bound, Bound::Unbounded) {
        Bound::Included(memory) | Bound::Excluded(memory) => memory,
        Bound::Unbounded => Vec::new(),
    };
    memory.clear();
    memory.extend_from_slice(key);
    memory
}

/// Whether there can be a key from `key` on, in front of the end of a range.
fn is_before_end(key: &[u8], end: &Bound<Vec<u8>>) -> bool {
    match end {
        Bound::Included(end) => key <= end.as_slice(),
        Bound::Excluded(end) => key < end.as_slice(),
        Bound::Unbounded => true,
    }
}

/// Whether all keys below `high` lie in front of the end of a range.
fn is_up_to_end(high: Option<&[u8]>, end: &Bound<Vec<u8>>) -> bool {
    match end {
        Bound::Included(end) | Bound::Excluded(end) => high.is_some_and(|high| high <= end),
        Bound::Unbounded => true,
    }
}

/// Whether there can be a key below `key`, behind the begin of a range.
fn is_after_begin(key: &[u8], begin: &Bound<Vec<u8>>) -> bool {
    match begin {
        Bound::Included(begin) | Bound::Excluded(begin) => begin.as_slice() < key,
        Bound::Unbounded => true,
    }
}
