//! The layout of what lies in the pool: leaves, and references to blobs.
//!
//! A leaf has 512 to 2048 bytes, see [`sizes`](super::sizes): one line of header, and a *heap* that records are appended to.
//!
//! ```text
//! line 0   +0     | commit word | sibling | fingerprints (3 words) | places (3 words) |
//! heap     +64    | low key of the leaf, padded to 8 bytes | record | record | ... | free |
//!
//! commit word   bits 0..23 slots in use · bit 24 one · bit 25 the low key is a blob · bits 26..27 the size of the leaf, 0 for the usual one of the
//!               map · bits 32..47 bytes of the prefix that all keys of the leaf share · bits 48..63 bytes of the low key
//! sibling       offset in the pool of the leaf to the right, 0 for none
//! fingerprints  one byte of the hash of the whole key, for each of 24 slots
//! places        where the record of a slot begins, in units of 8 bytes from the begin of the leaf
//!
//! record   see `string_record`. The key part is the key without the prefix of the leaf. Of a blob: up to 32 bytes of the key without the prefix, then the hash
//!          of the key and a reference. The value part of a blob is a reference
//!
//! reference   offset of the block (8 bytes) · length in bytes (8 bytes). The length says how large the block is: see `blobs`
//! ```
//!
//! The *low key* is the lowest key that the leaf may have. It is the separator of the inner nodes, kept so that recovery makes the same separators
//! again. All keys from the low key of a leaf to that of the next one share the prefix, so it is a part of the low key and is not stored
//! by itself.
//!
//! A value of at most 8 bytes lies in the last word of its record, so that one 8-byte store replaces it by another one of the same length.
//!
//! Nothing in a leaf is volatile. Which parts of the heap are free follows from the slots in use.

use super::sizes::Size;
pub(super) use crate::engines::string_record::{LENGTHS_BYTES, Lengths, record_words};
use crate::pmem::Cell;
use crate::pmem::geometry::sized;
use crate::pool::Offset;

/// Words of a leaf's header: one line.
pub(super) const HEADER_WORDS: usize = 8;
/// Record slots of a leaf.
pub(super) const SLOTS: usize = sized(24, 6);
/// Words in the largest leaf.
pub(super) const MAX_WORDS: usize = 2048 / 8;
/// Bytes of a long key that its record holds, after the prefix of the leaf.
pub(super) const HEAD_BYTES: usize = 32;
/// Bytes of a reference to a blob.
pub(super) const REFERENCE_BYTES: usize = 16;
/// Bytes of a long key's part behind its first bytes: hash and reference.
pub(super) const LONG_KEY_BYTES: usize = 8 + REFERENCE_BYTES;
/// Chains of leaves: the records, and directories of signposts above them. Each has its head in a root word of the catalog entry.
pub(super) const LEVELS: usize = 4;

const SLOT_BITS: u64 = (1 << 24) - 1;
const MARK: u64 = 1 << 24;
const LOW_IS_BLOB: u64 = 1 << 25;
/// Where the code of the size begins.
const SIZE_SHIFT: u32 = 26;
const SIZE_BITS: u64 = ((1 << Size::BITS) - 1) << SIZE_SHIFT;

/// The cells of a leaf's header.
pub(super) const SIBLING: usize = 1;
pub(super) const FINGERPRINTS: usize = 2;
pub(super) const PLACES: usize = 5;

const _: () = assert!(SLOTS <= 24 && PLACES + 3 == HEADER_WORDS);

/// The commit word of a leaf.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct CommitWord(pub(super) u64);

impl CommitWord {
    /// Of a leaf without records. `size` is the [code](super::sizes::Sizes::code_of) of its size.
    pub(super) fn new(size: u64, prefix: usize, low_bytes: usize, low_is_blob: bool) -> Self {
        let blob = if low_is_blob { LOW_IS_BLOB } else { 0 };
        Self(MARK | blob | size << SIZE_SHIFT | (prefix as u64) << 32 | (low_bytes as u64) << 48)
    }

    /// The code of the size of the leaf.
    pub(super) fn size_code(self) -> u64 {
        (self.0 & SIZE_BITS) >> SIZE_SHIFT
    }

