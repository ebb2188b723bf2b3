//! Tests of spatial indexes.
//!
//! One program, since each program takes long to compile and to link.

#[path = "../shared/cases.rs"]
mod cases;
mod contract;
#[path = "../shared/costs.rs"]
mod costs;
mod face;
mod globe;
mod hilbert_counts;
mod hilbert_quality;
#[path = "../shared/image.rs"]
mod image;
mod spatial_model;
#[path = "../shared/stop.rs"]
mod stop;
mod threads;
