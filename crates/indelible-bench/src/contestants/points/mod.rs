//! Spatial indexes: each holds points ([`crate::data::points`]), every one with a value.
//!
//! | file | contestants |
//! |---|---|
//! | `ours` | each kind of spatial index of indelible: in memory, on a file, and with the power-loss protocol |
//! | `rstar` | rstar's R*-tree, grown by inserts and bulk-loaded: two contestants, because they differ so much |
//! | `geo_index`, `kiddo` | trees that are built once and cannot be changed |
//! | `boost` | the R-tree of Boost.Geometry, likewise grown and bulk-loaded |
//! | `sqlite` | SQLite's R*Tree |
//!
//! An update keeps the place and replaces the value: indexes of points have no operation for that, so it is an insert and a removal, in this
//! order, and a search between them finds both.

#[cfg(feature = "boost")]
mod boost;
#[cfg(feature = "peers")]
mod geo_index;
#[cfg(feature = "peers")]
mod kiddo;
mod ours;
#[cfg(all(test, feature = "peers"))]
mod quality;
#[cfg(feature = "peers")]
mod rstar;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(test)]
mod tests;

pub(super) use ours::contestants as ours;
pub use ours::name_of;

use super::Contestant;
#[cfg(any(feature = "peers", feature = "boost"))]
use super::{Open, Survives};
use indelible::SpatialOptions;

/// What only spatial contestants have.
#[derive(Clone, Debug)]
pub struct OfPoints {
    /// The kind of index and its options, if it is indelible itself.
    pub options: Option<SpatialOptions>,
    /// Whether it is bulk-loaded whatever the experiment says.
    pub loads_at_once: bool,
    /// Whether points can be inserted and removed.
    pub is_mutable: bool,
    /// Whether it has searches in windows.
    pub has_windows: bool,
}

/// All but ours.
pub(super) fn peers() -> Vec<Contestant> {
    let families: Vec<Vec<Contestant>> = vec![
        #[cfg(feature = "peers")]
        rstar::contestants().into(),
        #[cfg(feature = "peers")]
        vec![geo_index::contestant(), kiddo::contestant()],
        #[cfg(feature = "boost")]
        boost::contestants().into(),
        #[cfg(feature = "sqlite")]
        vec![sqlite::contestant()],
    ];
    families.into_iter().flatten().collect()
}

/// A contestant that lives in the memory of the process and is built at once.
#[cfg(any(feature = "peers", feature = "boost"))]
fn volatile(name: &str, about: &str, create: Open) -> Contestant {
    Contestant {
        name: name.into(),
        about: about.into(),
        survives: Survives::Nothing,
        map: None,
        kernel: None,
        points: Some(OfPoints {
            options: None,
            loads_at_once: true,
            is_mutable: false,
            has_windows: true,
        }),
        has_batches: false,
        create,
        open: None,
    }
}

/// What stands in for an operation that a tree which cannot be changed does not have.
#[cfg(feature = "peers")]
fn cannot_be_changed() -> ! {
    unimplemented!("the tree cannot be changed")
}
