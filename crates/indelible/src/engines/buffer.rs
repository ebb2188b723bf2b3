//! The buffer of a range: records that it has read and not returned yet.

use crate::pmem::schedule;
use std::cell::Cell;

/// A key and its value, as ranges return them.
pub(crate) type KeyValue = [u64; 2];

/// The keys that a range has not read yet, both ends included.
pub(crate) type Unread = Option<(u64, u64)>;

/// What is left of a range of keys from which those up to `done`, or down to it, have been read.
#[inline(always)]
pub(crate) fn rest<const UP: bool>((first, last): (u64, u64), done: u64) -> Unread {
    match UP {
        true => (done < last).then(|| (done + 1, last)),
        false => (done > first).then(|| (first, done - 1)),
    }
}

/// Records that a range reads at once if nothing is known about how many the caller wants.
const USUAL_READ: usize = 48;

/// Records that a range reads at once, at most: reading records ahead is wasted if the caller then stops.
pub(crate) const MOST_READ: usize = 256;

/// Records read and not returned yet, in the order of reading.
pub(crate) struct ReadBuffer<B> {
    /// The records from `start` to `end` count; the others mean nothing.
    pub(crate) records: Vec<KeyValue>,
    /// For an engine that reads records from two places: those of the second place, to be merged into `records`.
    pub(crate) to_merge: Vec<KeyValue>,
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// How many records this range has returned from earlier fillings of the buffer.
    given_before: usize,
    /// What the engine remembers between two reads.
    pub(crate) bookmark: B,
}

impl<B: Default> Default for ReadBuffer<B> {
    fn default() -> Self {
        Self {
            records: Vec::new(),
            to_merge: Vec::new(),
            start: 0,
            end: 0,
            given_before: 0,
            bookmark: B::default(),
        }
    }
}

impl<B> ReadBuffer<B> {
    /// The next record.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<KeyValue> {
        if self.start == self.end {
            return None;
        }
        let record = self.records[self.start];
        self.start += 1;
        Some(record)
    }

    /// The record read last.
    pub(crate) fn pop_last(&mut self) -> Option<KeyValue> {
        if self.start == self.end {
            return None;
        }
        self.end -= 1;
        Some(self.records[self.end])
    }

    /// The next records, at most `most`.
    pub(crate) fn pop_chunk(&mut self, most: usize) -> &[KeyValue] {
        let first = self.start;
        self.start += most.min(self.end - first);
        &self.records[first..self.start]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Takes over what the other end of the range has read.
    pub(crate) fn take_reversed(&mut self, other: &mut Self) {
        std::mem::swap(self, other);
        self.records[self.start..self.end].reverse();
    }

    /// Empties the buffer, and returns how many records to read next if the caller does not say: in a range that has returned records
    /// before, as many as it has returned so far; at its beginning, as many as the last ranges of this thread returned.
    pub(crate) fn restart(&mut self) -> usize {
        let given = self.given_before + self.end;
        (self.start, self.end, self.given_before) = (0, 0, given);
        if given > 0 {
            return given.clamp(USUAL_READ, MOST_READ);
        }
        if !self.records.is_empty() {
            return USUAL_READ;
        }
        // At the end of the thread its spare buffers are gone.
        let spare = SPARE.try_with(|spare| {
            let taken = spare.take();
            spare.set(Spare {
                given: taken.given,
                session: taken.session,
                ..Spare::default()
            });
            taken
        });
        let spare = spare.unwrap_or_default();
        let given = spare.given();
        (self.records, self.to_merge) = (spare.records, spare.to_merge);
        match given[0].min(given[1]) {
            0 => USUAL_READ,
            wanted => wanted.min(MOST_READ),
        }
    }

    /// What [`Ordered::read_on`](super::Ordered::read_on) does, for an engine that can list its records: reads on from `records`, which
    /// ascend. Those before `unread` are passed over.
    pub(crate) fn read_from<const UP: bool>(
        &mut self,
        mut records: impl DoubleEndedIterator<Item = KeyValue>,
        unread: &mut Unread,
        wanted: Option<usize>,
    ) {
        let usual = self.restart();
        let most = wanted.unwrap_or(usual).min(MOST_READ);
        self.make_room(most);
        while let Some((first, last)) = *unread
            && self.end < most
        {
            let record = if UP {
                records.next()
            } else {
                records.next_back()
            };
            match record {
                Some([key, value]) if (first..=last).contains(&key) => {
                    self.records[self.end] = [key, value];
                    self.end += 1;
                    *unread = rest::<UP>((first, last), key);
                }
                Some([key, _]) if (key < first) == UP => {}
                _ => *unread = None,
            }
        }
    }

    /// Makes room for so many more records.
    #[inline(always)]
    pub(crate) fn make_room(&mut self, records: usize) {
        let room = self.end + records;
        if self.records.len() < room {
            self.records.resize(room.next_power_of_two(), [0, 0]);
        }
    }
}

/// What the last ranges of a thread leave for the next range.
#[derive(Default)]
struct Spare {
    /// Their buffers: allocating and clearing new ones takes as long as a short range.
    records: Vec<KeyValue>,
    to_merge: Vec<KeyValue>,
    /// How many records each of the last two returned. Ranges are often as long as the one before, and reading all records at once
    /// is cheaper than in parts.
    given: [usize; 2],
    /// The session of the scheduler in which they did. Each session begins in the same way, so that it can be repeated.
    session: u64,
}

impl Spare {
    /// `given`, if that was in this session.
    fn given(&self) -> [usize; 2] {
        if self.session == schedule::session() {
            self.given
        } else {
            [0; 2]
        }
    }
}

thread_local! {
    static SPARE: Cell<Spare> = const {
        Cell::new(Spare { records: Vec::new(), to_merge: Vec::new(), given: [0; 2], session: 0 })
    };
}

impl<B> Drop for ReadBuffer<B> {
    fn drop(&mut self) {
        if self.records.is_empty() {
            return;
        }
        let given = self.given_before + self.start;
        // Not at the end of the thread, when there is no use for it.
        let _ = SPARE.try_with(|spare| {
            let [_, last] = spare.take().given();
            spare.set(Spare {
                records: std::mem::take(&mut self.records),
                to_merge: std::mem::take(&mut self.to_merge),
                given: [last, given.max(1)],
                session: schedule::session(),
            });
        });
    }
}
