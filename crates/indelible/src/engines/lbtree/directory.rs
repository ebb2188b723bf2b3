//! A directory of signposts for an engine of another kind: a small LB+-Tree, and its own directories, in that engine's blocks.
//!
//! The records of a directory are hints (where in a chain of leaves a code begins), so that a missing one costs time and nothing else. The
//! engine's root block begins as an LB+-Tree's does: the head of its own chain, then the heads of the directories.

use super::inner::Child;
use super::layout::LEVELS;
use super::recover::is_signpost;
use super::{Tree, root_block};
use crate::Result;
use crate::concurrency::sync::lock;
use crate::engines::{Decision, Place, Report};
use crate::pmem::Pm;
use crate::pool::{Offset, Space};
use std::sync::{Arc, Mutex, OnceLock};

/// Heads of directories in a root block, behind the head of the records.
pub(crate) const DIRECTORIES: usize = LEVELS - 1;

/// The directory of an object, if it has one yet.
pub(crate) struct Directory {
    place: Place,
    space: Arc<Space>,
    leaf_bytes: u32,
    tree: OnceLock<Box<Tree>>,
    /// Held while the directory is being created.
    creating: Mutex<()>,
}

impl Directory {
    /// The directory that the object's root block leads to. Blocks of `space` have `leaf_bytes`: 256, 512, 768 or 1024.
    pub(crate) fn open(place: &Place, space: &Arc<Space>, leaf_bytes: u32) -> Result<Self> {
        let heads = &root_block(&place.core, space, place.slot)?.heads;
        let mut above = None;
        for level in (1..LEVELS).rev() {
            let head = Offset::from_word(heads[level].load_acquire());
            if head.is_none() {
                continue;
            }
            let tree = Tree::new(&place.core, space, leaf_bytes, place.slot, level);
            let tree = tree.over(Child::unindexed(head))?;
            if let Some(directory) = above.take() {
                let _ = tree.directory.set(Box::new(directory));
            }
            above = Some(tree);
        }
        let tree = OnceLock::new();
        if let Some(directory) = above.filter(|directory: &Tree| directory.level == 1) {
            let _ = tree.set(Box::new(directory));
        }
        Ok(Self {
            place: place.clone(),
            space: Arc::clone(space),
            leaf_bytes,
            tree,
            creating: Mutex::default(),
        })
    }

    /// Whether the leaf at `offset` is to have a signpost.
    pub(crate) fn wants(&self, offset: Offset) -> bool {
        is_signpost(offset)
    }

    /// Adds a signpost: the leaf at `offset` begins at `code`. A missing signpost does no harm, so an error is only reported.
    pub(crate) fn add(&self, pm: Pm, code: u64, offset: Offset) {
        let added = self
            .tree_or_create(pm)
            .map_err(Box::new)
            .and_then(|tree| tree.apply(code, |_| Decision::Put(offset.get())));
        if let Err(error) = added {
            tracing::debug!(%error, code, "signpost not recorded");
        }
    }

    /// Removes the signpost to the leaf at `offset`, if there is one.
    pub(crate) fn remove(&self, code: u64, offset: Offset) -> Result<()> {
        let Some(tree) = self.tree.get() else {
            return Ok(());
        };
        let removed = tree.apply(code, |now| {
            if now == Some(offset.get()) {
                Decision::Remove
            } else {
                Decision::Keep
            }
        });
        removed.map(drop).map_err(|error| *error)
    }

    /// The last signpost whose code is `code` or below.
    pub(crate) fn at_or_below(&self, code: u64) -> Result<Option<(u64, Offset)>> {
        let found = match self.tree.get() {
            Some(tree) => tree.record_at_or_below(code)?,
            None => None,
        };
        Ok(found.map(|(code, offset)| (code, Offset::from_word(offset))))
    }

    /// The first signpost whose code is above `code`.
    pub(crate) fn above(&self, code: u64) -> Result<Option<(u64, Offset)>> {
        let found = match (self.tree.get(), code.checked_add(1)) {
            (Some(tree), Some(code)) => tree.record_at_or_above(code)?,
            _ => None,
        };
        Ok(found.map(|(code, offset)| (code, Offset::from_word(offset))))
    }

    /// All signposts, in the order of codes.
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
        self.tree
            .get()
            .map_or(Ok(true), |tree| tree.sweep_all(go_on))
    }

    /// See [`Engine::check`](crate::engines::Engine::check).
    pub(crate) fn check(&self, report: &mut Report) -> Result<()> {
        self.tree.get().map_or(Ok(()), |tree| tree.check(report))
    }

    /// Merges leaves of the directories that have few signposts, and moves leaves that lie at `end` or behind it to free blocks before
    /// `end`. The caller keeps the root block in its place meanwhile.
    pub(crate) fn compact_below(&self, end: Offset) -> Result<()> {
        self.tree
            .get()
            .map_or(Ok(()), |tree| tree.compact_as_directory(end))
    }

    /// Bytes of DRAM.
    pub(crate) fn dram_bytes(&self) -> u64 {
        self.tree.get().map_or(0, |tree| tree.dram_bytes())
    }

    fn tree_or_create(&self, pm: Pm) -> Result<&Tree> {
        if let Some(tree) = self.tree.get() {
            return Ok(tree);
        }
        let _creating = lock(&self.creating);
        if let Some(tree) = self.tree.get() {
            return Ok(tree);
        }
        let (core, slot) = (&self.place.core, self.place.slot);
        let tree = Tree::new(core, &self.space, self.leaf_bytes, slot, 1);
        let head = tree.leaves.at(self.space.alloc()?);
        head.fill(pm, &[], Offset::NONE);
        pm.fence();
        let offset = head.offset;
        // COMMIT lbtree.directory: the head of the directory's chain in the root block. Before this store there is no directory and
        // the block is swept; after it there is an empty directory.
        pm.commit(
            &root_block(core, &self.space, slot)?.heads[1],
            offset.get(),
            "lbtree.directory",
        );
        let tree = tree.over(Child::leaf(offset))?;
        Ok(self.tree.get_or_init(|| Box::new(tree)))
    }

    /// Held while nothing may change which directories there are: while the root block is being replaced, say.
    pub(crate) fn hold(&self) -> Vec<std::sync::MutexGuard<'_, ()>> {
        let mut held = vec![lock(&self.creating)];
        let mut next = self.tree.get().map(Box::as_ref);
        while let Some(tree) = next {
            held.push(lock(&tree.creating));
            next = tree.directory();
        }
        held
    }
}
