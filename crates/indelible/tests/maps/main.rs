//! Tests of maps of words, and of typed maps.
//!
//! One program, since each program takes long to compile and to link.

mod apex_counts;
mod apex_format_one;
mod apex_lost_pages;
mod apex_options;
mod apex_release_memory;
#[path = "../shared/child.rs"]
mod child;
mod concurrency;
#[path = "../shared/costs.rs"]
mod costs;
mod counts;
mod face;
#[path = "../shared/image.rs"]
mod image;
mod key_encodings;
#[path = "../shared/kinds.rs"]
mod kinds;
mod lbtree_counts;
mod linearizable;
mod loft_space;
#[path = "../shared/lost.rs"]
mod lost;
mod lost_pages;
mod space_comes_back;
#[path = "../shared/stop.rs"]
mod stop;
mod typed_contract;
mod typed_model;
