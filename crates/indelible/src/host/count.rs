//! The number of records across a clean close.

use super::{Bug, Shared};
use crate::Result;
use crate::concurrency::records::RECORD_BYTES;
use crate::engines::Engine;
use crate::pmem::planted::planted;

impl<E: Engine> Shared<E> {
    /// The number of records. The first call after a crash waits until all records have been counted.
    pub(super) fn records(&self) -> Result<u64> {
        let locks = self.engine.locks();
        if !locks.count.is_complete() {
            self.warm_up(&|| true)?;
        }
        let total = locks.total();
        self.after_reading_anything()?;
        Ok(total)
    }

    /// Begins with the number of the last clean close, if there is one.
    pub(super) fn begin_count(&self) {
        let recorded = self.take_recorded();
        // An engine that reads everything at the open has counted already.
        let locks = self.engine.locks();
        if let Some(records) = recorded.filter(|_| !locks.count.is_complete()) {
            locks.begin_with(records);
        }
    }

    /// The number of records from the catalog, if it was written at a clean close and nothing has changed since. The
    /// number in the catalog is invalid from now on; the next clean close writes a new one.
    fn take_recorded(&self) -> Option<u64> {
        let core = &self.place.core;
        let entry = core.entry(self.place.slot);
        let written = entry.records_generation.load();
        // A read-only open has the generation of the session before.
        let in_this_session =
            written == core.generation() && (core.was_clean() || !core.is_read_only());
        let at_last_close = core.was_clean()
            && written.checked_add(1) == Some(core.generation())
            && !core.is_read_only();
        let forgetful = planted(Bug::ForgetGeneration);
        let records = (written != 0 && (in_this_session || at_last_close || forgetful))
            .then(|| entry.records.load())
            // A number of more records than fit into the pool was not written by a close.
            .filter(|&records| records <= core.length() / RECORD_BYTES);
        if !core.is_read_only() && !forgetful {
            // Need not be durable: after a crash the number is not used.
            core.pm().store(&entry.records_generation, 0);
        }
        records
    }

    /// Writes the number of records to the catalog, for the next open after a clean close. A hint, valid for that one
    /// generation: a crash after this makes the pool unclean and the hint void.
    pub(super) fn record_count(&self) {
        let core = &self.place.core;
        if core.is_read_only() || core.is_closed() {
            return;
        }
        let entry = core.entry(self.place.slot);
        let locks = self.engine.locks();
        let (records, generation) = if locks.count.is_complete() {
            (locks.total(), core.generation())
        } else {
            (0, 0)
        };
        core.pm().store(&entry.records, records);
        core.pm()
            .commit(&entry.records_generation, generation, "host.count");
    }
}
