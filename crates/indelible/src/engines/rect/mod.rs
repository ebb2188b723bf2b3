//! What spatial engines share: records in words, the order of a bulk load, the nearest records found so far, and changes that a search
//! must not see half of.

mod best;
mod changes;
mod order;
mod record;
#[cfg(all(test, not(loom)))]
mod tests;

pub(in crate::engines) use best::Best;
pub(in crate::engines) use changes::{Changes, MOST_FAILURES};
pub(in crate::engines) use order::{Coded, expect_numbers, order_by_curve};
pub(in crate::engines) use record::{MAX_WORDS, Record, slots};
