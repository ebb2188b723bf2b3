//! Records of a map of byte strings that were read ahead.

use super::ReadValue;

/// Bytes of a line of a buffer.
pub(crate) const LINE_BYTES: usize = crate::pmem::LINE;

/// A line of a buffer.
pub(crate) type Line = [u8; LINE_BYTES];

/// Records read and not returned yet, in the order of reading, with one buffer for the bytes of all of them: no record has memory of its own. All of their
/// keys begin with the same prefix, which lies in the buffer once.
#[derive(Debug, Default)]
pub(crate) struct StringBuffer {
    /// The bytes of records. The last line is there to be copied from: no record has bytes in it.
    pub(crate) lines: Vec<Line>,
    pub(crate) records: Vec<Buffered>,
    /// How many of the records have been taken from the front.
    taken: usize,
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

    /// The key with this rest, which lies in the bytes of `lines`.
    #[inline(always)]
    fn with<'a>(&'a mut self, rest: BufferedPart, lines: &'a [u8]) -> &'a [u8] {
        if self.prefix == 0 {
            return rest.of(lines);
        }
        if rest.bytes as usize > LINE_BYTES {
            return self.with_long(rest, lines);
        }
        let end = self.prefix + rest.bytes as usize;
        // It is faster to copy what lies behind the key too than to ask how many bytes there are.
        let to = self.bytes.get_mut(self.prefix..);
        let from = lines.get(rest.from as usize..);
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
    fn with_long<'a>(&'a mut self, rest: BufferedPart, lines: &'a [u8]) -> &'a [u8] {
        let (mut lines, bytes) = (&lines[rest.from as usize..], rest.bytes as usize);
        let end = self.prefix + bytes;
        if self.bytes.len() < end + LINE_BYTES {
            self.make_room(end + LINE_BYTES);
        }
        let mut key = &mut self.bytes[self.prefix..];
        let mut left = bytes;
        loop {
            let (copied, behind) = lines
                .split_first_chunk::<LINE_BYTES>()
                .expect("invariant: a line follows the last record");
            let (to, rest) = key
                .split_first_chunk_mut()
                .expect("there is room for another line");
            *to = *copied;
            if left <= LINE_BYTES {
                break;
            }
            (lines, key, left) = (behind, rest, left - LINE_BYTES);
        }
        &self.bytes[..end]
    }
}

/// Bytes of a buffer: where they begin, and how many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BufferedPart {
    pub(crate) from: u32,
    pub(crate) bytes: u32,
}

impl BufferedPart {
    /// A value that is looked up later.
    pub(crate) const LATER: Self = Self {
        from: u32::MAX,
        bytes: 0,
    };

    /// The bytes, in those of the buffer.
    #[inline(always)]
    pub(crate) fn of(self, bytes: &[u8]) -> &[u8] {
        let from = self.from as usize;
        &bytes[from..from + self.bytes as usize]
    }
}

/// Where a record lies in the bytes of a buffer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Buffered {
    /// The key behind the prefix.
    pub(crate) rest: BufferedPart,
    pub(crate) value: BufferedPart,
}

impl StringBuffer {
    /// Drops all records, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.records.clear();
        self.taken = 0;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.taken == self.records.len()
    }

    fn record(&mut self, record: Buffered) -> (&[u8], ReadValue<'_>) {
        let lines = self.lines.as_flattened();
        let value = if record.value == BufferedPart::LATER {
            ReadValue::Later
        } else {
            ReadValue::Here(record.value.of(lines))
        };
        (self.key.with(record.rest, lines), value)
    }

    /// Takes the record that was read first, if its value is here.
    #[inline(always)]
    pub(crate) fn pop_whole(&mut self) -> Option<(&[u8], &[u8])> {
        let record = *self.records.get(self.taken)?;
        if record.value == BufferedPart::LATER {
            return None;
        }
        self.taken += 1;
        let lines = self.lines.as_flattened();
        Some((self.key.with(record.rest, lines), record.value.of(lines)))
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
}
