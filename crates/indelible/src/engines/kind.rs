//! Which kinds of index there are: one type of kinds for each family, generated from the family's list.

use super::option::{EngineOptions, OptionBytes};
use super::{OptionInfo, SpatialEngineOptions, ordered_engines, spatial_engines, string_engines};
use crate::front::IndexOptions;
use crate::spatial::Coordinates;
use crate::{Error, Result};

mod sealed {
    pub trait Sealed {}
}

/// A family of kinds of index: [`Kind`] has the kinds of maps, [`SpatialKind`] those of spatial indexes, [`StringKind`] those of maps of byte strings.
///
/// Sealed: it is there for programs that treat both families alike. [`IndexOptions`](crate::IndexOptions) and
/// [`IndexStat`](crate::IndexStat) are generic over it.
///
/// # Examples
///
/// ```
/// use indelible::{IndexKind, Kind, SpatialKind};
/// fn list<K: IndexKind>() {
///     for kind in K::all() {
///         println!("{kind}: {}", kind.description());
///     }
/// }
/// list::<Kind>();
/// list::<SpatialKind>();
/// ```
pub trait IndexKind:
    Copy
    + Default
    + Eq
    + std::fmt::Debug
    + std::fmt::Display
    + std::str::FromStr<Err = Error>
    + Send
    + Sync
    + sealed::Sealed
    + 'static
{
    /// The options of an index of this family, of whatever kind.
    #[doc(hidden)]
    type Options: FamilyOptions<Kind = Self>;

    /// All kinds of this version, in the order of their codes.
    fn all() -> &'static [Self];

    /// The name of the kind on a command line.
    fn name(self) -> &'static str;

    /// What the kind is, in a sentence.
    fn description(self) -> &'static str;

    /// What can be chosen when an index of this kind is created.
    fn options(self) -> &'static [OptionInfo];

    /// The code of the kind in the catalog.
    #[doc(hidden)]
    fn code(self) -> u8;

    /// The kind with this code in the catalog, if this version knows it.
    #[doc(hidden)]
    fn from_code(code: u8) -> Option<Self> {
        let all = Self::all().iter().copied();
        all.into_iter().find(|known| known.code() == code)
    }
}

/// The options of an index of one family, of whatever kind.
pub trait FamilyOptions: Clone + PartialEq + std::fmt::Debug + Send + Sync + 'static {
    /// The kinds of the family.
    type Kind: IndexKind<Options = Self>;

    /// The defaults of a kind.
    fn of(kind: Self::Kind) -> Self;

    /// The kind that has these options.
    fn kind(&self) -> Self::Kind;

    /// The version of the format that a new index of these options gets.
    fn format(&self) -> u32;

    /// Sets one option by name.
    fn set(&mut self, name: &str, value: &str) -> Result<()>;

    /// The option `name`, which is one of the kind's.
    fn get(&self, name: &str) -> String;

    /// Validates the options, and encodes them.
    fn encode(&self) -> Result<OptionBytes>;

    /// The options of an index that is there.
    fn decode(kind: Self::Kind, format: u32, bytes: &OptionBytes) -> Result<Self>;

    /// Options of a kind at the ends of their ranges.
    fn extremes(kind: Self::Kind) -> Vec<Self>;
}

