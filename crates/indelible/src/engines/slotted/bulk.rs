//! Bulk load: builds a chain of leaves that is not reachable, and makes it the contents of the empty map with one store.

use super::directory::is_signpost;
use super::inner::{Child, Entry, Seek};
use super::insert::NewBlobs;
use super::layout::{LEVELS, SLOTS, prefix_of, shortest_separator};
use super::records::{Records, Value, image};
use super::separator::Text;
use super::sizes::{LEAVES_OF_LARGE_MAP, Size};
use super::{Inner, Tree};
use crate::concurrency::epochs;
use crate::concurrency::locks::WriteGuard;
use crate::concurrency::sync::lock;
use crate::engines::arena::Node;
use crate::engines::inner_nodes::{InnerNode, InnerTree, lock_empty_tree};
use crate::engines::{StringBuffer, StringRange};
use crate::pool::Offset;
use crate::{Error, Result};
use std::ops::Bound;

/// The guards of a tree whose chain has been switched, and the leaf that it had.
type Switched<'a> = (WriteGuard<'a>, WriteGuard<'a>, Child);

/// A chain that is not reachable yet: freed unless it is kept.
struct NewChain<'a> {
    tree: &'a Tree,
    /// The leaves, each with its low key.
    leaves: Vec<(Vec<u8>, Child)>,
    blobs: NewBlobs<'a>,
    records: u64,
}

impl Drop for NewChain<'_> {
    fn drop(&mut self) {
        for &(_, leaf) in &self.leaves {
            self.tree.free_leaf_now(leaf);
        }
    }
}

impl<'a> NewChain<'a> {
    /// The chain of the signposts into this one, for the directory; none if there are none, or if they cannot be recorded: without them recovery walks more leaves.
    fn signposts(&self, fill: f64) -> Option<NewChain<'a>> {
        let leaves = self.leaves.iter().skip(1);
        let leaves = leaves.map(|(low, leaf)| (low, leaf.offset()));
        let mut signposts = leaves
            .filter(|&(_, leaf)| is_signpost(leaf))
            .map(|(low, leaf)| Ok((low.clone(), leaf.get().to_ne_bytes().to_vec())))
            .peekable();
        if signposts.peek().is_none() || self.tree.level + 1 == LEVELS {
            return None;
        }
        let build = |directory: &'a Tree| {
            directory.join_empty_leaves()?;
            directory.build_chain(&mut signposts, fill)
        };
        let built = self.tree.directory.tree_or_create().and_then(build);
        let failed = |error: &Error| tracing::debug!(%error, "signposts not recorded");
        built.inspect_err(failed).ok()
    }

    /// The chain is reachable.
    fn keep(&mut self) {
        self.blobs.keep();
        self.leaves.clear();
    }

    /// Adds a leaf that begins at `low`. Its size follows from `records`, of which it gets some from the one at `from` on; more may come, but those there are
    /// say what records are like.
    fn add_leaf(&mut self, low: &[u8], records: &Records, from: usize) -> Result<Child> {
        let tree = self.tree;
        let all = 0..records.list.len();
        let first = from..all.end.min(from + 1);
        // What all of them share is about what the leaf will leave out.
        let last = all.end.checked_sub(1).map(|last| records.key(last));
        let like_these = tree.words_of(records, &all, (low, last));
        let own = tree.words_of(records, &first, (low, None));
        let is_large = self.leaves.len() >= LEAVES_OF_LARGE_MAP;
        let leaf = tree.alloc_leaf(tree.sizes.wanted(like_these, own, is_large))?;
        self.leaves.push((low.to_vec(), leaf));
        Ok(leaf)
    }

    /// Writes a leaf for the first records of `records`, as many as `count`. `block` is its own, `next` that of the leaf after it.
    fn write_leaf(
        &mut self,
        (low, block): (&[u8], Child),
        (high, next): (Option<&[u8]>, Offset),
        records: &Records,
        count: usize,
    ) -> Result<()> {
        let tree = self.tree;
        let low_value = tree.low_value(low, &mut self.blobs)?;
        let low_and_prefix = (&low_value, prefix_of(low, high));
        let words = image(
            (tree.sizes, block.size()),
            tree.seed,
            low_and_prefix,
            next,
            records,
            0..count,
        );
        // The block may have been a leaf before.
        tree.orders.forget(block);
        tree.pm.stream(tree.leaf(block).cells, &words);
        self.records += count as u64;
        Ok(())
    }
}

