//! The orders of leaves that ranges have found out, kept in DRAM.
//!
//! The slots of a leaf are in the order of arrival, and a range needs the order of keys. The range that ranks the records of a leaf keeps the result
//! here, so that later ranges find the records in order and compare no keys, until the leaf changes.
//!
//! An order is one word. Of 2 to 16 records it has their numbers, counted in the order of their slots, in the order of keys: 4 bits each, that of the lowest key in
//! the lowest bits. Two numbers differ, so the word is not 0, which is no order. Of more records it has:
//!
//! ```text
//! bits 0..4    run: how many of the first records, in the order of their slots, are in the order of keys. Never 0, so 0 is no order
//! bits 5..63   for each further record its rank among the records before it: how many of their keys are below its own.
//!              The rank of record i takes as many bits as i has
//! ```
//!
//! A structure change writes records in the order of keys, and those that come later take the next slots. So the run has half of the slots or more, as long as
//! nothing is removed, and the ranks fit. 24 records in any order would need 80 bits: where the ranks do not fit, no order is kept.
//!
//! # When an order may be used
//!
//! The lock of a leaf protects the order of the leaf, too:
//!
//! - Whoever changes which records are in a leaf, and whoever writes a leaf into a block, forgets the order. The writer of a leaf that is in the chain
//!   holds the lock of the leaf.
//! - A range keeps an order under the lock of the leaf, taken at the version at which the range copied the leaf. So no writer comes between the copy and the
//!   order. For a leaf that has left the chain the lock has moved on, and the order is dropped.
//! - A range uses an order that was read together with the copy of the leaf, between the same two looks at the version.
//!
//! Nothing of this is durable: a map that has just been opened has no orders.
//!
//! # Memory
//!
//! Orders lie in pages, for each size of leaves one word for each block of that size in the pool, so that no order has to say whose it is. A page comes when a range has the first
//! order for it, unless the map would then take more than [`DRAM_BYTES_OF_100_RECORDS`] in all. Leaves without a page are ranked every time. Maps
//! that are never scanned have no pages.

use super::inner::Child;
use super::layout::SLOTS;
use super::ranked::Ranked;
use super::sizes::Size;
use super::{Bug, Tree};
use crate::concurrency::locks::{Version, VersionLock};
use crate::engines::boxed_array;
use crate::kernels::prefetch;
use crate::pmem::geometry::sized;
use crate::pmem::planted::planted;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The numbers of the records of a leaf, counted in the order of their slots, in the order of keys.
pub(super) trait Numbers {
    /// Takes the number of the record with the lowest key.
    fn take(&mut self) -> usize;
}

/// [`Numbers`] of up to 16 records.
#[derive(Clone, Copy, Debug)]
pub(super) struct Few(u64);

impl Few {
    /// Records of which there are these numbers, at most.
    pub(super) const MOST: usize = 16;
    const BITS: u32 = u64::BITS / Self::MOST as u32;
    const ASCENDING: u64 = 0xfedc_ba98_7654_3210;

    /// The numbers that an order of so many records says; ascending ones if it is 0.
    #[inline(always)]
    pub(super) fn of_order(order: u64, count: usize) -> Self {
        debug_assert!(count <= Self::MOST);
        Self(if order == 0 { Self::ASCENDING } else { order })
    }

    /// The order of records, of which each has such a number.
    fn order(numbers: impl Iterator<Item = usize>) -> u64 {
        let numbers = numbers.zip((0..).step_by(Self::BITS as usize));
        numbers.fold(0, |order, (number, shift)| order | (number as u64) << shift)
    }
}

impl Numbers for Few {
    #[inline(always)]
    fn take(&mut self) -> usize {
        let number = self.0 % Self::MOST as u64;
        self.0 >>= Self::BITS;
        number as usize
    }
}

/// Bits of the run of an order of more records, and of each number in [`Many`].
const NUMBER_BITS: u32 = 5;
const NUMBER: u64 = (1 << NUMBER_BITS) - 1;

const _: () = assert!(SLOTS <= NUMBER as usize && SLOTS * NUMBER_BITS as usize <= 128);

/// [`Numbers`] of more records, 5 bits each, that of the lowest key in the lowest bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Many(u128);

impl Many {
    /// As many numbers as there can be, ascending.
    const ASCENDING: u128 = {
        let (mut all, mut number) = (0, 0);
        while number < SLOTS {
            all |= (number as u128) << (number as u32 * NUMBER_BITS);
            number += 1;
        }
        all
    };

