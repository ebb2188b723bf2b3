//! Pages that never reached the disk, in an APEX of small nodes; `lost` says what is promised.

use crate::lost::{Contents, lose_each_page, mix, sorted};
use indelible::ApexOptions;

/// Records for small nodes: the slots of an inner node take several pages, and many in a row hold no link.
fn contents_of_small_nodes() -> Vec<Contents> {
    let keys = (0..15_000).map(|key| mix(key) >> 2);
    let ends = [0, 1, 1 << 63, u64::MAX - 1, u64::MAX];
    vec![("loaded", sorted(keys.chain(ends)))]
}

#[test]
fn a_lost_page_of_an_inner_node_is_never_taken_for_one_without_links() {
    let small_nodes = ApexOptions::default().max_data_bytes(1 << 10);
    lose_each_page(&small_nodes.into(), &contents_of_small_nodes());
}
