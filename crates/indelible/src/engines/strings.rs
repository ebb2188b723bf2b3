//! What an ordered index of byte strings can do.

use super::Engine;
use super::StringBuffer;
use super::arena::AnyNodeRef;
use crate::Result;
use crate::concurrency::locks::Version;
use crate::pool::Offset;
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

/// A value that lies in a block of its own, and that is kept: the block is not used again before the value has been let go. It is not `Clone`, so
/// that it is let go once.
#[derive(Debug)]
pub(crate) struct LongValue {
    pub(crate) offset: Offset,
    pub(crate) bytes: u64,
}

/// A value that is read in parts.
#[derive(Debug)]
pub(crate) enum ReadableValue {
    /// A copy.
    Short(Vec<u8>),
    Long(LongValue),
}

/// A key and its value.
pub(crate) type StringRecord<'a> = (&'a [u8], &'a [u8]);

/// The last part of a value that is written in parts: where it begins, and its bytes.
pub(crate) type LastPart<'a> = (u64, &'a [u8]);

/// What is left to read of a range.
#[derive(Clone, Debug)]
pub(crate) struct StringRange {
    pub(crate) low: Bound<Vec<u8>>,
    pub(crate) high: Bound<Vec<u8>>,
    /// Nothing is left.
    pub(crate) is_done: bool,
    /// Where reading goes on, at the lower end and at the upper one, for an engine that found that out when it read there last.
    pub(crate) bookmarks: [Option<StringBookmark>; 2],
}

/// A child of a bottom node, which holds the next keys of a range as long as the node has this version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StringBookmark {
    pub(crate) node: AnyNodeRef,
    pub(crate) version: Version,
    pub(crate) slot: usize,
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
            bookmarks: [None; 2],
        }
    }

    /// Whether a key, which is given in two parts, is not below the lower end of what is left.
    pub(crate) fn is_from_low(&self, key: [&[u8]; 2]) -> bool {
        match &self.low {
            Bound::Included(low) => compare_parts(key, low).is_ge(),
            Bound::Excluded(low) => compare_parts(key, low).is_gt(),
            Bound::Unbounded => true,
        }
    }

    /// Whether a key, which is given in two parts, is not above the upper end of what is left.
    pub(crate) fn is_up_to_high(&self, key: [&[u8]; 2]) -> bool {
        match &self.high {
            Bound::Included(high) => compare_parts(key, high).is_le(),
            Bound::Excluded(high) => compare_parts(key, high).is_lt(),
            Bound::Unbounded => true,
        }
    }
}

/// Compares a key in two parts with another one.
fn compare_parts([prefix, rest]: [&[u8]; 2], other: &[u8]) -> std::cmp::Ordering {
    match other.split_at_checked(prefix.len()) {
        Some((of_prefix, of_rest)) => prefix.cmp(of_prefix).then_with(|| rest.cmp(of_rest)),
        // The other one is shorter than the prefix: if the prefix begins with it, it is below the key.
        None => prefix.cmp(other),
    }
}

/// The value of a record that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadValue<'a> {
    /// The bytes. If only keys were asked for, they may be missing.
    Here(&'a [u8]),
    /// It is long, and is looked up when it is needed.
    Later,
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

    /// Calls `use_value` with the number in `keys` and the value of each that is there, in any order. Lookups may wait for memory together.
    fn get_many(&self, keys: &[&[u8]], use_value: &mut dyn FnMut(usize, &[u8])) -> Result<()>;

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

    /// Inserts as many of the first records as can share their fences, and returns how many they are: 0 if the first one cannot. Their keys ascend
    /// strictly. Each record is there after a crash as a whole or not at all.
    fn insert_together(&self, records: &[StringRecord<'_>]) -> Result<usize>;

    /// Memory for a new value of so many bytes, which nothing leads to, if a value of this length lies in a block of its own.
    fn new_value(&self, bytes: u64) -> Result<Option<LongValue>>;

    /// Writes a part of a new value, from byte `at` on, a multiple of the line size. The part is durable when this returns.
    fn write_part(&self, value: &LongValue, at: u64, part: &[u8]);

    /// Writes the last part of a new value and then puts the value, in one step as seen by all other threads, and returns whether the key was there
    /// before. Afterwards the value belongs to the index and has been let go; after an error it is as it was before.
    fn put_value(&self, key: &[u8], value: &LongValue, last: LastPart<'_>) -> Result<bool>;

    /// The value of `key`, to be read in parts: it stays as it is until it has been let go.
    fn keep_value(&self, key: &[u8]) -> Result<Option<ReadableValue>>;

    /// The bytes of a value from [`keep_value`](Self::keep_value).
    fn kept_bytes<'a>(&'a self, value: &'a LongValue) -> &'a [u8];

    /// Lets go of a value, which the caller does not use any more. A new one, which was not put, is freed.
    fn let_go(&self, value: &LongValue, is_new: bool);

    /// Fills the empty index with records whose keys ascend strictly, to the share `fill` of each node. One store commits all of it.
    /// [`Error::NotAscending`](crate::Error::NotAscending) and [`Error::NotEmpty`](crate::Error::NotEmpty) leave it empty.
    fn bulk_load(
        &self,
        records: &mut dyn Iterator<Item = Result<(Vec<u8>, Vec<u8>)>>,
        fill: f64,
    ) -> Result<()>;

    /// Reads on: adds some records to the end of `buffer`, which is empty, from the lower end of `unread` upwards or from the upper end
    /// downwards, and takes their keys out of `unread`. An empty buffer afterwards means that nothing is left to read. Without
    /// `with_values` long values are not read. Keys that are out of order, or there twice, are an error.
    fn read_on(
        &self,
        up: bool,
        unread: &mut StringRange,
        buffer: &mut StringBuffer,
        with_values: bool,
    ) -> Result<()>;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(0_u8..3, 0..12)
    }

    proptest! {
        #[test]
        fn a_key_in_two_parts_compares_as_the_whole(key in text(), other in text(), at in 0_usize..12) {
            let (prefix, rest) = key.split_at(at.min(key.len()));
            prop_assert_eq!(compare_parts([prefix, rest], &other), key.cmp(&other));
        }
    }
}
