//! The directory of signposts into a chain of leaves: a smaller tree of the same kind, with a directory of its own.
//!
//! A signpost is a record (low key of a leaf, offset of the leaf). It is a hint: a missing one costs time and nothing else. Signposts may be
//! of any length, as keys are.

use super::inner::{Child, Seek};
use super::layout::LEVELS;
use super::{Home, Tree};
use crate::concurrency::sync::lock;
use crate::engines::{ReadValue, Report, StringBuffer, StringDecision, StringRange};
use crate::pmem::geometry::sized_in_tests;
use crate::pool::Offset;
use crate::{Error, Result};
use std::borrow::Cow;
use std::ops::Bound;
use std::sync::{Mutex, OnceLock};

/// One leaf in this many is a signpost, on average.
const SIGNPOST_INTERVAL: u64 = sized_in_tests(32, 4) as u64;

/// Whether the leaf at `offset` gets a signpost. The rule depends on the offset alone. It uses a hash, because a regular pattern would meet
/// the leaves of the directory, which are allocated between the leaves of the records.
pub(super) fn is_signpost(offset: Offset) -> bool {
    // The finalizer of MurmurHash3.
    let mut hash = offset.get();
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53_u64] {
        hash = (hash ^ hash >> 33).wrapping_mul(factor);
    }
    (hash >> 33).is_multiple_of(SIGNPOST_INTERVAL)
}

/// The directory of a tree, if there is one yet.
pub(super) struct Directory {
    home: Home,
    /// 1 for signposts into the records, 2 for signposts into that directory, and so on.
    level: usize,
    tree: OnceLock<Box<Tree>>,
    /// Held while the directory is being created.
    creating: Mutex<()>,
}

impl Directory {
    /// No directory yet, of this level.
    pub(super) fn new(home: &Home, level: usize) -> Self {
        Self {
            home: home.clone(),
            level,
            tree: OnceLock::new(),
            creating: Mutex::default(),
        }
    }

    /// Opens the tree that the head in the catalog entry leads to, if it does, and those above it.
    pub(super) fn open_trees(&self) -> Result<()> {
        if self.level == LEVELS {
            return Ok(());
        }
        let head = self.home.head(self.level);
        if head.is_none() {
            return Ok(());
        }
        let tree = Tree::over(&self.home, self.level, Child::unindexed(head))?;
        tree.directory.open_trees()?;
        self.tree.get_or_init(|| Box::new(tree));
        Ok(())
    }

    #[inline(always)]
    pub(super) fn tree(&self) -> Option<&Tree> {
        self.tree.get().map(Box::as_ref)
    }

    /// The level of the chain that signposts lead into, for the recorder.
    fn level_below(&self) -> u64 {
        self.level as u64 - 1
    }

    /// Adds a signpost to the leaf at `offset`, which begins at `low`, if that leaf is to have one. The caller holds the lock of the bottom
    /// node of the leaf.
    pub(super) fn add(&self, low: &[u8], offset: Offset) {
        if !is_signpost(offset) || self.level == LEVELS {
            return;
        }
        self.home
            .place
            .core
            .pm()
            .note("slotted signpost added", self.level_below());
        let word = offset.get().to_ne_bytes();
        // Without the signpost recovery walks a few more leaves: no reason to fail the insert that caused the split.
        let added = self.tree_or_create().and_then(|tree| {
            tree.apply(low, None, &mut |_| {
                StringDecision::Put(Cow::Owned(word.to_vec()))
            })
        });
        if let Err(error) = added {
            tracing::debug!(%error, ?low, "signpost not recorded");
        }
    }

    /// Removes the signpost to the leaf at `offset`, if there is one.
    pub(super) fn remove(&self, low: &[u8], offset: Offset) -> Result<()> {
        if !is_signpost(offset) {
            return Ok(());
        }
        let Some(tree) = self.tree() else {
            return Ok(());
        };
        self.home
            .place
            .core
            .pm()
            .note("slotted signpost removed", self.level_below());
        let word = offset.get().to_ne_bytes();
        tree.apply(low, None, &mut |now| match now {
            Some(now) if now.is(&word) => StringDecision::Remove,
            _ => StringDecision::Keep,
        })?;
        Ok(())
    }