    /// The numbers that an order of so many records says; ascending ones if it is 0.
    #[inline(always)]
    pub(super) fn of_order(order: u64, count: usize) -> Self {
        let run = if order == 0 {
            count
        } else {
            (order & NUMBER) as usize
        };
        let mut ranks = order >> NUMBER_BITS;
        let mut numbers = Self::ASCENDING & below(run as u64);
        for number in run..count {
            let bits = rank_bits(number);
            let rank = ranks & ((1 << bits) - 1);
            ranks >>= bits;
            let low = below(rank);
            let new = (number as u128).wrapping_shl(rank as u32 * NUMBER_BITS);
            numbers = numbers & low | new | (numbers & !low) << NUMBER_BITS;
        }
        Self(numbers)
    }
}

impl Numbers for Many {
    #[inline(always)]
    fn take(&mut self) -> usize {
        let number = self.0 as u64 & NUMBER;
        self.0 >>= NUMBER_BITS;
        number as usize
    }
}

/// The bits of the first numbers.
#[inline(always)]
fn below(numbers: u64) -> u128 {
    1_u128.wrapping_shl(numbers as u32 * NUMBER_BITS) - 1
}

/// The bits of the rank of a record among those before it, which are as many as its number.
#[inline(always)]
fn rank_bits(number: usize) -> u32 {
    usize::BITS - number.leading_zeros()
}

/// The order in which the keys have these positions, in the order of the slots, of which there are two or more; 0 if it does not fit.
pub(super) fn order_of(positions: &[u8]) -> u64 {
    if positions.len() <= Few::MOST {
        let number_at = |position| positions.iter().position(|&other| other == position);
        let positions_in_order = 0..positions.len() as u8;
        return Few::order(
            positions_in_order.map(|position| {
                number_at(position).expect("the keys have all positions, each once")
            }),
        );
    }
    let run = 1 + positions
        .windows(2)
        .take_while(|pair| pair[0] < pair[1])
        .count();
    let (mut order, mut used) = (run as u64, NUMBER_BITS);
    for number in run..positions.len() {
        let (before, own) = (&positions[..number], positions[number]);
        let rank = before.iter().filter(|&&position| position < own).count();
        if used + rank_bits(number) > u64::BITS {
            return 0;
        }
        order |= (rank as u64) << used;
        used += rank_bits(number);
    }
    order
}

/// Orders in a page: those of the leaves in one extent of the pool, if leaves have 1 KiB.
const PAGE: usize = sized(2048, 16);
/// Pages under a node, and nodes: they reach 512 GiB of leaves of 1 KiB.
const NODE: usize = sized(512, 16);

/// Bytes of DRAM that a map may take for 100 records, with its orders, when it adds a page: a bit less than 6 bytes per record, since the other memory
/// varies with the fill of the nodes.
const DRAM_BYTES_OF_100_RECORDS: u64 = 590;
/// Bytes of orders that a map may have, however few records it has.
const ALWAYS_BYTES: u64 = 64 << 10;
/// How many orders are dropped for want of a page before the map asks again how much DRAM it may take: it adds up many counters then.
const DROPPED_BEFORE_ASKING: u64 = sized(4096, 2) as u64;

type Page = [AtomicU64; PAGE];
type Node = [OnceLock<Box<Page>>; NODE];

/// The orders of the leaves of one size.
type Nodes = OnceLock<Box<[OnceLock<Box<Node>>; NODE]>>;

/// The orders of the leaves of a tree.
#[derive(Default)]
pub(super) struct Orders {
    sizes: [Nodes; Size::COUNT],
    bytes: AtomicU64,
    /// Orders that were dropped for want of a page. Threads that count at the same time may lose some.
    dropped: AtomicU64,
}

impl Orders {
    fn nodes(&self, leaf: Child) -> &Nodes {
        &self.sizes[leaf.size().number() as usize]
    }

    /// The number of a leaf in its page, of the page in its node, and of the node. No two leaves of one size share the numbers, since they lie
    /// that many bytes apart.
    #[inline(always)]
    fn numbers(leaf: Child) -> [usize; 3] {
        let number = leaf.offset().get() as usize >> leaf.size().bytes().ilog2();
        [number % PAGE, number / PAGE % NODE, number / PAGE / NODE]
    }

    #[inline(always)]
    fn word(&self, leaf: Child) -> Option<&AtomicU64> {
        let nodes = self.nodes(leaf).get()?;
        let [at, page, node] = Self::numbers(leaf);
        let node = nodes.get(node)?.get()?;
        Some(&node[page].get()?[at])
    }

