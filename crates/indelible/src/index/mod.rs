//! The indexes, one folder each.

pub(crate) mod lbtree;
