//! How trees that are built at once are packed: records into leaves in the order of their centres on a Hilbert curve, and nodes into the nodes above
//! them (Kamel and Faloutsos: "On packing R-trees", CIKM 1993).

use super::layout::Entries;
use crate::spatial::{Geometry, Grid, box_of_centres};

/// Into how many nodes so many entries are packed, if the share `fill` of each node is filled.
pub(in crate::engines) fn nodes_for<G: Geometry>(level: u32, entries: usize, fill: f64) -> usize {
    let most = Entries::<G>::most(level);
    // Two at least, so that each level has fewer nodes than the one below.
    let per_node = ((most as f64 * fill).ceil() as usize).clamp(2, most);
    entries.div_ceil(per_node).max(1)
}

/// Where part `number` of `parts` equal parts of `count` things begins.
pub(in crate::engines) fn begin_of(number: usize, parts: usize, count: usize) -> usize {
    (count as u128 * number as u128 / parts as u128) as usize
}

/// A grid over the centres of these records.
pub(in crate::engines) fn grid_of<G: Geometry>(records: &[(G, u64)]) -> Grid {
    let shapes = records.iter().map(|&(shape, _)| shape);
    Grid::new(&box_of_centres(shapes), G::AXES)
}
