//! What lies in the pool: inner nodes, data nodes and buckets.
//!
//! ```text
//! inner node   line 0  | mark | base | low | high | moved to | one | one | one |
//!              then    2^k + 2 child words: the equal parts of the range from base on; what lies below base; what lies above all parts
//!
//! data node    line 0  | mark | low | high | first | span | multiplier | shape | moved to |
//!              then    bucket words, a multiple of 8: one for each group of lines
//!              then    if the shape says so, the first lines of the pieces of the model: 128 times two bytes, each 1 more than the line
//!              then    lines of four slots
//!
//! bucket       | mark | next bucket | slots, to the end of the block |
//!
//! slot         16 bytes | key word | value |
//! key word     bits 61..63: state · bits 0..60: the key's; the key's upper three bits are those of the node's lowest key
//!
//! child word   offset of a data node · offset of an inner node, plus 1 · NO_CHILD
//! link         offset of a block · NO_LINK (bucket words, next bucket)
//! moved to     child word · NO_LINK · HALTED
//! ```
//!
//! No word of a block that is in use is zero where a link or a slot's key word may be: so a page that never reached the disk is told.

pub(super) use crate::engines::blocks::SMALLEST_BLOCK;
use crate::pmem::Cell;
use crate::pmem::exchange::Pair;
use crate::pmem::geometry::sized;

/// Sizes of blocks: up to 1 MiB. The powers of two, and for data nodes from 1 KiB to 256 KiB three between two of them: a node that is a
/// little too small for its records becomes a quarter larger, not twice as large.
pub(super) const SIZES: [u32; sized(38, 6)] = {
    let mut sizes = [SMALLEST_BLOCK as u32; sized(38, 6)];
    let mut class = 1;
    while class < sizes.len() {
        let size = sizes[class - 1];
        let power = 1 << size.ilog2();
        let step = match power {
            SMALLEST_STEPPED.. if (power as u64) < MOST_STEPPED => power / STEPS,
            512 => power / 2,
            _ => power,
        };
        sizes[class] = size + step;
        class += 1;
    }
    sizes
};
/// Where the sizes with three between two powers of two begin.
const SMALLEST_STEPPED: u32 = 1 << 10;
/// And where they end.
const MOST_STEPPED: u64 = sized(256 << 10, 1 << 10) as u64;
/// Sizes from one power of two to the next.
const STEPS: u32 = 4;
/// Bytes of a cache line, and of a line of slots.
pub(super) const LINE: u64 = 64;
/// Slots in a line.
pub(super) const LINE_SLOTS: usize = 4;
/// Lines of a group, which shares a bucket.
pub(super) const GROUP_LINES: u64 = sized(8, 2) as u64;
/// Equal parts of an inner node, at most, as a power of two: its block has 1 MiB.
pub(super) const MOST_LOG_PARTS: u32 = sized(16, 3) as u32;
/// Equal parts of the root of a new map: each part is an eighth of the domain, so that the upper three bits of all keys in it are equal.
pub(super) const LEAST_ROOT_LOG_PARTS: u32 = 3;

/// A link that leads nowhere.
pub(super) const NO_LINK: u64 = 1;
/// What `moved to` holds in a node whose move has failed: slots may be frozen and closed, even after a clean close.
pub(super) const HALTED: u64 = 3;
/// A child word where there is no node yet.
pub(super) const NO_CHILD: u64 = 2;
/// What marks a child word of an inner node.
pub(super) const IS_INNER: u64 = 1;

/// What a slot's key word says in its upper three bits.
pub(super) mod state {
    /// The page never reached the disk.
    pub(in super::super) const NEVER_WRITTEN: u64 = 0;
    /// No record has been here.
    pub(in super::super) const EMPTY: u64 = 1;
    /// A record, which may be updated and removed.
    pub(in super::super) const LIVE: u64 = 2;
    /// A record that is moved to another node, or has been; it does not change any more here.
    pub(in super::super) const FROZEN: u64 = 3;
    /// There was a record with this key.
    pub(in super::super) const REMOVED: u64 = 4;
    /// Was empty when the node was moved; nothing comes here any more.
    pub(in super::super) const CLOSED: u64 = 5;
    /// A record that is about to become live. After a crash its value may be missing.
    pub(in super::super) const PENDING: u64 = 6;
    /// Was pending when the process died.
    pub(in super::super) const DEAD: u64 = 7;
}

/// Where the state begins.
pub(super) const STATE_SHIFT: u32 = 61;
/// The key's bits in a key word.
pub(super) const KEY_BITS: u64 = (1 << STATE_SHIFT) - 1;

/// The key word of a state that has no key.
pub(super) const fn bare(state: u64) -> u64 {
    state << STATE_SHIFT
}

/// The key word of a key in a state.
#[inline(always)]
pub(super) const fn key_word(state: u64, key: u64) -> u64 {
    state << STATE_SHIFT | key & KEY_BITS
}

/// The state in a key word.
#[inline(always)]
pub(super) const fn state_of(word: u64) -> u64 {
    word >> STATE_SHIFT
}

/// A slot: the first word is the key word, the second the value.
pub(super) type Slot = Pair;

