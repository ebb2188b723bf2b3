//! Which kinds of index there are.

use crate::{Error, Result};

/// The kind of index that a map is. It is chosen when the map is created, and recorded in the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Kind {
    /// The LB+-Tree (Liu, Chen and Wang, PVLDB 13(7), 2020): good at everything on any keys, and so the default.
    #[default]
    LbTree = 1,
    /// APEX (Lu, Ding, Lo, Minhas and Wang, PVLDB 15(3), 2021), a learned index: lookups are two to three times as fast on keys
    /// that are spread in some regular way. It takes more space, and some orders of insertion are bad for it.
    Apex = 2,
}

impl Kind {
    const ALL: [Self; 2] = [Self::LbTree, Self::Apex];

    /// The kind that the catalog records with this code, if it is known.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|known| *known as u8 == code)
    }

    fn name(self) -> &'static str {
        match self {
            Self::LbTree => "lbtree",
            Self::Apex => "apex",
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Kind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| {
                let known = Self::ALL.map(Self::name).join(", ");
                Error::BadOption(format!("{name:?} is no kind of index; known are {known}"))
            })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_names_and_codes() {
        for kind in Kind::ALL {
            assert_eq!(kind.to_string().parse::<Kind>().unwrap(), kind);
            assert_eq!(Kind::from_code(kind as u8), Some(kind));
        }
        assert!(matches!("btree".parse::<Kind>(), Err(Error::BadOption(_))));
        assert_eq!(Kind::from_code(0), None);
        assert_eq!(Kind::from_code(3), None);
    }
}
