//! How large a leaf is.
//!
//! The size is chosen whenever a leaf is written, by the records that it gets: a leaf is to have room for about two thirds of as many as it has slots. So
//! short records waste no space, and a range over long ones reads few leaves. The commit word of a leaf says its size, unless that is the usual one of
//! the map; the inner nodes say it beside the offset of the leaf, so that nobody has to read the leaf for it.
//!
//! Leaves of one size have a space to themselves, which takes an extent at least. So a small map has leaves of the usual size only, but for records that do not
//! fit into one of these. A large map that has been opened is a small one in this respect until enough of it is indexed.
//!
//! In a full pool a leaf gets a block of any size into which its records fit, see [`alloc_leaf`](Tree::alloc_leaf).

use super::blobs::CLASS_BYTES;
use super::distribute::Words;
use super::layout::{HEADER_WORDS, SLOTS};
use super::{Bug, Tree};
use crate::engines::arena::Node;
use crate::pmem::geometry::sized;
use crate::pmem::planted::planted;

/// The size of a leaf, as its number among all of them, from the smallest one on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Size(u8);

/// Bytes in a leaf of each size. With 768 and 1536 as well, records like URLs had leaves of two sizes side by side, for which the file was 1.14 times as large.
pub(super) const BYTES: [u32; 3] = [512, 1024, 2048];
/// The class of blocks of each size.
const CLASSES: [usize; BYTES.len()] = {
    let mut classes = [0; BYTES.len()];
    let mut at = 0;
    while at < BYTES.len() {
        while CLASS_BYTES[classes[at]] < BYTES[at] {
            classes[at] += 1;
        }
        assert!(CLASS_BYTES[classes[at]] == BYTES[at]);
        at += 1;
    }
    classes
};

const _: () = assert!(BYTES.len() < 1 << Size::BITS);
const _: () = assert!(BYTES[1] == BYTES[0] << 1 && BYTES[2] == BYTES[0] << 2);

/// Records for which a new leaf is to have room, about: as many as a leaf has on average if all slots are used before it is split.
const WANTED_RECORDS: usize = SLOTS * 2 / 3;

/// Leaves from which on a map is not small: about as many as an extent has.
pub(super) const LEAVES_OF_LARGE_MAP: usize = sized(1500, 4);
/// The level of the root of a map that is not small: it has about as many leaves, or more. (In the crash checker all maps have leaves of several sizes.)
const LEVEL_OF_LARGE_MAP: u32 = sized(2, 1) as u32;

impl Size {
    /// How many sizes there are.
    pub(super) const COUNT: usize = BYTES.len();
    /// The largest leaf of a map whose leaves differ in size. (In the crash checker smaller than it could be, so that its values lie in blobs, too.)
    pub(super) const LARGEST: Self = Self(sized(Self::COUNT - 1, 1) as u8);

    /// Bits that a [number](Self::number) takes.
    pub(super) const BITS: u32 = 2;

    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..BYTES.len() as u8).map(Self)
    }

    /// The size with so many bytes, if there is one.
    pub(super) fn of_bytes(bytes: u32) -> Option<Self> {
        Self::all().find(|size| BYTES[usize::from(size.0)] == bytes)
    }

    /// The smallest size with so many words, or the largest one.
    fn of_words(words: usize) -> Self {
        let fits = |size: &Self| size.words() >= words;
        Self::all()
            .find(fits)
            .map_or(Self::LARGEST, |size| size.min(Self::LARGEST))
    }

    /// The size for so many words, which need not all fit: the smallest one only if they do, otherwise the one whose logarithm is nearest to theirs.
    fn nearest(words: usize) -> Self {
        let smallest = Self(0);
        if words <= smallest.words() {
            smallest
        } else {
            Self::of_words((words * 5 / 7).max(smallest.words() + 1))
        }
    }

    /// Its number, in [`BITS`](Self::BITS) bits.
    #[inline(always)]
    pub(super) fn number(self) -> u64 {
        self.0.into()
    }

    /// The size with this number; the smallest one if there is none.
    #[inline(always)]
    pub(super) fn of_number(number: u64) -> Self {
        Self(if number < BYTES.len() as u64 {
            number as u8
        } else {
            0
        })
    }

    #[inline(always)]
    pub(super) fn bytes(self) -> usize {
        (BYTES[0] as usize) << self.0
    }

    #[inline(always)]
    pub(super) fn words(self) -> usize {
        self.bytes() / 8
    }

    /// Words behind the header.
    #[inline(always)]
    pub(super) fn heap_words(self) -> usize {
        self.words() - HEADER_WORDS
    }

    /// The class of its blocks.
    #[inline(always)]
    pub(super) fn class(self) -> usize {
        CLASSES[usize::from(self.0)]
    }
}

/// What the leaves of a tree look like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// The size of most leaves of a small map, and of all of them if they do not differ.
    pub(super) usual: Size,
    /// Whether leaves may differ in size.
    pub(super) differ: bool,
}

