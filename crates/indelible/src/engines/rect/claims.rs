//! The blocks of a tree whose nodes are all durable, when a sweep has met all of them.

use crate::pool::{Offset, Space};
use crate::{Error, Result};

/// Claims all blocks that were reached, those from before the open; those allocated since belong to the index already.
pub(in crate::engines) fn claim_all(space: &Space, mut reached: Vec<Offset>) -> Result<()> {
    reached.sort_unstable();
    let twice = reached.windows(2).find(|pair| pair[0] == pair[1]);
    let free = space.free_among(&reached);
    if let Some(offset) = twice.map(|pair| pair[0]).or(free.first().copied()) {
        return Err(Error::Damaged(format!(
            "node {offset:#x} is reached twice, or was free"
        )));
    }
    for offset in reached {
        space.claim(offset);
    }
    Ok(())
}
