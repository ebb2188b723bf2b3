//! The engines: one folder each, and one line each in the list below.
//!
//! The catalog of a pool holds named *objects*. What makes an object of some kind work is its *engine*. Two traits say what an
//! engine has to bring, and nothing outside an engine's folder knows more of the engine than these:
//!
//! - [`Engine`] is what every object can do: be laid out, opened, swept after a crash, checked, described by facts, compacted.
//! - [`Ordered`] is what an ordered index of 8-byte keys and values can do on top: look up, change, read on, load.
//! - [`Spatial`] is what a spatial index of points or boxes can do on top: add, remove, move, search in windows, find the nearest.
//! - [`Strings`] is what an ordered index of byte strings can do on top: look up, change, read on, load.
//!
//! The [host](crate::host) owns what all engines share: opening and closing, the warm-up thread, the record count, the retry
//! after `NoSpace`, validation of input, cursors. There is one list for each family of engines: the list of
//! [ordered](ordered_engines) ones generates [`Kind`], that of [spatial](spatial_engines) ones [`SpatialKind`], and that of
//! [byte strings](string_engines) [`StringKind`], with the codes, the names and the options of the kinds, and the host's dispatch. `docs/adding-an-index.md` walks through the smallest engine, `list`.
//!
//! Every engine folder has the same rooms: `layout`, `search`, `insert`, structure changes, `scan`, `recover`, `check`, `options`,
//! `testing`, what the crash checker needs: planted bugs, commit points, names of structure changes, histories; and `damage`, how tests
//! break links in the file.

pub(crate) mod arena;
mod blocks;
mod buffer;
#[cfg(all(test, not(loom)))]
mod damage;
mod facts;
mod flight;
pub(crate) mod inner_nodes;
mod kind;
mod option;
pub(crate) mod parallel;
pub(crate) mod rect;
mod report;
mod spatial;
mod string_buffer;
mod string_record;
mod strings;
#[cfg(feature = "trace")]
pub mod testing;
pub(crate) mod waiting;

pub(crate) use buffer::{KeyValue, MOST_READ, ReadBuffer, Unread, rest};
pub use facts::{Fact, FactValue, Unit};
pub(crate) use kind::{AnyOptions, AnySpatialOptions, AnyStringOptions, FamilyOptions};
pub use kind::{IndexKind, Kind, SpatialKind, StringKind};
pub use option::OptionInfo;
pub(crate) use option::{EngineOptions, OptionBytes, bytes_text, parse_bytes, parse_number};
pub(crate) use report::Report;
pub(crate) use spatial::{Nearest, Neighbour, Spatial, SpatialEngineOptions};
pub(crate) use string_buffer::{
    LINE_BYTES, Line, LongBuffered, MOST_BUFFERED, NODE_LINES, NodeCopy, StringBuffer, misplaced,
    short_parts,
};
pub(crate) use string_record::{Part, Parts};
pub(crate) use strings::{
    Current, LastPart, LongValue, MOST_READ_AHEAD, ReadValue, ReadableValue, STRING_OPTION_BYTES,
    StringBookmark, StringDecision, StringRange, StringRecord, Strings,
};

use crate::concurrency::records::RecordLocks;
use crate::pool::{PoolCore, Space};
use crate::{Error, Result};
use std::sync::Arc;

/// The list of ordered indexes: variant, code in the catalog, name, folder, type of its options. The text becomes the documentation
/// of the variant of [`Kind`], and what the command line says of the kind.
///
/// The first argument is the macro that gets the list. What is in braces after it comes before the list.
macro_rules! ordered_engines {
    ($use_list:ident $(, { $($before:tt)* })?) => {
        $use_list! {
            $($($before)*)?
            /// The LB+-Tree (Liu, Chen and Wang, PVLDB 13(7), 2020): good at everything on any keys, and so the default.
            LbTree = 1, "lbtree", lbtree, LbTreeOptions;
            /// APEX (Lu, Ding, Lo, Minhas and Wang, PVLDB 15(3), 2021), a learned index: faster lookups of keys that are spread in some regular way.
            Apex = 2, "apex", apex, ApexOptions;
            /// LOFT (Mo and Hua, EuroSys 2025), a learned index whose operations wait for no other thread.
            Loft = 4, "loft", loft, LoftOptions;
            /// A sorted list with a block for each record: the smallest engine there is, for those who write one.
            List = 6, "list", list, ListOptions;
        }
    };
}
pub(crate) use ordered_engines;

