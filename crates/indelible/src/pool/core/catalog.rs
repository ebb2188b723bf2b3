//! The catalog: which objects the pool has, and which of them are open.

use super::PoolCore;
use crate::concurrency::sync::lock;
use crate::pmem::Cell;
use crate::pmem::planted::planted;
use crate::pool::Bug;
use crate::pool::layout::{CatalogEntry, NAME_BYTES, OBJECTS, OPTION_BYTES};
use crate::{Error, Result};
use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

/// An open object, whatever its type; the layers above know which.
pub(crate) type Object = dyn Any + Send + Sync;

/// An object that may be open.
pub(super) type WeakObject = Weak<Object>;

/// The open objects by catalog entry, locked.
pub(crate) type Registry<'a> = MutexGuard<'a, HashMap<usize, WeakObject>>;

/// What a catalog entry says of an object, apart from what its engine keeps there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signature {
    /// Code of the kind of engine.
    pub(crate) kind: u8,
    /// Codes of the types of keys and values, or of geometries and payloads.
    pub(crate) types: [u8; 2],
    /// Version of the engine's own format; 1 for objects from pools of format 1.
    pub(crate) object_format: u32,
    /// What the engine encoded when the object was created.
    pub(crate) options: [u8; OPTION_BYTES],
}

/// In the byte of a signature that has the name's length: the second name counts.
const OTHER_NAME: u8 = 0x80;

impl PoolCore {
    /// The catalog entry at `slot`.
    pub(crate) fn entry(&self, slot: usize) -> &CatalogEntry {
        &self.catalog()[slot]
    }

    /// What the catalog says of the object at `slot`.
    pub(crate) fn signature(&self, slot: usize) -> Signature {
        let entry = self.entry(slot);
        let word = entry.signature.load();
        let object_format = entry.object_format.load() as u32;
        let mut options = [0; OPTION_BYTES];
        for (bytes, cell) in options
            .as_chunks_mut::<8>()
            .0
            .iter_mut()
            .zip(&entry.options)
        {
            *bytes = cell.load().to_le_bytes();
        }
        if object_format == 0 {
            // Format 1 had four bytes of options, in the upper half of this word.
            options[..4].copy_from_slice(&((word >> 32) as u32).to_le_bytes());
        }
        let [kind, key, value, ..] = word.to_le_bytes();
        Signature {
            kind,
            types: [key, value],
            // Format 1 of the pool is version 1 of each engine's format.
            object_format: object_format.max(1),
            options,
        }
    }

    pub(crate) fn name_of(&self, slot: usize) -> String {
        let (bytes, length) = self.name_bytes(slot);
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    pub(crate) fn has_name(&self, slot: usize, name: &str) -> bool {
        let (bytes, length) = self.name_bytes(slot);
        bytes[..length] == *name.as_bytes()
    }

    fn name_bytes(&self, slot: usize) -> ([u8; 64], usize) {
        let entry = self.entry(slot);
        let mut bytes = [0; 64];
        let byte = (entry.signature.load_acquire() >> 24) as u8;
        let name = match byte & OTHER_NAME {
            0 => &entry.name_0,
            _ => &entry.name_1,
        };
        for (bytes, cell) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(name) {
            *bytes = cell.load().to_ne_bytes();
        }
        (bytes, usize::from(byte & !OTHER_NAME).min(NAME_BYTES))
    }

    /// The slots of all objects.
    pub(crate) fn slots(&self) -> impl Iterator<Item = usize> + '_ {
        (0..OBJECTS).filter(|&slot| self.entry(slot).owner.load_acquire() != 0)
    }

