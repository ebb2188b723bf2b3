//! Coming back: mirrors on first touch, the sweep in the background.
//!
//! # What survives
//!
//! All nodes survive, each whole: see `smo`. What mirrors them in DRAM does not. After an open only the root has a mirror,
//! and all of its slots are cold.
//!
//! # First touch
//!
//! Whoever comes to a cold slot mirrors the child: of an inner node that is an empty array, of a data node the overflow
//! buckets, for which its stash has to be read, a twentieth of the node in the good case. No node is stamped with the generation
//! that mirrored it, as in the paper's section 5, since nothing volatile is in the pool.
//!
//! Blocks that are mirrored are *claimed*, each once, and only if it was there before the open. So in a damaged pool no block
//! has two mirrors, which knew nothing of each other, and none that somebody is about to write has one.
//!
//! # Sweeping
//!
//! A background thread goes through all nodes and counts the records of each group; at the end all blocks that are not
//! claimed are free.

use super::build::block_for;
use super::data::{Data, State};
use super::inner::{Child, Inner, group_log, group_of};
use super::layout::{
    DataShape, EXTENSION_SLOTS, GROUP, INLINE_SLOTS, Link, Offset, PAIR_SLOTS, SLOT_BYTES,
    SMALLEST_BLOCK,
};
use super::plan::{MAX_DATA_BYTES, MAX_LOG_SLOTS, MIN_DATA_BYTES};
use super::{Apex, Shared, Tree};
use crate::locks::Wait;
use crate::planted::{Bug, planted};
use crate::pmem::Cell;
use crate::sync::lock;
use crate::{Error, Result, reclaim};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Inner nodes above a data node, at most: far more than there ever are, but links that go in circles end.
const MOST_LEVELS: u32 = 1024;

/// Extended stash blocks of a data node, at most: with twice as many slots as the node.
const MOST_EXTENSIONS: usize = 2 * (MAX_DATA_BYTES / SLOT_BYTES) as usize / EXTENSION_SLOTS;

fn damaged(offset: Offset, what: &str) -> Error {
    Error::Damaged(format!("{offset:#x} is not {what} of this map"))
}

impl Tree {
    /// Mirrors the root.
    pub(super) fn open_root(&self) -> Result<()> {
        let link = Link(self.root_cell().load_acquire());
        if !link.is_inner() {
            return Err(damaged(link.offset(), "the root"));
        }
        let root = self.mirror_inner(link.offset(), (0, u64::MAX), 0)?;
        self.root.store(Box::into_raw(root), Ordering::Release);
        Ok(())
    }

    /// Mirrors one node more on the way to `key`, if there is a cold one. The caller is pinned.
    #[cold]
    pub(super) fn warm(&self, key: u64) -> Result<()> {
        let mut node = self.root();
        loop {
            let slot = node.radix.slot_of(key);
            let child = node.child(slot);
            if child.is_cold() {
                return self.resolve(node, slot);
            }
            if !child.is_inner() {
                return Ok(());
            }
            // SAFETY: reached while pinned.
            node = unsafe { &*child.as_inner() };
        }
    }

    /// Mirrors the child in a cold slot.
    fn resolve(&self, node: &Inner, slot: usize) -> Result<()> {
        let _changing = lock(&node.changing);
        if node.is_dead() || !node.child(slot).is_cold() {
            return Ok(());
        }
        let slots = self.durable_slots(node);
        let Some((first, link)) = group_of(slots, slot) else {
            return Err(damaged(node.head, "an inner node"));
        };
        let log = group_log(slots, first);
        let continued = self.shape.format.continued();
        let is_whole = |slots: &[Cell]| slots.iter().all(|slot| slot.load() == continued);
        if slot >= first + (1 << log) || !is_whole(&slots[first + 1..first + (1 << log)]) {
            // Groups that do not tile the node: what takes a child's place could not find all slots that lead there.
            return Err(damaged(node.head, "an inner node"));
        }
        let mut child = node.child(first);
        if child.is_cold() {
            let range = node.radix.range_of(first, log, node.low, node.high);
            child = self.mirror(link, range, node.depth + 1)?;
            node.set_one(first, child);
        }
        node.set_one(slot, child);
        Ok(())
    }