    /// The slots in use, as bits.
    #[inline(always)]
    pub(super) fn slots(self) -> u32 {
        (self.0 & SLOT_BITS) as u32 & ((1 << SLOTS) - 1)
    }

    #[inline(always)]
    pub(super) fn with(self, slot: usize) -> Self {
        Self(self.0 | 1 << slot)
    }

    #[inline(always)]
    pub(super) fn without(self, slot: usize) -> Self {
        Self(self.0 & !(1 << slot))
    }

    /// A page that never reached the disk has no mark.
    pub(super) fn is_marked(self) -> bool {
        self.0 & (MARK | SLOT_BITS & !((1 << SLOTS) - 1)) == MARK
    }

    /// Bytes of the prefix.
    #[inline(always)]
    pub(super) fn prefix(self) -> usize {
        (self.0 >> 32) as u16 as usize
    }

    pub(super) fn with_prefix(self, prefix: usize) -> Self {
        Self(self.0 & !(0xffff << 32) | (prefix as u64) << 32)
    }

    pub(super) fn low_is_blob(self) -> bool {
        self.0 & LOW_IS_BLOB != 0
    }

    /// Bytes of the low key in the heap: the key, or the reference to it.
    pub(super) fn low_bytes(self) -> usize {
        if self.low_is_blob() {
            REFERENCE_BYTES
        } else {
            (self.0 >> 48) as usize
        }
    }

    /// Where records may begin, in words.
    pub(super) fn heap_begin(self) -> usize {
        HEADER_WORDS + self.low_bytes().div_ceil(8)
    }
}

/// A reference to a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) offset: Offset,
    pub(super) bytes: u64,
}

impl Reference {
    pub(super) fn to_bytes(self) -> [u8; REFERENCE_BYTES] {
        let mut bytes = [0; REFERENCE_BYTES];
        bytes[..8].copy_from_slice(&self.offset.get().to_ne_bytes());
        bytes[8..].copy_from_slice(&self.bytes.to_ne_bytes());
        bytes
    }

    /// The reference in these bytes, which are as many.
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        Self {
            offset: Offset::from_word(word_at(bytes, 0)),
            bytes: word_at(bytes, 8),
        }
    }
}

/// The word at `at` in `bytes`, padded with zeros.
#[inline(always)]
pub(super) fn word_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    let rest = &bytes[at.min(bytes.len())..];
    let most = rest.len().min(8);
    word[..most].copy_from_slice(&rest[..most]);
    u64::from_ne_bytes(word)
}

/// The last `count` bytes, of up to 7, as [`word_at`] has them. The instructions are few where there are 8 bytes or more.
#[inline(always)]
pub(super) fn last_bytes(bytes: &[u8], count: usize) -> u64 {
    match bytes.last_chunk() {
        Some(&eight) => {
            let padded = u64::from_le_bytes(eight).checked_shr(64 - 8 * count as u32);
            u64::from_ne_bytes(padded.unwrap_or(0).to_le_bytes())
        }
        None => word_at(bytes, bytes.len() - count),
    }
}

/// The bits of the first `count` bytes of a word in memory, of up to 7.
#[inline(always)]
pub(super) fn bits_in_memory(count: usize) -> u64 {
    u64::from_ne_bytes(((1_u64 << (8 * count)) - 1).to_le_bytes())
}

/// The byte in three words that belongs to a slot.
#[inline(always)]
pub(super) fn byte_of(words: &[u64; 3], slot: usize) -> u8 {
    words[slot / 8].to_ne_bytes()[slot % 8]
}

/// Bit `i` of the result says whether the byte of slot `i` is this one.
#[inline(always)]
pub(super) fn slots_with(words: &[u64; 3], byte: u8) -> u32 {
    const LOW: u64 = u64::from_ne_bytes([1; 8]);
    const BELOW_TOP: u64 = LOW * 0x7f;
    let all = LOW * u64::from(byte);
    words.iter().rev().fold(0, |slots, word| {
        // The top bit of each byte says whether the byte is 0, and no carry leaves a byte.
        let differs = u64::from_le(*word) ^ all;
        let equal = !(((differs & BELOW_TOP) + BELOW_TOP) | differs | BELOW_TOP);
        // The product gathers the top bits, which do not meet in it, in its highest byte.
        slots << 8 | (equal.wrapping_mul(0x0002_0408_1020_4081) >> 56) as u32
    })
}