impl Sizes {
    /// The size of the largest leaf.
    pub(super) fn largest(self) -> Size {
        if self.differ {
            Size::LARGEST
        } else {
            self.usual
        }
    }

    /// Bytes of the longest key that lies in a leaf.
    #[inline(always)]
    pub(super) fn most_key(self) -> usize {
        self.usual.bytes() / 4
    }

    /// Bytes of the longest value that lies in a leaf.
    #[inline(always)]
    pub(super) fn most_value(self) -> usize {
        self.largest().bytes() / 4
    }

    /// The sizes that a leaf may have for records like `like_these`, of which it gets `own`, in a map that is large, or not. If its records fit into no leaf,
    /// it is the largest size.
    pub(super) fn wanted(self, like_these: Words, own: Words, is_large: bool) -> Wanted {
        if !self.differ {
            let (best, least, most) = (self.usual, self.usual, self.usual);
            return Wanted { best, least, most };
        }
        let least = Size::of_words(HEADER_WORDS + own.all());
        let best = if is_large {
            let records = like_these.records * WANTED_RECORDS / like_these.count.max(1);
            Size::nearest(HEADER_WORDS + like_these.low + records)
        } else {
            self.usual
        };
        let (best, most) = (best.max(least), Size::LARGEST);
        Wanted { best, least, most }
    }

    /// What a commit word says for a size: 0 is the usual one.
    pub(super) fn code_of(self, size: Size) -> u64 {
        if size == self.usual || planted(Bug::SizeNotSaid) {
            0
        } else {
            size.number() + 1
        }
    }

    /// The opposite of [`code_of`](Self::code_of).
    pub(super) fn of_code(self, code: u64) -> Option<Size> {
        match code {
            0 => Some(self.usual),
            code if self.differ && code <= Size::COUNT as u64 => Some(Size::of_number(code - 1)),
            _ => None,
        }
    }
}

/// What sizes a new leaf may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wanted {
    /// The size that suits its records best.
    pub(super) best: Size,
    /// The smallest size that its records fit into.
    least: Size,
    /// The largest size of leaves of the map.
    most: Size,
}

impl Wanted {
    /// The sizes beside the best one, those nearest to it first.
    pub(super) fn others(self) -> impl Iterator<Item = Size> {
        let smaller = (self.least.0..self.best.0).rev();
        let larger = self.best.0 + 1..=self.most.0;
        larger.chain(smaller).map(Size)
    }

    /// Whether a size is one of them.
    pub(super) fn includes(self, size: Size) -> bool {
        (self.least..=self.most).contains(&size)
    }
}

impl Tree {
    /// The sizes of a new leaf for records like `like_these`, of which it gets `own`, which fit into the largest one.
    pub(super) fn sizes_for(&self, like_these: Words, own: Words) -> Wanted {
        let is_large = self.root().level() >= LEVEL_OF_LARGE_MAP;
        self.sizes.wanted(like_these, own, is_large)
    }

    /// The sizes of a new leaf for these records, which fit into the largest one.
    pub(super) fn size_for(&self, words: Words) -> Wanted {
        self.sizes_for(words, words)
    }

    /// The size of one leaf for the records of two, if they are to be merged: always if one has no records and all fit, otherwise only if the next few inserts
    /// will not split the leaf again.
    pub(super) fn size_merged(&self, words: Words, is_any_empty: bool) -> Option<Wanted> {
        let (size, quarters) = (self.size_for(words), if is_any_empty { 4 } else { 3 });
        let is_roomy = words.count <= SLOTS * quarters / 4;
        (is_roomy && words.fit(size.best.heap_words() * quarters / 4)).then_some(size)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::blobs::class_of;
    use super::*;

    #[test]
    fn a_size_has_a_class_a_number_and_a_code() {
        let usual = Size::of_bytes(1024).unwrap();
        for differ in [false, true] {
            let sizes = Sizes { usual, differ };
            for size in Size::all() {
                assert_eq!(class_of(size.bytes() as u64), size.class());
                assert_eq!(Size::of_number(size.number()), size);
                assert_eq!(Size::of_words(size.words()), size.min(Size::LARGEST));
                assert_eq!(Size::of_words(size.words() - 1), size.min(Size::LARGEST));
                let is_known = differ || size == usual;
                assert_eq!(sizes.of_code(sizes.code_of(size)), is_known.then_some(size));
            }
            assert_eq!(sizes.of_code(Size::COUNT as u64 + 1), None);
        }
        assert_eq!(Size::of_words(1 << 20), Size::LARGEST);
        assert_eq!(Size::of_number(3), Size::of_number(0));
        let nearest = [512, 520, 1400, 1450].map(|bytes| Size::nearest(bytes / 8).bytes());
        let largest = Size::LARGEST.bytes();
        assert_eq!(
            nearest,
            [512, 1024, 1024, 2048].map(|bytes: usize| bytes.min(largest))
        );
    }
}
