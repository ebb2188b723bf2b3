//! Ranges, in both directions.
//!
//! A range reads one leaf after the other: the leaf is copied once and validated, its records are ranked by the first 8 bytes after the prefix of
//! the leaf, and their keys and values go into the buffer of the range, without memory for each of them. Between two reads it holds no lock and
//! no guard, only the key to go on from. Every key belongs to exactly one leaf at any time, and no key is asked for twice, so splits and merges do not
//! disturb a range.
//!
//! A read that is not the first one goes on to the next leaves of the same bottom node, as long as that node has not changed, so that it
//! descends once for all of them.

use super::Tree;
use super::inner::Seek;
use super::records::{Ranked, Snapshot, Value};
use super::search::Spot;
use crate::concurrency::epochs;
use crate::engines::inner_nodes::InnerNode;
use crate::engines::{MOST_READ_AHEAD, ReadValue, StringBuffer, StringRange};
use crate::{Error, Result};
use std::ops::Bound;

/// Most leaves of one read. A range that ends early has read so many in vain at most.
const MOST_LEAVES: u32 = 8;

/// What one read asks for, and how much it may still read.
struct Reading<'b> {
    buffer: &'b mut StringBuffer,
    with_values: bool,
    /// Bytes of long values that were read.
    read_ahead: u64,
}

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
        let most = 1 << unread.reads.min(MOST_LEAVES.ilog2());
        unread.reads += 1;
        let mut reading = Reading {
            buffer,
            with_values,
            read_ahead: 0,
        };
        while reading.buffer.is_empty() && !unread.is_done {
            let _guard = epochs::pin();
            self.read_leaves(up, unread, &mut reading, most)?;
        }
        Ok(())
    }

    /// Reads the next leaves of a range, which lie under one bottom node, `most` at most, and takes their keys out of `unread`. The caller is pinned.
    fn read_leaves(
        &self,
        up: bool,
        unread: &mut StringRange,
        reading: &mut Reading<'_>,
        most: u32,
    ) -> Result<()> {
        let Some(seek) = next_of(up, unread) else {
            unread.is_done = true;
            return Ok(());
        };
        let mut spot = self.locate(seek)?;
        let mut end = None;
        for leaf in 0..most {
            let following = self.beside(&spot, up, leaf + 1 < most);
            let read_before = reading.buffer.keys().len();
            let left = match self.read_leaf(up, &spot, unread, reading) {
                Ok(Some(left)) => left,
                Ok(None) => break,
                // What was read before the damage is returned first.
                Err(_) if end.is_some() && reading.buffer.keys().len() == read_before => break,
                Err(error) => return Err(error),
            };
            end = Some(left);
            match following {
                Some(next) if left.is_some() && spot.is_current() => spot = next,
                _ => break,
            }
        }
        match end {
            None => {}
            Some(None) => unread.is_done = true,
            Some(Some(key)) if up => unread.low = Bound::Included(reused(&mut unread.low, key)),
            Some(Some(key)) => unread.high = Bound::Excluded(reused(&mut unread.high, key)),
        }
        Ok(())
    }

    /// The spot of the next leaf under the same bottom node, if there is one that is indexed and `is_wanted`. Its lines are asked for. What is
    /// returned holds only if the spot is still current afterwards.
    fn beside<'a>(&'a self, spot: &Spot<'a>, up: bool, is_wanted: bool) -> Option<Spot<'a>> {
        let slot = if up {
            spot.parent.after(spot.slot)?
        } else {
            spot.parent.before(spot.slot)?
        };
        let child = spot.parent.child(slot);
        // The bottom node is looked at again before anything is read there.
        if child.is_unindexed() || !spot.is_current() {
            return None;
        }
        self.prefetch_leaf(child);
        is_wanted.then_some(Spot {
            slot,
            child,
            ..*spot
        })
    }

    /// Adds the records of a leaf that are in the range to the buffer. Returns where the range goes on, if it does; nothing if the leaf has
    /// changed meanwhile, and then nothing was added.
    fn read_leaf<'a>(
        &self,
        up: bool,
        spot: &Spot<'a>,
        unread: &StringRange,
        reading: &mut Reading<'_>,
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
        let goes_on_up = high.is_some_and(|high| is_before_end(high, &unread.high));
        let goes_on_down = !low.is_empty() && is_after_begin(low, &unread.low);
        // Of a leaf that lies within the range no key is compared with its ends.
        let is_inside = unread.contains(low) && is_up_to_end(high, &unread.high);
        let mut ranked = Ranked::of(&snapshot, low, &self.blobs)?;
        if !ranked.is_between(low, high) {
            return Err(Error::Damaged(format!(
                "leaf {:#x} has a key that does not belong there",
                spot.child.offset()
            )));
        }
        if !up {
            ranked.reverse();
        }
        for record in ranked.records() {
            let (key, value) = record?;
            reading.add(self, key, value);
            if !is_inside {
                let is_wanted = |key: &[u8]| unread.contains(key);
                reading.buffer.drop_last_unless(is_wanted);
            }
        }
        Ok(Some(match up {
            true => high.filter(|_| goes_on_up),
            false => Some(low).filter(|_| goes_on_down),
        }))
    }
}

impl Reading<'_> {
    #[inline(always)]
    fn add(&mut self, tree: &Tree, key: [&[u8]; 2], value: Value<'_>) {
        let value = match value {
            _ if !self.with_values => ReadValue::Here(&[]),
            Value::Inline(value) => ReadValue::Here(value),
            Value::Blob(blob)
                if blob.bytes <= MOST_READ_AHEAD[0]
                    && self.read_ahead + blob.bytes <= MOST_READ_AHEAD[1] =>
            {
                self.read_ahead += blob.bytes;
                ReadValue::Here(tree.blobs.bytes(blob))
            }
            Value::Blob(_) => ReadValue::Later,
        };
        self.buffer.push(key, value);
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
