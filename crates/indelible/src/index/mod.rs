//! The indexes, one folder each, with the same rooms: `layout`, `search`, `insert`, `smo`, `scan`, `recover`, `check`; and what
//! they share.

mod any;
mod apex;
mod lbtree;
mod simd;
mod tally;

pub(crate) use any::{AnyCursor, AnyIndex, WeakIndex};

/// What to do with a key, once its present value is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nothing.
    Keep,
    /// Give it this value, whether it is there or not.
    Put(u64),
    /// Take it out. (If it is not there: nothing.)
    Remove,
}