/// Marks of blocks: the upper four bytes say what the block is, the lower ones how large it is.
pub(super) const INNER_MARK: u64 = 0x4c6f_4669 << 32;
pub(super) const DATA_MARK: u64 = 0x4c6f_4664 << 32;
pub(super) const BUCKET_MARK: u64 = 0x4c6f_4662 << 32;

#[repr(C, align(64))]
pub(super) struct InnerHeader {
    /// [`INNER_MARK`], bits 8..15 the shift of a key's distance from `base`, bits 0..7 the logarithm of the number of parts.
    pub(super) mark: Cell,
    pub(super) base: Cell,
    pub(super) low: Cell,
    pub(super) high: Cell,
    pub(super) moved_to: Cell,
    pub(super) ones: [Cell; 3],
}

#[repr(C, align(64))]
pub(super) struct DataHeader {
    /// [`DATA_MARK`], and the bytes of the block.
    pub(super) mark: Cell,
    pub(super) low: Cell,
    pub(super) high: Cell,
    pub(super) first: Cell,
    pub(super) span: Cell,
    pub(super) multiplier: Cell,
    /// Bits 0..31 lines that the model chooses from, bits 32..47 lines of a window, bit 48 whether the model has pieces.
    pub(super) shape: Cell,
    pub(super) moved_to: Cell,
}

#[repr(C, align(16))]
pub(super) struct BucketHeader {
    /// [`BUCKET_MARK`], and the bytes of the block.
    pub(super) mark: Cell,
    pub(super) next: Cell,
}

const _: () = {
    assert!(size_of::<InnerHeader>() == LINE as usize);
    assert!(size_of::<DataHeader>() == LINE as usize);
    assert!(size_of::<BucketHeader>() == size_of::<Slot>());
    assert!(SIZES[SIZES.len() - 1] == sized(1 << 20, 4 << 10) as u32);
    // The first lines of four pieces are a word.
    assert!(PIECES.is_multiple_of(4));
    assert!(std::mem::offset_of!(InnerHeader, moved_to) == 32);
    assert!(std::mem::offset_of!(DataHeader, low) == 8);
    assert!(std::mem::offset_of!(DataHeader, moved_to) == 56);
};

/// Lines of a data node that hold bucket words.
const fn link_lines(block_bytes: u64) -> u64 {
    (block_bytes / LINE).div_ceil(GROUP_LINES * 8)
}

/// Pieces of a model that is not one line, all of the same length.
pub(super) const PIECES: usize = sized(128, 8);
/// Lines of a data node that hold the pieces of its model.
const PIECE_LINES: u64 = (PIECES as u64 * 2).div_ceil(LINE);
/// The bit of a data node's shape that says that its model has pieces.
pub(super) const HAS_PIECES: u64 = 1 << 48;
/// Bytes of the smallest data node whose model may have pieces: in smaller ones their lines would be a tenth of the node.
pub(super) const LEAST_WITH_PIECES: u64 = sized(4096, 512) as u64;

/// Where the slots of a data node begin, in lines.
pub(super) const fn first_slot_line(block_bytes: u64, has_pieces: bool) -> u64 {
    1 + link_lines(block_bytes) + if has_pieces { PIECE_LINES } else { 0 }
}

/// Lines of slots of a data node.
pub(super) const fn slot_lines(block_bytes: u64, has_pieces: bool) -> u64 {
    block_bytes / LINE - first_slot_line(block_bytes, has_pieces)
}

/// Bytes of the block that has room for so many bytes. Up to 16 KiB sizes are four times apart: each size that is in use has an extent of its
/// own, and a small map would need many.
pub(super) const fn block_bytes(bytes: u64) -> u64 {
    let mut size = SMALLEST_BLOCK;
    while size < bytes {
        size *= if size < 16 << 10 { 4 } else { 2 };
    }
    size
}

/// Bytes of the block of an inner node.
pub(super) const fn inner_bytes(log_parts: u32) -> u64 {
    block_bytes(LINE + ((1 << log_parts) + 2) * 8)
}

/// Bytes of a bucket by its level.
pub(super) fn bucket_bytes(level: u32) -> u64 {
    match level {
        0 => SMALLEST_BLOCK,
        _ => sized(4096, 1024) as u64,
    }
}

/// Slots of a bucket.
pub(super) const fn bucket_slots(block_bytes: u64) -> u64 {
    block_bytes / 16 - 1
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sizes_ascend_in_small_steps_and_have_all_that_are_asked_for() {
        for pair in SIZES.windows(2) {
            assert!(pair[0] < pair[1] && pair[1] <= 2 * pair[0], "{pair:?}");
        }
        assert!(SIZES.iter().all(|size| size % SMALLEST_BLOCK as u32 == 0));
        let has = |bytes: u64| SIZES.contains(&(bytes as u32));
        let most = u64::from(SIZES[SIZES.len() - 1]);
        let powers = (8..).map(|log| 1 << log).take_while(|&size| size <= most);
        assert!(powers.into_iter().all(has));
        assert!((0..=MOST_LOG_PARTS).all(|log_parts| has(inner_bytes(log_parts))));
        assert!((0..3).all(|level| has(bucket_bytes(level))));
    }
}
