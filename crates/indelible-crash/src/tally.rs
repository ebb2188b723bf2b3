//! All images of a run, by fingerprint.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Fingerprints need no further hashing.
#[derive(Default)]
pub(crate) struct Fingerprint(u64);

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

pub(crate) type Fingerprints = HashSet<u64, BuildHasherDefault<Fingerprint>>;

/// All images of a run, by fingerprint, and how the run is getting on.
pub struct Tally {
    shards: [Mutex<Fingerprints>; 64],
    distinct: AtomicU64,
    images: AtomicU64,
}

/// Distinct images, after which a run counts no more of them: they take 16 bytes each.
const MOST_REMEMBERED: u64 = 64 << 20;

impl Default for Tally {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            distinct: AtomicU64::new(0),
            images: AtomicU64::new(0),
        }
    }
}

impl Tally {
    pub(crate) fn add(&self, image: u64) {
        self.images.fetch_add(1, Ordering::Relaxed);
        let mut shard = self.shards[image as usize % 64]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if (shard.len() as u64) < MOST_REMEMBERED / 64 && shard.insert(image) {
            self.distinct.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Distinct images so far, those in recovery included; after the first 64 million, at least so many.
    #[must_use]
    pub fn distinct(&self) -> u64 {
        self.distinct.load(Ordering::Relaxed)
    }

    /// Images recovered and checked so far. (An image comes back when what may be there has changed.)
    #[must_use]
    pub fn images(&self) -> u64 {
        self.images.load(Ordering::Relaxed)
    }
}
