//! LOFT: a learned index whose operations wait for no other thread (Mo and Hua, EuroSys 2025), made durable.
//!
//! # The structure
//!
//! Inner nodes divide a range of keys into equal parts, a power of two of them, and have two children more for what lies outside the parts.
//! So a step down is a subtraction and a shift. The root divides the domain into at least eight parts. A data node has lines of four slots
//! and a model of one line or of pieces, which predicts a key's line. A record lies in the first slot of its key's *sequence* that was empty when the record
//! came ([`search`]). No record ever moves within its node. [`layout`] has the drawings.
//!
//! # Slots
//!
//! A slot is a pair of words, key and value, that is exchanged at once. The upper three bits of the keys of a node are those of its
//! lowest key, so these three bits of a slot's key word are free to say its *state*. No key and no value is reserved.
//!
//! ```text
//!  empty --> pending --> live --> removed
//!    |          |         |
//!  closed      dead     frozen
//! ```
//!
//! A slot's key never changes once it has one, and a slot never becomes empty again: [`moving`] to another node is what cleans up.
//!
//! # Invariants
//!
//! - **I1** No slot of a key's sequence behind one that is empty holds this key. In memory and, by [`Flight`], in what a crash leaves.
//! - **I2** A key has at most one live slot in a node.
//! - **I3** Nothing is stored in a node, or copied into one, before the links that lead to it are durable.
//! - **I4** A slot is frozen or closed only when its node is moved. As long as a crash finds the node in the tree, and no `moved to` in it, its frozen slots are
//!   its records.
//! - **I5** An operation on a key in a node's successor comes after the key's sequence in the node has ended in a frozen or a closed slot,
//!   and after the frozen record has been copied. So the successor's word on a key, once it has one, counts.
//!
//! # After a crash
//!
//! What an operation reaches first after an open it *touches* ([`recover`]): under a mutex, the node is validated, its blocks are claimed, it
//! gets its part in DRAM, and a move that was under way is finished. Whatever operations do afterwards takes no lock, except the
//! allocator's (`Space`) for a new block, and, where the pool has no space, that of a compaction ([`compact`]).

#[cfg(all(test, not(loom)))]
pub(super) mod damage;
#[cfg(feature = "trace")]
pub(crate) mod testing;

mod build;
mod bulk;
mod check;
mod compact;
mod copy;
mod fit;
mod inner;
mod insert;
mod layout;
mod model;
mod moving;
mod node;
mod options;
mod plan;
mod records;
mod recover;
mod scan;
mod search;
#[cfg(all(test, not(loom)))]
mod tests;
mod tuning;
mod whole;

pub use options::LoftOptions;

use super::blocks::Blocks;
use super::flight::{Flight, Settling, thread_number};
use super::{
    Decision, Engine, EngineOptions, Fact, Lookup, Ordered, Place, ReadBuffer, Report, Unread,
};
use crate::concurrency::records::RecordLocks;
use crate::kernels::SimdLevel;
use crate::pmem::planted::planted;
use crate::pmem::{Cell, Pm};
use crate::pool::Space;
use crate::{Error, Result};
use inner::Inner;
use moving::RetiredParts;
use node::{Child, Kin};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

crate::pmem::planted::bugs! { "loft":
    /// An insert makes its slot live by one exchange of both words, of which a power cut may leave the key alone.
    InsertAtOnce,
    /// A reader does not flush what it has read from a line with a write in flight.
    ReadWithoutFlush,
    /// Records are copied to a new node before the link to it is durable.
    CopyBeforeLink,
    /// A node is replaced before the records in its successor are durable.
    ReplaceBeforeFence,
    /// A node is replaced by what it had before its slots were frozen.
    ReplaceByOlder,
    /// Slots that were frozen when the process died stay so.
    FrozenStay,
    /// A copy overtakes the removal of its key in the new node.
    CopyAfterRemoval,
    /// A move that a crash has interrupted is not finished, and the old node is forgotten.
    ForgetOldNode,
    /// A slot that was pending when the process died is taken for a live one.
    PendingIsLive,
}

/// Lookups whose waits for memory overlap.
const LOOKUPS: usize = 32;

/// Counters that threads add to, each its own as far as there are enough.
const COUNTERS: usize = 64;

/// An open map.
pub(crate) struct Index {
    place: Place,
    pm: Pm,
    options: LoftOptions,
    blocks: Blocks<{ layout::SIZES.len() }>,
    /// Whether data nodes may have blocks of other sizes than powers of two: those of old maps have not.
    has_stepped_sizes: bool,
    /// Whether data nodes are replaced at once: those of old maps are not.
    moves_whole: bool,
    /// Whether models of data nodes may have pieces: those of old maps have not.
    has_pieces: bool,
    flight: Flight,
    simd: SimdLevel,
    locks: RecordLocks,
    /// The root, as a [`node::Child`].
    root: AtomicUsize,
    /// Held to touch what the last process has left.
    touching: Mutex<()>,
    retired: RetiredParts,
    changes: Changes,
    /// Locked by the thread that compacts the map for want of space.
    last_for_space: Mutex<compact::ForSpace>,
}

