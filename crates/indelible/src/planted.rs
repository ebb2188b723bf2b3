//! Bugs to plant: what an author of such structures gets wrong, for the crash checker to find.
//!
//! With the `trace` feature one of them can be switched on for the current thread of the system. Without it the question is
//! a constant, and the compiler removes it.
#![cfg_attr(not(feature = "trace"), allow(dead_code))]

macro_rules! bugs {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// A bug in the order of things. (Missing flushes and fences are planted by the checker in what it recorded.)
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Bug {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// What is wrong, in words.
            #[must_use]
            pub fn description(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($doc,)+).trim_ascii(),)+
                }
            }
        }
    };
}

bugs! {
    /// A split writes the new record into a slot that it frees, before it commits (so it is in the paper, algorithm 3).
    SplitOverwrites,
    /// Entry moving clears the records' old slots first, and sets the new ones with a second store.
    MoveInTwoSteps,
    /// A merge frees the right leaf before the left one has taken over.
    FreeTooEarly,
    /// A merge forgets the signpost to the leaf that goes.
    SignpostKept,
    /// A merge locks the left leaf only.
    MergeLocksOneLeaf,
    /// Blocks that were unlinked are free at once, under readers that hold them.
    ReuseWithoutEpoch,
    /// An update unlocks the leaf before its fence, so that others see what may still be lost.
    UnlockBeforeFence,
    /// A reader does not look at the leaf's version afterwards.
    ReadWithoutVersion,
    /// A writer does not ask whether the leaf still covers its key, once it has locked it.
    WriteWithoutVersion,
    /// The number of records at the last close is believed for as long as it stands there, whatever generation wrote it.
    ForgetGeneration,
    /// Blocks are taken from extents of before the open that no sweep has looked at.
    UseUnswept,
    /// The sweep does not mark the map's root block.
    SweepForgetsRoot,
    /// Healing unlinks an empty leaf by writing the sibling that does not count.
    RelinkWrongSibling,
    /// A map's catalog entry is committed before the map is laid out.
    CreateCommitsEarly,
    /// A dropped map's extents are freed before the catalog forgets the map.
    DropFreesFirst,
    /// The superblock says that the pool has grown before the file has.
    GrowCommitsEarly,
    /// The file is cut before the superblock says that the pool is shorter.
    ShrinkCutsFirst,
    /// An extent is used without its word in the table.
    ExtentNotRecorded,
    /// The superblock's better copy is written first, so that two crashes can tear both.
    BetterCopyFirst,
    /// An insert into a data node writes the key before the value.
    KeyBeforeValue,
    /// A split of a data node gives the left half its slot before the right half has one.
    SplitLeftFirst,
    /// A merge of data nodes gives the right one's slot up before there is another way to it.
    MergeDropsRightFirst,
    /// A new data node is shown to others before the store that makes it durable where it belongs.
    SwitchBeforeCommit,
    /// A data node is freed before another one has taken its place.
    FreeBeforeCommit,
    /// A data node is copied while somebody who came before the freezing still writes it.
    FreezeWithoutDraining,
    /// An inner node is copied while others change its slots.
    CopyWithoutLock,
    /// An extended stash block is linked before it is filled.
    ExtensionBeforeFill,
    /// A stash slot is given back before its record is taken out.
    ReleaseBeforeRemoval,
    /// A removal leaves the marker of the nodes that do not have the highest key, in all of them.
    WrongMarker,
    /// Recovery finds the records in the stash array, and forgets those in extended stash blocks.
    ExtensionsForgotten,
    /// The sweep takes extended stash blocks for free.
    SweepForgetsExtensions,
}

#[cfg(feature = "trace")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug for this thread of the system, or takes it away.
#[cfg(feature = "trace")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether `bug` is planted.
#[inline(always)]
pub(crate) fn planted(bug: Bug) -> bool {
    #[cfg(feature = "trace")]
    {
        PLANTED.get() == Some(bug)
    }
    #[cfg(not(feature = "trace"))]
    {
        let _ = bug;
        false
    }
}