/// Sets the byte in three words that belongs to a slot.
pub(super) fn set_byte(words: &mut [u64; 3], slot: usize, byte: u8) {
    let mut bytes = words[slot / 8].to_ne_bytes();
    bytes[slot % 8] = byte;
    words[slot / 8] = u64::from_ne_bytes(bytes);
}

/// Three words of a header.
#[inline(always)]
pub(super) fn three(cells: &[Cell], from: usize) -> [u64; 3] {
    [
        cells[from].load(),
        cells[from + 1].load(),
        cells[from + 2].load(),
    ]
}

/// Bytes that two strings begin with both.
pub(super) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let words = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0);
    let whole = 8 * words.take_while(|(a, b)| a == b).count();
    let rest = a[whole..].iter().zip(&b[whole..]);
    whole + rest.take_while(|(a, b)| a == b).count()
}

/// The shortest string that is above `below` and not above `at`, where `below < at`: a beginning of `at`.
pub(super) fn shortest_separator<'a>(below: &[u8], at: &'a [u8]) -> &'a [u8] {
    &at[..(common_prefix(below, at) + 1).min(at.len())]
}

/// The length of the prefix of a leaf that covers the keys from `low` up to `high`.
pub(super) fn prefix_of(low: &[u8], high: Option<&[u8]>) -> usize {
    high.map_or(0, |high| common_prefix(low, high))
        .min(usize::from(u16::MAX))
}

/// A hash of a key, different for each pool, so that nobody can choose keys with equal fingerprints.
#[inline]
pub(super) fn hash(seed: u64, key: &[u8]) -> u64 {
    #[inline(always)]
    fn fold(a: u64, b: u64) -> u64 {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    }
    const ODD: [u64; 3] = [
        0x9e37_79b9_7f4a_7c15,
        0xbf58_476d_1ce4_e5b9,
        0x94d0_49bb_1331_11eb,
    ];
    let mut state = seed ^ (key.len() as u64).wrapping_mul(ODD[0]);
    for chunk in key.as_chunks().0 {
        let word = u64::from_ne_bytes(*chunk);
        state = fold(state ^ word ^ ODD[1], ODD[2]) ^ state.rotate_left(23);
    }
    state = fold(state ^ last_bytes(key, key.len() % 8) ^ ODD[2], ODD[1]);
    fold(state ^ seed, ODD[0] | 1)
}

/// The fingerprint of a key with this hash.
#[inline(always)]
pub(super) fn fingerprint(hash: u64) -> u8 {
    (hash >> 56) as u8
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_slots_with_a_byte_are_found() {
        let mut words = [0; 3];
        for slot in 0..24 {
            set_byte(&mut words, slot, [0, 1, 0x7f, 0x80, 0xff][slot * 7 % 5]);
        }
        for byte in 0..=u8::MAX {
            let expected = (0..24).filter(|&slot| byte_of(&words, slot) == byte);
            let expected = expected.fold(0, |slots, slot| slots | 1 << slot);
            assert_eq!(slots_with(&words, byte), expected, "{byte}");
        }
    }

    #[test]
    fn the_last_bytes_are_those_of_a_word_at_the_end() {
        let bytes: Vec<u8> = (1..=20).collect();
        for length in 0..bytes.len() {
            for count in 0..=length.min(7) {
                let bytes = &bytes[..length];
                assert_eq!(last_bytes(bytes, count), word_at(bytes, length - count));
                let all = word_at(&[0xff; 7][..count], 0);
                assert_eq!(bits_in_memory(count), all);
            }
        }
    }

    #[test]
    fn a_separator_lies_between_its_keys() {
        let cases: [(&[u8], &[u8], &[u8]); 5] = [
            (b"", b"a", b"a"),
            (b"a", b"a\0", b"a\0"),
            (b"abc", b"abd", b"abd"),
            (b"ab\xff\xff", b"b", b"b"),
            (b"abcdef", b"abzzzz", b"abz"),
        ];
        for (below, at, expected) in cases {
            let separator = shortest_separator(below, at);
            assert_eq!(separator, expected);
            assert!(below < separator && separator <= at);
        }
    }
}
