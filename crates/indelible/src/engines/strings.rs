//! What an ordered index of byte strings can do.

use super::Engine;
use crate::Result;
use std::borrow::Cow;
use std::ops::Bound;

/// Bytes of the options in a catalog entry that the engines of byte strings have. The front keeps the types of keys and values in the others.
pub(crate) const STRING_OPTION_BYTES: usize = 2;

/// What a caller decides to do with a key, once it knows the present value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StringDecision<'v> {
    /// Leave the key as it is, with its value or absent.
    Keep,
    /// Store this value, whether the key is present or not.
    Put(Cow<'v, [u8]>),
    /// Remove the record; an absent key stays absent.
    Remove,
}

/// Hands the present value to a function.
type ReadCurrent<'a> = dyn Fn(&mut dyn FnMut(&[u8])) + 'a;

/// The present value of a key that is being changed. It is read only if somebody asks.
pub(crate) struct Current<'a> {
    pub(crate) bytes: u64,
    pub(crate) read: &'a ReadCurrent<'a>,
}

impl Current<'_> {
    /// A copy of the value.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut copy = Vec::new();
        (self.read)(&mut |bytes| copy.extend_from_slice(bytes));
        copy
    }

    /// Whether the value is this one.
    pub(crate) fn is(&self, other: &[u8]) -> bool {
        let mut same = self.bytes == other.len() as u64;
        if same {
            (self.read)(&mut |bytes| same = bytes == other);
        }
        same
    }
}

/// What is left to read of a range.
#[derive(Clone, Debug)]
pub(crate) struct StringRange {
    pub(crate) low: Bound<Vec<u8>>,
    pub(crate) high: Bound<Vec<u8>>,
    /// Nothing is left.
    pub(crate) is_done: bool,
    /// How many times something was read: who goes on reads more at once.
    pub(crate) reads: u32,
}

impl StringRange {
    pub(crate) fn new(low: Bound<Vec<u8>>, high: Bound<Vec<u8>>) -> Self {
        let (is_equal, is_open) = match (&low, &high) {
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => (false, false),
            (
                Bound::Included(low) | Bound::Excluded(low),
                Bound::Included(high) | Bound::Excluded(high),
            ) if low > high => (true, true),
            (Bound::Included(low), Bound::Included(high)) => (low == high, false),
            (
                Bound::Included(low) | Bound::Excluded(low),
                Bound::Included(high) | Bound::Excluded(high),
            ) => (low == high, true),
        };
        Self {
            low,
            high,
            is_done: is_equal && is_open,
            reads: 0,
        }
    }

    /// Whether a key lies in what is left.
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        let after_low = match &self.low {
            Bound::Included(low) => low.as_slice() <= key,
            Bound::Excluded(low) => low.as_slice() < key,
            Bound::Unbounded => true,
        };
        let before_high = match &self.high {
            Bound::Included(high) => key <= high.as_slice(),
            Bound::Excluded(high) => key < high.as_slice(),
            Bound::Unbounded => true,
        };
        after_low && before_high && !self.is_done
    }
}

/// The value of a record that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadValue<'a> {
    /// The bytes; none if only keys were asked for.
    Here(&'a [u8]),
    /// It is long, and is looked up when it is needed.
    Later,
}

/// Records read and not returned yet, in the order of reading, with one buffer for the bytes of all of them: no record has memory of its own.
#[derive(Debug, Default)]
pub(crate) struct StringBuffer {
    bytes: Vec<u8>,
    records: Vec<Buffered>,
    /// How many of the records have been taken from the front.
    taken: usize,
}

/// Where a record lies in the bytes of a buffer: its key, then its value.
#[derive(Clone, Copy, Debug)]
struct Buffered {
    from: usize,
    key_end: usize,
    /// `None`: looked up later.
    value_end: Option<usize>,
}

