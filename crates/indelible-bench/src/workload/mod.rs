//! From a phase to operations: which keys are there, which are drawn, and in which order things are done.
//!
//! All of it happens before the clock starts. A thread then walks through a [`Script`]: 8 bytes per operation (9 in a mix), read in
//! order, which the processor fetches ahead.

mod draw;
mod keys;
#[cfg(test)]
mod tests;

pub use draw::draw;
pub use keys::{Keys, Present, Supply};

use crate::plan::Mix;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OperationKind {
    /// A lookup.
    Get,
    /// An insert of a new key.
    Insert,
    /// A new value for a present key.
    Update,
    /// A removal of a present key.
    Remove,
    /// A scan.
    Scan,
    /// A lookup of a batch of keys.
    GetBatch,
    /// An insert of a batch of new keys.
    InsertBatch,
    /// A lookup, then an update of the same key.
    ReadModifyWrite,
    /// A search for the points in a window.
    Window,
    /// A search for the nearest points.
    Nearest,
}

/// All kinds, in the order of [`shares`].
pub const KINDS: [OperationKind; 10] = [
    OperationKind::Get,
    OperationKind::Insert,
    OperationKind::Update,
    OperationKind::Remove,
    OperationKind::Scan,
    OperationKind::GetBatch,
    OperationKind::InsertBatch,
    OperationKind::ReadModifyWrite,
    OperationKind::Window,
    OperationKind::Nearest,
];

/// The shares of a mix, in the order of [`KINDS`].
#[must_use]
pub fn shares(mix: &Mix) -> [f64; 10] {
    [
        mix.get,
        mix.insert,
        mix.update,
        mix.remove,
        mix.scan,
        mix.get_batch,
        mix.insert_batch,
        mix.read_modify_write,
        mix.window,
        mix.nearest,
    ]
}

/// What one thread does, written down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// The kind of each step, or one for all of them.
    pub kinds: Kinds,
    /// The keys, in the order in which steps take them: a batch takes `batch_size`, all else takes one.
    pub keys: Vec<u64>,
    /// The records of batches of inserts, in their order.
    pub records: Vec<(u64, u64)>,
    /// Keys per batch.
    pub batch_size: usize,
    /// Records per scan; with `scan_varies`, the most.
    pub scan_size: usize,
    /// Whether scans have all lengths from 1 to `scan_size`, as YCSB's have.
    pub scan_varies: bool,
    /// The side of a window, in steps of [`crate::data::points`]; 0 if there are no searches for points.
    pub window_side: u32,
    /// Points that a search for the nearest ones asks for.
    pub neighbours: usize,
}

impl Script {
    /// Operations that a step of this kind stands for.
    #[inline]
    #[must_use]
    pub fn weight(&self, kind: OperationKind) -> usize {
        match kind {
            OperationKind::GetBatch | OperationKind::InsertBatch => self.batch_size,
            _ => 1,
        }
    }

    /// Operations of all steps. The last batch may have made them more than were asked for.
    #[must_use]
    pub fn operations(&self) -> u64 {
        let operations = match &self.kinds {
            Kinds::All(kind, steps) => steps * self.weight(*kind),
            Kinds::Each(kinds) => kinds.iter().map(|&kind| self.weight(kind)).sum(),
        };
        operations as u64
    }
}

/// Kinds of the steps of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// As many steps of one kind: the loop over them has no branch that depends on the kind.
    All(OperationKind, usize),
    /// One by one.
    Each(Vec<OperationKind>),
}

impl Default for Kinds {
    fn default() -> Self {
        Self::All(OperationKind::Get, 0)
    }
}

/// The value that goes with a key when it is inserted; an update writes its complement, so that a lookup can be verified.
#[inline]
#[must_use]
pub fn value_of(key: u64) -> u64 {
    key.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15
}

/// The length of the scan that begins at `key`, if lengths vary: from 1 to `most`.
#[inline]
#[must_use]
pub fn scan_length(key: u64, most: usize) -> usize {
    let spread = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    1 + ((spread as usize * most) >> 32)
}
