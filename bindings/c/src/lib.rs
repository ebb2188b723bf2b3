//! A C interface to [`indelible`]: maps from `u64` to `u64`, maps of byte strings, and spatial indexes.
//!
//! # Overview
//!
//! Handles are boxes whose address the caller keeps; closing one gives the box back. Every function is `guarded`: a
//! failure becomes a [`Status`] and a message that the thread can ask for, and so does a panic, which must not unwind into
//! frames of another language. Pointers are looked at before they are used, but only null can be told from the rest.
//!
//! `include/indelible.h` is made from these files by cbindgen; the test `header` keeps it up to date.

mod bytes;
mod facts;
mod many;
mod map;
mod parts;
mod pointers;
mod pool;
#[cfg(test)]
#[path = "../../../crates/indelible/tests/shared/skipped.rs"]
mod skipped;
mod spatial;
mod status;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_bytes;
#[cfg(test)]
mod tests_of_spatial;
#[cfg(test)]
mod tests_of_upkeep;
mod upkeep;

pub use bytes::{
    BytesCursorHandle, BytesHandle, indelible_bytes_close, indelible_bytes_cursor_close,
    indelible_bytes_cursor_next, indelible_bytes_cursor_next_back, indelible_bytes_get,
    indelible_bytes_insert, indelible_bytes_insert_new, indelible_bytes_len, indelible_bytes_open,
    indelible_bytes_prefix, indelible_bytes_range, indelible_bytes_remove, indelible_bytes_update,
};
pub use facts::{
    INDELIBLE_OBJECT_BYTES, INDELIBLE_OBJECT_MAP, INDELIBLE_OBJECT_OTHER, INDELIBLE_OBJECT_SPATIAL,
    Object, Stat, indelible_object_next, indelible_pool_stat,
};
pub use many::{
    BytesRecord, indelible_bytes_bulk_load, indelible_bytes_insert_batch,
    indelible_bytes_remove_range,
};
pub use map::{
    MapHandle, Record, indelible_bulk_load, indelible_get, indelible_get_batch, indelible_insert,
    indelible_insert_batch, indelible_insert_new, indelible_len, indelible_map_close,
    indelible_map_open, indelible_map_open_with, indelible_range, indelible_range_down,
    indelible_remove, indelible_remove_range, indelible_update,
};
pub use parts::{
    BytesReaderHandle, BytesWriterHandle, indelible_bytes_reader_close,
    indelible_bytes_reader_open, indelible_bytes_reader_read, indelible_bytes_writer_close,
    indelible_bytes_writer_commit, indelible_bytes_writer_open, indelible_bytes_writer_write,
};
pub use pool::{
    INDELIBLE_DURABILITY_INTERVAL, INDELIBLE_DURABILITY_POWER_LOSS,
    INDELIBLE_DURABILITY_POWER_LOSS_FORCED, INDELIBLE_DURABILITY_PROCESS,
    INDELIBLE_DURABILITY_RECORDED, PoolHandle, indelible_pool_close, indelible_pool_create,
    indelible_pool_in_memory, indelible_pool_open, indelible_pool_open_or_create,
};
pub use spatial::{
    INDELIBLE_BOX2, INDELIBLE_BOX3, INDELIBLE_POINT2, INDELIBLE_POINT3, SpatialBox, SpatialHandle,
    SpatialRecord, indelible_spatial_bulk_load, indelible_spatial_close,
    indelible_spatial_contained, indelible_spatial_insert, indelible_spatial_insert_batch,
    indelible_spatial_intersecting, indelible_spatial_len, indelible_spatial_nearest,
    indelible_spatial_open, indelible_spatial_relocate, indelible_spatial_remove,
};
pub use status::{Status, indelible_last_error};
pub use upkeep::{
    indelible_bytes_check, indelible_map_check, indelible_object_drop, indelible_object_find,
    indelible_object_rename, indelible_pool_backup, indelible_pool_check, indelible_pool_shrink,
    indelible_pool_sync, indelible_spatial_check,
};
