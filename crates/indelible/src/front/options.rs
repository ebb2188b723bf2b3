//! What can be chosen when an index is created.

use crate::engines::{FamilyOptions, IndexKind, Kind, SpatialKind, StringKind};
use crate::{Error, Result};

/// The kind of index of a new map, and how the map is laid out. The choice is recorded in the pool.
///
/// There are three ways to make one: from a [`Kind`], from the typed options of one kind (such as
/// [`LbTreeOptions`](crate::LbTreeOptions)), and from text, as every command line takes it: `kind=NAME`, or the name alone, and
/// options of that kind after it, separated by commas.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{Kind, LbTreeOptions, MapOptions, Pool};
/// let from_text: MapOptions = "kind=lbtree,leaf=512".parse()?;
/// let typed = MapOptions::from(LbTreeOptions::default().leaf_bytes(512));
/// assert_eq!(from_text, typed);
/// assert_eq!(from_text.to_string(), "kind=lbtree,leaf=512");
/// assert_eq!(MapOptions::from(Kind::LbTree).get("leaf").as_deref(), Some("256"));
/// # Ok(())
/// # }
/// ```
pub type MapOptions = IndexOptions<Kind>;

/// The kind of a new spatial index, and how the index is laid out. The choice is recorded in the pool.
///
/// It is made from a [`SpatialKind`], from the typed options of one kind (such as [`HilbertOptions`](crate::HilbertOptions)), or from
/// text, as [`MapOptions`] is.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{HilbertOptions, Point2, Pool, SpatialOptions};
/// let from_text: SpatialOptions = "kind=hilbert,coordinates=lonlat".parse()?;
/// assert_eq!(from_text, HilbertOptions::default().lonlat().into());
/// let shops = Pool::in_memory()?.spatial_with::<Point2>("shops", from_text)?;
/// assert_eq!(shops.options().get("coordinates").as_deref(), Some("lonlat"));
/// # Ok(())
/// # }
/// ```
pub type SpatialOptions = IndexOptions<SpatialKind>;

/// The kind of a new map of byte strings, and how the map is laid out. The choice is recorded in the pool.
///
/// It is made from a [`StringKind`], from the typed options of one kind (such as [`SlottedOptions`](crate::SlottedOptions)), or from
/// text.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{BytesOptions, Pool};
/// let from_text: BytesOptions = "kind=slotted,leaf=512".parse()?;
/// let names = Pool::in_memory()?.bytes_with("names", from_text)?;
/// # Ok(())
/// # }
/// ```
pub type BytesOptions = IndexOptions<StringKind>;

/// The kind of a new index, and how the index is laid out: [`MapOptions`] for maps, [`SpatialOptions`] for spatial indexes.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{IndexKind, IndexOptions, MapOptions, SpatialOptions};
/// fn describe<K: IndexKind>(options: &IndexOptions<K>) -> String {
///     format!("{}: {options}", options.kind().description())
/// }
/// println!("{}", describe(&MapOptions::default()));
/// println!("{}", describe(&SpatialOptions::default()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct IndexOptions<K: IndexKind> {
    any: K::Options,
    accept_any: bool,
}

impl<K: IndexKind> Default for IndexOptions<K> {
    /// The default kind of index with its default options.
    fn default() -> Self {
        K::default().into()
    }
}

impl<K: IndexKind> From<K> for IndexOptions<K> {
    fn from(kind: K) -> Self {
        Self::from_any(K::Options::of(kind))
    }
}

impl<K: IndexKind> From<&Self> for IndexOptions<K> {
    fn from(options: &Self) -> Self {
        options.clone()
    }
}

impl<K: IndexKind> IndexOptions<K> {
    pub(crate) fn from_any(any: K::Options) -> Self {
        Self {
            any,
            accept_any: false,
        }
    }