/// The list of spatial indexes, as that of [ordered](ordered_engines) ones. Both have their codes from one range of numbers.
macro_rules! spatial_engines {
    ($use_list:ident $(, { $($before:tt)* })?) => {
        $use_list! {
            $($($before)*)?
            /// Leaves in the order of a Hilbert curve, with rectangles above them in DRAM: the LB+-Tree for places, and the default.
            Hilbert = 16, "hilbert", hilbert, HilbertOptions;
            /// The FBR-tree (Cho, Kim, Oh, Kim, Koh and Nam, IEEE TPDS 32(3), 2020), an R-tree whose inner nodes are durable too: to compare with.
            Fbr = 17, "fbr", fbr, FbrOptions;
            /// The PM-RTree (Lavinsky and Zhang, SSDBM 2022), an R-tree whose operations wait for no other thread: to compare with.
            PmRtree = 18, "pm-rtree", pmr, PmRtreeOptions;
        }
    };
}
pub(crate) use spatial_engines;

/// The list of maps of byte strings, as that of [ordered](ordered_engines) ones.
macro_rules! string_engines {
    ($use_list:ident $(, { $($before:tt)* })?) => {
        $use_list! {
            $($($before)*)?
            /// Slotted leaves with the records inside and inner nodes in DRAM: the LB+-Tree for keys and values of any length, and the default.
            Slotted = 32, "slotted", slotted, SlottedOptions;
        }
    };
}
pub(crate) use string_engines;

macro_rules! folders {
    (
        $types:ident;
        $($(#[$doc:meta])+ $variant:ident = $code:literal, $name:literal, $folder:ident, $options:ident;)+
    ) => {
        $(pub(crate) mod $folder;)+

        /// The types of the engines' options, public.
        pub(crate) mod $types {
            $(pub use super::$folder::$options;)+
        }
    };
}
ordered_engines!(folders, {
    options;
});
spatial_engines!(folders, {
    spatial_options;
});
string_engines!(folders, {
    string_options;
});

/// What a caller decides to do with a key, once it knows the present value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Leave the key as it is, with its value or absent.
    Keep,
    /// Store this value, whether the key is present or not.
    Put(u64),
    /// Remove the record; an absent key stays absent.
    Remove,
}

/// How one attempt at a lookup ended. Flat, so that it comes back in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The key is there, with this value.
    Found(u64),
    /// The key is not there.
    Absent,
    /// Another thread changed what was read, or a node has to be rebuilt first, or there is an error: `get` finds out.
    Retry,
}

/// Where an object lives: its pool, and its entry in the catalog.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) core: Arc<PoolCore>,
    /// Number of the catalog entry.
    pub(crate) slot: usize,
}

