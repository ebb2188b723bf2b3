//! The R-tree of Boost.Geometry, an R*-tree with nodes of 16, behind the standard library's lock. Searches run side by side, as its
//! documentation allows.
//!
//! `boost.cpp` puts its templates behind functions of C.

use super::volatile;
use crate::contestants::Contestant;
use crate::data::points::{Point, point};
use crate::index::Index;
use crate::workload::value_of;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tree::{Record, Tree};

struct Boost(RwLock<Tree>);

/// Grown by inserts, and bulk-loaded.
pub(super) fn contestants() -> [Contestant; 2] {
    let contestant = |name, how, loads_at_once| {
        let about = format!(
            "Boost.Geometry of Boost {}: rtree with rstar<16> behind a std::sync::RwLock, {how}",
            tree::version()
        );
        let mut contestant = volatile(name, &about, |_| {
            Ok(Box::new(Boost(RwLock::new(Tree::new()))))
        });
        if let Some(points) = &mut contestant.points {
            points.is_mutable = true;
            points.loads_at_once = loads_at_once;
        }
        contestant
    };
    [
        contestant("boost", "grown by inserts", false),
        contestant("boost-bulk", "packed in every experiment", true),
    ]
}

impl Boost {
    #[inline]
    fn read(&self) -> RwLockReadGuard<'_, Tree> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn write(&self) -> RwLockWriteGuard<'_, Tree> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[inline]
fn record(key: u64, value: u64) -> Record {
    let [x, y] = point(key);
    Record { x, y, value }
}

/// The value of a point. The lock is held by the caller, so that an update is one step.
fn find(tree: &Tree, key: u64) -> Option<u64> {
    let mut page = Vec::new();
    tree.window(point(key), point(key), &mut page);
    page.first().copied()
}

impl Index for Boost {
    fn get(&self, key: u64) -> Option<u64> {
        find(&self.read(), key)
    }

    #[inline]
    fn insert(&self, key: u64, value: u64) {
        self.write().insert(record(key, value));
    }

    /// Values in the tree cannot be changed.
    fn update(&self, key: u64, value: u64) -> bool {
        let mut tree = self.write();
        let Some(before) = find(&tree, key) else {
            return false;
        };
        tree.insert(record(key, value));
        tree.remove(record(key, before))
    }

    #[inline]
    fn remove(&self, key: u64) -> bool {
        let mut tree = self.write();
        let mut remove = |value| tree.remove(record(key, value));
        remove(value_of(key)) || remove(!value_of(key))
    }

    fn scan(&self, _from: u64, _count: usize, _page: &mut Vec<(u64, u64)>) {
        unimplemented!("points have no order")
    }

    fn window(&self, low: Point, high: Point, page: &mut Vec<u64>) {
        self.read().window(low, high, page);
    }

    fn nearest(&self, point: Point, count: usize, page: &mut Vec<u64>) {
        self.read().nearest(point, count, page);
    }

    /// Its nodes are as full as they can be after this: Boost offers no choice.
    fn bulk_load(&self, records: &[(u64, u64)], _fill: f64) -> bool {
        let records = records.iter().map(|&(key, value)| record(key, value));
        let records: Vec<Record> = records.collect();
        *self.write() = Tree::pack(&records);
        true
    }
}

/// The border to C++.
mod tree {
    use crate::data::points::Point;
    use std::ffi::{CStr, c_char, c_void};
    use std::ptr::NonNull;

    /// A point and its value, as in `boost.cpp`.
    #[repr(C)]
    #[derive(Clone, Copy)]
    pub(super) struct Record {
        pub(super) x: f64,
        pub(super) y: f64,
        pub(super) value: u64,
    }

    /// Takes a value that was found. `page` is a `Vec<u64>`.
    type Take = unsafe extern "C" fn(page: *mut c_void, value: u64);

    unsafe extern "C" {
        safe fn indelible_boost_version() -> *const c_char;
        safe fn indelible_boost_new() -> NonNull<c_void>;
        fn indelible_boost_pack(records: *const Record, count: usize) -> NonNull<c_void>;
        fn indelible_boost_free(tree: NonNull<c_void>);
        fn indelible_boost_insert(tree: NonNull<c_void>, record: Record);
        fn indelible_boost_remove(tree: NonNull<c_void>, record: Record) -> bool;
        fn indelible_boost_window(
            tree: NonNull<c_void>,
            west: f64,
            south: f64,
            east: f64,
            north: f64,
            take: Take,
            page: *mut c_void,
        );
        fn indelible_boost_nearest(
            tree: NonNull<c_void>,
            x: f64,
            y: f64,
            count: usize,
            take: Take,
            page: *mut c_void,
        );
    }

    /// The version of the headers, such as `1_74`.
    pub(super) fn version() -> String {
        // SAFETY: it is a literal of the shim, which ends with a zero and is never changed.
        let version = unsafe { CStr::from_ptr(indelible_boost_version()) };
        version.to_string_lossy().into_owned()
    }

    /// A tree of C++, owned.
    pub(super) struct Tree(NonNull<c_void>);

    // SAFETY: a tree is plain memory of the process that no thread has a special claim to.
    unsafe impl Send for Tree {}
    // SAFETY: what takes `&self` calls `const` functions of the tree, which change nothing and which Boost allows at the same time.
    unsafe impl Sync for Tree {}

    /// What the shim calls for each value that is found.
    unsafe extern "C" fn take(page: *mut c_void, value: u64) {
        // SAFETY: `page` is the vector that `window` or `nearest` borrows until the shim has returned.
        let page = unsafe { &mut *page.cast::<Vec<u64>>() };
        page.push(value);
    }

    impl Tree {
        pub(super) fn new() -> Self {
            Self(indelible_boost_new())
        }

        /// A tree that is built from all records at once.
        pub(super) fn pack(records: &[Record]) -> Self {
            // SAFETY: the shim reads as many records as the slice has, and keeps copies.
            Self(unsafe { indelible_boost_pack(records.as_ptr(), records.len()) })
        }

        #[inline]
        pub(super) fn insert(&mut self, record: Record) {
            // SAFETY: the tree is alive until `drop`, and `&mut self` keeps other threads away.
            unsafe { indelible_boost_insert(self.0, record) }
        }

        #[inline]
        pub(super) fn remove(&mut self, record: Record) -> bool {
            // SAFETY: as in `insert`.
            unsafe { indelible_boost_remove(self.0, record) }
        }

        /// Appends the values in a window, edges included.
        #[inline]
        pub(super) fn window(&self, low: Point, high: Point, page: &mut Vec<u64>) {
            let page: *mut Vec<u64> = page;
            // SAFETY: the tree is alive until `drop`, `&self` keeps writers away, and `take` gets the vector that it expects.
            unsafe {
                indelible_boost_window(self.0, low[0], low[1], high[0], high[1], take, page.cast());
            }
        }

        /// Appends the values of the nearest points, the nearest first.
        #[inline]
        pub(super) fn nearest(&self, [x, y]: Point, count: usize, page: &mut Vec<u64>) {
            let page: *mut Vec<u64> = page;
            // SAFETY: as in `window`.
            unsafe { indelible_boost_nearest(self.0, x, y, count, take, page.cast()) }
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            // SAFETY: the shim made it, and nothing uses it after this.
            unsafe { indelible_boost_free(self.0) }
        }
    }
}
