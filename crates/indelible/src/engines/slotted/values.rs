//! Long values that are written and read in parts.
//!
//! | step | what is durable | what recovery does after a crash |
//! |---|---|---|
//! | the block of the new value is allocated, and kept | at most the ownership of its extents | sweeps the block |
//! | the parts are written, each with a fence | a blob that nothing refers to | sweeps it |
//! | the last part is written, with a fence | the whole blob | sweeps it |
//! | a record with the reference to the blob is put (the commit, as for any record) | the value | |
//! | the block is let go, and that of the value before is retired | nothing | |
//!
//! A blob is never changed once a leaf has referred to it, so a reader has only to see to it that its block is not used again. It
//! [keeps](crate::pool::Space::keep) the block while it is still pinned from the search for it.

use super::insert::NewBlobs;
use super::layout::Reference;
use super::leaf::Search;
use super::records::Value;
use super::{Bug, Tree};
use crate::Result;
use crate::concurrency::epochs;
use crate::concurrency::locks::Wait;
use crate::engines::{LastPart, LongValue, ReadableValue};
use crate::pmem::LINE;
use crate::pmem::planted::planted;

impl LongValue {
    fn reference(&self) -> Reference {
        Reference {
            offset: self.offset,
            bytes: self.bytes,
        }
    }
}

impl Tree {
    /// See [`Strings::new_value`](crate::engines::Strings::new_value).
    pub(super) fn new_value(&self, bytes: u64) -> Result<Option<LongValue>> {
        if bytes <= self.sizes.most_value() as u64 {
            return Ok(None);
        }
        let space = self.blobs.space_for(bytes)?;
        let offset = space.alloc()?;
        // Nothing leads to the block yet, which `check` must not take for a leak.
        space.keep(offset);
        Ok(Some(LongValue { offset, bytes }))
    }

    /// See [`Strings::write_part`](crate::engines::Strings::write_part).
    pub(super) fn write_part(&self, value: &LongValue, at: u64, part: &[u8]) {
        assert!(
            at.is_multiple_of(LINE as u64) && at + part.len() as u64 <= value.bytes,
            "invariant: a part begins with a line and lies in the value"
        );
        self.blobs.fill(value.offset + at, part);
    }

    /// See [`Strings::put_value`](crate::engines::Strings::put_value).
    pub(super) fn put_value(
        &self,
        key: &[u8],
        value: &LongValue,
        (at, part): LastPart<'_>,
    ) -> Result<bool> {
        if !planted(Bug::PutBeforeLastPart) {
            self.write_part(value, at, part);
        }
        let space = self.blobs.space_for(value.bytes)?;
        let was_there = self.put_blob(key, value.reference())?;
        if planted(Bug::PutBeforeLastPart) {
            self.write_part(value, at, part);
        }
        space.let_go(value.offset);
        Ok(was_there)
    }

    /// Puts a blob, which is durable, as the value of `key`; returns whether the key was there before.
    fn put_blob(&self, key: &[u8], blob: Reference) -> Result<bool> {
        let probe = self.probe(key);
        let mut wait = Wait::default();
        loop {
            let _guard = epochs::pin();
            let locked = self.lock_leaf(key)?;
            let found = match locked.leaf.find(probe, &self.blobs, || true) {
                Search::Found(found) => Some(found),
                Search::Absent | Search::Changed => None,
            };
            let mut new = NewBlobs::none(&self.blobs);
            if let Some(was_there) = self.put(locked, probe, found, &Value::Blob(blob), &mut new)? {
                new.keep();
                return Ok(was_there);
            }
            wait.step();
        }
    }

    /// See [`Strings::keep_value`](crate::engines::Strings::keep_value).
    pub(super) fn keep_value(&self, key: &[u8]) -> Result<Option<ReadableValue>> {
        let mut found = None;
        // The thread is pinned while the value is handed out, so a blob cannot have been freed before it is kept.
        self.look_up_until_done(key, &mut |value| {
            found = Some(match *value {
                Value::Inline(value) => Ok(ReadableValue::Short(value.to_vec())),
                Value::Blob(blob) => self.blobs.space_for(blob.bytes).map(|space| {
                    if !planted(Bug::ReaderKeepsNothing) {
                        space.keep(blob.offset);
                    }
                    ReadableValue::Long(LongValue {
                        offset: blob.offset,
                        bytes: blob.bytes,
                    })
                }),
            });
        })?;
        found.transpose()
    }

    /// See [`Strings::kept_bytes`](crate::engines::Strings::kept_bytes).
    pub(super) fn kept_bytes<'a>(&'a self, value: &'a LongValue) -> &'a [u8] {
        self.blobs.bytes(value.reference())
    }

    /// See [`Strings::let_go`](crate::engines::Strings::let_go).
    pub(super) fn let_go(&self, value: &LongValue, is_new: bool) {
        let Ok(space) = self.blobs.space_for(value.bytes) else {
            return;
        };
        if is_new {
            space.let_go(value.offset);
            space.free_now(value.offset);
        } else if !planted(Bug::ReaderKeepsNothing) {
            space.let_go(value.offset);
        }
    }
}
