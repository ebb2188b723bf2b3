//! What is made from this crate: the header, and the shim for PiBench. One program, since linking cbindgen takes long.

mod header;
mod pibench;
