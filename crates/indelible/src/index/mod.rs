//! The indexes, one folder each, with the same rooms: `layout`, `search`, `insert`, `smo`, `scan`, `recover`, `check`.

pub(crate) mod lbtree;
mod simd;
