//! The search of a node. The head of [`inner`](super) says what is compared, and what a sure search is.

use super::super::groups::{GROUPS, HEAD_BYTES};
use super::{Inner, SLOTS, Seek, bits_of_first, head_of};
use crate::concurrency::sync::atomic::{AtomicU64, Ordering};
use crate::engines::inner_nodes::InnerNode;
use std::ops::Range;

/// Where the heads of a node lead a key.
pub(in crate::engines::slotted) struct Guess {
    /// The child, unless some heads are equal to that of the key.
    pub(in crate::engines::slotted) slot: usize,
    /// The first slot whose head is equal, and those of its group behind it.
    pub(in crate::engines::slotted) tied: Range<usize>,
    /// Behind the prefix, where the heads of the group begin.
    column: usize,
    /// Whether all bytes in front of the heads were compared.
    pub(in crate::engines::slotted) is_sure: bool,
}

impl Guess {
    #[inline(always)]
    fn surely(slot: usize) -> Self {
        Self {
            slot,
            tied: 0..0,
            column: 0,
            is_sure: true,
        }
    }
}

impl Inner {
    /// How a key compares with the separators by the prefix alone.
    #[inline(always)]
    fn compare_prefix(&self, key: &[u8], bytes: usize) -> std::cmp::Ordering {
        for (at, word) in self.prefix.iter().enumerate().take(bytes.div_ceil(8)) {
            let rest = key.get(8 * at..).unwrap_or_default();
            // The last word may have bytes that are not of the prefix.
            let among = bits_of_first(bytes - 8 * at);
            let prefix = u64::from_be_bytes(word.load(Ordering::Relaxed).to_ne_bytes());
            let order = (head_of(rest) & among).cmp(&(prefix & among));
            if order.is_ne() {
                return order;
            }
        }
        // A key that is a part of the prefix is below all separators.
        key.len().min(bytes).cmp(&bytes)
    }

    /// The slot of the child that is sought; some slot if the node changes meanwhile. The caller is pinned.
    #[inline(always)]
    pub(in crate::engines::slotted) fn find(&self, seek: Seek<'_>) -> usize {
        match seek {
            Seek::At(key) => self.find_key::<false>(key),
            Seek::Below(key) => self.find_key::<true>(key),
            Seek::Last => self.last(),
        }
    }

    #[inline(always)]
    fn find_key<const BELOW: bool>(&self, key: &[u8]) -> usize {
        let guess = self.guess::<true>(key);
        if guess.tied.is_empty() {
            return guess.slot;
        }
        let tied = self.prefetch_tied(&guess);
        self.among_equal::<BELOW>(key, tied, guess.column) - 1
    }

    /// The slot of the child that covers a key, and whether that is sure; see the head of this file. The caller is pinned.
    #[inline(always)]
    pub(in crate::engines::slotted) fn find_likely(&self, key: &[u8]) -> (usize, bool) {
        let guess = self.guess::<false>(key);
        let Range { start, end } = guess.tied;
        if start == end {
            return (guess.slot, guess.is_sure);
        }
        let is_one = start + 1 == end || self.head(start + 1) != self.head(start);
        let tied = if is_one {
            start..start + 1
        } else {
            self.prefetch_tied(&guess)
        };
        (self.find_tied(key, &guess, tied), guess.is_sure)
    }

    /// The slot of the child that covers a key, as far as heads say it. `SURE`: what lies between the bound of its group and the heads is compared too.
    #[inline(always)]
    pub(in crate::engines::slotted) fn guess<const SURE: bool>(&self, key: &[u8]) -> Guess {
        let count = self.count();
        let prefix = self.prefix_bytes();
        // A guess compares the last word of a long prefix only: how many words there are could not be predicted.
        if SURE || !self.ends_alike(key, prefix) {
            match self.compare_prefix(key, prefix) {
                std::cmp::Ordering::Less => return Guess::surely(0),
                std::cmp::Ordering::Greater => return Guess::surely(count.saturating_sub(1)),
                std::cmp::Ordering::Equal => {}
            }
        }
        // The lengths are those of one moment, or the version will not be valid.
        let rest = key.get(prefix..).unwrap_or_default();
        let first = head_of(rest);
        let likely = |slot| Guess {
            is_sure: SURE || prefix <= HEAD_BYTES,
            ..Guess::surely(slot)
        };
        let Some(group) = self.group_of(first) else {
            return likely(0);
        };
        let slots = self.slots_of(group, count);
        let column = self.column(group);
        let differs = first ^ self.bounds[group].load(Ordering::Relaxed);
        if differs & bits_of_first(column.min(HEAD_BYTES)) != 0 {
            // Not below the bound, so above all separators of the group.
            return likely(slots.end - 1);
        }
        if SURE && column > HEAD_BYTES {
            match self.compare_up_to_column(key, slots.start, prefix, column) {
                std::cmp::Ordering::Less => return Guess::surely(slots.start - 1),
                std::cmp::Ordering::Greater => return Guess::surely(slots.end - 1),
                std::cmp::Ordering::Equal => {}
            }
        }
        let head = head_of(rest.get(column..).unwrap_or_default());
        let end = slots.end;
        let at = self.first_at_least(slots, head);
        let is_tied = at < end && self.head(at) == head;
        Guess {
            slot: at - 1,
            tied: at..if is_tied { end } else { at },
            column,
            is_sure: SURE || column.max(prefix) <= HEAD_BYTES,
        }
    }

