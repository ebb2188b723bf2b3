//! Tests of maps of byte strings.
//!
//! One program, since each program takes long to compile and to link.

mod batches;
mod between;
mod closures;
mod contract;
#[path = "../shared/costs.rs"]
mod costs;
mod counts;
#[path = "../shared/death.rs"]
mod death;
mod disk;
mod full;
mod handover;
mod loads;
#[path = "../shared/lost.rs"]
mod lost;
mod lost_pages;
mod orders;
mod shapes;
mod sizes;
#[path = "../shared/skipped.rs"]
mod skipped;
mod space;
mod stream;
