//! Changes of one key.

use super::blobs::Blobs;
use super::layout::Reference;
use super::leaf::{Found, Leaf, MOST_RECORD_WORDS, Probe, Search, ValueCopy, write_record};
use super::records::Value;
use super::search::LockedLeaf;
use super::separator::Text;
use super::smo::{NewRecord, is_worth_merging};
use super::{Bug, Tree};
use crate::Result;
use crate::concurrency::epochs;
use crate::concurrency::locks::Wait;
use crate::engines::inner_nodes::InnerTree;
use crate::engines::{Current, StringDecision, unless_full};
use crate::pmem::planted::planted;

/// Blobs that were written and that nothing refers to yet: freed unless they are kept.
pub(super) struct NewBlobs<'a> {
    blobs: &'a Blobs,
    list: Vec<Reference>,
}

impl<'a> NewBlobs<'a> {
    pub(super) fn none(blobs: &'a Blobs) -> Self {
        Self {
            blobs,
            list: Vec::new(),
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<Reference> {
        let blob = self.blobs.write(bytes)?;
        self.list.push(blob);
        Ok(blob)
    }

    /// A block for a blob, which the caller fills.
    pub(super) fn add(&mut self, blob: Reference) {
        self.list.push(blob);
    }

    /// Leaves refer to all of them now.
    pub(super) fn keep(&mut self) {
        self.list.clear();
    }
}

impl Drop for NewBlobs<'_> {
    fn drop(&mut self) {
        for &blob in &self.list {
            self.blobs.free_now(blob);
        }
    }
}

impl Tree {
    /// See [`Strings::apply`](crate::engines::Strings::apply).
    pub(super) fn apply<'v>(
        &self,
        key: &[u8],
        likely: Option<&'v [u8]>,
        decide: &mut dyn FnMut(Option<&Current<'_>>) -> StringDecision<'v>,
    ) -> Result<bool> {
        let probe = self.probe(key);
        let mut ready = NewBlobs::none(&self.blobs);
        let likely = match likely {
            // Without space for it the key is asked all the same: it may not take the value.
            Some(value) if value.len() > self.sizes.most_value() => {
                unless_full(ready.write(value).map(|blob| Some((value, blob))))?
            }
            _ => None,
        };
        let mut wait = Wait::default();
        loop {
            let _guard = epochs::pin();
            if let Some(was_there) = self.try_apply(probe, likely, &mut ready, decide)? {
                return Ok(was_there);
            }
            wait.step();
        }
    }

    /// One attempt; `None` if another thread held a lock, or inner nodes had to be split first. The caller is pinned.
    fn try_apply<'v>(
        &self,
        probe: Probe<'_>,
        likely: Option<(&'v [u8], Reference)>,
        ready: &mut NewBlobs<'_>,
        decide: &mut dyn FnMut(Option<&Current<'_>>) -> StringDecision<'v>,
    ) -> Result<Option<bool>> {
        let locked = self.lock_leaf(probe.key)?;
        let leaf = locked.leaf;
        let found = match leaf.find(probe, &self.blobs, || true) {
            Search::Found(found) => Some(found),
            Search::Absent | Search::Changed => None,
        };
        match self.ask(leaf, found.as_ref(), decide) {
            StringDecision::Keep => Ok(Some(found.is_some())),
            StringDecision::Remove => {
                if let Some(found) = &found {
                    self.remove_found(locked, probe, found);
                }
                Ok(Some(found.is_some()))
            }
            StringDecision::Put(value) => {
                let mut new = NewBlobs::none(&self.blobs);
                let (blob, is_ready) = match likely {
                    _ if value.len() <= self.sizes.most_value() => (None, false),
                    Some((bytes, blob)) if std::ptr::eq(bytes, &*value) => (Some(blob), true),
                    _ => (Some(new.write(&value)?), false),
                };
                let value = blob.map_or(Value::Inline(&value), Value::Blob);
                let done = self.put(locked, probe, found, &value, &mut new)?;
                if done.is_some() {
                    new.keep();
                    if is_ready {
                        ready.keep();
                    }
                }
                Ok(done)
            }
        }
    }

    /// Asks the caller of a change what to do.
    fn ask<'v>(
        &self,
        leaf: Leaf<'_>,
        found: Option<&Found>,
        decide: &mut dyn FnMut(Option<&Current<'_>>) -> StringDecision<'v>,
    ) -> StringDecision<'v> {
        let Some(found) = found else {
            return decide(None);
        };
        decide(Some(&Current {
            bytes: leaf.value_bytes(found),
            read: &|use_value| {
                let mut copy = ValueCopy::new();
                use_value(self.bytes_of(&leaf.value(found, &mut copy)));
            },
        }))
    }

    fn remove_found(&self, locked: LockedLeaf<'_>, probe: Probe<'_>, found: &Found) {
        let leaf = locked.leaf;
        let key_blob = leaf.key_blob(found);
        let value_blob = leaf.value_blob(found);
        let before = leaf.live_words();
        self.orders.forget(leaf.place);
        leaf.remove(self.pm, found);
        self.count_change(leaf.offset(), -1);
        for blob in key_blob.into_iter().chain(value_blob) {
            self.drop_blob(blob);
        }
        let left = leaf.live_words();
        drop(locked);
        if is_worth_merging(leaf, before, left) {
            self.merge(Text::of(probe.key));
        }
    }

    /// Puts a value, in place if that is possible.
    pub(super) fn put(
        &self,
        locked: LockedLeaf<'_>,
        probe: Probe<'_>,
        found: Option<Found>,
        value: &Value<'_>,
        new: &mut NewBlobs<'_>,
    ) -> Result<Option<bool>> {
        let leaf = locked.leaf;
        if let (Some(found), Value::Inline(bytes)) = (&found, value)
            && leaf.update(self.pm, found, bytes)
        {
            return Ok(Some(true));
        }
        let key_blob = match found.as_ref().map(|found| leaf.key_blob(found)) {
            Some(blob) => blob,
            None if probe.is_long => Some(new.write(probe.key)?),
            None => None,
        };
        let old_blob = found.as_ref().and_then(|found| leaf.value_blob(found));
        let suffix = &probe.key[leaf.commit_word().prefix().min(probe.key.len())..];
        let mut record = [0; MOST_RECORD_WORDS];
        let long_key = key_blob.map(|blob| (probe.hash, blob));
        let words = write_record(&mut record, suffix, long_key, value);
        let record = &record[..words];
        let was_there = found.is_some();
        if let Some(room) = leaf.room(record.len()) {
            self.orders.forget(leaf.place);
            leaf.insert(self.pm, room, record, probe.hash, found.as_ref());
            if !was_there {
                self.count_change(leaf.offset(), 1);
            }
        } else {
            let record = NewRecord {
                probe,
                key_blob,
                value,
                replaces: found.map(|found| found.slot),
            };
            if !self.restructure(locked, &record)? {
                return Ok(None);
            }
        }
        if let Some(blob) = old_blob {
            self.drop_blob(blob);
        }
        Ok(Some(was_there))
    }

    /// Frees a blob that no leaf refers to any more.
    pub(super) fn drop_blob(&self, blob: Reference) {
        if planted(Bug::BlobFreedAtOnce) {
            self.blobs.free_now(blob);
        } else {
            self.blobs.retire(blob);
        }
    }
}
