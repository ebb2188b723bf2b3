//! A range in progress, from both ends.

use super::Host;
use crate::engines::{KeyValue, Ordered, ReadBuffer, Unread};
use crate::kernels::{Kernel, Simd, SimdLevel, dispatch};
use crate::{Error, Result};
use std::sync::Arc;

/// A range in progress, which can be read from both ends. Between two calls it holds no lock and no guard.
pub(crate) struct Cursor<E: Ordered> {
    host: Arc<Host<E>>,
    unread: Unread,
    /// What was read at the lower end, ascending.
    front: ReadBuffer<E::Bookmark>,
    /// What was read at the upper end, descending.
    back: ReadBuffer<E::Bookmark>,
    level: SimdLevel,
}

impl<E: Ordered> Cursor<E> {
    /// A range over the keys from the first to the second of `bounds`, both included; over nothing for `None`.
    pub(crate) fn new(host: Arc<Host<E>>, bounds: Unread) -> Self {
        Self {
            host,
            unread: bounds,
            front: ReadBuffer::default(),
            back: ReadBuffer::default(),
            level: SimdLevel::best(),
        }
    }

    /// The next record, if it has been read already.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<KeyValue> {
        self.front.pop()
    }

    /// The next record from the upper end, if it has been read already.
    #[inline(always)]
    pub(crate) fn pop_back(&mut self) -> Option<KeyValue> {
        self.back.pop()
    }

    /// The next records, at most `most`; none only at the end.
    pub(crate) fn next_chunk(&mut self, most: usize) -> Result<&[KeyValue]> {
        if self.front.is_empty() {
            self.read::<true>(Some(most))?;
        }
        if self.front.is_empty() {
            // The ends have met: the rest lies in the other buffer, in reverse.
            self.front.take_reversed(&mut self.back);
        }
        Ok(self.front.pop_chunk(most))
    }

    /// Reads on at the lower end, where nothing is left, and returns the next record.
    #[inline(never)]
    pub(crate) fn read_front(&mut self) -> Result<Option<KeyValue>> {
        self.read::<true>(None)?;
        // The ends have met: the rest lies in the other buffer.
        Ok(self.front.pop().or_else(|| self.back.pop_last()))
    }

    /// Reads on at the upper end, where nothing is left, and returns the next record.
    #[inline(never)]
    pub(crate) fn read_back(&mut self) -> Result<Option<KeyValue>> {
        self.read::<false>(None)?;
        Ok(self.back.pop().or_else(|| self.front.pop_last()))
    }

    fn read<const UP: bool>(&mut self, wanted: Option<usize>) -> Result<()> {
        let buffer = if UP { &mut self.front } else { &mut self.back };
        let engine = &self.host.shared.engine;
        let read = engine.read_on::<UP>(&mut self.unread, buffer, wanted);
        let read = read.and_then(|()| self.host.shared.after_reading_anything());
        let read = read.and_then(|()| {
            expect_order::<UP>(self.level, &buffer.records[buffer.start..buffer.end])
        });
        if let Err(error) = read {
            self.end();
            return Err(error);
        }
        Ok(())
    }

    /// Ends the range because of damage. Drops what was read at the other end: it lies beyond the damage.
    pub(crate) fn end(&mut self) {
        self.unread = None;
        (self.front, self.back) = (ReadBuffer::default(), ReadBuffer::default());
    }
}

/// An error if the records are out of order. In a sound map they never are, so disorder means damage.
#[inline]
fn expect_order<const UP: bool>(level: SimdLevel, records: &[KeyValue]) -> Result<()> {
    if dispatch(level, InOrder::<UP>(records)) {
        Ok(())
    } else {
        Err(disorder::<UP>(records))
    }
}

struct InOrder<'a, const UP: bool>(&'a [KeyValue]);

impl<const UP: bool> Kernel for InOrder<'_, UP> {
    type Out = bool;

    #[inline(always)]
    fn run<S: Simd>(self) -> bool {
        S::is_strict::<UP>(self.0)
    }
}

#[cold]
fn disorder<const UP: bool>(records: &[KeyValue]) -> Error {
    let is_wrong = |pair: &&[KeyValue]| {
        if UP {
            pair[0][0] >= pair[1][0]
        } else {
            pair[0][0] <= pair[1][0]
        }
    };
    let pair = records.windows(2).find(is_wrong);
    let keys = pair.map_or([0, 0], |pair| [pair[0][0], pair[1][0]]);
    Error::Damaged(format!(
        "a range meets key {:#x} and then {:#x}",
        keys[0], keys[1]
    ))
}