/// What every object can do.
///
/// An engine is shared by the threads that use the object and by the thread that warms the object up. It writes durable words through
/// [`Pm`](crate::pmem::Pm) alone, and gets its blocks from [`Space`]s.
pub(crate) trait Engine: Send + Sync + Sized + 'static {
    /// What can be chosen when the object is created.
    type Options: EngineOptions;

    /// Whether a thread may commit the change that another one has begun. The last record that the other thread has appended to a log may then come before
    /// the one that commits its change, so in a pool with a log its operation waits for all that has been appended.
    const IS_HELPED: bool = false;

    /// Lays out an empty object for a catalog entry that is not committed yet: what is written here cannot be reached before.
    /// What is flushed here needs no fence, since the host fences before it commits the entry. An engine whose empty object is an entry with zero roots
    /// leaves this function out.
    fn format(place: &Place, options: &Self::Options) -> Result<()> {
        let _ = (place, options);
        Ok(())
    }

    /// Opens an object. O(1): the part in DRAM is rebuilt on first use and by [`sweep`](Self::sweep). `options` have
    /// been decoded from the catalog, where `format` is the version of this engine's format that the object has.
    fn open(place: &Place, options: Self::Options, format: u32) -> Result<Self>;

    /// Where the object's blocks come from.
    fn spaces(&self) -> &[Arc<Space>];

    /// The locks of the records, which count them.
    fn locks(&self) -> &RecordLocks;

    /// Whether the object is so small that [`sweep`](Self::sweep) takes no longer than to start a thread for it.
    fn sweeps_at_once(&self) -> bool {
        true
    }

    /// Visits the whole object, in the order of keys: rebuilds the part in DRAM, claims the blocks in use and counts the records.
    /// Other threads use the object meanwhile. Stops early, with `false`, if `go_on` is false. The host then frees what was not claimed.
    ///
    /// An engine whose [`open`](Self::open) does all of that leaves this function out, and the one above.
    fn sweep(&self, go_on: &dyn Fn() -> bool) -> Result<bool> {
        let _ = go_on;
        Ok(true)
    }

    /// Checks every invariant, and reports every block that can be reached and the number of records.
    fn check(&self, report: &mut Report) -> Result<()>;

    /// What the object is made of. `records` is their number. An engine that says nothing more than how many blocks it has leaves this function out.
    fn facts(&self, records: u64) -> Result<Vec<Fact>> {
        let _ = records;
        let blocks = self.spaces().iter().map(|space| space.stat().used_blocks);
        Ok(vec![Fact::count("blocks", blocks.sum(), "blocks in use")])
    }

    /// Bytes of DRAM that the engine holds, apart from its spaces.
    fn dram_bytes(&self) -> u64;

    /// Merges nodes that have few records and moves live blocks to the front of the pool. Other threads use the object meanwhile.
    fn compact(&self) -> Result<()>;

    /// Frees space by more than what [`Space`]s give back, for a write of this object that finds none: by a compaction, say. `false` if that would free
    /// too little to be worth its time; it takes no time to find that out. The thread may be pinned.
    fn make_room(&self) -> Result<bool> {
        Ok(false)
    }

    /// Makes durable what the engine keeps back until the object is closed. No other thread uses the object any more. The host calls it when an object of a
    /// pool is closed that may be written; after a crash it has not been called.
    fn before_close(&self) -> Result<()> {
        Ok(())
    }

    /// Frees DRAM whose contents are rebuilt when they are needed, and returns how many bytes.
    fn release_memory(&self) -> u64 {
        0
    }
}

/// What an ordered index of 8-byte keys and values can do. The host has checked that the pool may be written, and the input.
pub(crate) trait Ordered: Engine {
    /// What a range remembers between two reads, apart from the keys not read yet.
    type Bookmark: Default + Send;

    /// The value of `key`.
    fn get(&self, key: u64) -> Result<Option<u64>> {
        self.apply(key, &mut |_| Decision::Keep)
            .map_err(|error| *error)
    }

    /// One attempt to look `key` up, which does not wait and nearly always succeeds. It is inlined into the user's code, behind the one
    /// branch on kinds, since it is nearly the whole cost of a lookup.
    #[inline]
    fn try_get(&self, key: u64) -> Lookup {
        match self.get(key) {
            Ok(Some(value)) => Lookup::Found(value),
            Ok(None) => Lookup::Absent,
            Err(_) => Lookup::Retry,
        }
    }

    /// How many keys [`look_up_together`](Self::look_up_together) takes at most: from 1 to 64.
    const LOOKUPS_TOGETHER: usize = 1;