    /// Writes a free entry, all but its owner, and returns its slot. The registry is locked by the caller.
    pub(crate) fn prepare_entry(&self, name: &str, signature: Signature) -> Result<usize> {
        let Some(slot) = (0..OBJECTS).find(|&slot| self.entry(slot).owner.load() == 0) else {
            return Err(Error::TooManyMaps(OBJECTS));
        };
        let entry = self.entry(slot);
        self.write_name(&entry.name_0, name);
        let zeros = entry
            .roots
            .iter()
            .chain(&entry.name_1)
            .chain([&entry.records, &entry.records_generation]);
        zeros.for_each(|cell| self.pm.store(cell, 0));
        let [key, value] = signature.types;
        let word = u64::from_le_bytes([signature.kind, key, value, name.len() as u8, 0, 0, 0, 0]);
        self.pm.store(&entry.signature, word);
        let format = u64::from(signature.object_format);
        self.pm.store(&entry.object_format, format);
        for (cell, bytes) in entry
            .options
            .iter()
            .zip(signature.options.as_chunks::<8>().0)
        {
            self.pm.store(cell, u64::from_le_bytes(*bytes));
        }
        // Durable with the fence before the entry is committed.
        self.pm.flush(entry);
        let mut extents = lock(&self.extents);
        let owner = extents.next_owner;
        // Numbers are never reused. There are four billion of them.
        extents.next_owner = owner
            .checked_add(1)
            .ok_or_else(|| Error::Damaged(format!("{owner} cannot be the number of a map")))?;
        self.owners[slot].store(owner, Ordering::Relaxed);
        Ok(slot)
    }

    fn write_name(&self, cells: &[Cell; 8], name: &str) {
        let mut bytes = [0; 64];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        for (cell, word) in cells.iter().zip(bytes.as_chunks::<8>().0) {
            self.pm.store(cell, u64::from_ne_bytes(*word));
        }
    }

    /// Gives the object at `slot` another name. The registry is locked by the caller.
    pub(crate) fn rename_entry(&self, slot: usize, name: &str) {
        let entry = self.entry(slot);
        let word = entry.signature.load();
        let is_other = (word >> 24) as u8 & OTHER_NAME != 0;
        let free = if is_other {
            &entry.name_0
        } else {
            &entry.name_1
        };
        self.pm.note("object renamed", u64::from(is_other));
        self.write_name(free, name);
        self.pm.persist(free);
        let byte = name.len() as u8 | if is_other { 0 } else { OTHER_NAME };
        // COMMIT pool.rename: which of the two names counts, and its length. Before this store recovery finds the old name, after
        // it the new one.
        let renamed = word & !(0xff << 24) | u64::from(byte) << 24;
        self.pm.commit(&entry.signature, renamed, "pool.rename");
    }

    /// Commits a prepared entry.
    pub(crate) fn commit_entry(&self, slot: usize) {
        self.pm.note("object created", 0);
        // The rest of the entry, and what the engine has laid out without a fence of its own.
        self.pm.fence();
        // COMMIT pool.create: the owner's number. Before this store recovery finds a free entry and extents without an owner,
        // which are free; after it the map exists.
        let owner = u64::from(self.owners[slot].load(Ordering::Relaxed));
        self.pm
            .commit(&self.entry(slot).owner, owner, "pool.create");
    }

    /// Removes an entry, prepared or committed, and frees its extents. The map is not open.
    pub(crate) fn remove_entry(&self, slot: usize) {
        self.pm.note("object dropped", 0);
        let owner = self.owners[slot].swap(0, Ordering::Relaxed);
        if planted(Bug::DropFreesFirst) {
            self.free_all(owner);
        }
        // COMMIT pool.drop: the entry is free. Before this store recovery finds the map, whole; after it, extents without an owner.
        self.pm.commit(&self.entry(slot).owner, 0, "pool.drop");
        self.free_all(owner);
    }

    fn free_all(&self, owner: u32) {
        for extent in self.extents_of(owner, |_| true) {
            self.free_extents(owner, extent);
        }
    }

    /// Locks the registry of open objects.
    pub(crate) fn registry(&self) -> Registry<'_> {
        lock(&self.open_objects)
    }

    /// The open object at `slot`, if there is one; waits for one that is being closed.
    pub(crate) fn open_object<'a>(
        &'a self,
        mut objects: Registry<'a>,
        slot: usize,
    ) -> (Registry<'a>, Option<Arc<Object>>) {
        loop {
            match objects.get(&slot).map(Weak::upgrade) {
                None => return (objects, None),
                Some(Some(object)) => return (objects, Some(object)),
                Some(None) => {
                    objects = self
                        .object_closed
                        .wait(objects)
                        .unwrap_or_else(PoisonError::into_inner)
                }
            }
        }
    }

    /// Notes that the object at `slot` is closed, and does not use the pool any more.
    pub(crate) fn object_was_closed(&self, slot: usize) {
        self.registry().remove(&slot);
        self.object_closed.notify_all();
    }
}
