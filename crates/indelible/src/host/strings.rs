//! What the host adds to an engine of byte strings: it refuses writes to pools that are open for reading only, and keys and values that are
//! too long; repeats what fails for want of space; and waits for the log.

use super::{Host, expect_fill};
use crate::engines::{
    Current, LastPart, LongValue, ReadableValue, StringBuffer, StringDecision, StringRange,
    StringRecord, Strings,
};
use crate::{Error, Result};
use std::hash::Hasher;

/// The place of a key in the table of the gate.
fn place_of(key: &[u8]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(key);
    hasher.finish()
}

impl<E: Strings> Host<E> {
    /// Waits until what was read of a key is durable, if the pool promises that.
    fn after_reading_string(&self, key: &[u8]) -> Result<()> {
        match &self.shared.gate {
            Some(gate) if !gate.is_open() => gate.after_reading(&[place_of(key)]),
            _ => Ok(()),
        }
    }

    pub(crate) fn get_string(&self, key: &[u8], use_value: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let Some(gate) = &self.shared.gate else {
            return self.shared.engine.get_with(key, use_value);
        };
        // Nobody may see a value that can still be lost, so it is copied first.
        let (mut is_used, mut copy) = (false, None);
        let is_there = (self.shared.engine).get_with(key, &mut |value| {
            if gate.is_open_for_what_comes() {
                use_value(value);
                is_used = true;
            } else {
                copy = Some(value.to_vec());
            }
        })?;
        if is_used {
            return Ok(true);
        }
        self.after_reading_string(key)?;
        if let Some(value) = copy {
            use_value(&value);
        }
        Ok(is_there)
    }

    /// See [`Strings::get_many`].
    pub(crate) fn get_strings(
        &self,
        keys: &[&[u8]],
        use_value: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<()> {
        let Some(gate) = &self.shared.gate else {
            return self.shared.engine.get_many(keys, use_value);
        };
        // Nobody may see values that can still be lost, so they are copied first.
        let mut copies = Vec::new();
        (self.shared.engine).get_many(keys, &mut |number, value| {
            if gate.is_open_for_what_comes() {
                use_value(number, value);
            } else {
                copies.push((number, value.to_vec()));
            }
        })?;
        if !gate.is_open() {
            let places: Vec<u64> = keys.iter().map(|key| place_of(key)).collect();
            gate.after_reading(&places)?;
        }
        for (number, value) in &copies {
            use_value(*number, value);
        }
        Ok(())
    }

    pub(crate) fn string_len(&self, key: &[u8]) -> Result<Option<u64>> {
        let bytes = self.shared.engine.value_len(key)?;
        self.after_reading_string(key)?;
        Ok(bytes)
    }

    /// An error if the map takes no such key, or no value of so many bytes.
    pub(crate) fn expect_lengths(&self, key: &[u8], value: u64) -> Result<()> {
        expect_length("key", key.len() as u64, E::MOST_BYTES[0])?;
        expect_length("value", value, E::MOST_BYTES[1])
    }

    /// See [`Strings::apply`].
    pub(crate) fn apply_string<'v>(
        &self,
        key: &[u8],
        likely: Option<&'v [u8]>,
        decide: &mut dyn FnMut(Option<&Current<'_>>) -> StringDecision<'v>,
    ) -> Result<bool> {
        self.expect_writable()?;
        expect_length("key", key.len() as u64, E::MOST_BYTES[0])?;
        if let Some(value) = likely {
            expect_length("value", value.len() as u64, E::MOST_BYTES[1])?;
        }
        let mut refused = None;
        let mut checked = |now: Option<&Current<'_>>| {
            let decision = decide(now);
            if let StringDecision::Put(value) = &decision
                && let Err(error) = expect_length("value", value.len() as u64, E::MOST_BYTES[1])
            {
                refused = Some(error);
                return StringDecision::Keep;
            }
            decision
        };
        let was_there = self.write_string(key, || {
            self.with_space(|| self.shared.engine.apply(key, likely, &mut checked))
        })?;
        refused.map_or(Ok(was_there), Err)
    }

