//! Sets of keys: made up, read from files, or real places on earth; and how hard they are.
//!
//! A [`Source`] is written as text, [`generate`] makes keys of it, and [`hardness`] says how badly straight lines fit
//! them. Three kinds of sources:
//!
//! - **Made up** (`synthetic.rs`): from `dense`, which one line fits, to `cascade`, which no line fits at any scale. Two of
//!   them have a knob: `piecewise:N` takes about `N` lines, and `cascade:P` goes from uniform keys to the hardest there
//!   are. `exponential`, `sawtooth`, `low-bits` and `clustered` are there to hurt structures that trust a straight line.
//! - **Real places** (`places.rs`): the carried file of 144,563 cities ([`cities`]), grown to any size.
//! - **Points** ([`points`]): keys that stand for points, for spatial indexes: made up, the cities, or from a file.
//! - **Files** ([`files`]): SOSD's binary format, and columns of CSV files.
//!
//! A source and a seed give the same keys on every machine: random bits come from a generator whose algorithm is fixed,
//! and logarithms and powers from a library in Rust instead of the system's, whose last digits differ.

pub mod cities;
mod draw;
pub mod files;
pub mod hardness;
mod places;
pub mod points;
mod source;
mod synthetic;
#[cfg(test)]
mod tests;

pub use source::{KNOWN, PointSet, Source};

use crate::machine;
use anyhow::{Result, ensure};
use draw::Random;

/// `count` distinct keys in ascending order, the same for the same seed. A file or a range with more of them than
/// `count` gives a random choice. Signed and floating-point keys are encoded as the library encodes them
/// ([`indelible::Key`]).
///
/// # Errors
///
/// If a file cannot be read, or a source has fewer distinct keys, or the keys do not fit into the memory of the machine.
pub fn generate(source: &Source, count: usize, seed: u64) -> Result<Vec<u64>> {
    has_room(count)?;
    let random = &mut Random::new(seed);
    match source {
        Source::Dense => Ok((0..count as u64).collect()),
        Source::Uniform => synthetic::uniform(count, random),
        Source::Normal => synthetic::normal(count, random),
        Source::Lognormal { sigma } => synthetic::lognormal(*sigma, count, random),
        Source::Piecewise { segments } => synthetic::piecewise(*segments, count, random),
        Source::Clustered { clusters } => synthetic::clustered(*clusters, count, random),
        Source::Sawtooth { teeth } => synthetic::sawtooth(*teeth, count, random),
        Source::Exponential => synthetic::exponential(count, random),
        Source::LowBits { bits } => synthetic::low_bits(*bits, count, random),
        Source::Cascade { share } => synthetic::cascade(*share, count, random),
        Source::Longitudes => places::longitudes(count, random),
        Source::LonLat => places::lon_lat(count, random),
        Source::Hilbert => places::hilbert(count, random),
        Source::Points(set) => points::generate(set, count, random),
        Source::Sosd(path) => draw::choose(files::sosd_keys(path)?, count, random),
        Source::Csv { path, column } => draw::choose(files::csv_keys(path, column)?, count, random),
    }
}

/// Whether so many keys fit into memory. A list that is longer than memory would end the process, and say no more than that.
fn has_room(count: usize) -> Result<()> {
    let memory = machine::memory_bytes();
    let bytes = (count as u64).saturating_mul(size_of::<u64>() as u64);
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    ensure!(
        memory == 0 || bytes <= memory,
        "{count} keys take {:.0} GiB, and the machine has {:.0}: fewer records, operations or seconds",
        gib(bytes),
        gib(memory)
    );
    Ok(())
}
