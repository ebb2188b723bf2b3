//! Objects in the catalog of a pool: found by name, compared with what is asked for, created, opened once.

use super::{IndexOptions, MapInfo, Pool, SpatialInfo, Type};
use crate::encoding::{CODE_BYTES, Lengths, lengths_of, names_of};
use crate::engines::{
    FamilyOptions, IndexKind, Kind, Place, STRING_OPTION_BYTES, SpatialKind, StringKind,
};
use crate::host::{AnyMap, AnySpatial, AnyStrings, Handle};
use crate::pmem::planted::planted;
use crate::pool::{Bug, NAME_BYTES, OPTION_BYTES, PoolCore, Signature};
use crate::spatial::{GeometryType, with_geometry};
use crate::{Error, Result};
use std::sync::Arc;

/// Type of the keys, and of the values.
pub(super) type Types = [Type; 2];

/// What an object holds, as the catalog records it beside the kind of its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    /// Keys and values of these types.
    Map(Types),
    /// Geometries of this type, and payloads of 8 bytes.
    Spatial(GeometryType),
    /// Byte strings under byte strings.
    Bytes,
    /// Keys and values of these types, as byte strings under byte strings.
    Typed([u8; CODE_BYTES]),
}

/// The code of byte strings in the catalog, for keys and for values: none of a [`Type`] or of a [`GeometryType`].
const BYTES_CODE: u8 = 64;
/// The code of byte strings that are encodings of types. The options end with these types.
const TYPED_CODE: u8 = 65;

const _: () = assert!(STRING_OPTION_BYTES + CODE_BYTES == OPTION_BYTES);

impl Holds {
    /// What a catalog entry says, if this version knows it.
    pub(super) fn of(signature: &Signature) -> Option<Self> {
        let [first, second] = signature.types;
        if Kind::from_code(signature.kind).is_some() {
            return Some(Self::Map([
                Type::from_code(first)?,
                Type::from_code(second)?,
            ]));
        }
        if StringKind::from_code(signature.kind).is_some() {
            let codes = *signature.options.last_chunk()?;
            return match signature.types {
                [BYTES_CODE, BYTES_CODE] if codes == [0; CODE_BYTES] => Some(Self::Bytes),
                [TYPED_CODE, TYPED_CODE] => names_of(&codes).map(|_| Self::Typed(codes)),
                _ => None,
            };
        }
        SpatialKind::from_code(signature.kind)?;
        let geometry = GeometryType::from_code(first)?;
        (second == Type::U64 as u8).then_some(Self::Spatial(geometry))
    }

    fn codes(self) -> [u8; 2] {
        match self {
            Self::Map(types) => types.map(|of| of as u8),
            Self::Spatial(geometry) => [geometry as u8, Type::U64 as u8],
            Self::Bytes => [BYTES_CODE; 2],
            Self::Typed(_) => [TYPED_CODE; 2],
        }
    }
}

impl Holds {
    /// The options of the engine, and behind them the types of a typed map.
    fn options(self, mut engine: [u8; OPTION_BYTES]) -> [u8; OPTION_BYTES] {
        if let Self::Typed(codes) = self {
            let types = &mut engine[STRING_OPTION_BYTES..];
            assert_eq!(
                types, [0; CODE_BYTES],
                "the engine has only the first bytes"
            );
            types.copy_from_slice(&codes);
        }
        engine
    }
}