    /// Inserts records whose keys ascend strictly. A record that is too long is an error before any is inserted.
    pub(crate) fn insert_strings(&self, records: &[StringRecord<'_>]) -> Result<()> {
        self.expect_writable()?;
        for (key, value) in records {
            self.expect_lengths(key, value.len() as u64)?;
        }
        let mut rest = records;
        let mut insert = || self.with_space(|| self.insert_all_strings(&mut rest));
        match &self.shared.gate {
            None => insert(),
            Some(gate) => {
                let places: Vec<u64> = records.iter().map(|(key, _)| place_of(key)).collect();
                let places = places.iter().copied();
                self.write_through(gate, places, insert)
            }
        }
    }

    /// `rest` loses the records that are inserted: after an error the others are not.
    fn insert_all_strings(&self, rest: &mut &[StringRecord<'_>]) -> Result<()> {
        let engine = &self.shared.engine;
        while let Some(&(key, value)) = rest.first() {
            let mut done = engine.insert_together(rest)?;
            if done == 0 {
                let decide = &mut |_: Option<&Current<'_>>| StringDecision::Put(value.into());
                engine.apply(key, Some(value), decide)?;
                done = 1;
            }
            *rest = &rest[done..];
        }
        Ok(())
    }

    /// See [`Strings::new_value`].
    pub(crate) fn new_value(&self, key: &[u8], bytes: u64) -> Result<Option<LongValue>> {
        self.expect_writable()?;
        self.expect_lengths(key, bytes)?;
        self.write_ahead(|| self.with_space(|| self.shared.engine.new_value(bytes)))
    }

    /// See [`Strings::write_part`].
    pub(crate) fn write_part(&self, value: &LongValue, at: u64, part: &[u8]) -> Result<()> {
        self.write_ahead(|| {
            self.shared.engine.write_part(value, at, part);
            Ok(())
        })
    }

    /// Does `work`, which writes what nothing leads to yet.
    fn write_ahead<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        match &self.shared.gate {
            None => work(),
            Some(gate) => gate.write_ahead(self.shared.place.core.pm(), work),
        }
    }

    /// See [`Strings::put_value`]. Takes the value as soon as it belongs to the index.
    pub(crate) fn put_value(
        &self,
        key: &[u8],
        value: &mut Option<LongValue>,
        last: LastPart<'_>,
    ) -> Result<bool> {
        self.write_string(key, || {
            let new = value.as_ref().expect("invariant: a value is put once");
            let was_there = self.with_space(|| self.shared.engine.put_value(key, new, last))?;
            // Also if the caller gets an error, because the log has failed meanwhile: others may read the value already.
            *value = None;
            Ok(was_there)
        })
    }

    /// Does `work`, which changes a key, and waits until the change is durable, if the pool promises that.
    fn write_string<T>(&self, key: &[u8], work: impl FnOnce() -> Result<T>) -> Result<T> {
        match &self.shared.gate {
            None => work(),
            Some(gate) => {
                let place = std::iter::once(place_of(key));
                self.write_through(gate, place, work)
            }
        }
    }

    /// See [`Strings::keep_value`].
    pub(crate) fn keep_value(&self, key: &[u8]) -> Result<Option<ReadableValue>> {
        let value = self.shared.engine.keep_value(key)?;
        let Some(ReadableValue::Long(long)) = &value else {
            self.after_reading_string(key)?;
            return Ok(value);
        };
        // Nobody may see a value that can still be lost. The parts of the value came before it in the log.
        let settled = self
            .after_reading_string(key)
            .and_then(|()| self.expect_present(long));
        settled.inspect_err(|_| self.let_go(long, false))?;
        Ok(value)
    }

    /// An error if a page of the value would have to be read from a record of the log that is damaged. It is read later in a way that has no errors.
    fn expect_present(&self, value: &LongValue) -> Result<()> {
        // Looks at each page.
        self.kept_bytes(value);
        match &self.shared.gate {
            Some(gate) => gate.expect_whole(),
            None => Ok(()),
        }
    }

    /// See [`Strings::kept_bytes`].
    pub(crate) fn kept_bytes<'a>(&'a self, value: &'a LongValue) -> &'a [u8] {
        self.shared.engine.kept_bytes(value)
    }

    /// See [`Strings::let_go`].
    pub(crate) fn let_go(&self, value: &LongValue, is_new: bool) {
        self.shared.engine.let_go(value, is_new);
    }

    pub(crate) fn bulk_load_strings(
        &self,
        records: &mut dyn Iterator<Item = Result<(Vec<u8>, Vec<u8>)>>,
        fill: f64,
    ) -> Result<()> {
        self.expect_writable()?;
        expect_fill(fill)?;
        // The load replaces all nodes, which the sweep may not meet. The records come from an iterator and cannot be had twice, so whatever
        // space there is is looked for first.
        self.shared.warm_up(&|| true)?;
        self.shared.give_back();
        // The engine asks on behind the end, and an iterator that has ended may begin again.
        let mut records = records.fuse().map(|record| {
            let (key, value) = record?;
            self.expect_lengths(&key, value.len() as u64)?;
            Ok((key, value))
        });
        let core = &self.shared.place.core;
        core.durably(|| self.shared.engine.bulk_load(&mut records, fill))
    }

    /// See [`Strings::read_on`].
    pub(crate) fn read_strings(
        &self,
        up: bool,
        unread: &mut StringRange,
        buffer: &mut StringBuffer,
        with_values: bool,
    ) -> Result<()> {
        (self.shared.engine).read_on(up, unread, buffer, with_values)?;
        self.shared.after_reading_anything()
    }
}

fn expect_length(what: &'static str, bytes: u64, most: u64) -> Result<()> {
    if bytes > most {
        return Err(Error::TooLong { what, bytes, most });
    }
    Ok(())
}