    /// The order of a leaf, 0 if none is known. It belongs to what the leaf is between two looks at the version of the leaf's lock.
    #[inline(always)]
    pub(super) fn of(&self, leaf: Child) -> u64 {
        self.word(leaf)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Asks the caches for the order of a leaf.
    #[inline(always)]
    pub(super) fn prefetch(&self, leaf: Child) {
        if let Some(word) = self.word(leaf) {
            prefetch(word);
        }
    }

    /// Forgets the order of a leaf whose records change. The caller has locked the leaf, or the leaf is not in the chain yet.
    #[inline(always)]
    pub(super) fn forget(&self, leaf: Child) {
        if let Some(word) = self.word(leaf)
            && !planted(Bug::OrderKept)
        {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Adds the page of a leaf.
    #[cold]
    #[inline(never)]
    fn add_page(&self, leaf: Child) {
        let [_, page, node] = Self::numbers(leaf);
        let count = |bytes: usize| self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let nodes = self.nodes(leaf).get_or_init(|| {
            count(size_of::<[OnceLock<Box<Node>>; NODE]>());
            boxed_array(OnceLock::new)
        });
        // Leaves so far behind in the pool have no orders.
        if let Some(node) = nodes.get(node) {
            let node = node.get_or_init(|| {
                count(size_of::<Node>());
                boxed_array(OnceLock::new)
            });
            node[page].get_or_init(|| {
                count(size_of::<Page>());
                boxed_array(|| AtomicU64::new(0))
            });
        }
    }

    /// Bytes of DRAM.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Tree {
    /// Keeps the order of a leaf that was copied at this version of its lock. If somebody else holds the lock, or has held it since, the order is dropped.
    #[inline]
    pub(super) fn keep_order(
        &self,
        leaf: Child,
        (lock, version): (&VersionLock, Version),
        ranked: &Ranked<'_, '_>,
    ) {
        if self.orders.word(leaf).is_none() {
            if !self.may_add_page() {
                return;
            }
            self.orders.add_page(leaf);
        }
        let Some(word) = self.orders.word(leaf) else {
            return;
        };
        let order = ranked.order_found();
        if order != 0
            && let Some(_guard) = lock.try_lock_at(version)
        {
            word.store(order, Ordering::Relaxed);
        }
    }

    /// Whether one more page of orders is within the limit.
    fn may_add_page(&self) -> bool {
        let dropped = self.orders.dropped.load(Ordering::Relaxed);
        self.orders.dropped.store(dropped + 1, Ordering::Relaxed);
        if !dropped.is_multiple_of(DROPPED_BEFORE_ASKING) {
            return false;
        }
        let may = self.has_dram_for_page();
        if may {
            self.orders.dropped.store(0, Ordering::Relaxed);
        }
        may
    }

    #[cold]
    fn has_dram_for_page(&self) -> bool {
        let orders = self.orders.bytes() + size_of::<Page>() as u64;
        if orders <= ALWAYS_BYTES {
            return true;
        }
        let above = self.directory().map_or(0, Tree::dram_bytes);
        // Separators are counted for all maps of the process together, so this may be too much.
        let others =
            self.arena.bytes() + super::separator::bytes_in_use() + self.locks.bytes() + above;
        100 * (others + orders) <= DRAM_BYTES_OF_100_RECORDS * self.locks.total()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The order that `order_of` gives for keys that have been put in the slots, as the numbers that a range takes out of it.
    fn there_and_back(keys: &[u64]) -> Option<Vec<usize>> {
        let position = |key: &u64| keys.iter().filter(|&other| other < key).count() as u8;
        let positions: Vec<u8> = keys.iter().map(position).collect();
        let order = order_of(&positions);
        let taken =
            |mut numbers: Box<dyn Numbers>| (0..keys.len()).map(|_| numbers.take()).collect();
        (order != 0).then(|| {
            taken(if keys.len() <= Few::MOST {
                Box::new(Few::of_order(order, keys.len()))
            } else {
                Box::new(Many::of_order(order, keys.len()))
            })
        })
    }

    fn sorted(keys: &[u64]) -> Vec<usize> {
        let mut numbers: Vec<usize> = (0..keys.len()).collect();
        numbers.sort_by_key(|&number| keys[number]);
        numbers
    }

    #[test]
    fn an_order_says_where_each_record_is() {
        let mut random = 1_u64;
        let mut next = || {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            random >> 8
        };
        for count in 2..=SLOTS {
            for run in 1..=count {
                for _ in 0..20 {
                    let mut keys: Vec<u64> = (0..count).map(|_| next()).collect();
                    keys[..run].sort_unstable();
                    let bits: u32 = (run..count).map(rank_bits).sum();
                    let numbers = there_and_back(&keys);
                    assert!(numbers.is_some() || bits > u64::BITS - NUMBER_BITS);
                    if let Some(numbers) = numbers {
                        assert_eq!(numbers, sorted(&keys));
                    }
                }
            }
        }
    }

    #[test]
    fn a_leaf_that_was_split_and_filled_again_has_an_order() {
        let keys: Vec<u64> = (0..SLOTS as u64)
            .map(|at| {
                if at < SLOTS as u64 / 2 {
                    10 * at
                } else {
                    239 - 10 * at % 237
                }
            })
            .collect();
        assert_eq!(there_and_back(&keys), Some(sorted(&keys)));
    }
}