impl Holds {
    /// An error if the types of a typed map are so long that no record, or no `Some` of an `Option` in its key, can be stored. Asked when the map is created, and not
    /// when it is opened: a map that is there may have records all the same, whose keys are `None`.
    fn expect_storable(self) -> Result<()> {
        let Self::Typed(codes) = self else {
            return Ok(());
        };
        let (Some(names), Some(lengths)) = (names_of(&codes), lengths_of(&codes)) else {
            // Such types do not come here: they have been refused with a better error.
            return Ok(());
        };
        let roles = ["key", "value"].into_iter().zip(AnyStrings::MOST_BYTES);
        for ((role, most), (name, lengths)) in roles.zip(names.into_iter().zip(lengths)) {
            let Lengths {
                least,
                least_with_some,
            } = lengths;
            let refused = |has: &str, bytes: u64| {
                let limit = format!("and a {role} has at most {most}");
                Err(Error::BadOption(format!("{has} {bytes} bytes, {limit}")))
            };
            if least > most {
                return refused(&format!("a {role} of the type {name} has at least"), least);
            }
            if least_with_some > most {
                let has = format!("a {role} of the type {name} with a Some has at least");
                return refused(&has, least_with_some);
            }
        }
        Ok(())
    }
}

impl std::fmt::Display for Holds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Map([key, value]) => write!(f, "{key} to {value}"),
            Self::Spatial(geometry) => write!(f, "a spatial index of {geometry}"),
            Self::Bytes => write!(f, "byte strings"),
            Self::Typed(codes) => match names_of(codes) {
                Some([key, value]) => write!(f, "{key} to {value} as byte strings"),
                None => write!(f, "types that this version does not know"),
            },
        }
    }
}

impl Pool {
    /// Opens an object, creating it if it is not there.
    pub(super) fn open_or_create<H: Handle>(
        &self,
        name: &str,
        holds: Holds,
        options: &IndexOptions<H::Kind>,
    ) -> Result<H> {
        let encoded = options.any().encode()?;
        // Also of an object that another thread has just made in place of this one.
        let expect = |slot| {
            if !options.accepts_any() {
                self.expect_options(slot, options)?;
            }
            expect_holds(name, &self.core.signature(slot), Some(holds))
        };
        loop {
            if self.find(name).is_err() {
                if self.core.is_read_only() {
                    return Err(Error::ReadOnly);
                }
                self.create_object::<H>(name, holds, options, encoded)?;
            }
            match self.open_if(name, expect) {
                // Dropped by another thread in between.
                Err(Error::NoSuchMap(_)) => {}
                result => return result.map(|(_, object)| object),
            }
        }
    }

    /// Opens an object that holds this; for `None` a map of any types that this version knows. Returns its catalog entry as well.
    pub(super) fn open_as<H: Handle>(
        &self,
        name: &str,
        holds: Option<Holds>,
    ) -> Result<(usize, H)> {
        self.open_if(name, |slot| {
            expect_holds(name, &self.core.signature(slot), holds)
        })
    }

    /// Opens an object whose catalog entry is as `expect` says. Returns its catalog entry as well.
    fn open_if<H: Handle>(
        &self,
        name: &str,
        expect: impl Fn(usize) -> Result<()>,
    ) -> Result<(usize, H)> {
        loop {
            let slot = self.look(|| {
                let slot = self.find(name)?;
                expect(slot)?;
                Ok(slot)
            })?;
            // Since then the object may have been dropped, and the entry may be that of another one.
            let is_there = || self.find(name).ok() == Some(slot) && expect(slot).is_ok();
            if let Some(object) = open_at(&self.core, slot, is_there)? {
                return Ok((slot, object));
            }
        }
    }

    /// What `look` finds in the catalog. What is there may have been written by a thread that still waits until it is durable, with the registry of open
    /// objects locked. An object is opened with that lock; an error is an answer too, and so comes from a second look, with the lock.
    pub(super) fn look<T>(&self, look: impl Fn() -> Result<T>) -> Result<T> {
        look().or_else(|_| {
            let _objects = self.core.registry();
            look()
        })
    }

    pub(crate) fn find(&self, name: &str) -> Result<usize> {
        self.core
            .slots()
            .find(|&slot| self.core.has_name(slot, name))
            .ok_or_else(|| Error::NoSuchMap(name.into()))
    }

    /// What the catalog says of a map; `None` for one of a later version, and for an object of another family.
    pub(super) fn map_info(&self, slot: usize) -> Option<MapInfo> {
        let signature = self.core.signature(slot);
        let Holds::Map([key, value]) = Holds::of(&signature)? else {
            return None;
        };
        Some(MapInfo {
            name: self.core.name_of(slot),
            key,
            value,
            options: options_of(&signature).ok()??,
        })
    }

