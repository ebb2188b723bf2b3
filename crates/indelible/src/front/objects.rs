//! The objects of a pool, of all families: listed, renamed, removed.

use super::catalog::{expect_name, expect_no_spatial};
use super::{BytesInfo, MapInfo, Pool, SpatialInfo, TypedInfo};
use crate::pool::PoolCore;
use crate::{Error, Result};

/// An object in the catalog, from [`Pool::objects`].
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{ObjectInfo, Pool};
/// let pool = Pool::in_memory()?;
/// pool.typed::<String, u64>("counts")?;
/// pool.map::<u64, u64>("users")?;
/// for object in pool.objects() {
///     match &object {
///         ObjectInfo::Map(map) => println!("{}: {} to {}", map.name, map.key, map.value),
///         other => println!("{}", other.name()),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ObjectInfo {
    /// A map of keys and values of fixed length, [`Map`](crate::Map).
    Map(MapInfo),
    /// A spatial index, [`Spatial`](crate::Spatial).
    Spatial(SpatialInfo),
    /// A map of byte strings, [`BytesMap`](crate::BytesMap).
    Bytes(BytesInfo),
    /// A map of keys and values of other types, [`TypedMap`](crate::TypedMap).
    Typed(TypedInfo),
    /// Something that this version does not know.
    Unknown {
        /// Its name.
        name: String,
    },
}

impl ObjectInfo {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Map(map) => &map.name,
            Self::Spatial(index) => &index.name,
            Self::Bytes(map) => &map.name,
            Self::Typed(map) => &map.name,
            Self::Unknown { name } => name,
        }
    }
}

