//! Opening and listing maps of byte strings: methods of [`Pool`].

use super::BytesMap;
use crate::Result;
use crate::engines::StringKind;
use crate::front::catalog::{Holds, options_of, options_of_open};
use crate::front::{BytesOptions, Pool};
use crate::host::AnyStrings;

/// A map of byte strings in the catalog, from [`Pool::bytes_maps`].
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// let pool = indelible::Pool::in_memory()?;
/// pool.bytes("names")?;
/// for map in pool.bytes_maps() {
///     println!("{}: {}", map.name, map.options);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct BytesInfo {
    /// Its name.
    pub name: String,
    /// Kind of index, and what was chosen when the map was created.
    pub options: BytesOptions,
}

impl BytesInfo {
    /// Kind of index.
    #[must_use]
    pub fn kind(&self) -> StringKind {
        self.options.kind()
    }
}

impl Pool {
    /// Opens the map `name` of byte strings, whatever its kind and its options, creating it with the default options if it is not there.
    ///
    /// O(1). A map that is created is durable when the call returns. Maps of words, maps of byte strings and spatial indexes have their names from one
    /// set.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] if the name is that of something else; [`Error::BadName`], [`Error::TooManyMaps`], [`Error::NoSpace`],
    /// [`Error::ReadOnly`] (it is not there), [`Error::Damaged`].
    ///
    /// [`Error::WrongType`]: crate::Error::WrongType
    /// [`Error::BadName`]: crate::Error::BadName
    /// [`Error::TooManyMaps`]: crate::Error::TooManyMaps
    /// [`Error::NoSpace`]: crate::Error::NoSpace
    /// [`Error::ReadOnly`]: crate::Error::ReadOnly
    /// [`Error::Damaged`]: crate::Error::Damaged
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// let pool = indelible::Pool::in_memory()?;
    /// pool.bytes("names")?.insert("Ada", "Lovelace")?;
    /// assert_eq!(pool.bytes("names")?.len()?, 1);
    /// assert!(pool.map::<u64, u64>("names").is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn bytes(&self, name: &str) -> Result<BytesMap> {
        self.bytes_with(name, BytesOptions::default().accept_any(true))
    }

    /// Opens the map `name` of byte strings, creating it with `options` if it is not there.
    ///
    /// # Errors
    ///
    /// Those of [`bytes`](Self::bytes); [`Error::BadOption`](crate::Error::BadOption);
    /// [`Error::OtherOptions`](crate::Error::OtherOptions) if the map is there with another kind or other options, unless
    /// [`BytesOptions::accept_any`](crate::IndexOptions::accept_any) allows that.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::{BytesOptions, Pool, SlottedOptions};
    /// let pool = Pool::in_memory()?;
    /// let names = pool.bytes_with("names", SlottedOptions::default().leaf_bytes(512))?;
    /// let parsed: BytesOptions = "kind=slotted,leaf=2K".parse()?;
    /// let pages = pool.bytes_with("pages", parsed)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn bytes_with(&self, name: &str, options: impl Into<BytesOptions>) -> Result<BytesMap> {
        let options = options.into();
        let index = self.open_or_create::<AnyStrings>(name, Holds::Bytes, &options)?;
        Ok(BytesMap { index })
    }

    /// Opens the map `name` of byte strings, whatever its kind and its options. O(1).
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchMap`](crate::Error::NoSuchMap), [`Error::WrongType`](crate::Error::WrongType),
    /// [`Error::Damaged`](crate::Error::Damaged).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// let pool = indelible::Pool::in_memory()?;
    /// assert!(pool.open_bytes("names").is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_bytes(&self, name: &str) -> Result<BytesMap> {
        let (_, index) = self.open_as(name, Some(Holds::Bytes))?;
        Ok(BytesMap { index })
    }

    /// The maps of byte strings in the pool, those of a later version apart. O(objects).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// let pool = indelible::Pool::in_memory()?;
    /// pool.bytes("names")?;
    /// assert_eq!(pool.bytes_maps()[0].name, "names");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn bytes_maps(&self) -> Vec<BytesInfo> {
        let _objects = self.core.registry();
        let info = |slot| self.bytes_info(slot);
        self.core.slots().filter_map(info).collect()
    }

    /// What the catalog says of a map of byte strings; `None` for one of a later version, and for any other object.
    pub(in crate::front) fn bytes_info(&self, slot: usize) -> Option<BytesInfo> {
        let signature = self.core.signature(slot);
        if Holds::of(&signature)? != Holds::Bytes {
            return None;
        }
        Some(BytesInfo {
            name: self.core.name_of(slot),
            options: options_of(&signature).ok()??,
        })
    }
}

impl BytesMap {
    /// The name of the map: after [`Pool::rename_object`] the new one.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// let pool = indelible::Pool::in_memory()?;
    /// assert_eq!(pool.bytes("names")?.name(), "names");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> String {
        self.index.name()
    }

    /// The kind of index, and what was chosen when the map was created.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`](crate::Error::Damaged).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::{Pool, StringKind};
    /// let names = Pool::in_memory()?.bytes("names")?;
    /// assert_eq!(names.options()?.kind(), StringKind::default());
    /// # Ok(())
    /// # }
    /// ```
    pub fn options(&self) -> Result<BytesOptions> {
        options_of_open(&self.index.signature())
    }
}