impl Tree {
    /// See [`Strings::bulk_load`](crate::engines::Strings::bulk_load). `self` is the tree of records, or an empty directory.
    pub(super) fn bulk_load(
        &self,
        records: &mut dyn Iterator<Item = Result<(Vec<u8>, Vec<u8>)>>,
        fill: f64,
    ) -> Result<()> {
        if !self.is_empty()? {
            return Err(Error::NotEmpty);
        }
        let chain = self.build_chain(records, fill)?;
        if chain.records == 0 {
            return Ok(());
        }
        // A compaction that holds this mutex soon ends, since the map is empty.
        let _reorganizing = lock(&self.reorganizing);
        self.join_empty_leaves()?;
        let mut chains = vec![chain];
        while let Some(signposts) = chains[chains.len() - 1].signposts(fill.min(0.7)) {
            chains.push(signposts);
        }
        // All stay locked until the last one is loaded: a writer that changes a leaf removes the signpost to that leaf, and it would not be there yet.
        let mut loaded = Vec::new();
        for chain in &mut chains {
            match chain.tree.switch_chain(chain) {
                Ok(held) => {
                    chain.keep();
                    loaded.push((chain.tree, held));
                }
                Err(error) if loaded.is_empty() => return Err(error),
                Err(error) => {
                    // Without signposts recovery walks more leaves: the records are loaded all the same.
                    tracing::debug!(%error, "signposts not recorded");
                    break;
                }
            }
        }
        for (tree, (root_guard, leaf_guard, old)) in loaded.into_iter().rev() {
            drop((leaf_guard, root_guard));
            tree.retire_leaf(old);
        }
        Ok(())
    }

    fn is_empty(&self) -> Result<bool> {
        let mut all = StringRange::new(Bound::Unbounded, Bound::Unbounded);
        let mut buffer = StringBuffer::default();
        self.read_on(true, &mut all, &mut buffer, false)?;
        Ok(buffer.is_empty())
    }

    /// A map whose records were all removed may still have several empty leaves; merging makes them one.
    fn join_empty_leaves(&self) -> Result<()> {
        let _guard = epochs::pin();
        while self.is_empty()? {
            let nodes = self.nodes_at_the_left();
            if nodes == (1, 1, 1) {
                break;
            }
            self.merge(Text::EMPTY);
            if self.nodes_at_the_left() == nodes {
                break;
            }
        }
        Ok(())
    }

    /// The root's level and count, and its first child's count.
    fn nodes_at_the_left(&self) -> (u32, usize, usize) {
        let first: &Inner = self.root().node(0);
        (self.root().level(), self.root().count(), first.count())
    }

