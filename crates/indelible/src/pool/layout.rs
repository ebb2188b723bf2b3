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
use crate::pmem::geometry::sized;
use std::mem::offset_of;

/// Bytes in an extent, the unit in which the file grows and maps own space. Also the size of a huge page. (With the
/// `small` feature, for the crash checker, 4 KiB: so that pools of a few hundred records take, free, grow and shrink.)
pub(crate) const EXTENT_BYTES: u64 = sized(2 << 20, 4096) as u64;
/// Objects in a pool, at most.
pub(super) const OBJECTS: usize = sized(128, 4);
/// Bytes in one copy of the superblock.
pub(super) const COPY_BYTES: usize = sized(4096, 1024);
/// Bytes of the superblock, which has two copies at the beginning of the file.
pub(crate) const SUPERBLOCK_BYTES: usize = 2 * COPY_BYTES;
/// Where the catalog begins.
pub(super) const CATALOG_AT: u64 = SUPERBLOCK_BYTES as u64;
/// Where the extent table begins.
pub(super) const TABLE_AT: u64 = sized(64 << 10, 3072) as u64;
/// Extents in a pool at most: what the table has room for, 496 GiB.
pub(super) const MAX_EXTENTS: u64 = (EXTENT_BYTES - TABLE_AT) / 8;
/// Bytes in the longest name of an object.
pub(crate) const NAME_BYTES: usize = 63;

/// Bytes of the options of an object, which its engine encodes.
pub(crate) const OPTION_BYTES: usize = 24;

/// An object, as the catalog knows it.
///
/// ```text
/// +0    owner        the object's number, unique among all that are or were in the pool; 0: the entry is free
/// +8    signature    byte 0 kind of engine · 1 key type, or type of geometry · 2 value type, or type of payload · 3 length of the
///                    name (bits 0..5), and which of the two names counts (bit 7) · 4..7 zero; in pools of format 1 the first four
///                    bytes of the options
/// +16   roots        8 words for the engine
/// +80   records      number of records at the last clean close
/// +88   records_generation   generation of that close
/// +96   object_format        version of the engine's own format; 0 in pools of format 1
/// +104  options      24 bytes that the engine encodes
/// +128  name 1       64 bytes; zero in pools of format 1
/// +192  name 0       64 bytes
/// ```
///
/// A new name is written where the name is that does not count; one store to the signature switches.
#[repr(C, align(64))]
pub(crate) struct CatalogEntry {
    /// Not zero: the object exists. Storing it commits the creation and the removal of an object.
    pub(super) owner: Cell,
    pub(super) signature: Cell,
    pub(crate) roots: [Cell; 8],
    pub(crate) records: Cell,
    pub(crate) records_generation: Cell,
    pub(super) object_format: Cell,
    pub(super) options: [Cell; OPTION_BYTES / 8],
    pub(super) name_1: [Cell; 8],
    pub(super) name_0: [Cell; 8],
}

const _: () = {
    assert!(size_of::<CatalogEntry>() == 256);
    assert!(offset_of!(CatalogEntry, signature) == 8);
    assert!(offset_of!(CatalogEntry, roots) == 16);
    assert!(offset_of!(CatalogEntry, records) == 80);
    assert!(offset_of!(CatalogEntry, records_generation) == 88);
    assert!(offset_of!(CatalogEntry, object_format) == 96);
    assert!(offset_of!(CatalogEntry, options) == 104);
    assert!(offset_of!(CatalogEntry, name_1) == 128);
    assert!(offset_of!(CatalogEntry, name_0) == 192);
    assert!(CATALOG_AT + (OBJECTS * size_of::<CatalogEntry>()) as u64 <= TABLE_AT);
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
