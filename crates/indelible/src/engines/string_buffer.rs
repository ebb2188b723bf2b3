//! Records of a map of byte strings that were read ahead.

use super::ReadValue;
use super::string_record::{Part, Parts};
use crate::pool::Offset;
use crate::{Error, Result};
use std::cell::Cell;
use std::collections::VecDeque;

/// Bytes of a line of a buffer.
pub(crate) const LINE_BYTES: usize = crate::pmem::LINE;

/// A line of a buffer.
pub(crate) type Line = [u8; LINE_BYTES];

/// Lines of one node, at most.
pub(crate) const NODE_LINES: usize = 2048 / LINE_BYTES;

/// Records of one node, at most.
pub(crate) const MOST_BUFFERED: usize = 32;

/// A copy of a node, which begins at a line of memory, so that no line of it is written to two. Behind the node follows a line more, which is there to be
/// copied from: no record has bytes in it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct NodeCopy(pub(crate) [Line; NODE_LINES + 1]);

const _: () = assert!(align_of::<NodeCopy>() == LINE_BYTES);

thread_local! {
    /// Memory of a range that has ended, for the next one: to fetch two kilobytes and to clear them would take a tenth of the time of a short range.
    static SPARE: Cell<Option<Box<NodeCopy>>> = const { Cell::new(None) };
}

impl NodeCopy {
    /// Memory for a copy, in which there may be anything.
    pub(crate) fn new() -> Box<Self> {
        let spare = SPARE.try_with(Cell::take).ok().flatten();
        spare.unwrap_or_else(|| Box::new(Self([[0; LINE_BYTES]; NODE_LINES + 1])))
    }

    #[inline(always)]
    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_flattened()
    }
}

/// Records read and not returned yet, in the order of reading, with one buffer for the bytes of all of them: no record has memory of its own. All of their
/// keys begin with the same prefix, which lies in the buffer once.
#[derive(Debug, Default)]
pub(crate) struct StringBuffer {
    /// There is one from the first reading on.
    pub(crate) node: Option<Box<NodeCopy>>,
    /// Where the node lies in the pool, and how many of its bytes were copied.
    pub(crate) offset: Offset,
    pub(crate) node_bytes: usize,
    /// Where the records of the node begin, in words, of which those from `taken` to `end` are left.
    pub(crate) places: [u8; MOST_BUFFERED],
    pub(crate) taken: usize,
    pub(crate) end: usize,
    /// The records of a node of which some have bytes outside of it, and the bytes of all of them, with a line behind.
    pub(crate) long: VecDeque<LongBuffered>,
    pub(crate) long_bytes: Vec<u8>,
    pub(crate) key: WholeKey,
}

/// A key put together: the prefix, and the rest of the key that was taken last.
#[derive(Debug, Default)]
pub(crate) struct WholeKey {
    bytes: Vec<u8>,
    prefix: usize,
}

impl WholeKey {
    /// The keys begin with these bytes.
    #[inline(always)]
    pub(crate) fn begin_with(&mut self, prefix: &[u8]) {
        self.prefix = prefix.len();
        if self.bytes.len() < self.prefix + LINE_BYTES {
            self.make_room(self.prefix);
        }
        self.bytes[..self.prefix].copy_from_slice(prefix);
    }

    #[cold]
    #[inline(never)]
    fn make_room(&mut self, bytes: usize) {
        self.bytes.resize(bytes + 2 * LINE_BYTES, 0);
    }

    /// The key with this rest, which lies in `bytes`, with a line behind it.
    #[inline(always)]
    fn with<'a>(&'a mut self, rest: Part, bytes: &'a [u8]) -> &'a [u8] {
        if rest.bytes > LINE_BYTES {
            return self.with_long(rest, bytes);
        }
        let end = self.prefix + rest.bytes;
        // It is faster to copy what lies behind the key too than to ask how many bytes there are.
        let to = self.bytes.get_mut(self.prefix..self.prefix + LINE_BYTES);
        let from = bytes.get(rest.from..rest.from + LINE_BYTES);
        let (to, from): (Option<&mut Line>, _) = (
            to.and_then(|to| to.first_chunk_mut()),
            from.and_then(|from| from.first_chunk()),
        );
        *to.expect("there is room for a line behind the prefix") =
            *from.expect("invariant: a line follows the last record");
        &self.bytes[..end]
    }

