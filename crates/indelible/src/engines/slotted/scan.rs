//! Ranges, in both directions.
//!
//! A range reads one leaf after the other: the leaf is copied once, into the buffer of the range, and validated. There its records are found and ranked
//! by the first bytes after the prefix of the leaf, without memory for each of them. Between two reads a range holds no lock and no guard, only the
//! last key that it has read. Every key belongs to exactly one leaf at any time, and no key is asked for twice, so splits and merges do not disturb a
//! range.
//!
//! A range that goes on has a *bookmark*: the bottom node, its version, and the slot of the next leaf there. It descends again only when the bottom node
//! has changed or has been read to its end. A leaf that a bookmark leads to is read without its separators, which lie elsewhere in memory: its
//! keys are compared with the last key before them. While a leaf is read, the caches are asked for the next one.

use super::inner::{Inner, Seek};
use super::ranked::{LeafCopy, Rank, Ranked};
use super::search::Spot;
use super::{Bug, Tree};
use crate::Result;
use crate::concurrency::epochs;
use crate::engines::inner_nodes::InnerNode;
use crate::engines::{LINE_BYTES, NodeCopy, StringBookmark, StringBuffer, StringRange};
use crate::kernels::{CopyLines, dispatch};
use crate::pmem::planted::planted;
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
            let marked = self.marked_spot(up, unread);
            let is_marked = marked.is_some();
            let spot = match (marked, next_of(up, unread)) {
                (Some(spot), _) => spot,
                (None, Some(seek)) => self.locate(seek)?,
                (None, None) => {
                    unread.is_done = true;
                    break;
                }
            };
            let next = self.beside(up, &spot, is_marked);
            self.read_leaf(up, (&spot, is_marked), unread, next, buffer, with_values)?;
        }
        Ok(())
    }

    /// The leaf that the bookmark of a range leads to, which is taken. The caller is pinned.
    #[inline(always)]
    fn marked_spot(&self, up: bool, unread: &mut StringRange) -> Option<Spot<'_>> {
        let mark = unread.bookmarks[usize::from(!up)].take()?;
        let parent: &Inner = self.arena.recall_any(mark.node);
        let spot = Spot {
            parent,
            version: mark.version,
            slot: mark.slot,
            child: parent.child(mark.slot),
            // There is another separator to the right of the slot in the same node.
            end: None,
            is_sure: true,
        };
        spot.is_current().then_some(spot)
    }

    /// A bookmark of the next leaf under the same bottom node, if there is one that is indexed. The caches are asked for its lines, and for the header of the leaf
    /// behind it: to read a leaf takes less time than to fetch one from memory.
    #[inline(always)]
    fn beside(&self, up: bool, spot: &Spot<'_>, is_marked: bool) -> Option<StringBookmark> {
        let parent = spot.parent;
        let slot = if up {
            // The upper end of the last leaf is not in this node.
            let slot = parent.after(spot.slot)?;
            parent.after(slot)?;
            slot
        } else {
            parent.before(spot.slot)?
        };
        let behind = if up {
            parent.after(slot)
        } else {
            parent.before(slot)
        };
        let behind = behind.map(|slot| parent.child(slot));
        let child = parent.child(slot);
        if child.is_unindexed() || !spot.is_current() {
            return None;
        }
        // The header of the next leaf says which lines it needs; it was asked for while the leaf before this one was read.
        if is_marked {
            self.leaf(child).prefetch_used();
        } else {
            self.prefetch_leaf(child);
            self.orders.prefetch(child);
        }
        if let Some(behind) = behind {
            self.leaf(behind).prefetch_begin();
            self.orders.prefetch(behind);
        }
        Some(StringBookmark {
            node: self.arena.remember(parent).without_type(),
            version: spot.version,
            slot,
        })
    }

    /// Reads the records of a leaf that are in the range, and takes them out of `unread`. If the leaf has changed meanwhile, does nothing.
    #[inline(always)]
    fn read_leaf(
        &self,
        up: bool,
        (spot, is_marked): (&Spot<'_>, bool),
        unread: &mut StringRange,
        next: Option<StringBookmark>,
        buffer: &mut StringBuffer,
        with_values: bool,
    ) -> Result<()> {
        // What a bookmark leads to is compared with what was read before it, further below, and not with separators.
        let ends = (!is_marked || next.is_none()).then(|| (spot.low(), spot.high()));
        let lock = self.locks.of(spot.child.offset().get());
        let version = lock.read();
        // While the bottom node is unchanged the leaf holds exactly the keys between its separators, which were read before.
        if !spot.is_current() {
            return Ok(());
        }
        // Read between two looks at the version, as the leaf is.
        let order = self.orders.of(spot.child);
        let leaf = self.leaf(spot.child);
        let lines = leaf.lines();
        let node = buffer.node.get_or_insert_with(NodeCopy::new);
        let used = leaf.lines_used();
        let (from, to) = (&lines[..used], &mut node.0[..used]);
        dispatch(self.simd, CopyLines { from, to });
        if !lock.validate(version) && !planted(Bug::RangeWithoutVersion) {
            return Ok(());
        }
        let leaf = LeafCopy {
            offset: spot.child.offset(),
            bytes: node.0[..used + 1].as_flattened(),
        };
        let prefix = leaf.prefix(&self.blobs)?;
        let mut ranked = Ranked::of(leaf, (prefix, &self.blobs), order, &mut buffer.places);
        dispatch(self.simd, Rank(&mut ranked))?;
        let found = ranked.ends()?;
        if let Some((low, high)) = ends
            && found.is_some_and(|found| !ranked.is_between(found, low, high))
        {
            return Err(leaf.displaced());
        }
        if ranked.has_new_order() {
            self.keep_order(spot.child, (lock, version), &ranked);
        }
        let mut is_end = false;
        if let Some([first, last]) = found {
            let is_from_low = unread.is_from_low([ranked.prefix, first]);
            let is_up_to_high = unread.is_up_to_high([ranked.prefix, last]);
            if is_marked && !(if up { is_from_low } else { is_up_to_high }) {
                return Err(leaf.displaced());
            }
            if !(is_from_low && is_up_to_high) {
                ranked.trim(
                    |key| unread.is_from_low(key),
                    |key| unread.is_up_to_high(key),
                )?;
            }
            is_end = !(if up { is_up_to_high } else { is_from_low });
        }
        if is_end {
            unread.is_done = true;
        } else if next.is_some() {
            unread.bookmarks[usize::from(!up)] = next;
            let bound = if up {
                &mut unread.low
            } else {
                &mut unread.high
            };
            if let Some([first, last]) = ranked.ends()? {
                let end = if up { last } else { first };
                *bound = Bound::Excluded(reused(bound, [ranked.prefix, end]));
            }
        } else if let Some((low, high)) = ends {
            let goes_on_from = match up {
                true => high.filter(|high| is_before_end(high, &unread.high)),
                false => {
                    Some(low).filter(|low| !low.is_empty() && is_after_begin(low, &unread.low))
                }
            };
            match goes_on_from {
                None => unread.is_done = true,
                Some(key) if up => {
                    unread.low = Bound::Included(reused(&mut unread.low, [key, &[]]))
                }
                Some(key) => unread.high = Bound::Excluded(reused(&mut unread.high, [key, &[]])),
            }
        }
        buffer.key.begin_with(ranked.prefix);
        if ranked.is_long() {
            let (mut records, bytes) = ranked.long_records(with_values)?;
            if !up {
                records.reverse();
            }
            buffer.long = records.into();
            buffer.long_bytes = bytes;
            return Ok(());
        }
        let wanted = ranked.wanted();
        (buffer.taken, buffer.end) = (wanted.start, wanted.end);
        (buffer.offset, buffer.node_bytes) = (leaf.offset, LINE_BYTES * used);
        if !up {
            buffer.places[wanted].reverse();
        }
        Ok(())
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

/// A key in two parts, in the memory that a bound has.
fn reused(bound: &mut Bound<Vec<u8>>, [prefix, rest]: [&[u8]; 2]) -> Vec<u8> {
    let mut memory = match std::mem::replace(bound, Bound::Unbounded) {
        Bound::Included(memory) | Bound::Excluded(memory) => memory,
        Bound::Unbounded => Vec::new(),
    };
    memory.clear();
    memory.extend_from_slice(prefix);
    memory.extend_from_slice(rest);
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

/// Whether there can be a key below `key`, behind the begin of a range.
fn is_after_begin(key: &[u8], begin: &Bound<Vec<u8>>) -> bool {
    match begin {
        Bound::Included(begin) | Bound::Excluded(begin) => begin.as_slice() < key,
        Bound::Unbounded => true,
    }
}