    /// Whether a key and the prefix have the same bytes in the last 8 of the prefix, or in all of a shorter one.
    #[inline(always)]
    fn ends_alike(&self, key: &[u8], prefix: usize) -> bool {
        let from = prefix.saturating_sub(HEAD_BYTES);
        let Some(&of_key) = key.get(from..).and_then(|rest| rest.first_chunk()) else {
            return false;
        };
        let (word, shift) = (from / 8, 8 * (from % 8) as u32);
        let word_at = |at: usize| {
            let word = self.prefix[at % self.prefix.len()].load(Ordering::Relaxed);
            u128::from(u64::from_le_bytes(word.to_ne_bytes()))
        };
        // The bytes of the prefix from there on, in the order of memory.
        let of_prefix = (word_at(word) | word_at(word + 1) << 64) >> shift;
        let differs = of_prefix as u64 ^ u64::from_le_bytes(of_key);
        differs << (64 - 8 * prefix.clamp(1, HEAD_BYTES)) == 0 || prefix == 0
    }

    /// The last group whose bound is not above the first bytes of a key behind the prefix.
    #[inline(always)]
    fn group_of(&self, first: u64) -> Option<usize> {
        let not_above = |bound: &AtomicU64| usize::from(bound.load(Ordering::Relaxed) <= first);
        let groups: usize = self.bounds.iter().map(not_above).sum();
        groups.min(self.group_count()).checked_sub(1)
    }

    #[inline(always)]
    pub(super) fn group_count(&self) -> usize {
        ((self.shape.load(Ordering::Relaxed) >> 40) as u8 as usize).min(GROUPS)
    }

    #[inline(always)]
    fn column(&self, group: usize) -> usize {
        let columns = self.columns.load(Ordering::Relaxed).to_le_bytes();
        usize::from(columns[group % GROUPS])
    }

    /// The slots of a group, of `count` in the node. At least 1 each, and in order, whatever changes meanwhile.
    #[inline(always)]
    pub(super) fn slots_of(&self, group: usize, count: usize) -> Range<usize> {
        let starts = self.starts.load(Ordering::Relaxed).to_le_bytes();
        let start = usize::from(starts[group % GROUPS]).clamp(1, SLOTS);
        let end = if group + 1 < self.group_count() {
            usize::from(starts[(group + 1) % GROUPS]).min(SLOTS)
        } else {
            count
        };
        start..end.max(start)
    }

    /// How a key compares with the separators of a group, which begins in this slot, by what they have between the bound and the column.
    #[inline(never)]
    fn compare_up_to_column(
        &self,
        key: &[u8],
        slot: usize,
        prefix: usize,
        column: usize,
    ) -> std::cmp::Ordering {
        // SAFETY: the caller of `find` is pinned, and the rules at the head of this file hold.
        let separator = unsafe { self.separator(slot.min(SLOTS - 1)).bytes() };
        let (from, to) = (prefix + HEAD_BYTES, prefix + column);
        let part =
            |bytes: &[u8]| -> (usize, usize) { (from.min(bytes.len()), to.min(bytes.len())) };
        let (of_key, of_separator) = (part(key), part(separator));
        key[of_key.0..of_key.1].cmp(&separator[of_separator.0..of_separator.1])
    }

    /// Asks the caches for separators that a binary search among the tied slots of a guess may look at. Returns the slots whose heads are equal.
    #[inline]
    pub(in crate::engines::slotted) fn prefetch_tied(&self, guess: &Guess) -> Range<usize> {
        let Range { start, mut end } = guess.tied;
        if start < end
            && let Some(above) = self.head(start).checked_add(1)
        {
            end = self.first_at_least(start..end, above);
        }
        let eighth = (end - start).div_ceil(8).max(1);
        // The first bytes that can differ, and those that are compared with them.
        let behind = self.prefix_bytes() + guess.column + 16;
        (start..end)
            .step_by(eighth)
            .for_each(|slot| self.prefetch_separator(slot, behind));
        start..end
    }

    /// The slot of the child that covers a key, among slots that [`prefetch_tied`](Self::prefetch_tied) has returned.
    pub(in crate::engines::slotted) fn find_tied(
        &self,
        key: &[u8],
        guess: &Guess,
        tied: Range<usize>,
    ) -> usize {
        self.among_equal::<false>(key, tied, guess.column) - 1
    }

