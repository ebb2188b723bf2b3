//! What a handle to an open object is to the catalog, which opens objects of all families in the same way.

use super::Host;
use crate::Result;
use crate::engines::{Engine, IndexKind, Place};
use crate::pool::{Object, OneWait};
use std::sync::Arc;

/// A handle to an open object of one family, of whatever kind.
pub(crate) trait Handle: Sized {
    /// The kinds of the family.
    type Kind: IndexKind;

    /// Lays out an empty object for the catalog entry of `place`, which is not committed yet.
    fn format(place: &Place, options: &<Self::Kind as IndexKind>::Options) -> Result<()>;

    /// Opens the object of the catalog entry of `place`, which has this kind. O(1).
    fn open(place: Place, kind: Self::Kind) -> Result<Self>;

    /// The handle to `object`, which is open; `None` if it is not of this kind.
    fn from_object(kind: Self::Kind, object: Arc<Object>) -> Option<Self>;

    /// The object as the pool's registry of open objects knows it.
    fn object(&self) -> Arc<Object>;

    /// What is done to every object.
    fn upkeep(&self) -> &dyn Upkeep;

    /// The kind of the object.
    fn kind(&self) -> Self::Kind;

    /// Does many writes, and calls nobody meanwhile. Waits once until all of them are durable, if the pool promises that.
    fn waiting_once<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut wait = self.upkeep().one_wait();
        let result = wait.part(work)?;
        wait.wait()?;
        Ok(result)
    }
}

/// What is done to every object, of whatever family.
pub(crate) trait Upkeep {
    /// Merges nodes that have few records, and moves live blocks to the front of the pool: see [`Pool::shrink`](crate::Pool::shrink).
    fn compact(&self) -> Result<()>;

    /// See [`Map::check`](crate::Map::check).
    fn check(&self) -> Result<Vec<String>>;

    /// For writes of one call that wait together.
    fn one_wait(&self) -> OneWait<'_>;
}

impl<E: Engine> Upkeep for Host<E> {
    fn compact(&self) -> Result<()> {
        self.compact()
    }

    fn check(&self) -> Result<Vec<String>> {
        self.check()
    }

    fn one_wait(&self) -> OneWait<'_> {
        OneWait::new(self.shared.gate.as_deref())
    }
}
