//! Words in the file that something else has damaged, and what a crash can leave behind that only this engine has.

use super::layout::{LEAF_BYTES, RootBlock, Shape};
use crate::engines::damage::{Words, is_damaged};
use crate::{Box2, Error, Point2, Pool, PoolOptions, Spatial};
use std::mem::offset_of;
use std::path::PathBuf;

const RECORDS: u64 = 2_000;

fn place(number: u64) -> Point2 {
    let spread = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    Point2::new(spread(number) as f64, spread(!number) as f64)
}

/// A closed pool with the index "m".
struct Loaded(tempfile::TempDir);

impl Loaded {
    fn new() -> Self {
        let loaded = Self(tempfile::tempdir().unwrap());
        let pool = Pool::create(loaded.path()).unwrap();
        let index = pool.spatial::<Point2>("m").unwrap();
        for number in 0..RECORDS {
            index.insert(place(number), number).unwrap();
        }
        drop(index);
        pool.close().unwrap();
        loaded
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("damaged.pool")
    }

    fn open(&self) -> crate::Result<Spatial<Point2>> {
        Pool::open(self.path())?.open_spatial("m")
    }
}

fn everything() -> Box2 {
    let corner = Point2::new(f64::INFINITY, f64::INFINITY);
    Box2::new(Point2::new(-corner.x, -corner.y), corner)
}

/// Sets a word, and back what it was afterwards.
fn with_word<T>(file: &Words, at: u64, word: u64, test: impl FnOnce() -> T) -> T {
    let before = file.get(at);
    file.set(at, word);
    let result = test();
    file.set(at, before);
    result
}

#[test]
fn a_relocation_that_a_crash_has_cut_short_is_finished_or_refused() {
    let loaded = Loaded::new();
    let file = Words::open(&loaded.path());
    let root = file.get(file.first_root());
    let head = file.get(root);
    let intent = root + offset_of!(RootBlock, intents) as u64;
    for store in [8, 24] {
        file.set(intent + store, head);
        file.set(intent + store + 8, file.get(head));
    }
    for state in [2, 1 << 40, u64::MAX] {
        with_word(&file, intent, state, || {
            assert!(is_damaged(loaded.open()));
        });
    }
    file.set(intent, 1);
    let pool = PoolOptions::new().open_read_only(loaded.path()).unwrap();
    let refused = pool.open_spatial::<Point2>("m").map(drop);
    assert!(matches!(refused, Err(Error::NotClean)), "{refused:?}");
    drop(pool);
    let index = loaded.open().unwrap();
    assert_eq!(index.len().unwrap(), RECORDS);
    assert_eq!(file.get(intent), 0);
}

#[test]
fn a_chain_of_leaves_without_a_grid_is_an_error() {
    let loaded = Loaded::new();
    let file = Words::open(&loaded.path());
    let grid = file.get(file.first_root()) + offset_of!(RootBlock, grid) as u64;
    with_word(&file, grid, 0, || assert!(is_damaged(loaded.open())));
    loaded.open().unwrap();
}

/// Boxes that contain what is no number would hide the other records of the leaf.
#[test]
fn a_record_that_is_no_shape_is_an_error_of_each_search_that_needs_its_leaf() {
    let loaded = Loaded::new();
    let file = Words::open(&loaded.path());
    let head = file.get(file.get(file.first_root()));
    let bits = file.get(head);
    let slot = (0..Shape::<Point2>::NEAR).find(|slot| bits >> slot & 1 != 0);
    let record = head + 8 * Shape::<Point2>::word_of(slot.unwrap()) as u64;
    assert!(record < head + LEAF_BYTES as u64);
    with_word(&file, record, f64::NAN.to_bits(), || {
        let index = loaded.open().unwrap();
        assert!(is_damaged(index.intersecting(everything())));
        assert!(!index.check().unwrap().is_empty());
    });
    let found = loaded.open().unwrap().intersecting(everything()).unwrap();
    assert_eq!(found.len() as u64, RECORDS);
}