    /// Looks up keys together, so that their waits for memory overlap, and stores their values in `values`, which are as many. Returns a
    /// mask of the lookups that have to be done again, each by itself: the host calls [`get`](Self::get) for these.
    fn look_up_together(&self, keys: &[u64], values: &mut [Option<u64>]) -> u64 {
        let _ = (keys, values);
        u64::MAX
    }

    /// Changes one key, in one step as seen by all other threads, and returns its value from before. `decide` gets the present value.
    /// An attempt that has to begin again calls `decide` again; the last call counts.
    ///
    /// The error is in a box, so that there is little to hand on when there is none.
    fn apply(
        &self,
        key: u64,
        decide: &mut impl FnMut(Option<u64>) -> Decision,
    ) -> Result<Option<u64>, Box<Error>>;

    /// How many records [`insert_sharing_fence`](Self::insert_sharing_fence) inserts at most; 0 for an engine that has none.
    const RECORDS_PER_FENCE: usize = 0;

    /// Inserts as many of the first of `records` as can share fences, and returns how many those were. Keys ascend; of equal keys the
    /// last one counts. The record at which it stops early, because its node is full or locked say, is one that the host inserts by
    /// [`apply`](Self::apply).
    fn insert_sharing_fence(&self, records: &[(u64, u64)]) -> usize {
        let _ = records;
        0
    }

    /// Fills the empty map with records whose keys ascend strictly, to the share `fill` of each node. One store commits all of it.
    fn bulk_load(&self, records: &[(u64, u64)], fill: f64) -> Result<()>;

    /// Reads on: fills `buffer`, which is empty, from the lower end of `unread` upwards or from the upper end downwards, in the
    /// order of reading, with about `wanted` records, and takes their keys out of `unread`. An empty buffer afterwards means that
    /// nothing is left to read.
    fn read_on<const UP: bool>(
        &self,
        unread: &mut Unread,
        buffer: &mut ReadBuffer<Self::Bookmark>,
        wanted: Option<usize>,
    ) -> Result<()>;
}

/// Takes it for a change that was not made if there was no space for it: it can wait, and others may need less.
fn unless_full<T: Default>(done: Result<T>) -> Result<T> {
    match done {
        Err(Error::NoSpace(_)) => Ok(T::default()),
        done => done,
    }
}

/// The slots in a bitmap, ascending.
#[inline(always)]
fn slots(bitmap: impl Into<u64>) -> impl Iterator<Item = usize> {
    let mut bitmap = bitmap.into();
    std::iter::from_fn(move || {
        (bitmap != 0).then(|| {
            let slot = bitmap.trailing_zeros() as usize;
            bitmap &= bitmap - 1;
            slot
        })
    })
}

/// An array on the heap, of what `one` makes.
fn boxed_array<T, const COUNT: usize>(one: impl Fn() -> T) -> Box<[T; COUNT]> {
    let all: Box<[T]> = std::iter::repeat_with(one).take(COUNT).collect();
    let Ok(all) = all.try_into() else {
        unreachable!("it has been made of as many");
    };
    all
}

#[cfg(all(test, not(loom)))]
#[path = "../../tests/shared/cases.rs"]
mod cases;

#[cfg(all(test, not(loom)))]
#[path = "../../tests/shared/image.rs"]
mod image;

/// Once more, with small nodes.
#[cfg(all(test, not(loom)))]
#[path = "../../tests/maps/linearizable.rs"]
mod linearizable;

/// Once more, with small nodes.
#[cfg(all(test, not(loom)))]
#[path = "../../tests/spatial/contract.rs"]
mod spatial_contract;

/// With small nodes: a signpost is seldom in the way of large ones.
#[cfg(all(test, not(loom)))]
#[path = "../../tests/spatial/loads.rs"]
mod spatial_loads;

#[cfg(all(test, not(loom)))]
#[path = "../../tests/spatial/spatial_model.rs"]
mod spatial_model;

/// Once more, with small nodes.
#[cfg(all(test, not(loom)))]
#[path = "../../tests/spatial/threads.rs"]
mod spatial_threads;
