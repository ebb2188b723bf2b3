//! Sets of keys: made up, read from files, or real places on earth; and how hard they are.

use anyhow::Result;
use std::path::PathBuf;

/// Where keys come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Uniform over all of `u64`.
    Uniform,
    /// `exp(N(0, sigma))`, scaled: APEX section 6.1 (mu 0, sigma 1, times 10^9).
    Lognormal {
        /// The standard deviation of the logarithm.
        sigma: f64,
    },
    /// 0, 1, 2, ...
    Dense,
    /// A file of binary keys in the format of SOSD: a count and as many little-endian numbers.
    Sosd(PathBuf),
    /// A column of a CSV file.
    Csv {
        /// The file.
        path: PathBuf,
        /// The column's name or its number from 0.
        column: String,
    },
}

/// `count` distinct keys in ascending order, the same for the same seed.
///
/// # Errors
///
/// If a file cannot be read, or a source has fewer distinct keys.
pub fn generate(_source: &Source, _count: usize, _seed: u64) -> Result<Vec<u64>> {
    todo!("helper B")
}
