//! Which kinds of index there are.

use super::option::{EngineOptions, OptionBytes};
use super::{Engine, OptionInfo, ordered_engines};
use crate::{Error, Result};

macro_rules! kinds {
    ($(#[doc = $first:literal] $(#[doc = $more:literal])* $variant:ident = $code:literal, $name:literal, $folder:ident, $options:ident;)+) => {
        /// The kind of index that a map is. It is chosen when the map is created, and recorded in the pool.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Kind {
            $(#[doc = $first] $(#[doc = $more])* $variant = $code,)+
        }

        impl Kind {
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
                    $(Self::$variant => <super::$folder::Index as Engine>::IS_EXAMPLE,)+
                }
            }

            /// What can be chosen when a map of this kind is created.
            #[must_use]
            pub const fn options(self) -> &'static [OptionInfo] {
                match self {
                    $(Self::$variant => <super::$folder::$options as EngineOptions>::LIST,)+
                }
            }
        }

        /// The options of a map, of whatever kind.
        #[derive(Clone, Debug, PartialEq)]
        pub(crate) enum AnyOptions {
            $($variant(super::$folder::$options),)+
        }

        impl AnyOptions {
            /// The defaults of a kind.
            pub(crate) fn of(kind: Kind) -> Self {
                match kind {
                    $(Kind::$variant => Self::$variant(Default::default()),)+
                }
            }

            pub(crate) fn kind(&self) -> Kind {
                match self {
                    $(Self::$variant(_) => Kind::$variant,)+
                }
            }

            /// The version of the format that a new map of these options gets.
            pub(crate) fn format(&self) -> u32 {
                match self {
                    $(Self::$variant(_) => <super::$folder::$options as EngineOptions>::FORMAT,)+
                }
            }

            pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<()> {
                let kind = self.kind();
                if !kind.options().iter().any(|option| option.name == name) {
                    return Err(unknown_option(kind, name));
                }
                match self {
                    $(Self::$variant(options) => EngineOptions::set(options, name, value),)+
                }
            }

            pub(crate) fn get(&self, name: &str) -> String {
                match self {
                    $(Self::$variant(options) => EngineOptions::get(options, name),)+
                }
            }

            pub(crate) fn encode(&self) -> Result<OptionBytes> {
                match self {
                    $(Self::$variant(options) => options.encode(),)+
                }
            }

            /// The options of a map that is there.
            pub(crate) fn decode(kind: Kind, format: u32, bytes: &OptionBytes) -> Result<Self> {
                Ok(match kind {
                    $(Kind::$variant => Self::$variant(EngineOptions::decode(format, bytes)?),)+
                })
            }

            /// Options of a kind at the ends of their ranges.
            pub(crate) fn extremes(kind: Kind) -> Vec<Self> {
                match kind {
                    $(Kind::$variant => EngineOptions::extremes().into_iter().map(Self::$variant).collect(),)+
                }
            }
        }

        $(impl From<super::$folder::$options> for AnyOptions {
            fn from(options: super::$folder::$options) -> Self {
                Self::$variant(options)
            }
        }

        impl From<super::$folder::$options> for crate::MapOptions {
            fn from(options: super::$folder::$options) -> Self {
                Self::from(AnyOptions::from(options))
            }
        })+
    };
}
ordered_engines!(kinds);

#[allow(clippy::derivable_impls, reason = "the variants come from the list")]
impl Default for Kind {
    /// The first kind of the list.
    fn default() -> Self {
        Self::all()[0]
    }
}

impl Kind {
    /// The kind that the catalog records with this code, if this version knows it.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        let all = Self::all().iter().copied();
        all.into_iter().find(|known| *known as u8 == code)
    }
}

fn unknown_option(kind: Kind, name: &str) -> Error {
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

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Kind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = Self::all();
        known
            .iter()
            .copied()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| {
                let known: Vec<&str> = known.iter().map(|kind| kind.name()).collect();
                let known = known.join(", ");
                Error::BadOption(format!("{name:?} is no kind of index; known are {known}"))
            })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_names_and_codes() {
        for &kind in Kind::all() {
            assert_eq!(kind.to_string().parse::<Kind>().unwrap(), kind);
            assert_eq!(Kind::from_code(kind as u8), Some(kind));
            assert!(!kind.description().is_empty());
        }
        assert!(matches!("btree".parse::<Kind>(), Err(Error::BadOption(_))));
        assert_eq!(Kind::from_code(0), None);
        assert_eq!(Kind::from_code(u8::MAX), None);
    }

    #[test]
    fn options_are_encoded_and_named() {
        for &kind in Kind::all() {
            let default = AnyOptions::of(kind);
            for options in AnyOptions::extremes(kind).into_iter().chain([default]) {
                let bytes = options.encode().unwrap();
                let read = AnyOptions::decode(kind, options.format(), &bytes).unwrap();
                assert_eq!(read, options);
                let mut named = AnyOptions::of(kind);
                for option in kind.options() {
                    named.set(option.name, &options.get(option.name)).unwrap();
                }
                assert_eq!(named, options);
            }
            assert!(AnyOptions::of(kind).set("nonsense", "1").is_err());
            assert!(
                AnyOptions::decode(kind, 1, &[0xff; crate::pool::OPTION_BYTES]).is_err()
                    || kind.options().is_empty()
            );
        }
    }
}