    fn mirror(&self, link: Link, range: (u64, u64), depth: u32) -> Result<Child> {
        if link.is_inner() {
            let inner = self.mirror_inner(link.offset(), range, depth)?;
            Ok(Child::inner(NonNull::from(Box::leak(inner))))
        } else {
            let data = self.mirror_data(link.offset(), range)?;
            Ok(Child::data(NonNull::from(Box::leak(data))))
        }
    }

    fn mirror_inner(&self, head: Offset, range: (u64, u64), depth: u32) -> Result<Box<Inner>> {
        let mut claims = Claims::of(self);
        let bytes = claims.add(head)?;
        if bytes != SMALLEST_BLOCK || depth > MOST_LEVELS {
            return Err(damaged(head, "an inner node"));
        }
        let Some((radix, slots)) = self.inner_head(head).read(MAX_LOG_SLOTS) else {
            return Err(damaged(head, "an inner node"));
        };
        let is_inline = slots == head + self.inline_at() && radix.slots() <= INLINE_SLOTS;
        if !is_inline && claims.add(slots)? != block_for(radix.slots()) {
            return Err(damaged(slots, "an array of slots"));
        }
        claims.keep();
        Ok(Inner::new(radix, head, slots, range, depth))
    }

    /// Mirrors a data node, which is then live.
    fn mirror_data(&self, offset: Offset, range: (u64, u64)) -> Result<Box<Data>> {
        let mut claims = Claims::of(self);
        let bytes = claims.add(offset)?;
        let shape = (bytes >= MIN_DATA_BYTES)
            .then(|| {
                self.data_header(offset)
                    .read(bytes, range.1, self.shape.format)
            })
            .flatten();
        let Some(shape) = shape else {
            return Err(damaged(offset, "a data node"));
        };
        if shape.low != range.0 || range == (0, u64::MAX) {
            return Err(damaged(offset, "the data node of its range"));
        }
        let extensions = self.extensions_of(offset, &mut claims)?;
        claims.keep();
        let data = Data::new(offset, bytes, &shape, range.1, &extensions);
        self.index_stash(&data, &shape)?;
        data.become_(State::Live);
        Ok(data)
    }

    /// The extended stash blocks of a data node, in the order of their links.
    fn extensions_of(&self, offset: Offset, claims: &mut Claims<'_>) -> Result<Vec<Offset>> {
        let mut blocks = Vec::new();
        let mut next = self.data_header(offset).extension.load_acquire();
        while next != 0 {
            let bytes = claims.add(next)?;
            if bytes != SMALLEST_BLOCK || blocks.len() > MOST_EXTENSIONS {
                return Err(damaged(next, "an extended stash block"));
            }
            if planted(Bug::SweepForgetsExtensions) {
                self.blocks.unclaim(next, bytes);
            }
            blocks.push(next);
            next = self.extension(next).next.load_acquire();
        }
        // The one that was added last comes first in the chain, and has the highest numbers among the stash's slots.
        blocks.reverse();
        Ok(blocks)
    }

    /// Fills the stash bitmap and the overflow buckets of a node that nobody else has yet.
    fn index_stash(&self, data: &Data, shape: &DataShape) -> Result<()> {
        let slots = match data.stash_slots() {
            _ if planted(Bug::ExtensionsForgotten) => data.stash,
            slots => slots,
        };
        for slot in 0..slots {
            let Some(at) = data.stash_at(slot) else {
                continue;
            };
            let key = self.slot_at(at).key.load();
            if key == data.marker() {
                continue;
            }
            if !(data.low..=data.high).contains(&key) {
                return Err(damaged(at, "a record of its data node"));
            }
            data.take_stash(slot);
            data.add_overflow(shape.model.predict(key), key, slot);
        }
        Ok(())
    }

