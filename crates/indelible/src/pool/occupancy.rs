//! Which blocks of an extent are in use: volatile, a bit each.

/// A bitmap of blocks.
#[derive(Debug)]
pub(super) struct Occupancy {
    bits: Box<[u64]>,
    blocks: usize,
    used: usize,
    /// No block below this word is free.
    first_free_word: usize,
}

impl Occupancy {
    /// `blocks` free blocks.
    pub(super) fn new(blocks: usize) -> Self {
        Self {
            bits: vec![0; blocks.div_ceil(64)].into(),
            blocks,
            used: 0,
            first_free_word: 0,
        }
    }

    /// Takes the lowest free block.
    pub(super) fn alloc(&mut self) -> Option<usize> {
        while let Some(word) = self.bits.get(self.first_free_word) {
            let block = self.first_free_word * 64 + word.trailing_ones() as usize;
            if *word != u64::MAX && block < self.blocks {
                self.mark(block);
                return Some(block);
            }
            self.first_free_word += 1;
        }
        None
    }

    /// Takes this block; `false` if it was taken already.
    pub(super) fn mark(&mut self, block: usize) -> bool {
        let (word, bit) = (block / 64, 1 << (block % 64));
        let is_new = self.bits[word] & bit == 0;
        self.bits[word] |= bit;
        self.used += usize::from(is_new);
        is_new
    }

    /// Gives a block back; `false` if it was free already.
    pub(super) fn free(&mut self, block: usize) -> bool {
        let (word, bit) = (block / 64, 1 << (block % 64));
        let was_used = self.bits[word] & bit != 0;
        self.bits[word] &= !bit;
        self.used -= usize::from(was_used);
        self.first_free_word = self.first_free_word.min(word);
        was_used
    }

    pub(super) fn is_used(&self, block: usize) -> bool {
        self.bits[block / 64] & 1 << (block % 64) != 0
    }

    pub(super) fn used(&self) -> usize {
        self.used
    }

    pub(super) fn is_full(&self) -> bool {
        self.used == self.blocks
    }

    /// How many blocks are free, and how many there are.
    pub(super) fn room(&self) -> (usize, usize) {
        (self.blocks - self.used, self.blocks)
    }

    /// Bytes of DRAM.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.bits)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn no_block_is_handed_out_twice_and_none_is_lost(
            blocks in 1..200usize,
            steps in proptest::collection::vec((any::<bool>(), any::<usize>()), 0..600),
        ) {
            let mut occupancy = Occupancy::new(blocks);
            let mut model = BTreeSet::new();
            for (take, which) in steps {
                if take {
                    match occupancy.alloc() {
                        Some(block) => {
                            prop_assert!(block < blocks);
                            prop_assert!(model.insert(block));
                        }
                        None => prop_assert_eq!(model.len(), blocks),
                    }
                } else {
                    let block = which % blocks;
                    prop_assert_eq!(occupancy.free(block), model.remove(&block));
                }
                prop_assert_eq!(occupancy.used(), model.len());
                prop_assert_eq!(occupancy.is_full(), model.len() == blocks);
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::{Arc, Mutex};

    #[test]
    fn loom_two_threads_never_get_the_same_block() {
        loom::model(|| {
            let occupancy = Arc::new(Mutex::new(Occupancy::new(3)));
            let other = {
                let occupancy = occupancy.clone();
                loom::thread::spawn(move || {
                    let block = occupancy.lock().unwrap().alloc().unwrap();
                    occupancy.lock().unwrap().free(block);
                    occupancy.lock().unwrap().alloc().unwrap()
                })
            };
            let mine = [0; 2].map(|_| occupancy.lock().unwrap().alloc().unwrap());
            let theirs = other.join().unwrap();
            assert!(mine[0] != mine[1] && !mine.contains(&theirs));
        });
    }
}