/// What has changed in the structure since the open.
#[derive(Default)]
struct Changes {
    expansions: AtomicU64,
    splits: AtomicU64,
    merges: AtomicU64,
    buckets: AtomicU64,
}

impl Changes {
    fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Index {
    fn new(place: &Place, options: LoftOptions, format: u32) -> Self {
        let pm = place.core.pm();
        Self {
            place: place.clone(),
            pm,
            options,
            blocks: Blocks::new(&place.core, place.slot, layout::SIZES),
            has_stepped_sizes: format >= options::STEPPED_SIZES,
            moves_whole: format >= options::WHOLE_MOVES,
            has_pieces: format >= options::LARGE_NODES,
            flight: Flight::new(
                pm,
                place.core.base(),
                Settling {
                    name: "loft.settle",
                    is_left_out: || planted(Bug::ReadWithoutFlush),
                },
            ),
            simd: SimdLevel::best(),
            locks: RecordLocks::new(COUNTERS),
            root: AtomicUsize::new(0),
            touching: Mutex::default(),
            retired: RetiredParts::default(),
            changes: Changes::default(),
            last_for_space: Mutex::default(),
        }
    }

    fn root_cell(&self) -> &Cell {
        &self.place.core.entry(self.place.slot).roots[0]
    }

    /// Where a node hangs, beneath its parent or as the root: what operations follow, and the word.
    fn hanging<'a>(&'a self, parent: Option<(&'a Inner, usize)>) -> (&'a AtomicUsize, &'a Cell) {
        match parent {
            None => (&self.root, self.root_cell()),
            Some((inner, index)) => (&inner.children[index], inner.cell(index)),
        }
    }

    /// The root, which has been touched. The caller is pinned.
    fn touched_root(&self) -> Result<&Inner> {
        // SAFETY: the caller is pinned, and the root has just been loaded.
        match unsafe { Child(self.root.load(Ordering::Acquire)).kin() } {
            Kin::Inner(root) => Ok(root),
            _ => Err(Error::Damaged("no root".into())),
        }
    }

    fn is_read_only(&self) -> bool {
        self.place.core.is_read_only()
    }

    /// Counts a record that was added or removed in a node that has been touched.
    #[inline(always)]
    fn count_change(&self, change: i64) {
        self.locks.numbered(thread_number()).add_shared(change);
    }
}

impl Engine for Index {
    type Options = LoftOptions;

    fn format(place: &Place, options: &LoftOptions) -> Result<()> {
        let index = Self::new(place, *options, LoftOptions::FORMAT);
        let root = index.build_empty_root()?;
        // Needs no flush: it lies in the line of the word that commits the entry.
        index.pm.store(index.root_cell(), root);
        Ok(())
    }

    fn open(place: &Place, options: LoftOptions, format: u32) -> Result<Self> {
        Ok(Self::new(place, options, format))
    }

    fn spaces(&self) -> &[Arc<Space>] {
        self.blocks.spaces()
    }

    fn locks(&self) -> &RecordLocks {
        &self.locks
    }

    fn sweeps_at_once(&self) -> bool {
        self.blocks.extents() <= 2
    }

    fn sweep(&self, go_on: &dyn Fn() -> bool) -> Result<bool> {
        self.touch_all(go_on)
    }

    fn check(&self, report: &mut Report) -> Result<()> {
        self.check_all(report)
    }

    fn facts(&self, records: u64) -> Result<Vec<Fact>> {
        self.all_facts(records)
    }

    fn dram_bytes(&self) -> u64 {
        self.locks.bytes() + self.flight.bytes() + self.tree_bytes()
    }

    fn compact(&self) -> Result<()> {
        self.compact_all()
    }

    fn make_room(&self) -> Result<bool> {
        self.compact_if_sparse()
    }
}

impl Ordered for Index {
    type Bookmark = ();

    fn get(&self, key: u64) -> Result<Option<u64>> {
        self.find_value(key)
    }

    #[inline(always)]
    fn try_get(&self, key: u64) -> Lookup {
        self.try_get_first_lines(key)
    }

    const LOOKUPS_TOGETHER: usize = LOOKUPS;

    fn look_up_together(&self, keys: &[u64], values: &mut [Option<u64>]) -> u64 {
        self.find_together(keys, values)
    }

    fn apply(
        &self,
        key: u64,
        decide: &mut impl FnMut(Option<u64>) -> Decision,
    ) -> Result<Option<u64>, Box<Error>> {
        self.apply_to(key, decide).map_err(Box::new)
    }

    const RECORDS_PER_FENCE: usize = LOOKUPS;

    fn insert_sharing_fence(&self, records: &[(u64, u64)]) -> usize {
        self.insert_together(records)
    }

    fn bulk_load(&self, records: &[(u64, u64)], fill: f64) -> Result<()> {
        self.load(records, fill)
    }

    fn read_on<const UP: bool>(
        &self,
        unread: &mut Unread,
        buffer: &mut ReadBuffer<()>,
        wanted: Option<usize>,
    ) -> Result<()> {
        self.read_more::<UP>(unread, buffer, wanted)
    }
}