    /// Visits every node from left to right: mirrors and counts it. Stops early, with `false`, when `go_on` says so.
    fn sweep(&self, go_on: &impl Fn() -> bool) -> Result<bool> {
        let mut from = 0;
        let mut wait = Wait::default();
        while go_on() {
            let _guard = reclaim::pin();
            let data = self.path_to(from)?.data;
            if !self.count_groups(data, from) {
                // It is being replaced; what takes its place has to be visited.
                wait.step();
                continue;
            }
            match data.high.checked_add(1) {
                Some(next) => from = next,
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Counts the records of a node; `false` if it is not live.
    fn count_groups(&self, data: &Data, from: u64) -> bool {
        let mut first_key = from;
        for group in 0..data.group_count() {
            let place = data.lock_of(group * GROUP);
            let _lock = self.locks.of(place).lock();
            if data.state() != State::Live {
                return false;
            }
            let keys = self.count_records(data, group);
            let next = (group + 1 < data.group_count())
                .then(|| data.model.first_key_of((group + 1) * GROUP))
                .flatten()
                // Homes beyond the node's keys are nobody's.
                .filter(|&key| key <= data.high);
            let end = next.or_else(|| data.high.checked_add(1));
            self.tally
                .count_from(&self.locks, place, first_key, end, |from| {
                    keys.iter().filter(|&&key| key >= from).count()
                });
            match end {
                Some(end) => first_key = end,
                None => first_key = u64::MAX,
            }
        }
        true
    }

    /// Counts the records of a group, finds out where it has strays, and returns the keys. The group is locked.
    pub(super) fn count_records(&self, data: &Data, group: usize) -> Vec<u64> {
        let keys = self.keys_of(data, group);
        data.set_counted(group, keys.len(), self.strays_of(data, group));
        keys
    }

    /// Which pairs of lines of a group have strays. The group is locked, or nobody writes.
    pub(super) fn strays_of(&self, data: &Data, group: usize) -> u64 {
        let home_of = |at| {
            let key = self.slot_at(at).key.load();
            (key != data.marker()).then(|| data.model.predict(key))
        };
        let in_window = data.slots_of(group).filter_map(|slot| {
            home_of(data.slot_at(slot)).filter(|home| home / PAIR_SLOTS != slot / PAIR_SLOTS)
        });
        let in_stash = data
            .overflow_of(group)
            .filter_map(|entry| home_of(data.stash_at(entry.stash_slot())?));
        let in_window = in_window.map(Data::pair_bit);
        let in_stash = in_stash.map(Data::stashed_bits);
        in_window
            .chain(in_stash)
            .fold(0, |strays, bits| strays | bits)
    }

    /// The keys of a group, in no order. The group is locked, or nobody writes.
    pub(super) fn keys_of(&self, data: &Data, group: usize) -> Vec<u64> {
        let in_window = data.slots_of(group).map(|slot| data.slot_at(slot));
        let in_stash = data
            .overflow_of(group)
            .filter_map(|entry| data.stash_at(entry.stash_slot()));
        in_window
            .chain(in_stash)
            .map(|at| self.slot_at(at).key.load())
            .filter(|&key| key != data.marker())
            .collect()
    }
}

/// The blocks of a node that is to have a mirror, given up again unless it gets one.
struct Claims<'a> {
    tree: &'a Tree,
    blocks: Vec<Offset>,
}

impl<'a> Claims<'a> {
    fn of(tree: &'a Tree) -> Self {
        let blocks = Vec::new();
        Self { tree, blocks }
    }

    /// Claims the block at an offset read from the pool, and returns its size. Only then may it be read.
    fn add(&mut self, offset: Offset) -> Result<u64> {
        let blocks = &self.tree.blocks;
        let Some(bytes) = blocks.bytes_at(offset) else {
            return Err(damaged(offset, "a block"));
        };
        // A block that was given up has been claimed, or made since the open.
        if !lock(&self.tree.given_up).remove(&offset) && !blocks.claim(offset, bytes) {
            return Err(Error::Damaged(format!(
                "block {offset:#x} is reached twice, or was free"
            )));
        }
        self.blocks.push(offset);
        Ok(bytes)
    }

    /// The node has its mirror.
    fn keep(mut self) {
        self.blocks.clear();
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        lock(&self.tree.given_up).extend(self.blocks.drain(..));
    }
}

/// The other way round: giving mirrors up.
impl Tree {
    /// Gives up the mirrors of all data nodes that nobody is changing: they become cold again. Returns the bytes.
    pub(super) fn forget(&self) -> u64 {
        let _guard = reclaim::pin();
        let mut inners = vec![self.root()];
        let mut bytes = 0;
        while let Some(inner) = inners.pop() {
            let mut last = Child::COLD;
            for slot in 0..inner.radix.slots() {
                let child = inner.child(slot);
                if child == last || child.is_cold() {
                    continue;
                }
                last = child;
                // SAFETY: reached while pinned; not cold.
                unsafe {
                    if child.is_inner() {
                        inners.push(&*child.as_inner());
                    } else {
                        bytes += self.forget_data(inner, slot, &*child.as_data());
                    }
                }
            }
        }
        bytes
    }

    /// Makes the slots of a data node cold, one of which was found. What its mirror knows is in the pool: nobody
    /// writes it while it is frozen, and whoever comes then mirrors it anew. Readers may be in the old mirror; they and the
    /// writers in the new one have the same locks.
    fn forget_data(&self, parent: &Inner, slot: usize, data: &Data) -> u64 {
        let Some(frozen) = self.freeze(data) else {
            return 0;
        };
        let _changing = lock(&parent.changing);
        let child = Child::data(NonNull::from(data));
        if parent.is_dead() || parent.child(slot) != child {
            return 0;
        }
        // The whole group, also slots to the left of the one that was found: they may have been cold when that was.
        let slots = self.durable_slots(parent);
        let first = group_of(slots, slot).map_or(slot, |(first, _)| first);
        parent.set(first, group_log(slots, first), Child::COLD);
        lock(&self.given_up).extend(data.extensions().chain([data.offset()]));
        let bytes = data.dram_bytes();
        frozen.data.become_(State::Dead);
        self.bury_data(data);
        bytes
    }
}

impl Shared {
    /// Mirrors, counts and sweeps everything that the last process left, unless `go_on` says to stop.
    pub(super) fn warm_up(&self, go_on: &impl Fn() -> bool) -> Result<()> {
        let _warming = lock(&self.warming);
        if self.warm.load(Ordering::Acquire) {
            return Ok(());
        }
        let tree = &self.tree;
        if !tree.sweep(go_on)? {
            return Ok(());
        }
        if !tree.core.is_read_only() && tree.blocks.needs_sweep() {
            if planted(Bug::SweepForgetsRoot) {
                tree.blocks.unclaim(tree.root().head, SMALLEST_BLOCK);
            }
            tree.blocks.finish_sweep();
        }
        self.warm.store(true, Ordering::Release);
        Ok(())
    }
}

impl Apex {
    /// Starts the thread that warms the tree up.
    pub(super) fn warm_up_in_background(
        shared: &Arc<Shared>,
    ) -> Option<std::thread::JoinHandle<()>> {
        if shared.tree.core.runs_alone() {
            return None;
        }
        let theirs = Arc::clone(shared);
        let work = move || {
            let go_on = || !theirs.stop.load(Ordering::Relaxed);
            if let Err(error) = theirs.warm_up(&go_on) {
                // Whoever meets the damage in the foreground gets it as an error.
                tracing::warn!(%error, "warming up stopped");
            }
        };
        // A small map, such as a new one, is warm at once. It also allocates the same blocks in every run then, whatever the
        // thread would have been doing meanwhile.
        if shared.tree.root().radix.slots() <= 2 && shared.tree.is_small() {
            work();
            return None;
        }
        // Without a thread the map works all the same, from mirroring on first touch.
        std::thread::Builder::new()
            .name("indelible-warm-up".into())
            .spawn(work)
            .ok()
    }
}

impl Tree {
    /// Whether all children of the root are data nodes of the smallest size.
    fn is_small(&self) -> bool {
        let root = self.root();
        self.durable_slots(root).iter().all(|slot| {
            let link = Link(slot.load_acquire());
            !link.is_inner() && self.blocks.bytes_at(link.offset()) == Some(MIN_DATA_BYTES)
        })
    }
}

// The numbers of stash slots fit into overflow entries.
const _: () = assert!((super::plan::MAX_DATA_BYTES / 16) as usize * 2 + EXTENSION_SLOTS < 1 << 20);