/// The objects of a pool, of all families.
impl Pool {
    /// All objects in the pool, in the order of their names. O(objects).
    ///
    /// [`maps`](Self::maps), [`bytes_maps`](Self::bytes_maps), [`typed_maps`](Self::typed_maps) and [`spatials`](Self::spatials) list those of one family.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::{Point2, Pool};
    /// let pool = Pool::in_memory()?;
    /// pool.spatial::<Point2>("shops")?;
    /// pool.map::<u64, u64>("owners")?;
    /// let objects = pool.objects();
    /// let names: Vec<_> = objects.iter().map(|object| object.name()).collect();
    /// assert_eq!(names, ["owners", "shops"]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn objects(&self) -> Vec<ObjectInfo> {
        let _objects = self.core.registry();
        let info = |slot| {
            let map = || self.map_info(slot).map(ObjectInfo::Map);
            let spatial = || self.spatial_info(slot).map(ObjectInfo::Spatial);
            let bytes = || self.bytes_info(slot).map(ObjectInfo::Bytes);
            let typed = || self.typed_info(slot).map(ObjectInfo::Typed);
            let known = map().or_else(spatial).or_else(bytes).or_else(typed);
            known.unwrap_or_else(|| ObjectInfo::Unknown {
                name: self.core.name_of(slot),
            })
        };
        let mut all: Vec<ObjectInfo> = self.core.slots().map(info).collect();
        all.sort_by(|a, b| a.name().cmp(b.name()));
        all
    }

    /// Gives the map `from`, of any family, the name `to`. Open handles stay valid, and know the new name.
    ///
    /// O(objects). Durable when the call returns; after a crash the map has one name or the other.
    ///
    /// # Errors
    ///
    /// Those of [`rename_object`](Self::rename_object), and [`Error::WrongType`] if `from` is a spatial index.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::Pool;
    /// let pool = Pool::in_memory()?;
    /// pool.map::<u64, u64>("new")?;
    /// pool.rename_map("new", "current")?;
    /// assert_eq!(pool.maps()[0].name, "current");
    /// # Ok(())
    /// # }
    /// ```
    pub fn rename_map(&self, from: &str, to: &str) -> Result<()> {
        self.rename_if(from, to, expect_no_spatial)
    }

    /// Gives the object `from`, a map or a spatial index, the name `to`. Open handles stay valid, and know the new name.
    ///
    /// O(objects). Durable when the call returns; after a crash the object has one name or the other.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchMap`], [`Error::NameTaken`], [`Error::BadName`], [`Error::ReadOnly`].
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::{Point2, Pool};
    /// let pool = Pool::in_memory()?;
    /// pool.spatial::<Point2>("new")?;
    /// pool.rename_object("new", "shops")?;
    /// assert_eq!(pool.spatials()[0].name, "shops");
    /// # Ok(())
    /// # }
    /// ```
    pub fn rename_object(&self, from: &str, to: &str) -> Result<()> {
        self.rename_if(from, to, |_, _| Ok(()))
    }

    fn rename_if(
        &self,
        from: &str,
        to: &str,
        may: impl Fn(&PoolCore, usize) -> Result<()>,
    ) -> Result<()> {
        if self.core.is_read_only() {
            return Err(Error::ReadOnly);
        }
        expect_name(to)?;
        let _objects = self.core.registry();
        let slot = self.find(from)?;
        may(&self.core, slot)?;
        if from == to {
            return Ok(());
        }
        if self.find(to).is_ok() {
            return Err(Error::NameTaken(to.into()));
        }
        self.core.durably(|| {
            self.core.rename_entry(slot, to);
            Ok(())
        })
    }

    /// Removes the map `name` and frees its space.
    ///
    /// O(extents), whatever is in the map. Durable when the call returns; after a crash the map is there whole or not at all.
    ///
    /// # Errors
    ///
    /// Those of [`drop_object`](Self::drop_object), and [`Error::WrongType`] if `name` is a spatial index.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::Pool;
    /// let pool = Pool::in_memory()?;
    /// drop(pool.map::<u64, u64>("m")?);
    /// pool.drop_map("m")?;
    /// assert!(pool.maps().is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn drop_map(&self, name: &str) -> Result<()> {
        self.drop_if(name, expect_no_spatial)
    }

    /// Whether the pool has an object of this name: a map of any kind, a spatial index, or something of a later version. O(objects).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// let pool = indelible::Pool::in_memory()?;
    /// pool.typed::<String, String>("names")?;
    /// assert!(pool.has_object("names") && !pool.has_object("places"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn has_object(&self, name: &str) -> bool {
        let _objects = self.core.registry();
        self.find(name).is_ok()
    }

    /// Removes the object `name`, a map or a spatial index, and frees its space.
    ///
    /// O(extents), whatever is in the object. Durable when the call returns; after a crash the object is there whole or not at all.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchMap`], [`Error::ReadOnly`], [`Error::InUse`] while a handle to it lives.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::{Point2, Pool};
    /// let pool = Pool::in_memory()?;
    /// drop(pool.spatial::<Point2>("shops")?);
    /// pool.drop_object("shops")?;
    /// assert!(pool.spatials().is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn drop_object(&self, name: &str) -> Result<()> {
        self.drop_if(name, |_, _| Ok(()))
    }

    fn drop_if(&self, name: &str, may: impl Fn(&PoolCore, usize) -> Result<()>) -> Result<()> {
        if self.core.is_read_only() {
            return Err(Error::ReadOnly);
        }
        let mut objects = self.core.registry();
        loop {
            let slot = self.find(name)?;
            may(&self.core, slot)?;
            let (locked, open) = self.core.open_object(objects, slot);
            objects = locked;
            if open.is_some() {
                // The handle may be the last one, and dropping it locks the registry.
                drop(objects);
                return Err(Error::InUse(format!("{name:?}")));
            }
            // While the registry was unlocked in there, the object may have been dropped or renamed, and another one may have got the name.
            if self.find(name)? == slot {
                may(&self.core, slot)?;
                return self.core.durably(|| {
                    self.core.remove_entry(slot);
                    Ok(())
                });
            }
        }
    }
}
