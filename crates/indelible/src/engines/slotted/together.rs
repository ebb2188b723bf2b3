//! Records of one leaf that are inserted together: written with one fence, and committed by one store.
//!
//! | step | what is durable | what recovery sees after a crash |
//! |---|---|---|
//! | the leaf is locked; short values are replaced in place, each by one store | any of them | each old value or the new one |
//! | new records are appended to the heap, and flushed together; the fence | bytes in no slot | the leaf without the new records |
//! | fingerprints, places and the commit word, in one line (the commit) | all new records | all of them, and no record that they replace |
//! | the fence; the leaf is unlocked | | |
//!
//! What is long, and what needs a gap in the heap or a structure change, is inserted by itself: it ends the shared part. So is a record that is alone in
//! its leaf. No reader sees a record before
//! the second fence, since the leaf is locked.

use super::batch::{LANES, Lane, Wanted};
use super::insert::NewBlobs;
use super::layout::{
    CommitWord, FINGERPRINTS, PLACES, Reference, SLOTS, fingerprint, set_byte, three,
};
use super::leaf::{Found, Leaf, MOST_RECORD_WORDS, Probe, Search, write_record};
use super::records::Value;
use super::{Bug, Tree};
use crate::Result;
use crate::concurrency::epochs;
use crate::engines::StringRecord;
use crate::pmem::planted::planted;

/// What is to be committed in a leaf that is locked.
struct Together<'a> {
    leaf: Leaf<'a>,
    word: CommitWord,
    /// The slots that are in use now, or will be: none is used again before the commit.
    slots: u32,
    fingerprints: [u64; 3],
    places: [u64; 3],
    /// Where the new records begin and end, in words from the begin of the leaf.
    begin: usize,
    end: usize,
    /// Records whose keys were not there.
    added: i64,
    /// Values that are replaced.
    old_blobs: Vec<Reference>,
    has_updates: bool,
}

impl<'a> Together<'a> {
    fn none(leaf: Leaf<'a>) -> Self {
        let places = three(leaf.cells, PLACES);
        let (word, end) = (leaf.commit_word(), leaf.heap_end(&places));
        Self {
            leaf,
            word,
            slots: word.slots(),
            fingerprints: three(leaf.cells, FINGERPRINTS),
            places,
            begin: end,
            end,
            added: 0,
            old_blobs: Vec::new(),
            has_updates: false,
        }
    }

    /// Takes a slot and the next words of the heap for a record; `false` if the leaf has none.
    fn take(&mut self, record: &[u64], hash: u64, old: Option<&Found>) -> bool {
        let slot = (!self.slots).trailing_zeros() as usize;
        if slot >= SLOTS || self.end + record.len() > self.leaf.cells.len() {
            return false;
        }
        self.slots |= 1 << slot;
        set_byte(&mut self.fingerprints, slot, fingerprint(hash));
        set_byte(&mut self.places, slot, self.end as u8);
        self.word = self.word.with(slot);
        match old {
            Some(old) => {
                self.word = self.word.without(old.slot);
                self.old_blobs.extend(self.leaf.value_blob(old));
            }
            None => self.added += 1,
        }
        self.end += record.len();
        true
    }
}

