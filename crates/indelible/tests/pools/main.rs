//! Tests of pools: files, disks, space, and what happens to them.
//!
//! One program, since each program takes long to compile and to link.

mod calamities;
#[path = "../shared/child.rs"]
mod child;
#[path = "../shared/death.rs"]
mod death;
mod disk;
#[path = "../shared/disks.rs"]
mod disks;
mod files;
#[path = "../shared/kinds.rs"]
mod kinds;
mod logged;
#[path = "../shared/skipped.rs"]
mod skipped;
mod space;
#[path = "../shared/stop.rs"]
mod stop;
