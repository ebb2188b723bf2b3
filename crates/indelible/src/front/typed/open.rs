//! Opening and listing typed maps: methods of [`Pool`].

use super::{TypedMap, codes_of};
use crate::encoding::{OrderedKey, StoredValue, TypeCodes, names_of};
use crate::front::catalog::{Holds, options_of};
use crate::front::{BytesMap, BytesOptions, Pool};
use crate::host::AnyStrings;
use crate::{Error, Result};

/// A typed map in the catalog, from [`Pool::typed_maps`].
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// let pool = indelible::Pool::in_memory()?;
/// pool.typed::<(u32, String), [u8; 16]>("names")?;
/// for map in pool.typed_maps() {
///     println!("{}: {} to {}, {}", map.name, map.key, map.value, map.options);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TypedInfo {
    /// Its name.
    pub name: String,
    /// Type of its keys: `(u32, String)`.
    pub key: String,
    /// Type of its values.
    pub value: String,
    /// Kind of index, and what was chosen when the map was created.
    pub options: BytesOptions,
}

impl Pool {
    /// Opens the typed map `name`, whatever its kind and its options, creating it with the default options if it is not there.
    ///
    /// O(1). A map that is created is durable when the call returns. The catalog keeps the types of the keys and of the values, and a map is not opened with
    /// others. It has 22 bytes for both types: a type takes 1, an array of bytes 2 or 3, a tuple 1 and its fields, a [name](crate::Named) 2 and its bytes.
    ///
    /// If `K` and `V` both have at most 8 bytes, [`map`](Self::map) is several times as fast.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] if the name is that of something else; [`Error::BadOption`] if the types have more than 22 bytes in the catalog, or if the map is not there and
    /// no record of them could be stored, since an array of bytes is too long: also one in a tuple, or in an `Option`, which could only be `None`;
    /// [`Error::BadName`], [`Error::TooManyMaps`], [`Error::NoSpace`], [`Error::ReadOnly`] (it is not there), [`Error::Damaged`].
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// let pool = indelible::Pool::in_memory()?;
    /// pool.typed::<(u32, String), u64>("m")?.insert((7, "key"), 1)?;
    /// assert_eq!(pool.typed::<(u32, String), u64>("m")?.get((7, "key"))?, Some(1));
    /// let refused = pool.typed::<(u32, String), i64>("m");
    /// assert_eq!(
    ///     refused.unwrap_err().to_string(),
    ///     "\"m\" holds (u32, String) to u64 as byte strings, not (u32, String) to i64 as byte strings"
    /// );
    /// # Ok(())
    /// # }
    /// ```
    pub fn typed<K: OrderedKey, V: StoredValue>(&self, name: &str) -> Result<TypedMap<K, V>> {
        self.typed_with(name, BytesOptions::default().accept_any(true))
    }

