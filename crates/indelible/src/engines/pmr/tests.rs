//! What only the PM-RTree has.