    /// What the catalog says of a spatial index; `None` for one of a later version, and for an object of another family.
    pub(super) fn spatial_info(&self, slot: usize) -> Option<SpatialInfo> {
        let signature = self.core.signature(slot);
        let Holds::Spatial(geometry) = Holds::of(&signature)? else {
            return None;
        };
        Some(SpatialInfo {
            name: self.core.name_of(slot),
            geometry,
            options: options_of(&signature).ok()??,
        })
    }

    /// An error if the object of a catalog entry has other options.
    fn expect_options<K: IndexKind>(&self, slot: usize, wanted: &IndexOptions<K>) -> Result<()> {
        let signature = self.core.signature(slot);
        let Some(found) = options_of::<K>(&signature)? else {
            // Opening it says why it cannot be opened.
            return Ok(());
        };
        // What is left at its default is encoded as such: if the default was another one when the object was made, that one is meant.
        let is_meant = || {
            let holds = Holds::of(&signature);
            let encoded = wanted.any().encode().ok();
            let meant = holds.and_then(|holds| Some(holds.options(encoded?)));
            found.kind() == wanted.kind() && meant == Some(signature.options)
        };
        if found.any() == wanted.any() || is_meant() {
            return Ok(());
        }
        Err(Error::OtherOptions {
            name: self.core.name_of(slot),
            found: found.to_string(),
            wanted: wanted.to_string(),
        })
    }

    fn create_object<H: Handle>(
        &self,
        name: &str,
        holds: Holds,
        options: &IndexOptions<H::Kind>,
        encoded: [u8; OPTION_BYTES],
    ) -> Result<()> {
        expect_name(name)?;
        let _objects = self.core.registry();
        if self.find(name).is_ok() {
            return Ok(());
        }
        holds.expect_storable()?;
        let signature = Signature {
            kind: options.kind().code(),
            types: holds.codes(),
            object_format: options.any().format(),
            options: holds.options(encoded),
        };
        match self.create_entry::<H>(name, signature, options) {
            Err(Error::NoSpace(_)) => {
                self.core.give_back_unused();
                self.create_entry::<H>(name, signature, options)
            }
            result => result,
        }
    }

    /// Writes an empty object and commits its catalog entry; after an error neither is there. The caller holds the registry of open objects, and no object has this name.
    fn create_entry<H: Handle>(
        &self,
        name: &str,
        signature: Signature,
        options: &IndexOptions<H::Kind>,
    ) -> Result<()> {
        let slot = self.core.prepare_entry(name, signature)?;
        if planted(Bug::CreateCommitsEarly) {
            self.core.commit_entry(slot);
        }
        let place = Place {
            core: Arc::clone(&self.core),
            slot,
        };
        self.core.durably(|| {
            H::format(&place, options.any())
                .inspect(|()| self.core.commit_entry(slot))
                .inspect_err(|_| self.core.remove_entry(slot))
        })
    }
}

/// The object of a catalog entry, open: the one that is, or opened now. `None` if it is not the one that is meant any more, as `is_there` says with the
/// registry of open objects locked. The object that is meant is of the family of `H`.
fn open_at<H: Handle>(
    core: &Arc<PoolCore>,
    slot: usize,
    is_there: impl Fn() -> bool,
) -> Result<Option<H>> {
    let place = Place {
        core: Arc::clone(core),
        slot,
    };
    let (mut objects, open) = core.open_object(core.registry(), slot);
    let is_there = is_there();
    if let Some(object) = open {
        // The handle may be the last one, and dropping it locks the registry.
        drop(objects);
        if !is_there {
            return Ok(None);
        }
        let object = H::from_object(kind_at::<H::Kind>(core, slot)?, object);
        return object.map(Some).ok_or_else(|| {
            let name = core.name_of(slot);
            Error::Damaged(format!("the catalog entry of {name:?} has changed"))
        });
    }
    if !is_there {
        return Ok(None);
    }
    let kind = kind_at::<H::Kind>(core, slot)?;
    let object = H::open(place, kind)?;
    objects.insert(slot, Arc::downgrade(&object.object()));
    Ok(Some(object))
}