impl Tree {
    /// See [`Strings::insert_together`](crate::engines::Strings::insert_together).
    pub(super) fn insert_together(&self, records: &[StringRecord<'_>]) -> Result<usize> {
        let [most_key, most_value] = [self.sizes.most_key(), self.sizes.most_value()];
        let is_short =
            |record: &&StringRecord<'_>| record.0.len() <= most_key && record.1.len() <= most_value;
        let short = records.iter().take_while(is_short).count();
        let soon = short.min(LANES);
        let _guard = epochs::pin();
        // All leaves of the next few records are on their way to the caches, while the first ones are written.
        let keys = records[..soon].iter().map(|record| record.0);
        let found = self.lanes(keys, Wanted::Leaves);
        let mut done = 0;
        while done < soon {
            match self.insert_in_one_leaf(&records[done..short], &found[done..]) {
                Ok(0) => break,
                Ok(inserted) => done += inserted,
                // The next call comes to the error. What is inserted must not be inserted again: another thread may have changed it since.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Inserts the first record, which is short, and as many of the next ones as share its leaf and its fences. Returns how many, 0 if a lock was held by
    /// another thread or inner nodes had to be split first. `found` are lookups of the first of them, at least of one. The caller is pinned
    /// since before these.
    fn insert_in_one_leaf(
        &self,
        records: &[StringRecord<'_>],
        found: &[Lane<'_, '_>],
    ) -> Result<usize> {
        let (first, value) = records[0];
        let locked = match self.lock_found(&found[0]) {
            Some(locked) => locked,
            None => self.lock_leaf(first)?,
        };
        let high = locked.spot.high();
        // What a locked leaf covers stays as it is. But where its end is noted, in the bottom node, other leaves may have changed.
        let is_covered = |record: &&StringRecord<'_>| high.is_none_or(|high| record.0 < high);
        let covered = if locked.spot.is_current() {
            records.iter().take_while(is_covered).count()
        } else {
            1
        };
        let mut done = 0;
        if covered > 1 {
            let mut together = Together::none(locked.leaf);
            for (at, &(key, value)) in records[..covered].iter().enumerate() {
                let probe = found.get(at).map_or_else(|| self.probe(key), |it| it.probe);
                if !self.add(&mut together, probe, value) {
                    break;
                }
                done += 1;
            }
            self.commit_together(together);
        }
        if done > 0 {
            return Ok(done);
        }
        let probe = found[0].probe;
        let found = match locked.leaf.find(probe, &self.blobs, || true) {
            Search::Found(found) => Some(found),
            Search::Absent | Search::Changed => None,
        };
        let mut new = NewBlobs::none(&self.blobs);
        let put = self.put(locked, probe, found, &Value::Inline(value), &mut new)?;
        if put.is_some() {
            new.keep();
        }
        Ok(usize::from(put.is_some()))
    }

    /// Adds one record; `false` if it cannot share the fences.
    fn add(&self, together: &mut Together<'_>, probe: Probe<'_>, value: &[u8]) -> bool {
        let leaf = together.leaf;
        let found = match leaf.find(probe, &self.blobs, || true) {
            Search::Found(found) => Some(found),
            Search::Absent | Search::Changed => None,
        };
        if let Some(found) = &found
            && leaf.publish_update(self.pm, found, value)
        {
            together.has_updates = true;
            return true;
        }
        let suffix = &probe.key[leaf.commit_word().prefix().min(probe.key.len())..];
        let mut record = [0; MOST_RECORD_WORDS];
        let words = write_record(&mut record, suffix, None, &Value::Inline(value));
        let (record, at) = (&record[..words], together.end);
        if !together.take(record, probe.hash, found.as_ref()) {
            return false;
        }
        for (cell, &word) in leaf.cells[at..].iter().zip(record) {
            self.pm.store(cell, word);
        }
        true
    }

    /// The fences, and the commit between them.
    fn commit_together(&self, together: Together<'_>) {
        let Together { leaf, .. } = together;
        if together.begin == together.end {
            if together.has_updates {
                self.pm.fence();
            }
            return;
        }
        self.orders.forget(leaf.place);
        self.pm.flush(&leaf.cells[together.begin..together.end]);
        if !planted(Bug::TogetherInOneFence) {
            self.pm.fence();
        }
        let lines = [
            (FINGERPRINTS, together.fingerprints),
            (PLACES, together.places),
        ];
        for (first, words) in lines {
            for (cell, word) in leaf.cells[first..].iter().zip(words) {
                self.pm.store(cell, word);
            }
        }
        // COMMIT slotted.together: the slots in use, with those of the new records and without those of the records that they replace. Before this store
        // recovery sees the leaf as it was: the new records lie in slots and in a part of the heap that are not in use. After it, it sees all
        // of them. Fingerprints and places lie in the same line and were stored before.
        self.pm
            .commit(&leaf.cells[0], together.word.0, "slotted.together");
        self.count_change(leaf.offset(), together.added);
        for blob in together.old_blobs {
            self.drop_blob(blob);
        }
    }
}
