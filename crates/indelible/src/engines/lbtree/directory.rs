//! The directory of signposts into a chain of leaves: a small LB+-Tree with directories of its own, in the blocks of the object.
//!
//! A signpost, a record (lowest key, offset of the leaf), is a hint: a missing one costs time and nothing else. The LB+-Tree has a directory, and
//! so has an engine of another kind whose leaves form a chain in the order of some 64-bit key. Such an engine's root block begins as an
//! LB+-Tree's does: the head of its own chain, then the heads of the directories.

use super::inner::Child;
use super::layout::LEVELS;
use super::recover::is_signpost;
use super::{Tree, root_block};
use crate::concurrency::sync::lock;
use crate::engines::{Decision, Place, Report};
use crate::pool::{Offset, PoolCore, Space};
use crate::{Error, Result};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// Heads of directories in a root block, behind the head of the records.
pub(crate) const DIRECTORIES: usize = LEVELS - 1;

/// The directory of a tree, if there is one yet.
pub(crate) struct Directory {
    core: Arc<PoolCore>,
    space: Arc<Space>,
    leaf_bytes: u32,
    /// The object's place in the catalog.
    slot: usize,
    /// The level of the directory: 1 for signposts into the records, 2 for signposts into that directory, and so on.
    level: usize,
    tree: OnceLock<Box<Tree>>,
    /// Held while the directory is being created, and while the root block moves.
    creating: Mutex<()>,
}

impl Directory {
    /// No directory yet, of this level.
    pub(super) fn new(
        core: &Arc<PoolCore>,
        space: &Arc<Space>,
        leaf_bytes: u32,
        slot: usize,
        level: usize,
    ) -> Self {
        Self {
            core: Arc::clone(core),
            space: Arc::clone(space),
            leaf_bytes,
            slot,
            level,
            tree: OnceLock::new(),
            creating: Mutex::default(),
        }
    }

    /// The directory of an object of another engine. Blocks of `space` have `leaf_bytes`: 256, 512, 768 or 1024.
    pub(crate) fn open(place: &Place, space: &Arc<Space>, leaf_bytes: u32) -> Result<Self> {
        let directory = Self::new(&place.core, space, leaf_bytes, place.slot, 1);
        directory.open_trees(&root_block(&place.core, space, place.slot)?.heads())?;
        Ok(directory)
    }