/// The kind of a catalog entry.
fn kind_at<K: IndexKind>(core: &PoolCore, slot: usize) -> Result<K> {
    K::from_code(core.signature(slot).kind).ok_or_else(|| unknown(core, slot))
}

fn unknown(core: &PoolCore, slot: usize) -> Error {
    let name = core.name_of(slot);
    Error::Damaged(format!(
        "{name:?} is of a kind that this version does not know"
    ))
}

/// Does `$work` with `$H` as the type of the handles to the object of a catalog entry, which holds `$holds`, of whatever family.
macro_rules! with_handle {
    ($core:expr, $slot:expr, $holds:expr, $H:ident => $work:expr) => {
        match $holds {
            Some(Holds::Map(_)) => {
                type $H = AnyMap;
                $work
            }
            Some(Holds::Spatial(geometry)) => with_geometry!(geometry, G => {
                type $H = AnySpatial<G>;
                $work
            }),
            Some(Holds::Bytes | Holds::Typed(_)) => {
                type $H = AnyStrings;
                $work
            }
            None => Err(unknown($core, $slot)),
        }
    };
}

/// Compacts the object of a catalog entry, unless it is not there any more.
pub(super) fn compact_at(core: &Arc<PoolCore>, slot: usize) -> Result<()> {
    let find = || {
        let holds = Holds::of(&core.signature(slot));
        core.slots().any(|other| other == slot).then_some(holds)
    };
    // What is not known may be an entry that another thread writes, with the registry locked.
    let found = find().filter(Option::is_some).or_else(|| {
        let _objects = core.registry();
        find()
    });
    let Some(holds) = found else {
        return Ok(());
    };
    let is_there = || find() == Some(holds);
    with_handle!(core, slot, holds, H => {
        match open_at::<H>(core, slot, is_there)? {
            Some(object) => object.upkeep().compact(),
            None => Ok(()),
        }
    })
}

