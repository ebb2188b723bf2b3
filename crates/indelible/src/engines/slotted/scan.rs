//! Ranges, in both directions.
//!
//! A range reads one leaf at a time: the leaf is copied and validated, and its records are taken out of the copy and sorted. Between two
//! leaves it holds no lock and no guard, only the key to go on from. Every key belongs to exactly one leaf at any time, and no key is asked for twice, so
//! splits and merges do not disturb a range.

use super::Tree;
use super::inner::Seek;
use super::records::{Records, Snapshot, Value};
use crate::Result;
use crate::concurrency::epochs;
use crate::engines::{MOST_READ_AHEAD, ReadValue, StringBuffer, StringRange};
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
        let mut records = Records::default();
        while buffer.is_empty() && !unread.is_done {
            let _guard = epochs::pin();
            records.clear();
            self.read_leaf(up, unread, &mut records)?;
            let mut read_ahead = 0;
            for i in 0..records.list.len() {
                let at = if up { i } else { records.list.len() - 1 - i };
                let value = match records.value(at) {
                    _ if !with_values => ReadValue::Here(Vec::new()),
                    Value::Inline(value) => ReadValue::Here(value.to_vec()),
                    Value::Blob(blob)
                        if blob.bytes <= MOST_READ_AHEAD[0]
                            && read_ahead + blob.bytes <= MOST_READ_AHEAD[1] =>
                    {
                        read_ahead += blob.bytes;
                        ReadValue::Here(self.blobs.bytes(blob).to_vec())
                    }
                    Value::Blob(_) => ReadValue::Later,
                };
                buffer.push_back((records.key(at).to_vec(), value));
            }
        }
        Ok(())
    }

    /// Reads the next leaf of a range, takes its keys out of `unread`, and leaves those of its records that were asked for, sorted. The
    /// caller is pinned.
    fn read_leaf(&self, up: bool, unread: &mut StringRange, records: &mut Records) -> Result<()> {
        loop {
            let seek = match (up, &unread.low, &unread.high) {
                (true, Bound::Included(key) | Bound::Excluded(key), _)
                | (false, _, Bound::Included(key)) => Seek::At(key),
                (true, Bound::Unbounded, _) => Seek::At(&[]),
                (false, _, Bound::Excluded(key)) if key.is_empty() => {
                    unread.is_done = true;
                    return Ok(());
                }
                (false, _, Bound::Excluded(key)) => Seek::Below(key),
                (false, _, Bound::Unbounded) => Seek::Last,
            };
            let spot = self.locate(seek)?;
            let (low, high) = (spot.low(), spot.high());
            let lock = self.locks.of(spot.child.offset().get());
            let version = lock.read();
            // While the bottom node is unchanged the leaf holds exactly the keys between its separators.
            if !spot.is_current() {
                continue;
            }
            let snapshot = Snapshot::of(self.leaf(spot.child.offset()));
            if !lock.validate(version) {
                continue;
            }
            records.take(&snapshot, low, &self.blobs)?;
            records.keep_keys(|key| unread.contains(key));
            records.sort();
            if up {
                match high {
                    Some(high) if is_before_end(high, &unread.high) => {
                        unread.low = Bound::Included(high.to_vec());
                    }
                    _ => unread.is_done = true,
                }
            } else if low.is_empty() || !is_after_begin(low, &unread.low) {
                unread.is_done = true;
            } else {
                unread.high = Bound::Excluded(low.to_vec());
            }
            return Ok(());
        }
    }
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
