//! A C interface to [`indelible`]: maps from `u64` to `u64`.
//!
//! # Overview
//!
//! Handles are boxes whose address the caller keeps; closing one gives the box back. Every function is `guarded`: a
//! failure becomes a [`Status`] and a message that the thread can ask for, and so does a panic, which must not unwind into
//! frames of another language. Pointers are looked at before they are used, but only null can be told from the rest.
//!
//! `include/indelible.h` is made from these files by cbindgen; the test `header` keeps it up to date.

mod map;
mod pointers;
mod pool;
mod status;
#[cfg(test)]
mod tests;

pub use map::{
    MapHandle, Record, indelible_bulk_load, indelible_get, indelible_insert, indelible_insert_new,
    indelible_len, indelible_map_close, indelible_map_open, indelible_map_open_with,
    indelible_range, indelible_remove, indelible_update,
};
pub use pool::{
    INDELIBLE_DURABILITY_POWER_LOSS, INDELIBLE_DURABILITY_POWER_LOSS_FORCED,
    INDELIBLE_DURABILITY_PROCESS, INDELIBLE_DURABILITY_RECORDED, PoolHandle, indelible_pool_close,
    indelible_pool_create, indelible_pool_in_memory, indelible_pool_open,
    indelible_pool_open_or_create,
};
pub use status::{Status, indelible_last_error};
