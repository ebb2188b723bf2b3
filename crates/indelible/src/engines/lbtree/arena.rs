//! The memory of inner nodes.

use super::inner::Inner;
use crate::concurrency::locks::WriteGuard;
use crate::concurrency::sync::lock;
use crate::pmem::geometry::sized;
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A reference to a node, to be used later. By then the node may have been freed and reused, so the user checks its version.
#[derive(Clone, Copy)]
pub(super) struct NodeRef {
    node: NonNull<Inner>,
    arena: u64,
}

// SAFETY: the node consists of atomics, and only its arena gives access to it.
unsafe impl Send for NodeRef {}
// SAFETY: as for `Send`: the node consists of atomics.
unsafe impl Sync for NodeRef {}

/// Allocates inner nodes from chunks of DRAM, which are freed with the tree, and keeps lists of free nodes to reuse.
pub(super) struct Arena {
    /// A number that no other arena of this process has.
    id: u64,
    state: Mutex<ArenaState>,
}

#[derive(Default)]
struct ArenaState {
    chunks: Vec<Chunk>,
    /// Nodes of the last chunk handed out so far.
    used: usize,
    /// Free bottom nodes and free upper nodes. A node of one list is never used as a node of the other.
    free: [Vec<NonNull<Inner>>; 2],
}

struct Chunk {
    nodes: NonNull<Inner>,
    layout: Layout,
}

// SAFETY: nodes consist of atomics, and the chunks are owned by the arena alone.
unsafe impl Send for ArenaState {}

/// Bytes in the first chunk of an arena: small, since most maps are small.
const FIRST_CHUNK_BYTES: usize = sized(16 << 10, 4 << 10);
/// Bytes in each further chunk, and its alignment: those of a huge page.
const CHUNK_BYTES: usize = 2 << 20;

impl Arena {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            state: Mutex::default(),
        }
    }

    /// An empty node that is not reachable yet. It is locked, because a reader may still look at what the node was before it was
    /// freed; the caller fills the node and drops the guard.
    pub(super) fn alloc(&self, level: u32) -> (&Inner, WriteGuard<'_>) {
        let mut state = lock(&self.state);
        let node = state.free[usize::from(level > 0)]
            .pop()
            .unwrap_or_else(|| state.take_unused());
        drop(state);
        // SAFETY: the node lies in a chunk, which is freed only with the arena; zeroed or used, it is a valid `Inner`.
        let node: &Inner = unsafe { node.as_ref() };
        let guard = node.lock().lock();
        node.reset(level);
        (node, guard)
    }

    /// Remembers `node`, which is one of this arena's: a tree sees no others.
    #[inline(always)]
    pub(super) fn remember(&self, node: &Inner) -> NodeRef {
        NodeRef {
            node: NonNull::from(node),
            arena: self.id,
        }
    }

    /// The node that this arena remembered. It may have been freed and used again: the caller checks its version.
    #[inline(always)]
    pub(super) fn recall(&self, node: NodeRef) -> &Inner {
        assert_eq!(node.arena, self.id, "a node of another tree");
        // SAFETY: the node lies in a chunk of this arena, which is freed only with the arena.
        unsafe { node.node.as_ref() }
    }

    /// Frees a node that is no longer reachable and not locked, so that it can be reused.
    pub(super) fn free(&self, node: &Inner) {
        let list = usize::from(node.level() > 0);
        lock(&self.state).free[list].push(NonNull::from(node));
    }

    /// Bytes of DRAM in use by nodes.
    pub(super) fn bytes(&self) -> u64 {
        let state = lock(&self.state);
        let whole: usize = state
            .chunks
            .iter()
            .rev()
            .skip(1)
            .map(|chunk| chunk.layout.size())
            .sum();
        (whole + state.used * size_of::<Inner>()) as u64
    }
}

impl ArenaState {
    /// A node that has never been used.
    fn take_unused(&mut self) -> NonNull<Inner> {
        let room = self
            .chunks
            .last()
            .map_or(0, |chunk| chunk.layout.size() / size_of::<Inner>());
        if self.used == room {
            self.add_chunk();
        }
        let chunk = self.chunks.last().expect("a chunk was just added");
        // SAFETY: `used` is below the number of nodes that fit into the chunk.
        let node = unsafe { chunk.nodes.add(self.used) };
        self.used += 1;
        node
    }

    fn add_chunk(&mut self) {
        let size = if self.chunks.is_empty() {
            FIRST_CHUNK_BYTES
        } else {
            CHUNK_BYTES
        };
        let layout = Layout::from_size_align(size, size).expect("sizes are powers of two");
        // SAFETY: the layout has a size.
        let memory = unsafe { std::alloc::alloc(layout) };
        let Some(nodes) = NonNull::new(memory.cast()) else {
            std::alloc::handle_alloc_error(layout)
        };
        if size == CHUNK_BYTES {
            // Before the first write: small pages that have been touched are not replaced by a huge page.
            // SAFETY: the range was just allocated and is whole pages; the advice changes no contents. It may fail.
            let _ = unsafe {
                rustix::mm::madvise(memory.cast(), size, rustix::mm::Advice::LinuxHugepage)
            };
        }
        // SAFETY: the range was just allocated. All-zero bytes are a valid `Inner`: it consists of atomic words.
        unsafe { memory.write_bytes(0, size) };
        self.chunks.push(Chunk { nodes, layout });
        self.used = 0;
    }
}

impl Drop for ArenaState {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            // SAFETY: allocated with this layout in `add_chunk`, and the tree, which alone had references, is gone.
            unsafe { std::alloc::dealloc(chunk.nodes.as_ptr().cast(), chunk.layout) }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn freed_nodes_are_used_again_for_what_they_were() {
        let arena = Arena::new();
        let (first, guard) = arena.alloc(0);
        drop(guard);
        arena.free(first);
        assert!(
            !std::ptr::eq(first, arena.alloc(1).0),
            "an upper node was a bottom node"
        );
        assert!(std::ptr::eq(first, arena.alloc(0).0));
        let bytes = arena.bytes();
        for _ in 0..3 * CHUNK_BYTES / size_of::<Inner>() {
            arena.alloc(0);
        }
        assert!(arena.bytes() > bytes + CHUNK_BYTES as u64);
    }
}