macro_rules! kinds {
    (
        $(#[$of_kind:meta])+ $Kind:ident, $AnyOptions:ident;
        $(#[doc = $first:literal] $(#[doc = $more:literal])* $variant:ident = $code:literal, $name:literal, $folder:ident, $options:ident;)+
    ) => {
        $(#[$of_kind])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum $Kind {
            $(#[doc = $first] $(#[doc = $more])* $variant = $code,)+
        }

        impl $Kind {
            /// All kinds of this version, in the order of their codes.
            #[must_use]
            pub const fn all() -> &'static [Self] {
                &[$(Self::$variant,)+]
            }

            /// The name of the kind on a command line.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// What the kind is, in a sentence.
            #[must_use]
            pub const fn description(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($first, $($more,)*).trim_ascii(),)+
                }
            }

            /// Whether the kind is an example for those who write an engine, and not meant to be fast.
            #[must_use]
            pub const fn is_example(self) -> bool {
                match self {
                    $(Self::$variant => <super::$folder::$options as EngineOptions>::IS_EXAMPLE,)+
                }
            }

            /// What can be chosen when an index of this kind is created.
            #[must_use]
            pub const fn options(self) -> &'static [OptionInfo] {
                match self {
                    $(Self::$variant => <super::$folder::$options as EngineOptions>::LIST,)+
                }
            }
        }

        #[allow(clippy::derivable_impls, reason = "the variants come from the list")]
        impl Default for $Kind {
            /// The first kind of the list.
            fn default() -> Self {
                Self::all()[0]
            }
        }

        impl std::fmt::Display for $Kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $Kind {
            type Err = Error;

            fn from_str(name: &str) -> Result<Self> {
                parse_kind(name)
            }
        }

        impl sealed::Sealed for $Kind {}

        impl IndexKind for $Kind {
            type Options = $AnyOptions;

            fn all() -> &'static [Self] {
                Self::all()
            }

            fn name(self) -> &'static str {
                self.name()
            }

            fn description(self) -> &'static str {
                self.description()
            }

            fn options(self) -> &'static [OptionInfo] {
                self.options()
            }

            fn code(self) -> u8 {
                self as u8
            }
        }

        /// The options of an index of this family, of whatever kind.
        #[derive(Clone, Debug, PartialEq)]
        pub enum $AnyOptions {
            $(#[allow(missing_docs)] $variant(super::$folder::$options),)+
        }

        impl FamilyOptions for $AnyOptions {
            type Kind = $Kind;

            fn of(kind: $Kind) -> Self {
                match kind {
                    $($Kind::$variant => Self::$variant(Default::default()),)+
                }
            }

            fn kind(&self) -> $Kind {
                match self {
                    $(Self::$variant(_) => $Kind::$variant,)+
                }
            }

            fn format(&self) -> u32 {
                match self {
                    $(Self::$variant(_) => <super::$folder::$options as EngineOptions>::FORMAT,)+
                }
            }

            fn set(&mut self, name: &str, value: &str) -> Result<()> {
                let kind = self.kind();
                if !kind.options().iter().any(|option| option.name == name) {
                    return Err(unknown_option(kind, name));
                }
                match self {
                    $(Self::$variant(options) => EngineOptions::set(options, name, value),)+
                }
            }

            fn get(&self, name: &str) -> String {
                match self {
                    $(Self::$variant(options) => EngineOptions::get(options, name),)+
                }
            }

            fn encode(&self) -> Result<OptionBytes> {
                match self {
                    $(Self::$variant(options) => options.encode(),)+
                }
            }

            fn decode(kind: $Kind, format: u32, bytes: &OptionBytes) -> Result<Self> {
                Ok(match kind {
                    $($Kind::$variant => Self::$variant(EngineOptions::decode(format, bytes)?),)+
                })
            }

            fn extremes(kind: $Kind) -> Vec<Self> {
                match kind {
                    $($Kind::$variant => EngineOptions::extremes().into_iter().map(Self::$variant).collect(),)+
                }
            }
        }

        $(impl From<super::$folder::$options> for IndexOptions<$Kind> {
            fn from(options: super::$folder::$options) -> Self {
                Self::from_any($AnyOptions::$variant(options))
            }
        })+
    };
}
ordered_engines!(kinds, {
    /// The kind of index that a map is. It is chosen when the map is created, and recorded in the pool.
    Kind, AnyOptions;
});
spatial_engines!(kinds, {
    /// The kind of index that a spatial index is. It is chosen when the index is created, and recorded in the pool.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::{Point2, Pool, SpatialKind};
    /// for &kind in SpatialKind::all() {
    ///     let places = Pool::in_memory()?.spatial_with::<Point2>("places", kind)?;
    ///     assert_eq!(places.kind(), kind);
    ///     println!("{kind}: {}", kind.description());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    SpatialKind, AnySpatialOptions;
});
string_engines!(kinds, {
    /// The kind of index that a map of byte strings is. It is chosen when the map is created, and recorded in the pool.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::{Pool, StringKind};
    /// for &kind in StringKind::all() {
    ///     let names = Pool::in_memory()?.bytes_with("names", kind)?;
    ///     assert_eq!(names.kind(), kind);
    ///     println!("{kind}: {}", kind.description());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    StringKind, AnyStringOptions;
});