    /// The kind of index.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::{Kind, MapOptions};
    /// assert_eq!(MapOptions::default().kind(), Kind::default());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn kind(&self) -> K {
        self.any.kind()
    }

    /// Sets one option by name, as on a command line; see [`Kind::options`] and [`SpatialKind::options`] for those that there are.
    ///
    /// # Errors
    ///
    /// [`Error::BadOption`].
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::{Kind, MapOptions};
    /// let options = MapOptions::from(Kind::LbTree).set("leaf", "1K")?;
    /// assert_eq!(options.get("leaf").as_deref(), Some("1024"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn set(mut self, name: &str, value: &str) -> Result<Self> {
        self.any.set(name, value)?;
        Ok(self)
    }

    /// The value of one option, as [`set`](Self::set) takes it; `None` if the kind of index has no option of that name.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::{Kind, MapOptions};
    /// let options = MapOptions::from(Kind::LbTree);
    /// assert_eq!(options.get("leaf").as_deref(), Some("256"));
    /// assert_eq!(options.get("nonsense"), None);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn get(&self, name: &str) -> Option<String> {
        let mut options = self.kind().options().iter();
        options
            .any(|option| option.name == name)
            .then(|| self.any.get(name))
    }

    /// Opens an index that is there whatever its kind of index and its options are, instead of returning
    /// [`Error::OtherOptions`]. Default: no.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::{Error, Kind, LbTreeOptions, MapOptions, Pool};
    /// let pool = Pool::in_memory()?;
    /// let map = pool.map_with::<u64, u64>("m", LbTreeOptions::default().leaf_bytes(512))?;
    /// let usual = MapOptions::from(Kind::LbTree);
    /// assert!(matches!(pool.map_with::<u64, u64>("m", &usual), Err(Error::OtherOptions { .. })));
    /// pool.map_with::<u64, u64>("m", usual.accept_any(true))?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn accept_any(mut self, yes: bool) -> Self {
        self.accept_any = yes;
        self
    }

    /// Options of a kind of index at the ends of their ranges: for tests of what must not depend on them.
    #[doc(hidden)]
    #[must_use]
    pub fn extremes(kind: K) -> Vec<Self> {
        let options = K::Options::extremes(kind);
        options.into_iter().map(Self::from_any).collect()
    }

    pub(crate) fn any(&self) -> &K::Options {
        &self.any
    }

    pub(crate) fn accepts_any(&self) -> bool {
        self.accept_any
    }
}

impl<K: IndexKind> std::str::FromStr for IndexOptions<K> {
    type Err = Error;

    /// Parses `kind=NAME,option=value,...`; `kind=` may be left out. Without a kind: the default kind.
    fn from_str(text: &str) -> Result<Self> {
        let mut parts = text.split(',').map(str::trim).peekable();
        let kind = match parts.peek() {
            Some(&"") => {
                parts.next();
                K::default()
            }
            Some(first) => match first.split_once('=') {
                Some(("kind", name)) => {
                    parts.next();
                    name.parse()?
                }
                Some(_) => K::default(),
                None => {
                    let name = *first;
                    parts.next();
                    name.parse()?
                }
            },
            None => K::default(),
        };
        let mut options = Self::from(kind);
        for part in parts {
            let Some((name, value)) = part.split_once('=') else {
                return Err(Error::BadOption(format!("{part:?} is not NAME=VALUE")));
            };
            options = options.set(name, value)?;
        }
        options.any.encode()?;
        Ok(options)
    }
}

impl<K: IndexKind> std::fmt::Display for IndexOptions<K> {
    /// The kind, and the options that differ from the defaults, as [`from_str`](std::str::FromStr::from_str) reads them.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "kind={}", self.kind())?;
        let default = K::Options::of(self.kind());
        for option in self.kind().options() {
            let value = self.any.get(option.name);
            if value != default.get(option.name) {
                write!(f, ",{}={value}", option.name)?;
            }
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn options_are_read_as_they_are_written<K: IndexKind>() {
        type Options<K> = IndexOptions<K>;
        for &kind in K::all() {
            let all = Options::extremes(kind).into_iter().chain([kind.into()]);
            for options in all {
                assert_eq!(options.to_string().parse::<Options<K>>().unwrap(), options);
            }
            assert_eq!(kind.name().parse::<Options<K>>().unwrap(), kind.into());
        }
        assert_eq!("".parse::<Options<K>>().unwrap(), Options::default());
        for bad in ["kind=", "kind=none", "nonsense=1"] {
            let refused = bad.parse::<Options<K>>();
            assert!(matches!(refused, Err(Error::BadOption(_))), "{bad}");
        }
    }

    #[test]
    fn options_of_all_families_are_read_as_they_are_written() {
        options_are_read_as_they_are_written::<Kind>();
        options_are_read_as_they_are_written::<SpatialKind>();
        options_are_read_as_they_are_written::<StringKind>();
        for bad in ["kind=lbtree,leaf", "leaf=x", "kind=hilbert"] {
            let refused = bad.parse::<MapOptions>();
            assert!(matches!(refused, Err(Error::BadOption(_))), "{bad}");
        }
        for bad in [
            "kind=lbtree",
            "extent=1:2",
            "extent=0:0:1:x",
            "extent=0:0:0:1",
            "extent=0:0:1:inf",
            "extent=0:0:0:1:1",
            "coordinates=polar",
            "coordinates=lonlat,extent=0:0:0:1:1:1",
            "coordinates=lonlat,extent=0:0:1:100",
        ] {
            let refused = bad.parse::<SpatialOptions>();
            assert!(matches!(refused, Err(Error::BadOption(_))), "{bad}");
        }
    }
}
