//! What is made from this crate: the header, and the shim for PiBench; and that the header compiles. One program, since linking cbindgen takes long.

mod compiled;
mod header;
mod pibench;
