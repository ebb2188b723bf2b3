//! Searches that read many leaves, beside relocations from leaf to leaf.
//!
//! A search could see a record that is relocated from leaf to leaf twice, or not at all. So each such relocation counts itself, in the same step in
//! which the record moves; and a search during which the number has changed begins again.
//!
//! A search that has begun again a few times *announces* itself. A thread that is about to relocate a record does announced searches first, for those who
//! have announced them, and hands over what it has found. So a search is disturbed at most once more by each thread, and nobody waits for it.

use super::Tree;
use super::layout::{NO_RELOCATIONS, RELOCATIONS};
use crate::concurrency::epochs;
use crate::pmem::geometry::sized;
use crate::pmem::schedule::point;
use crate::spatial::Geometry;
use crate::{Error, Result};
use std::any::Any;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Searches that have been disturbed so often are announced.
pub(super) const MOST_FAILURES: usize = sized(3, 1);

/// What a search has found, of whatever type.
type Anything = Box<dyn Any + Send>;

type Search<G> = Box<dyn Fn(&Tree<G>) -> Result<Anything> + Send + Sync>;

/// A search that any thread can do.
pub(super) struct Announced<G> {
    search: Search<G>,
    /// What it has found, once some thread has done it undisturbed.
    found: AtomicPtr<Result<Anything>>,
}

impl<G> Drop for Announced<G> {
    fn drop(&mut self) {
        let found = *self.found.get_mut();
        if !found.is_null() {
            // SAFETY: the pointer comes from a box, and nobody else has the search any more.
            drop(unsafe { Box::from_raw(found) });
        }
    }
}

/// Frees an announced search.
///
/// # Safety
///
/// The address comes from `Box::into_raw`, and no thread can reach the search any more.
unsafe fn free<G>(address: u64) {
    // SAFETY: as the caller promises.
    drop(unsafe { Box::from_raw(address as usize as *mut Announced<G>) });
}

impl<G: Geometry> Tree<G> {
    /// The number of relocations between leaves, as it stands in the pool.
    pub(super) fn relocations(&self) -> Result<u64> {
        let word = self.words.read(self.words.root_cell(RELOCATIONS))?;
        if word & NO_RELOCATIONS == 0 {
            let problem = "the index has lost its number of relocations";
            return Err(Error::Damaged(problem.into()));
        }
        Ok(word)
    }

    /// What `search` finds, unless a record was relocated from leaf to leaf meanwhile. The thread is pinned.
    pub(super) fn attempt<T>(&self, search: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        let _guard = epochs::pin();
        let before = self.relocations()?;
        let found = search()?;
        Ok((self.relocations()? == before).then_some(found))
    }

    /// What `search` finds at a moment, whatever is relocated meanwhile.
    pub(super) fn undisturbed<T: Send + 'static>(
        &self,
        search: impl Fn(&Self) -> Result<T> + Send + Sync + 'static,
    ) -> Result<T> {
        for _ in 0..MOST_FAILURES {
            if let Some(found) = self.attempt(|| search(self))? {
                return Ok(found);
            }
        }
        self.announced(search)
    }

    /// [`undisturbed`](Self::undisturbed), for a search that has been disturbed before.
    #[cold]
    pub(super) fn announced<T: Send + 'static>(
        &self,
        search: impl Fn(&Self) -> Result<T> + Send + Sync + 'static,
    ) -> Result<T> {
        let _guard = epochs::pin();
        let announced = Box::into_raw(Box::new(Announced {
            search: Box::new(move |tree| Ok(Box::new(search(tree)?) as Anything)),
            found: AtomicPtr::new(null_mut()),
        }));
        loop {
            point();
            let before = self.announced.load(Ordering::Acquire);
            if before.is_null() {
                if self.replace_announced(null_mut(), announced) {
                    break;
                }
                continue;
            }
            // SAFETY: the thread was pinned when it read the pointer, and announced searches are freed after an epoch.
            self.help(unsafe { &*before });
            self.replace_announced(before, null_mut());
        }
        // SAFETY: this thread retires it, below.
        let mine = unsafe { &*announced };
        self.help(mine);
        self.replace_announced(announced, null_mut());
        let found = mine.found.swap(null_mut(), Ordering::AcqRel);
        // SAFETY: the pointer comes from a box, and whoever swaps it out of the search owns it. It is there, since `help` has returned.
        let found = *unsafe { Box::from_raw(found) };
        // SAFETY: nobody finds the search any more who is not pinned now.
        unsafe { epochs::retire(announced as usize as u64, free::<G>) };
        let found = found?.downcast::<T>();
        Ok(*found.unwrap_or_else(|_| unreachable!("a search finds what it looks for")))
    }

    fn replace_announced(&self, old: *mut Announced<G>, new: *mut Announced<G>) -> bool {
        self.announced
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Does the search that is announced, if there is one. The caller is about to relocate a record, and is pinned.
    pub(super) fn help_searches(&self) {
        point();
        let announced = self.announced.load(Ordering::Acquire);
        if !announced.is_null() {
            // SAFETY: as in `announced`.
            self.help(unsafe { &*announced });
        }
    }

    /// Does an announced search, as often as it takes, unless somebody has.
    fn help(&self, announced: &Announced<G>) {
        while announced.found.load(Ordering::Acquire).is_null() {
            let found = match self.attempt(|| (announced.search)(self)) {
                Ok(None) => continue,
                Ok(Some(found)) => Ok(found),
                Err(error) => Err(error),
            };
            let found = Box::into_raw(Box::new(found));
            let none = null_mut();
            let order = Ordering::AcqRel;
            if announced
                .found
                .compare_exchange(none, found, order, Ordering::Acquire)
                .is_err()
            {
                // SAFETY: it was just made, and nobody else has seen it.
                drop(unsafe { Box::from_raw(found) });
            }
        }
    }
}