macro_rules! spatial_options {
    ($($(#[$doc:meta])+ $variant:ident = $code:literal, $name:literal, $folder:ident, $options:ident;)+) => {
        impl AnySpatialOptions {
            /// What the coordinates of the index mean.
            pub(crate) fn coordinates(&self) -> Coordinates {
                match self {
                    $(Self::$variant(options) => options.coordinates(),)+
                }
            }

            /// An error if geometries with so many axes cannot be indexed with these options.
            pub(crate) fn expect_axes(&self, axes: usize) -> Result<()> {
                match self {
                    $(Self::$variant(options) => options.expect_axes(axes),)+
                }
            }
        }
    };
}
spatial_engines!(spatial_options);

fn unknown_option(kind: impl IndexKind, name: &str) -> Error {
    let known: Vec<&str> = kind.options().iter().map(|option| option.name).collect();
    Error::BadOption(if known.is_empty() {
        format!("{kind} has no options, {name:?} among them")
    } else {
        format!(
            "{name:?} is no option of {kind}; known are {}",
            known.join(", ")
        )
    })
}

fn parse_kind<K: IndexKind>(name: &str) -> Result<K> {
    let known = K::all();
    let found = known.iter().copied().find(|kind| kind.name() == name);
    found.ok_or_else(|| {
        let known: Vec<&str> = known.iter().map(|kind| kind.name()).collect();
        let known = known.join(", ");
        Error::BadOption(format!("{name:?} is no kind of index; known are {known}"))
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_names_and_codes() {
        macro_rules! check {
            ($Kind:ident, $Other:ident) => {
                for &kind in $Kind::all() {
                    assert_eq!(kind.to_string().parse::<$Kind>().unwrap(), kind);
                    assert_eq!($Kind::from_code(kind as u8), Some(kind));
                    assert_eq!($Other::from_code(kind as u8), None);
                    assert!(!kind.description().is_empty());
                }
                assert!(matches!("btree".parse::<$Kind>(), Err(Error::BadOption(_))));
                assert_eq!($Kind::from_code(0), None);
                assert_eq!($Kind::from_code(u8::MAX), None);
            };
        }
        check!(Kind, SpatialKind);
        check!(SpatialKind, Kind);
        check!(StringKind, Kind);
        check!(StringKind, SpatialKind);
    }

    fn options_are_encoded_and_named<K: IndexKind>() {
        for &kind in K::all() {
            let default = K::Options::of(kind);
            for options in K::Options::extremes(kind).into_iter().chain([default]) {
                let bytes = options.encode().unwrap();
                let read = K::Options::decode(kind, options.format(), &bytes).unwrap();
                assert_eq!(read, options);
                let mut named = K::Options::of(kind);
                for option in kind.options() {
                    named.set(option.name, &options.get(option.name)).unwrap();
                }
                assert_eq!(named, options);
            }
            assert!(K::Options::of(kind).set("nonsense", "1").is_err());
            let bytes = [0xff; crate::pool::OPTION_BYTES];
            assert!(K::Options::decode(kind, 1, &bytes).is_err() || kind.options().is_empty());
        }
    }

    #[test]
    fn options_of_maps_are_encoded_and_named() {
        options_are_encoded_and_named::<Kind>();
    }

    #[test]
    fn options_of_maps_of_byte_strings_are_encoded_and_named() {
        options_are_encoded_and_named::<StringKind>();
    }

    #[test]
    fn options_of_spatial_indexes_are_encoded_and_named() {
        options_are_encoded_and_named::<SpatialKind>();
    }
}
