//! What spatial engines share: records in words, the order of a bulk load, the nearest records found so far, and changes that a search
//! must not see half of; and what R-trees share: nodes, links to them, how they are divided and packed.

mod best;
mod changes;
mod claims;
pub(in crate::engines) mod layout;
mod link;
mod node;
mod order;
mod pack;
mod quality;
mod record;
#[cfg(all(test, not(loom)))]
pub(in crate::engines) mod tests;

pub(in crate::engines) use best::Best;
pub(in crate::engines) use changes::{Changes, MOST_FAILURES};
pub(in crate::engines) use claims::{Sweep, Visits, expect_block};
pub(in crate::engines) use link::{Link, Queue};
pub(in crate::engines) use node::{Chain, Child, Node, Nodes, Part};
pub(in crate::engines) use order::{Coded, expect_numbers, order_by_curve};
pub(in crate::engines) use pack::{begin_of, grid_of, nodes_for};
pub(in crate::engines) use quality::{Cost, common, divide};
pub(in crate::engines) use record::{MAX_WORDS, Record};