    fn build_chain(
        &self,
        records: &mut dyn Iterator<Item = Result<(Vec<u8>, Vec<u8>)>>,
        fill: f64,
    ) -> Result<NewChain<'_>> {
        let mut chain = NewChain {
            tree: self,
            leaves: Vec::new(),
            blobs: NewBlobs::none(&self.blobs),
            records: 0,
        };
        let (mut pending, mut last_key): (Records, Option<Vec<u8>>) = (Records::default(), None);
        let mut low = Vec::new();
        let mut taken = 0;
        // More records than a leaf can have, and the one after them, tell where a leaf ends.
        let most = SLOTS + 1;
        loop {
            while pending.list.len() < most {
                let Some(record) = records.next().transpose()? else {
                    break;
                };
                if last_key.as_ref().is_some_and(|last| *last >= record.0) {
                    return Err(Error::NotAscending(taken));
                }
                self.add_loaded(&mut chain, &mut pending, &record)?;
                last_key = Some(record.0);
                taken += 1;
            }
            let here = match chain.leaves.last() {
                Some(&(_, leaf)) => leaf,
                None => chain.add_leaf(&low, &pending, 0)?,
            };
            let is_rest = pending.list.len() < most;
            let count = self.loaded_count(&pending, (&low, here.size()), fill, is_rest);
            if count == pending.list.len() {
                chain.write_leaf((&low, here), (None, Offset::NONE), &pending, count)?;
                break;
            }
            let high = shortest_separator(pending.key(count - 1), pending.key(count)).to_vec();
            let next = chain.add_leaf(&high, &pending, count)?;
            let end = (Some(&high[..]), next.offset());
            chain.write_leaf((&low, here), end, &pending, count)?;
            pending.drop_first(count);
            low = high;
        }
        self.pm.named("slotted.load.leaves").fence();
        Ok(chain)
    }

    /// Adds a record that is loaded, its long parts as blobs.
    fn add_loaded(
        &self,
        chain: &mut NewChain<'_>,
        pending: &mut Records,
        (key, value): &(Vec<u8>, Vec<u8>),
    ) -> Result<()> {
        let key_blob = if key.len() > self.sizes.most_key() {
            Some(chain.blobs.write(key)?)
        } else {
            None
        };
        let value = if value.len() > self.sizes.most_value() {
            Value::Blob(chain.blobs.write(value)?)
        } else {
            Value::Inline(value)
        };
        pending.push(key, key_blob, &value);
        Ok(())
    }

    /// How many of the first records go into one leaf. `is_rest` says that there are no others.
    fn loaded_count(
        &self,
        records: &Records,
        (low, size): (&[u8], Size),
        fill: f64,
        is_rest: bool,
    ) -> usize {
        let all = records.list.len();
        let (heap, low_words) = (size.heap_words(), self.low_words(low));
        let most = ((heap as f64 * fill) as usize).saturating_sub(low_words);
        let heap = heap - low_words;
        let slots = ((SLOTS as f64 * fill) as usize).clamp(1, SLOTS);
        let mut count = 0;
        while count < all && count < slots {
            let with = count + 1;
            let high =
                (with < all).then(|| shortest_separator(records.key(with - 1), records.key(with)));
            if high.is_none() && !is_rest {
                break;
            }
            let prefix = prefix_of(low, high);
            let words: usize = (0..with).map(|at| records.words_of(at, prefix)).sum();
            // A single record may take more than the share.
            if words > if with == 1 { heap } else { most } {
                break;
            }
            count = with;
        }
        // The chain has one leaf at least, and each leaf a record if there is one.
        count.max(usize::from(all > 0))
    }

    /// Makes the chain, which is durable, the contents of the tree, which has one leaf without records. Until the guards are dropped, no thread can enter the tree.
    /// The leaf is to be retired then.
    fn switch_chain(&self, chain: &NewChain<'_>) -> Result<Switched<'_>> {
        let only_leaf = |bottom: &Inner| bottom.child(0).offset();
        let (root_guard, bottom_guard, leaf_guard, old) =
            lock_empty_tree(self.root(), &self.locks, only_leaf)?;
        let old = self.block_at(old)?;
        if self.leaf(old).count() > 0 {
            return Err(Error::NotEmpty);
        }
        self.pm.note("slotted bulk load", self.level as u64);
        // COMMIT slotted.load: the head of the chain. Before this store recovery sees the empty leaf, and all that was loaded is swept; after it, it sees
        // all records, and the empty leaf is swept.
        self.pm.commit(
            self.head(),
            chain.leaves[0].1.offset().get(),
            "slotted.load",
        );
        self.count_change(old.offset(), chain.records as i64);
        drop(bottom_guard);
        let entries = chain.leaves.iter();
        let entries = entries.map(|(low, leaf)| Entry::leaf(low, *leaf));
        self.load_nodes(entries.collect());
        Ok((root_guard, leaf_guard, old))
    }

    /// The spot of the first leaf that covers keys from `from` on.
    pub(super) fn spot_from(&self, from: &[u8]) -> Result<super::search::Spot<'_>> {
        self.locate(Seek::At(from))
    }
}
