//! Pages that never reached the disk, in pools of every kind of index; `lost` says what is promised.

use crate::lost::{Contents, lose_each_page, mix, sorted};
use indelible::{Kind, LbTreeOptions};

/// Records of many distributions: some maps are bulk-loaded, the others grow by inserts in a random order.
fn contents() -> Vec<Contents> {
    let ends = [0, 1, 1 << 63, u64::MAX - 1, u64::MAX];
    let cluster = |key: u64| (mix(key / 500) << 20) + key % 500 * 3;
    // Crowded keys, of which most are in the stash and in extended stash blocks, and one far away.
    let crowds = (0..3_000).map(|key| (1_u64 << (20 + key % 40)) + key / 40);
    vec![
        ("uniform", sorted((0..12_000).map(mix).chain(ends))),
        ("loaded uniform", sorted((0..12_000).map(mix).chain(ends))),
        ("clusters", sorted((0..10_000).map(cluster))),
        (
            "loaded clusters",
            sorted((0..10_000).map(cluster).chain(ends)),
        ),
        ("ascending", sorted(0..10_000)),
        ("crowds", sorted(crowds.chain([0, u64::MAX]))),
        ("few", sorted([0, 7, 1 << 40, u64::MAX].into_iter())),
        ("none", Vec::new()),
    ]
}

#[test]
fn a_page_that_was_lost_is_never_taken_for_one_without_records() {
    for &kind in Kind::all() {
        lose_each_page(&kind.into(), &contents());
    }
}

/// Leaves of 768 bytes may begin in one page and end in the next.
#[test]
fn a_lost_page_with_the_end_of_a_leaf_is_found() {
    let mut contents = contents();
    contents.truncate(2);
    // The first map of the pool: its last leaf ends in a page where nothing else is.
    contents.insert(0, ("loaded edge", sorted(0..88)));
    lose_each_page(&LbTreeOptions::default().leaf_bytes(768).into(), &contents);
}