    /// Opens the tree that the heads in the root block lead to, if one does, and those above it.
    pub(super) fn open_trees(&self, heads: &[Offset; LEVELS]) -> Result<()> {
        match heads.get(self.level) {
            Some(&head) if !head.is_none() => {
                let tree = self.new_tree(Child::unindexed(head))?;
                tree.directory.open_trees(heads)?;
                self.attach(tree);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A tree over the chain that begins at `head`, which is to become the directory.
    pub(super) fn new_tree(&self, head: Child) -> Result<Tree> {
        Tree::new(
            &self.core,
            &self.space,
            self.leaf_bytes,
            self.slot,
            self.level,
        )
        .over(head)
    }

    /// Makes `tree` the directory, of which there is none yet.
    pub(super) fn attach(&self, tree: Tree) -> &Tree {
        self.tree.get_or_init(|| Box::new(tree))
    }

    #[inline(always)]
    pub(super) fn tree(&self) -> Option<&Tree> {
        self.tree.get().map(Box::as_ref)
    }

    /// The level of the chain that signposts lead into, for the recorder.
    fn level_below(&self) -> u64 {
        self.level as u64 - 1
    }

    /// Adds a signpost to the leaf at `offset`, which begins at `low`, if that leaf is to have one. The caller holds the lock of the leaf or
    /// of its left neighbour.
    pub(crate) fn add(&self, low: u64, offset: Offset) {
        if !is_signpost(offset) || self.level == LEVELS {
            return;
        }
        self.core.pm().note("signpost added", self.level_below());
        // Without the signpost recovery walks a few more leaves: no reason to fail the insert that caused the split.
        let added = self
            .tree_or_create()
            .map_err(Box::new)
            .and_then(|tree| tree.apply(low, |_| Decision::Put(offset.get())));
        if let Err(error) = added {
            tracing::debug!(%error, low, "signpost not recorded");
        }
    }

    /// Removes the signpost to the leaf at `offset`, if there is one.
    pub(crate) fn remove(&self, low: u64, offset: Offset) -> Result<()> {
        if !is_signpost(offset) {
            return Ok(());
        }
        self.core.pm().note("signpost removed", self.level_below());
        let Some(tree) = self.tree() else {
            return Ok(());
        };
        let removed = tree.apply(low, |now| {
            if now == Some(offset.get()) {
                Decision::Remove
            } else {
                Decision::Keep
            }
        });
        removed.map(drop).map_err(|error| *error)
    }

    /// The last signpost whose key is `key` or below: the lowest key of a leaf, and the leaf's offset.
    pub(crate) fn at_or_below(&self, key: u64) -> Result<Option<(u64, Offset)>> {
        let signpost = match self.tree() {
            Some(tree) => tree.record_at_or_below(key)?,
            None => None,
        };
        Ok(signpost.map(leaf_of_signpost))
    }

    /// The first signpost whose key is above `key`.
    pub(crate) fn above(&self, key: u64) -> Result<Option<(u64, Offset)>> {
        let signpost = match (self.tree(), key.checked_add(1)) {
            (Some(tree), Some(key)) => tree.record_at_or_above(key)?,
            _ => None,
        };
        Ok(signpost.map(leaf_of_signpost))
    }

    /// An error if the key of a signpost, which was found by its place among the others, is not what its fingerprint was made of. A wrong key would lead lookups
    /// past the leaves that have their keys. The caller knows that the signpost is not removed meanwhile.
    pub(crate) fn confirm(&self, &(low, leaf): &(u64, Offset)) -> Result<()> {
        let found = self.tree().map_or(Ok(None), |tree| tree.get(low))?;
        if found == Some(leaf.get()) {
            return Ok(());
        }
        Err(Error::Damaged(format!(
            "the signpost to leaf {leaf:#x} has another key than its fingerprint was made of"
        )))
    }

    /// All signposts, in the order of keys.
    pub(crate) fn all(&self) -> Result<Vec<(u64, Offset)>> {
        let mut all = Vec::new();
        let mut next = self.at_or_below(0)?.or(self.above(0)?);
        while let Some(signpost) = next {
            all.push(signpost);
            next = self.above(signpost.0)?;
        }
        Ok(all)
    }

    /// Visits all leaves of the directory, and of those above it, and claims their blocks. `false` if `go_on` ended it early.
    pub(crate) fn sweep(&self, go_on: &dyn Fn() -> bool) -> Result<bool> {
        self.tree().map_or(Ok(true), |tree| tree.sweep_all(go_on))
    }

    /// Waits for operations that index the directory, or one above it.
    pub(crate) fn wait_for_operations(&self) {
        let mut next = self.tree();
        while let Some(tree) = next {
            tree.waiting_operations.wait_for_none();
            next = tree.directory();
        }
    }

    /// See [`Engine::check`](crate::engines::Engine::check).
    pub(crate) fn check(&self, report: &mut Report) -> Result<()> {
        self.tree().map_or(Ok(()), |tree| tree.check(report))
    }

    /// Merges leaves of the directories that have few signposts, and moves leaves that lie at `end` or behind it to free blocks before
    /// `end`. The caller keeps the root block in its place meanwhile.
    pub(crate) fn compact_below(&self, end: Offset) -> Result<()> {
        self.tree()
            .map_or(Ok(()), |tree| tree.compact_as_directory(end))
    }

    /// Bytes of DRAM.
    pub(crate) fn dram_bytes(&self) -> u64 {
        self.tree().map_or(0, Tree::dram_bytes)
    }

    /// The tree. Creates an empty one if there is none.
    fn tree_or_create(&self) -> Result<&Tree> {
        if let Some(tree) = self.tree() {
            return Ok(tree);
        }
        let _creating = lock(&self.creating);
        if let Some(tree) = self.tree() {
            return Ok(tree);
        }
        let pm = self.core.pm();
        let head = self.space.alloc()?;
        pm.note("directory made", self.level_below());
        Tree::fill_empty_leaf(&self.core, self.leaf_bytes, head);
        pm.fence();
        // COMMIT lbtree.directory: the head of the directory's chain in the root block. Before this store there is no directory and
        // the block is swept; after it there is an empty directory.
        let root = root_block(&self.core, &self.space, self.slot)?;
        pm.commit(&root.heads[self.level], head.get(), "lbtree.directory");
        Ok(self.attach(self.new_tree(Child::leaf(head))?))
    }

    /// Held while nothing may change which directories there are, as when the root block moves: a thread that creates a directory writes to
    /// the root block. Each `creating` is locked before the directory that it protects is looked for.
    pub(crate) fn hold(&self) -> Vec<MutexGuard<'_, ()>> {
        let mut held = vec![lock(&self.creating)];
        if let Some(tree) = self.tree() {
            held.extend(tree.directory.hold());
        }
        held
    }
}

/// The lowest key and the offset of the leaf that a record of a directory points to.
fn leaf_of_signpost((low, word): (u64, u64)) -> (u64, Offset) {
    (low, Offset::from_word(word))
}
