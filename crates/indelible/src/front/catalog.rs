//! Maps in the catalog of a pool: found by name, compared with what is asked for, created, opened once.

use super::{MapInfo, MapOptions, Pool, Type};
use crate::engines::{AnyOptions, Place};
use crate::host::{AnyMap, kind_of};
use crate::pmem::planted::planted;
use crate::pool::{Bug, NAME_BYTES, OPTION_BYTES, PoolCore, Signature};
use crate::{Error, Result};
use std::sync::Arc;

/// Type of the keys, and of the values.
pub(super) type Types = [Type; 2];

impl Pool {
    /// Opens a map, creating it if it is not there.
    pub(super) fn open_or_create(
        &self,
        name: &str,
        types: Types,
        options: &MapOptions,
    ) -> Result<AnyMap> {
        let encoded = options.any().encode()?;
        loop {
            match self.find(name) {
                Ok(slot) if !options.accepts_any() => self.expect_options(slot, options)?,
                Ok(_) => {}
                Err(_) if self.core.is_read_only() => return Err(Error::ReadOnly),
                Err(_) => self.create_map(name, types, options, encoded)?,
            }
            match self.open_as(name, Some(types)) {
                // Dropped by another thread in between.
                Err(Error::NoSuchMap(_)) => {}
                result => return result.map(|(_, map)| map),
            }
        }
    }

    /// Opens a map that has these types; any that this version knows for `None`. Returns its catalog entry as well.
    pub(super) fn open_as(&self, name: &str, types: Option<Types>) -> Result<(usize, AnyMap)> {
        loop {
            let slot = self.find(name)?;
            expect_types(name, &self.core.signature(slot), types)?;
            // While the registry is unlocked in here the map may be dropped.
            if let Some(map) = open_at(&self.core, slot, || self.find(name).ok() == Some(slot))? {
                return Ok((slot, map));
            }
        }
    }

    pub(crate) fn find(&self, name: &str) -> Result<usize> {
        self.core
            .slots()
            .find(|&slot| self.core.has_name(slot, name))
            .ok_or_else(|| Error::NoSuchMap(name.into()))
    }

    /// What the catalog says of a map; `None` for one of a later version.
    pub(super) fn info(&self, slot: usize) -> Option<MapInfo> {
        let signature = self.core.signature(slot);
        let [key, value] = signature.types.map(Type::from_code);
        Some(MapInfo {
            name: self.core.name_of(slot),
            key: key?,
            value: value?,
            options: options_of(&signature).ok()??,
        })
    }

    fn expect_options(&self, slot: usize, wanted: &MapOptions) -> Result<()> {
        let Some(found) = options_of(&self.core.signature(slot))? else {
            // Opening it says why it cannot be opened.
            return Ok(());
        };
        if found.any() == wanted.any() {
            return Ok(());
        }
        Err(Error::OtherOptions {
            name: self.core.name_of(slot),
            found: found.to_string(),
            wanted: wanted.to_string(),
        })
    }

    fn create_map(
        &self,
        name: &str,
        types: Types,
        options: &MapOptions,
        encoded: [u8; OPTION_BYTES],
    ) -> Result<()> {
        expect_name(name)?;
        let _objects = self.core.registry();
        if self.find(name).is_ok() {
            return Ok(());
        }
        let signature = Signature {
            kind: options.kind() as u8,
            types: types.map(|of| of as u8),
            object_format: options.any().format(),
            options: encoded,
        };
        let slot = self.core.prepare_entry(name, signature)?;
        if planted(Bug::CreateCommitsEarly) {
            self.core.commit_entry(slot);
        }
        let place = Place {
            core: Arc::clone(&self.core),
            slot,
        };
        self.core.durably(|| {
            AnyMap::format(&place, options.any())
                .inspect(|()| self.core.commit_entry(slot))
                .inspect_err(|_| self.core.remove_entry(slot))
        })
    }
}

/// The map of a catalog entry, open: the one that is, or opened now. `None` if it is not there any more, as `is_there` says with the
/// registry of open objects locked.
pub(super) fn open_at(
    core: &Arc<PoolCore>,
    slot: usize,
    is_there: impl Fn() -> bool,
) -> Result<Option<AnyMap>> {
    let place = Place {
        core: Arc::clone(core),
        slot,
    };
    let (mut objects, open) = core.open_object(core.registry(), slot);
    if let Some(object) = open {
        return AnyMap::from_object(&place, object).map(Some);
    }
    if !is_there() {
        return Ok(None);
    }
    let map = AnyMap::open(place)?;
    objects.insert(slot, Arc::downgrade(&map.object()));
    Ok(Some(map))
}

/// Salvage: opens every map, without writing anything, and checks it.
pub(crate) fn accept_if_whole(core: &Arc<PoolCore>) -> Result<()> {
    for slot in core.slots().collect::<Vec<_>>() {
        let place = Place {
            core: Arc::clone(core),
            slot,
        };
        let map = AnyMap::open(place)?;
        if let Some(problem) = map.check()?.into_iter().next() {
            let name = core.name_of(slot);
            return Err(Error::Damaged(format!("map {name:?}: {problem}")));
        }
    }
    Ok(())
}

pub(super) fn expect_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_BYTES {
        return Err(Error::BadName(name.len()));
    }
    Ok(())
}

/// Kind and options of a map in the catalog; `None` for a kind that this version does not know.
fn options_of(signature: &Signature) -> Result<Option<MapOptions>> {
    let Some(kind) = kind_of(signature) else {
        return Ok(None);
    };
    AnyOptions::decode(kind, signature.object_format, &signature.options)
        .map(|options| Some(options.into()))
}

/// Whether a map in the catalog has the types that are asked for, or any that this version knows.
fn expect_types(name: &str, signature: &Signature, wanted: Option<Types>) -> Result<()> {
    let found = match signature.types.map(Type::from_code) {
        [Some(key), Some(value)] if kind_of(signature).is_some() => Some([key, value]),
        _ => None,
    };
    if found.is_some() && (wanted.is_none() || wanted == found) {
        return Ok(());
    }
    let in_words = |[key, value]: Types| format!("{key} to {value}");
    let or = |types: Option<Types>, unknown: &str| types.map_or_else(|| unknown.into(), in_words);
    Err(Error::WrongType {
        name: name.into(),
        found: or(found, "something that this version does not know"),
        wanted: or(wanted, "types that this version knows"),
    })
}