    /// [`with`](Self::with) for a rest of more than a line.
    #[inline(never)]
    fn with_long<'a>(&'a mut self, rest: Part, bytes: &'a [u8]) -> &'a [u8] {
        let (mut bytes, mut left) = (&bytes[rest.from..], rest.bytes);
        let end = self.prefix + left;
        if self.bytes.len() < end + LINE_BYTES {
            self.make_room(end + LINE_BYTES);
        }
        let mut key = &mut self.bytes[self.prefix..];
        loop {
            let (copied, behind) = bytes
                .split_first_chunk::<LINE_BYTES>()
                .expect("invariant: a line follows the last record");
            let (to, rest) = key
                .split_first_chunk_mut()
                .expect("there is room for another line");
            *to = *copied;
            if left <= LINE_BYTES {
                break;
            }
            (bytes, key, left) = (behind, rest, left - LINE_BYTES);
        }
        &self.bytes[..end]
    }
}

impl Drop for StringBuffer {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            // A thread that is ending has no spare any more: then the memory is freed.
            let _ = SPARE.try_with(|spare| spare.set(Some(node)));
        }
    }
}

/// Where a record lies among the bytes of long records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LongBuffered {
    /// The key behind the prefix.
    pub(crate) rest: Part,
    /// None if the value is looked up when it is needed.
    pub(crate) value: Option<Part>,
}

impl StringBuffer {
    /// Drops all records, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        (self.taken, self.end) = (0, 0);
        self.long.clear();
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == self.end && self.long.is_empty()
    }

    fn long(&mut self, record: LongBuffered) -> (&[u8], ReadValue<'_>) {
        let value = match record.value {
            None => ReadValue::Later,
            Some(value) => ReadValue::Here(value.of(&self.long_bytes)),
        };
        (self.key.with(record.rest, &self.long_bytes), value)
    }

    /// Takes the record that was read first, if there is one without long parts. One that cannot be a record is not taken: [`pop_front`](Self::pop_front) reports it.
    #[inline(always)]
    pub(crate) fn pop_short(&mut self) -> Option<(&[u8], &[u8])> {
        if self.taken == self.end {
            return None;
        }
        let place = self.places[self.taken % MOST_BUFFERED];
        let bytes = self.node.as_deref()?.bytes();
        let record = short_record(bytes, self.node_bytes, place, &mut self.key)?;
        self.taken += 1;
        Some(record)
    }

    /// Takes the record that was read first.
    pub(crate) fn pop_front(&mut self) -> Result<Option<(&[u8], ReadValue<'_>)>> {
        if let Some(record) = self.long.pop_front() {
            return Ok(Some(self.long(record)));
        }
        if self.taken == self.end {
            return Ok(None);
        }
        let offset = self.offset;
        let record = self.pop_short().ok_or_else(|| misplaced(offset))?;
        Ok(Some((record.0, ReadValue::Here(record.1))))
    }

    /// Takes the record that was read last.
    pub(crate) fn pop_back(&mut self) -> Result<Option<(&[u8], ReadValue<'_>)>> {
        if let Some(record) = self.long.pop_back() {
            return Ok(Some(self.long(record)));
        }
        if self.taken == self.end {
            return Ok(None);
        }
        let place = self.places[self.end - 1];
        let node = self.node.as_deref();
        let bytes = node.expect("records were read from a node").bytes();
        let record = short_record(bytes, self.node_bytes, place, &mut self.key);
        let (key, value) = record.ok_or_else(|| misplaced(self.offset))?;
        self.end -= 1;
        Ok(Some((key, ReadValue::Here(value))))
    }
}

/// Key and value of the record at a place of a node, see [`short_parts`].
#[inline(always)]
fn short_record<'a>(
    copy: &'a [u8],
    node_bytes: usize,
    place: u8,
    key: &'a mut WholeKey,
) -> Option<(&'a [u8], &'a [u8])> {
    let parts = short_parts(copy, node_bytes, place)?;
    Some((key.with(parts.key, copy), parts.value.of(copy)))
}

/// The parts of the record at a place of a node, of which so many bytes were copied; none if the record does not end in these, or has a long part. The place itself is
/// not looked at: it may lie in front of the records.
#[inline(always)]
pub(crate) fn short_parts(copy: &[u8], node_bytes: usize, place: u8) -> Option<Parts> {
    let (lengths, parts, end) = Parts::at(copy, place)?;
    (lengths.is_short() && end <= node_bytes).then_some(parts)
}

/// The error of a node with a record that cannot be one.
#[cold]
pub(crate) fn misplaced(node: Offset) -> Error {
    Error::Damaged(format!(
        "leaf {node:#x} has a record that does not lie in it"
    ))
}
