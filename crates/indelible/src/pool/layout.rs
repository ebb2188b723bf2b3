//! Where things are in a pool, and the catalog and extent table.
//!
//! ```text
//! extent 0, metadata                                             extents 1, 2, ...: 2 MiB each
//! 0        4096     8192                    64 KiB        2 MiB
//! | super- | super- | catalog: 128 entries | extent table |  blocks of one map and one size, or a part of a larger block
//! | block A| block B| of 256 bytes         | 8 bytes each |
//! ```
//!
//! Extent 0 is sparse: only the pages in use are reserved on the disk.

use crate::pmem::Cell;
use std::mem::offset_of;

const SMALL: bool = cfg!(feature = "small");

/// Bytes in an extent, the unit in which the file grows and maps own space. Also the size of a huge page. (With the
/// `small` feature, for the crash checker, 4 KiB: so that pools of a few hundred records take, free, grow and shrink.)
pub(crate) const EXTENT_BYTES: u64 = if SMALL { 4096 } else { 2 << 20 };
/// Maps in a pool at most.
pub(super) const MAPS: usize = if SMALL { 4 } else { 128 };
/// Bytes in one copy of the superblock.
pub(super) const COPY_BYTES: usize = if SMALL { 1024 } else { 4096 };
/// Where the catalog begins.
pub(super) const CATALOG_AT: u64 = 2 * COPY_BYTES as u64;
/// Where the extent table begins.
pub(super) const TABLE_AT: u64 = if SMALL { 3072 } else { 64 << 10 };
/// Extents in a pool at most: what the table has room for, 496 GiB.
pub(super) const MAX_EXTENTS: u64 = (EXTENT_BYTES - TABLE_AT) / 8;
/// How the maps that are made now are laid out.
pub(super) const OBJECT_FORMAT: u64 = 2;
/// Bytes in the longest name of a map.
pub(super) const NAME_BYTES: usize = 63;

/// A map, as the catalog knows it.
///
/// ```text
/// +0    owner     the map's number, unique among all that are or were in the pool; 0: the entry is free
/// +8    shape     byte 0 kind of index (1 LB+-tree, 2 APEX) · 1 key type · 2 value type · 3 length of the name ·
///                 4..7 leaf bytes of an LB+-tree
/// +16   roots     8 words for the index
/// +80   records   number of records at the last clean close
/// +88   records_generation   generation of that close
/// +96   object_format   how the index lays the map out: 0 for maps of format 1, 2 for those that are made now
/// +104  zero
/// +192  name      64 bytes
/// ```
#[repr(C, align(64))]
pub(crate) struct CatalogEntry {
    /// Not zero: the map exists. Storing it commits the creation and the removal of a map.
    pub(super) owner: Cell,
    pub(crate) shape: Cell,
    pub(crate) roots: [Cell; 8],
    pub(crate) records: Cell,
    pub(crate) records_generation: Cell,
    pub(crate) object_format: Cell,
    pub(super) zero: [Cell; 11],
    pub(super) name: [Cell; 8],
}

const _: () = {
    assert!(size_of::<CatalogEntry>() == 256);
    assert!(offset_of!(CatalogEntry, shape) == 8);
    assert!(offset_of!(CatalogEntry, roots) == 16);
    assert!(offset_of!(CatalogEntry, records) == 80);
    assert!(offset_of!(CatalogEntry, records_generation) == 88);
    assert!(offset_of!(CatalogEntry, object_format) == 96);
    assert!(offset_of!(CatalogEntry, name) == 192);
    assert!(CATALOG_AT + (MAPS * size_of::<CatalogEntry>()) as u64 <= TABLE_AT);
    assert!(NAME_BYTES < 64);
};

/// What an extent is used for: one word of the extent table.
///
/// ```text
/// bits 0..31   owner: a map's number, 0 for a free extent
/// bits 32..39  1 blocks · 2 head of a larger block · 3 continuation of a larger block
/// bits 40..63  block size in units of 256 bytes (1), or length in extents (2, 3)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use(pub(super) u64);

impl Use {
    pub(super) const FREE: Self = Self(0);

    pub(super) fn blocks(owner: u32, block_bytes: u64) -> Self {
        Self(u64::from(owner) | 1 << 32 | (block_bytes / 256) << 40)
    }

    pub(super) fn head(owner: u32, extents: u64) -> Self {
        Self(u64::from(owner) | 2 << 32 | extents << 40)
    }

    pub(super) fn continuation(owner: u32, extents: u64) -> Self {
        Self(u64::from(owner) | 3 << 32 | extents << 40)
    }

    pub(super) fn owner(self) -> u32 {
        self.0 as u32
    }

    pub(super) fn is_continuation(self) -> bool {
        (self.0 >> 32) as u8 == 3
    }

    /// Bytes of the blocks that begin here; of a continuation, or of a word that cannot be, `None`.
    pub(super) fn block_bytes(self) -> Option<u64> {
        let size = self.0 >> 40;
        match (self.0 >> 32) as u8 {
            1 => Some(size * 256).filter(|bytes| (1..=EXTENT_BYTES).contains(bytes)),
            2 => Some(size * EXTENT_BYTES).filter(|&bytes| bytes > EXTENT_BYTES),
            _ => None,
        }
    }

    /// Extents that this word speaks for, if it is a head.
    pub(super) fn length(self) -> u64 {
        if (self.0 >> 32) as u8 == 2 {
            self.0 >> 40
        } else {
            1
        }
    }
}
