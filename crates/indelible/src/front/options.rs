//! What can be chosen when a map is created.

use crate::engines::{AnyOptions, Kind};
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
#[derive(Clone, Debug, PartialEq)]
pub struct MapOptions {
    any: AnyOptions,
    accept_any: bool,
}

impl Default for MapOptions {
    /// The default kind of index with its default options.
    fn default() -> Self {
        Kind::default().into()
    }
}

impl From<Kind> for MapOptions {
    fn from(kind: Kind) -> Self {
        AnyOptions::of(kind).into()
    }
}

impl From<&Self> for MapOptions {
    fn from(options: &Self) -> Self {
        options.clone()
    }
}

impl From<AnyOptions> for MapOptions {
    fn from(any: AnyOptions) -> Self {
        Self {
            any,
            accept_any: false,
        }
    }
}

impl MapOptions {
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
    pub fn kind(&self) -> Kind {
        self.any.kind()
    }

    /// Sets one option by name, as on a command line; see [`Kind::options`] for those that there are.
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

    /// Opens a map that is there whatever its kind of index and its options are, instead of returning
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
    pub fn extremes(kind: Kind) -> Vec<Self> {
        let options = AnyOptions::extremes(kind);
        options.into_iter().map(Self::from).collect()
    }

    pub(crate) fn any(&self) -> &AnyOptions {
        &self.any
    }

    pub(crate) fn accepts_any(&self) -> bool {
        self.accept_any
    }
}

impl std::str::FromStr for MapOptions {
    type Err = Error;

    /// Parses `kind=NAME,option=value,...`; `kind=` may be left out. Without a kind: the default kind.
    fn from_str(text: &str) -> Result<Self> {
        let mut parts = text.split(',').map(str::trim).peekable();
        let kind = match parts.peek() {
            Some(&"") => {
                parts.next();
                Kind::default()
            }
            Some(first) => match first.split_once('=') {
                Some(("kind", name)) => {
                    parts.next();
                    name.parse()?
                }
                Some(_) => Kind::default(),
                None => {
                    let name = *first;
                    parts.next();
                    name.parse()?
                }
            },
            None => Kind::default(),
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

impl std::fmt::Display for MapOptions {
    /// The kind, and the options that differ from the defaults, as [`from_str`](std::str::FromStr::from_str) reads them.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "kind={}", self.kind())?;
        let default = AnyOptions::of(self.kind());
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

    #[test]
    fn options_are_read_as_they_are_written() {
        for &kind in Kind::all() {
            for options in MapOptions::extremes(kind).into_iter().chain([kind.into()]) {
                assert_eq!(options.to_string().parse::<MapOptions>().unwrap(), options);
            }
            assert_eq!(kind.name().parse::<MapOptions>().unwrap(), kind.into());
        }
        assert_eq!("".parse::<MapOptions>().unwrap(), MapOptions::default());
        for bad in [
            "kind=",
            "kind=none",
            "nonsense=1",
            "kind=lbtree,leaf",
            "leaf=x",
        ] {
            let refused = bad.parse::<MapOptions>();
            assert!(matches!(refused, Err(Error::BadOption(_))), "{bad}");
        }
    }
}