/// Salvage: opens every object, without writing anything, and checks it.
pub(crate) fn accept_if_whole(core: &Arc<PoolCore>) -> Result<()> {
    for slot in core.slots().collect::<Vec<_>>() {
        let place = Place {
            core: Arc::clone(core),
            slot,
        };
        let holds = Holds::of(&core.signature(slot));
        let problems = with_handle!(core, slot, holds, H => {
            H::open(place, kind_at(core, slot)?)?.upkeep().check()
        })?;
        if let Some(problem) = problems.into_iter().next() {
            let name = core.name_of(slot);
            return Err(Error::Damaged(format!("{name:?}: {problem}")));
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

/// Kind and options of an object in the catalog; `None` for a kind of another family, or one that this version does not know.
pub(super) fn options_of<K: IndexKind>(signature: &Signature) -> Result<Option<IndexOptions<K>>> {
    let Some(kind) = K::from_code(signature.kind) else {
        return Ok(None);
    };
    K::Options::decode(kind, signature.object_format, &signature.options)
        .map(|options| Some(IndexOptions::from_any(options)))
}

/// Kind and options of an object that is open, and so was of a kind of its family.
pub(super) fn options_of_open<K: IndexKind>(signature: &Signature) -> Result<IndexOptions<K>> {
    let kind_has_changed = || Error::Damaged("the kind of an object has changed".into());
    options_of(signature)?.ok_or_else(kind_has_changed)
}

/// Whether an object in the catalog holds what is asked for; for `None`, whether it is a map of words that this version knows.
fn expect_holds(name: &str, signature: &Signature, wanted: Option<Holds>) -> Result<()> {
    let found = Holds::of(signature);
    match (found, wanted) {
        (Some(Holds::Map(_)), None) => return Ok(()),
        (Some(found), Some(wanted)) if found == wanted => return Ok(()),
        _ => {}
    }
    let or = |holds: Option<Holds>, other: &str| {
        holds.map_or_else(|| other.to_owned(), |holds| holds.to_string())
    };
    Err(Error::WrongType {
        name: name.into(),
        found: or(found, "something that this version does not know"),
        wanted: or(wanted, "a map of numbers"),
    })
}

/// [`Error::WrongType`] if the object of a catalog entry is known and no map, neither of words nor of byte strings.
pub(super) fn expect_no_spatial(core: &PoolCore, slot: usize) -> Result<()> {
    let signature = core.signature(slot);
    match Holds::of(&signature) {
        Some(found @ Holds::Spatial(_)) => Err(Error::WrongType {
            name: core.name_of(slot),
            found: found.to_string(),
            wanted: "a map".into(),
        }),
        _ => Ok(()),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn signature(kind: u8, types: [u8; 2]) -> Signature {
        Signature {
            kind,
            types,
            object_format: 1,
            options: [0; OPTION_BYTES],
        }
    }

    #[test]
    fn no_code_of_the_catalog_is_read_as_something_of_the_other_family() {
        let words = Holds::Map([Type::U64, Type::Unit]);
        for &kind in Kind::all() {
            let found = signature(kind as u8, words.codes());
            assert_eq!(Holds::of(&found), Some(words));
            for &geometry in GeometryType::all() {
                let codes = Holds::Spatial(geometry).codes();
                assert_eq!(Holds::of(&signature(kind as u8, codes)), None);
            }
        }
        for &kind in SpatialKind::all() {
            assert_eq!(Holds::of(&signature(kind as u8, words.codes())), None);
            for &geometry in GeometryType::all() {
                let holds = Holds::Spatial(geometry);
                let [code, payload] = holds.codes();
                let found = signature(kind as u8, [code, payload]);
                assert_eq!(Holds::of(&found), Some(holds));
                // Another type of payload, or of geometry, is one of a later version.
                assert_eq!(Holds::of(&signature(kind as u8, [code, 2])), None);
                assert_eq!(Holds::of(&signature(kind as u8, [200, payload])), None);
                assert_eq!(Type::from_code(code), None);
            }
        }
        for &kind in StringKind::all() {
            for options in IndexOptions::extremes(kind) {
                let engine = options.any().encode().unwrap();
                assert_eq!(engine[STRING_OPTION_BYTES..], [0; CODE_BYTES]);
            }
            let found = signature(kind as u8, Holds::Bytes.codes());
            assert_eq!(Holds::of(&found), Some(Holds::Bytes));
            let mut typed = [0; CODE_BYTES];
            typed[..2].copy_from_slice(&[1, 15]);
            let typed = Holds::Typed(typed);
            let mut found = signature(kind as u8, typed.codes());
            assert_eq!(Holds::of(&found), None, "no types");
            found.options = typed.options(found.options);
            assert_eq!(Holds::of(&found), Some(typed));
            assert_eq!(typed.to_string(), "u8 to () as byte strings");
            found.types = Holds::Bytes.codes();
            assert_eq!(Holds::of(&found), None, "byte strings have no types");
            found.types = words.codes();
            assert_eq!(Holds::of(&found), None);
            let found = signature(kind as u8, Holds::Bytes.codes());
            assert_eq!(Holds::of(&signature(kind as u8, words.codes())), None);
            for &other in Kind::all() {
                assert_eq!(Holds::of(&signature(other as u8, found.types)), None);
            }
            for &other in SpatialKind::all() {
                assert_eq!(Holds::of(&signature(other as u8, found.types)), None);
            }
        }
        let unknown = signature(200, words.codes());
        assert_eq!(Holds::of(&unknown), None);
        let refused = expect_holds("m", &unknown, Some(words));
        match refused {
            Err(Error::WrongType { found, .. }) => {
                assert_eq!(found, "something that this version does not know");
            }
            other => panic!("{other:?}"),
        }
    }
}
