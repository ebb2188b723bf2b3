//! Opening and listing spatial indexes: methods of [`Pool`].

use super::Spatial;
use crate::Result;
use crate::engines::SpatialKind;
use crate::front::catalog::{Holds, options_of};
use crate::front::{Pool, SpatialOptions};
use crate::host::AnySpatial;
use crate::spatial::{Geometry, GeometryType};

/// A spatial index in the catalog, from [`Pool::spatials`].
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{Point2, Pool};
/// let pool = Pool::in_memory()?;
/// pool.spatial::<Point2>("shops")?;
/// for index in pool.spatials() {
///     println!("{}: {}, {}", index.name, index.geometry, index.options);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SpatialInfo {
    /// Its name.
    pub name: String,
    /// Type of its geometries.
    pub geometry: GeometryType,
    /// Kind of index, and what was chosen when the index was created.
    pub options: SpatialOptions,
}

impl SpatialInfo {
    /// Kind of index.
    #[must_use]
    pub fn kind(&self) -> SpatialKind {
        self.options.kind()
    }
}

impl Pool {
    /// Opens the spatial index `name` of geometries of type `G`, whatever its kind and its options, creating it with the default options if it
    /// is not there.
    ///
    /// O(1). An index that is created is durable when the call returns. Maps and spatial indexes have their names from one set.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] if the index holds another type of geometry, or the name is that of a map; [`Error::BadName`],
    /// [`Error::TooManyMaps`], [`Error::NoSpace`], [`Error::ReadOnly`] (it is not there), [`Error::Damaged`].
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
    /// use indelible::{Box2, Point2, Pool};
    /// let pool = Pool::in_memory()?;
    /// let shops = pool.spatial::<Point2>("shops")?;
    /// shops.insert(Point2::new(3.0, 4.0), 7)?;
    /// assert_eq!(pool.spatial::<Point2>("shops")?.len()?, 1);
    /// assert!(pool.spatial::<Box2>("shops").is_err(), "the type is that of the first time");
    /// assert!(pool.map::<u64, u64>("shops").is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn spatial<G: Geometry>(&self, name: &str) -> Result<Spatial<G>> {
        self.spatial_with(name, SpatialOptions::default().accept_any(true))
    }

    /// Opens the spatial index `name`, creating it with `options` if it is not there.
    ///
    /// `options` are a [`SpatialOptions`], the options of one kind of index, or what can be parsed as such:
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::{HilbertOptions, Point2, Pool, SpatialOptions};
    /// let pool = Pool::in_memory()?;
    /// let shops = pool.spatial_with::<Point2>("shops", HilbertOptions::default().lonlat())?;
    /// let parsed: SpatialOptions = "kind=hilbert,extent=0:0:80:25".parse()?;
    /// let desks = pool.spatial_with::<Point2>("desks", parsed)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`spatial`](Self::spatial); [`Error::BadOption`](crate::Error::BadOption) if no index of `G` can be as `options` say;
    /// [`Error::OtherOptions`](crate::Error::OtherOptions) if the index is there with another kind or other options, unless
    /// [`SpatialOptions::accept_any`](crate::IndexOptions::accept_any) allows that.
    pub fn spatial_with<G: Geometry>(
        &self,
        name: &str,
        options: impl Into<SpatialOptions>,
    ) -> Result<Spatial<G>> {
        let options = options.into();
        options.any().expect_axes(G::AXES)?;
        let index =
            self.open_or_create::<AnySpatial<G>>(name, Holds::Spatial(G::TYPE), &options)?;
        self.spatial_over(index)
    }

    /// Opens the spatial index `name`, whatever its kind and its options. O(1).
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
    /// use indelible::{Error, Point2, Pool};
    /// let pool = Pool::in_memory()?;
    /// assert!(matches!(pool.open_spatial::<Point2>("shops"), Err(Error::NoSuchMap(_))));
    /// pool.spatial::<Point2>("shops")?;
    /// pool.open_spatial::<Point2>("shops")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_spatial<G: Geometry>(&self, name: &str) -> Result<Spatial<G>> {
        let (_, index) = self.open_as::<AnySpatial<G>>(name, Some(Holds::Spatial(G::TYPE)))?;
        self.spatial_over(index)
    }

    /// The spatial indexes in the pool, those of a later version apart. O(objects). [`maps`](Self::maps) lists the maps.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::{Box3, GeometryType, Pool};
    /// let pool = Pool::in_memory()?;
    /// pool.spatial::<Box3>("parts")?;
    /// assert_eq!(pool.spatials()[0].geometry, GeometryType::Box3);
    /// assert!(pool.maps().is_empty());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn spatials(&self) -> Vec<SpatialInfo> {
        let _objects = self.core.registry();
        let info = |slot| self.spatial_info(slot);
        self.core.slots().filter_map(info).collect()
    }

    fn spatial_over<G: Geometry>(&self, index: AnySpatial<G>) -> Result<Spatial<G>> {
        let options = options_of(&self.core.signature(index.slot()))?;
        // The open index keeps its catalog entry, so the entry is still that of the index.
        let options = options.ok_or_else(|| {
            let name = index.name();
            crate::Error::Damaged(format!("the catalog entry of {name:?} has changed"))
        })?;
        Ok(Spatial::new(index, options))
    }
}