    /// The last signpost at what is sought: its key and the leaf.
    pub(super) fn last_at(&self, seek: Seek<'_>) -> Result<Option<(Vec<u8>, Offset)>> {
        let high = match seek {
            Seek::At(key) => Bound::Included(key.to_vec()),
            Seek::Below(key) => Bound::Excluded(key.to_vec()),
            Seek::Last => Bound::Unbounded,
        };
        self.first_read(false, StringRange::new(Bound::Unbounded, high))
    }

    /// The first signpost behind what is sought.
    pub(super) fn first_after(&self, seek: Seek<'_>) -> Result<Option<(Vec<u8>, Offset)>> {
        let low = match seek {
            Seek::At(key) => Bound::Excluded(key.to_vec()),
            Seek::Below(key) => Bound::Included(key.to_vec()),
            Seek::Last => return Ok(None),
        };
        self.first_read(true, StringRange::new(low, Bound::Unbounded))
    }

    fn first_read(&self, up: bool, mut range: StringRange) -> Result<Option<(Vec<u8>, Offset)>> {
        let Some(tree) = self.tree() else {
            return Ok(None);
        };
        let mut buffer = StringBuffer::default();
        tree.read_on(up, &mut range, &mut buffer, true)?;
        buffer.pop_front()?.map(signpost).transpose()
    }

    /// All signposts, in the order of keys.
    pub(super) fn all(&self) -> Result<Vec<(Vec<u8>, Offset)>> {
        let mut all = Vec::new();
        let Some(tree) = self.tree() else {
            return Ok(all);
        };
        let mut range = StringRange::new(Bound::Unbounded, Bound::Unbounded);
        let mut buffer = StringBuffer::default();
        loop {
            tree.read_on(true, &mut range, &mut buffer, true)?;
            if buffer.is_empty() {
                return Ok(all);
            }
            while let Some(record) = buffer.pop_front()? {
                all.push(signpost(record)?);
            }
        }
    }

    /// Waits for operations that index the directory, or one above it.
    pub(super) fn wait_for_operations(&self) {
        let mut next = self.tree();
        while let Some(tree) = next {
            tree.waiting_operations.wait_for_none();
            next = tree.directory();
        }
    }

    /// See [`Engine::check`](crate::engines::Engine::check).
    pub(super) fn check(&self, report: &mut Report) -> Result<()> {
        self.tree().map_or(Ok(()), |tree| tree.check(report))
    }

    /// The tree. Creates an empty one if there is none.
    pub(super) fn tree_or_create(&self) -> Result<&Tree> {
        if let Some(tree) = self.tree() {
            return Ok(tree);
        }
        let _creating = lock(&self.creating);
        if let Some(tree) = self.tree() {
            return Ok(tree);
        }
        let core = &self.home.place.core;
        let pm = core.pm();
        let head = self.home.alloc_usual()?;
        pm.note("slotted directory made", self.level_below());
        Tree::fill_empty_leaf(&self.home, head);
        pm.fence();
        // COMMIT slotted.directory: the head of the directory's chain. Before this store there is no directory and the block is swept; after
        // it there is an empty directory.
        let word = &core.entry(self.home.place.slot).roots[self.level];
        pm.commit(word, head.get(), "slotted.directory");
        let leaf = Child::leaf(head, self.home.sizes.usual);
        let tree = Tree::over(&self.home, self.level, leaf)?;
        Ok(self.tree.get_or_init(|| Box::new(tree)))
    }
}

/// The low key and the offset of the leaf that a record of a directory points to.
fn signpost((low, value): (&[u8], ReadValue<'_>)) -> Result<(Vec<u8>, Offset)> {
    match value {
        ReadValue::Here(word) if word.len() == 8 => Ok((
            low.to_vec(),
            Offset::from_word(super::layout::word_at(word, 0)),
        )),
        _ => Err(Error::Damaged("a signpost that leads to no leaf".into())),
    }
}