    /// The first of `slots` whose head is not below this one, or the end. A step has no branch that depends on a head: nobody could predict it.
    #[inline(always)]
    fn first_at_least(&self, slots: Range<usize>, head: u64) -> usize {
        let (mut from, mut length) = (slots.start, slots.len());
        while length > 0 {
            let half = length.div_ceil(2);
            let is_below = self.head(from + half - 1) < head;
            from = std::hint::select_unpredictable(is_below, from + half, from);
            length -= half;
        }
        from
    }

    /// The first of `slots` whose separator is past a key, or the end. The key shares the node's prefix and what is in front of the column, and the
    /// heads of all of them are equal to its own, so the whole separators decide. Looking at one waits for memory, and all separators of a node may begin alike: so it is a binary
    /// search as well.
    #[inline(never)]
    fn among_equal<const BELOW: bool>(
        &self,
        key: &[u8],
        slots: Range<usize>,
        column: usize,
    ) -> usize {
        let Range {
            start: mut from,
            end: mut to,
        } = slots;
        let equal = self.prefix_bytes() + column + HEAD_BYTES;
        // A key that is shorter than the head has zeros there, and so may a separator; then all bytes are compared.
        let equal = if key.len() >= equal { equal } else { 0 };
        let rest = &key[equal..];
        let rest_head = head_of(rest);
        while from < to {
            let middle = from + (to - from) / 2;
            // SAFETY: the caller of `find` is pinned, and the rules at the head of this file hold.
            let separator = unsafe { self.separator(middle).bytes() };
            let is_past = match separator.get(equal..) {
                Some(separator) => {
                    let order = head_of(separator)
                        .cmp(&rest_head)
                        .then_with(|| separator.cmp(rest));
                    if BELOW { order.is_ge() } else { order.is_gt() }
                }
                // Shorter than the key, of which the head has zeros where the separator ends: below it. If the node has changed meanwhile, any answer
                // will do.
                None => false,
            };
            if is_past {
                to = middle;
            } else {
                from = middle + 1;
            }
        }
        from
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::super::sizes::Size;
    use super::super::{Child, Entry};
    use super::*;
    use crate::concurrency::epochs;
    use crate::pool::Offset;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn text(most: usize) -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(
            prop_oneof![Just(0), Just(1), Just(0x1f), Just(0xff)],
            0..most,
        )
    }

    proptest! {
        #[test]
        fn a_head_compares_as_padded_bytes(a in text(12), b in text(12)) {
            let padded = |bytes: &[u8]| {
                let mut padded = bytes.to_vec();
                padded.resize(12, 0);
                padded.truncate(8);
                padded
            };
            prop_assert_eq!(head_of(&a).cmp(&head_of(&b)), padded(&a).cmp(&padded(&b)));
        }

        /// Whatever the separators share, a node finds what a search through all of them finds.
        #[test]
        fn a_node_finds_the_child_of_every_key(
            shared in text(70),
            separators in proptest::collection::btree_set(text(20), 0..SLOTS - 3),
            keys in proptest::collection::vec(text(20), 20),
        ) {
            let with_shared = |rest: &Vec<u8>| [&shared[..], rest].concat();
            let separators: BTreeSet<Vec<u8>> = separators.iter().map(with_shared).collect();
            let mut all = vec![Vec::new()];
            all.extend(separators.into_iter().filter(|separator| !separator.is_empty()));
            let arena = crate::engines::arena::Arena::<Inner>::new();
            let (node, _guard) = arena.alloc(0);
            let child = |at: usize| {
                Child::leaf(Offset::from_word(256 * (at as u64 + 1)), Size::LARGEST)
            };
            let entries: Vec<Entry> = (all.iter().enumerate())
                .map(|(at, separator)| Entry::leaf(separator, child(at)))
                .collect();
            node.refill(&entries);
            let _pinned = epochs::pin();
            let probes = keys.iter().map(with_shared).chain(keys.iter().cloned()).chain(all.iter().cloned());
            for key in probes.chain([shared.clone(), Vec::new()]) {
                let at = all.partition_point(|separator| *separator <= key) - 1;
                prop_assert_eq!(node.find(Seek::At(&key)), at);
                let guess = node.guess::<true>(&key);
                let tied = node.prefetch_tied(&guess);
                prop_assert_eq!(if tied.is_empty() { guess.slot } else { node.find_tied(&key, &guess, tied) }, at);
                let (likely, is_sure) = node.find_likely(&key);
                prop_assert!(likely < all.len() && (likely == at || !is_sure));
                if !key.is_empty() {
                    let below = all.partition_point(|separator| *separator < key) - 1;
                    prop_assert_eq!(node.find(Seek::Below(&key)), below);
                }
            }
            node.free_separators();
        }
    }
}