impl StringBuffer {
    /// Drops all records, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.records.clear();
        self.taken = 0;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.taken == self.records.len()
    }

    /// Adds a record whose key consists of these two parts.
    #[inline]
    pub(crate) fn push(&mut self, key: [&[u8]; 2], value: ReadValue<'_>) {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(key[0]);
        self.bytes.extend_from_slice(key[1]);
        let key_end = self.bytes.len();
        let value_end = match value {
            ReadValue::Here(value) => {
                self.bytes.extend_from_slice(value);
                Some(self.bytes.len())
            }
            ReadValue::Later => None,
        };
        self.records.push(Buffered {
            from,
            key_end,
            value_end,
        });
    }

    /// Takes the record back that was added last, if its key is not wanted.
    pub(crate) fn drop_last_unless(&mut self, is_wanted: impl FnOnce(&[u8]) -> bool) {
        if let Some(&last) = self.records.last()
            && !is_wanted(&self.bytes[last.from..last.key_end])
        {
            self.bytes.truncate(last.from);
            self.records.pop();
        }
    }

    fn record(&self, record: Buffered) -> (&[u8], ReadValue<'_>) {
        let value = match record.value_end {
            Some(end) => ReadValue::Here(&self.bytes[record.key_end..end]),
            None => ReadValue::Later,
        };
        (&self.bytes[record.from..record.key_end], value)
    }

    /// Takes the record that was read first.
    pub(crate) fn pop_front(&mut self) -> Option<(&[u8], ReadValue<'_>)> {
        let record = *self.records.get(self.taken)?;
        self.taken += 1;
        Some(self.record(record))
    }

    /// Takes the record that was read last.
    pub(crate) fn pop_back(&mut self) -> Option<(&[u8], ReadValue<'_>)> {
        if self.is_empty() {
            return None;
        }
        let record = self.records.pop()?;
        Some(self.record(record))
    }

    /// The keys of the records that are left, in the order of reading.
    pub(crate) fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        let left = self.records[self.taken..].iter();
        left.map(|record| &self.bytes[record.from..record.key_end])
    }
}

/// Bytes of a value that a range reads ahead, at most, and of all values that it reads ahead at once.
pub(crate) const MOST_READ_AHEAD: [u64; 2] = [64 << 10, 1 << 20];

const _: () = assert!(MOST_READ_AHEAD[0] <= MOST_READ_AHEAD[1]);

/// What an ordered index of byte strings can do. The host has checked that the pool may be written, and that keys and values are not too long.
pub(crate) trait Strings: Engine {
    /// Bytes in the longest key, and in the longest value.
    const MOST_BYTES: [u64; 2];

    /// Calls `use_value` with the value of `key`, if it is there, and returns whether it is.
    fn get_with(&self, key: &[u8], use_value: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Bytes of the value of `key`.
    fn value_len(&self, key: &[u8]) -> Result<Option<u64>>;

    /// Changes one key, in one step as seen by all other threads, and returns whether it was there before. `decide` gets the present value. An
    /// attempt that has to begin again calls `decide` again; the last call counts. `likely` is the value that will most likely be put: a long
    /// one is then written before anything is locked.
    fn apply<'v>(
        &self,
        key: &[u8],
        likely: Option<&'v [u8]>,
        decide: &mut dyn FnMut(Option<&Current<'_>>) -> StringDecision<'v>,
    ) -> Result<bool>;

    /// Fills the empty index with records whose keys ascend strictly, to the share `fill` of each node. One store commits all of it.
    /// [`Error::NotAscending`](crate::Error::NotAscending) and [`Error::NotEmpty`](crate::Error::NotEmpty) leave it empty.
    fn bulk_load(
        &self,
        records: &mut dyn Iterator<Item = Result<(Vec<u8>, Vec<u8>)>>,
        fill: f64,
    ) -> Result<()>;

    /// Reads on: adds some records to the end of `buffer`, which is empty, from the lower end of `unread` upwards or from the upper end
    /// downwards, and takes their keys out of `unread`. An empty buffer afterwards means that nothing is left to read. Values are read if
    /// `with_values` says so.
    fn read_on(
        &self,
        up: bool,
        unread: &mut StringRange,
        buffer: &mut StringBuffer,
        with_values: bool,
    ) -> Result<()>;
}