    /// Opens the typed map `name`, creating it with `options` if it is not there.
    ///
    /// # Errors
    ///
    /// Those of [`typed`](Self::typed); [`Error::OtherOptions`] if the map is there with another kind or other options, unless
    /// [`BytesOptions::accept_any`](crate::IndexOptions::accept_any) allows that.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::{Pool, SlottedOptions};
    /// let options = SlottedOptions::default().leaf_bytes(2048);
    /// let map = Pool::in_memory()?.typed_with::<String, String>("m", options)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn typed_with<K: OrderedKey, V: StoredValue>(
        &self,
        name: &str,
        options: impl Into<BytesOptions>,
    ) -> Result<TypedMap<K, V>> {
        let holds = Holds::Typed(codes_of::<K, V>().for_catalog()?);
        let index = self.open_or_create::<AnyStrings>(name, holds, &options.into())?;
        Ok(TypedMap::new(BytesMap::new(index)))
    }

    /// Opens the typed map `name`, whatever its kind and its options. O(1).
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchMap`], [`Error::WrongType`], [`Error::Damaged`]; [`Error::BadOption`] if the types have more than 22 bytes in the catalog.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// let pool = indelible::Pool::in_memory()?;
    /// assert!(pool.open_typed::<u128, ()>("m").is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_typed<K: OrderedKey, V: StoredValue>(&self, name: &str) -> Result<TypedMap<K, V>> {
        let holds = Holds::Typed(codes_of::<K, V>().for_catalog()?);
        let (_, index) = self.open_as(name, Some(holds))?;
        Ok(TypedMap::new(BytesMap::new(index)))
    }

    /// Opens the typed map `name`, whatever its types are, as a map of their encodings, and says what they are. O(1). For tools, which do not know the types.
    ///
    /// Nothing checks the bytes that are written: after bytes that are no encoding of the map's types, the typed map reports [`Error::Damaged`] when it
    /// reads the record.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchMap`], [`Error::WrongType`], [`Error::Damaged`].
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// let pool = indelible::Pool::in_memory()?;
    /// pool.typed::<u16, String>("m")?.insert(258, "value")?;
    /// let (info, bytes) = pool.open_typed_as_bytes("m")?;
    /// assert_eq!((info.key.as_str(), info.value.as_str()), ("u16", "String"));
    /// assert_eq!(bytes.get([1, 2])?, Some(b"value".to_vec()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_typed_as_bytes(&self, name: &str) -> Result<(TypedInfo, BytesMap)> {
        let holds = self.look(|| {
            let found = Holds::of(&self.core.signature(self.find(name)?));
            match found {
                Some(holds @ Holds::Typed(_)) => Ok(holds),
                _ => Err(Error::WrongType {
                    name: name.into(),
                    found: found.map_or_else(
                        || "something that this version does not know".into(),
                        |holds| holds.to_string(),
                    ),
                    wanted: "a typed map".into(),
                }),
            }
        })?;
        let (slot, index) = self.open_as(name, Some(holds))?;
        // The open map keeps its catalog entry, so the entry is still that of the map.
        let info = self.typed_info(slot).ok_or_else(|| {
            Error::Damaged(format!("the catalog entry of map {name:?} has changed"))
        })?;
        Ok((info, BytesMap::new(index)))
    }

    /// Opens the typed map `name`, whose types are given by their names, as a map of their encodings, creating it with `options` if it is not there. O(1).
    /// For tools, which do not know the types.
    ///
    /// The names are those of [`TypedInfo`]: `(u32, String)`, `Option<[u8; 3]>`, `Vec<u8>`, `()`. Types of values that programs have made themselves
    /// cannot be named. What is said of written bytes at [`open_typed_as_bytes`](Self::open_typed_as_bytes) holds here too.
    ///
    /// # Errors
    ///
    /// [`Error::BadOption`] if a name is that of no type, and those of [`typed_with`](Self::typed_with).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::{BytesOptions, Pool};
    /// let pool = Pool::in_memory()?;
    /// let bytes = pool.typed_as_bytes_with("m", "u16", "String", BytesOptions::default())?;
    /// bytes.insert([1, 2], "value")?;
    /// assert_eq!(pool.open_typed::<u16, String>("m")?.get(258)?, Some("value".into()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn typed_as_bytes_with(
        &self,
        name: &str,
        key: &str,
        value: &str,
        options: impl Into<BytesOptions>,
    ) -> Result<BytesMap> {
        let holds = Holds::Typed(TypeCodes::of_names(key, value)?.for_catalog()?);
        let index = self.open_or_create::<AnyStrings>(name, holds, &options.into())?;
        Ok(BytesMap::new(index))
    }

    /// The typed maps in the pool, those of a later version apart. O(objects). [`maps`](Self::maps) lists the maps of words.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// let pool = indelible::Pool::in_memory()?;
    /// pool.typed::<Option<char>, [u8; 20]>("m")?;
    /// let info = &pool.typed_maps()[0];
    /// assert_eq!((info.key.as_str(), info.value.as_str()), ("Option<char>", "[u8; 20]"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn typed_maps(&self) -> Vec<TypedInfo> {
        let _objects = self.core.registry();
        let info = |slot| self.typed_info(slot);
        self.core.slots().filter_map(info).collect()
    }

    /// What the catalog says of a typed map; `None` for one of a later version, and for any other object.
    pub(in crate::front) fn typed_info(&self, slot: usize) -> Option<TypedInfo> {
        let signature = self.core.signature(slot);
        let Holds::Typed(codes) = Holds::of(&signature)? else {
            return None;
        };
        let [key, value] = names_of(&codes)?;
        Some(TypedInfo {
            name: self.core.name_of(slot),
            key,
            value,
            options: options_of(&signature).ok()??,
        })
    }
}
