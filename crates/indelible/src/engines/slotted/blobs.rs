//! Blobs: long keys and long values, each in a block of its own.
//!
//! Blocks come in *classes* of sizes: every multiple of 256 bytes up to 1 KiB, two classes per doubling up to half an extent, an extent, and runs of
//! extents from there on, four classes per doubling. Each class has a space. The class follows from the length of the blob, so a
//! reference is an offset and a length, and a blob has no header.
//!
//! A blob is written and made durable before a leaf refers to it, and is never changed: a value is replaced by another blob. A blob whose
//! reference has gone from its leaf is retired, so a reader that has found the reference may read the blob as long as it is pinned.

use super::layout::{Reference, word_at};
use crate::pmem::schedule::point;
use crate::pmem::{Cell, Pm};
use crate::pool::{EXTENT_BYTES, Offset, PoolCore, Space};
use crate::{Error, Result};
use std::sync::Arc;

/// Bytes in the longest key.
pub(crate) const MOST_KEY_BYTES: usize = 64 << 10;
/// Bytes in the longest value: 1 GiB (64 KiB in the crash checker).
pub(crate) const MOST_VALUE_BYTES: u64 = crate::pmem::geometry::sized(1 << 30, 64 << 10) as u64;

/// Bytes that are stored between two fences: so that in a pool with a log no record of the log gets larger.
const BYTES_PER_FENCE: usize = 64 << 10;

/// The size after this one.
const fn next_class(bytes: u64) -> u64 {
    if bytes < 1024 {
        return bytes + 256;
    }
    if bytes < EXTENT_BYTES {
        let next = if bytes.is_power_of_two() {
            bytes / 2 * 3
        } else {
            bytes / 3 * 4
        };
        return if next > EXTENT_BYTES / 2 {
            EXTENT_BYTES
        } else {
            next
        };
    }
    let extents = bytes / EXTENT_BYTES;
    let step = (1 << extents.ilog2()) / 4;
    (extents + if step == 0 { 1 } else { step }) * EXTENT_BYTES
}

const fn count_classes() -> usize {
    let (mut bytes, mut count) = (256, 1);
    while bytes < MOST_VALUE_BYTES {
        bytes = next_class(bytes);
        count += 1;
    }
    count
}

/// How many classes there are.
pub(super) const CLASSES: usize = count_classes();

/// Bytes in a block of each class.
pub(super) const CLASS_BYTES: [u32; CLASSES] = {
    let mut classes = [256; CLASSES];
    let mut at = 1;
    while at < CLASSES {
        classes[at] = next_class(classes[at - 1] as u64) as u32;
        at += 1;
    }
    classes
};

/// The class of blocks for so many bytes.
pub(super) fn class_of(bytes: u64) -> usize {
    CLASS_BYTES.partition_point(|&size| u64::from(size) < bytes)
}

/// Where blobs lie.
#[derive(Clone)]
pub(super) struct Blobs {
    core: Arc<PoolCore>,
    pm: Pm,
    /// One for each class.
    spaces: Arc<[Arc<Space>; CLASSES]>,
}

impl Blobs {
    pub(super) fn new(core: &Arc<PoolCore>, spaces: &Arc<[Arc<Space>; CLASSES]>) -> Self {
        Self {
            core: Arc::clone(core),
            pm: core.pm(),
            spaces: Arc::clone(spaces),
        }
    }

    /// The space of a blob of so many bytes.
    pub(super) fn space_for(&self, bytes: u64) -> Result<&Arc<Space>> {
        self.spaces
            .get(class_of(bytes))
            .ok_or_else(|| Error::Damaged(format!("a reference to {bytes} bytes")))
    }

    fn cells(&self, offset: Offset, words: usize) -> &[Cell] {
        // SAFETY: the block of a blob, which is as long at least, lies whole and aligned in the mapping: it was allocated by this process, or
        // `claim` has found that it does. The mapping lives as long as `core`, and a `Cell` is an atomic word.
        unsafe {
            std::slice::from_raw_parts(
                self.core
                    .base()
                    .add(offset.get() as usize)
                    .cast_const()
                    .cast(),
                words,
            )
        }
    }

    /// Writes a blob, which is durable when this returns. Nothing refers to it yet.
    pub(super) fn write(&self, bytes: &[u8]) -> Result<Reference> {
        let length = bytes.len() as u64;
        let offset = self.space_for(length)?.alloc()?;
        self.fill(offset, bytes);
        Ok(Reference {
            offset,
            bytes: length,
        })
    }

    /// Writes `bytes` to a block that nothing refers to.
    pub(super) fn fill(&self, offset: Offset, bytes: &[u8]) {
        let mut words = Vec::with_capacity(BYTES_PER_FENCE.min(bytes.len()).div_ceil(8));
        for (part, bytes) in bytes.chunks(BYTES_PER_FENCE).enumerate() {
            words.clear();
            words.extend((0..bytes.len()).step_by(8).map(|at| word_at(bytes, at)));
            let from = offset + (part * BYTES_PER_FENCE) as u64;
            self.pm.stream(self.cells(from, words.len()), &words);
            self.pm.named("slotted.blob").fence();
        }
    }

    /// The bytes of a blob.
    ///
    /// The caller is pinned for as long as it uses them, or keeps the block; and while it was pinned a leaf, at a validated version, had this reference, or the caller has
    /// the lock of such a leaf.
    pub(super) fn bytes(&self, blob: Reference) -> &[u8] {
        point();
        let words = self.cells(blob.offset, (blob.bytes as usize).div_ceil(8));
        self.core.make_present(words);
        // SAFETY: the words are live, as `cells` says. No thread writes to a blob that a leaf has referred to, and its block is used again only
        // after an epoch in which nobody can hold the reference, and when nobody keeps it: the caller is pinned, or keeps it.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), blob.bytes as usize) }
    }

    /// Frees a blob that nothing has ever referred to.
    pub(super) fn free_now(&self, blob: Reference) {
        if let Ok(space) = self.space_for(blob.bytes) {
            space.free_now(blob.offset);
        }
    }

    /// Frees a blob that no leaf refers to any more.
    pub(super) fn retire(&self, blob: Reference) {
        if let Ok(space) = self.space_for(blob.bytes) {
            space.retire(blob.offset);
        }
    }

    /// Claims the block that a reference from before the open leads to.
    pub(super) fn claim(&self, blob: Reference) -> Result<()> {
        self.space_for(blob.bytes)?.claim_linked(blob.offset)
    }

    /// Undoes a claim.
    pub(super) fn unclaim(&self, blob: Reference) {
        if let Ok(space) = self.space_for(blob.bytes) {
            space.unclaim(blob.offset);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn classes_ascend_and_waste_little() {
        for (at, pair) in CLASS_BYTES.windows(2).enumerate() {
            let [a, b] = [u64::from(pair[0]), u64::from(pair[1])];
            assert!(a < b && b <= 2 * a, "class {at}");
            assert_eq!(class_of(a), at);
            assert_eq!(class_of(a + 1), at + 1);
            assert!(b.is_multiple_of(256));
            assert!(b <= EXTENT_BYTES || b.is_multiple_of(EXTENT_BYTES));
        }
        assert_eq!(class_of(0), 0);
        assert_eq!(u64::from(CLASS_BYTES[CLASSES - 1]), MOST_VALUE_BYTES);
    }
}
