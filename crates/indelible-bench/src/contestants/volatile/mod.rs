//! Structures that live in the memory of the process.

mod btree_map;
#[cfg(feature = "peers")]
mod congee;
#[cfg(feature = "peers")]
mod ferntree;
#[cfg(feature = "peers")]
mod scc;
#[cfg(feature = "peers")]
mod skip_map;

use super::{Contestant, Open, Survives};

pub(super) fn contestants() -> Vec<Contestant> {
    vec![
        btree_map::contestant(),
        #[cfg(feature = "peers")]
        skip_map::contestant(),
        #[cfg(feature = "peers")]
        scc::contestant(),
        #[cfg(feature = "peers")]
        congee::contestant(),
        #[cfg(feature = "peers")]
        ferntree::contestant(),
    ]
}

/// None of these has batches, and none leaves anything to be opened.
fn volatile(name: &str, about: &str, create: Open) -> Contestant {
    Contestant {
        name: name.into(),
        about: about.into(),
        survives: Survives::Nothing,
        map: None,
        kernel: None,
        points: None,
        has_batches: false,
        create,
        open: None,
    }
}
