//! Where inner nodes come from.

use super::inner::Inner;
use crate::concurrency::locks::WriteGuard;
use crate::concurrency::sync::lock;
use crate::pmem::geometry::sized;
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A node to look at again later, whatever has become of it by then.
#[derive(Clone, Copy)]
pub(super) struct NodeRef {
    node: NonNull<Inner>,
    arena: u64,
}

// SAFETY: the node consists of atomics, and only its arena gives access to it.
unsafe impl Send for NodeRef {}
// SAFETY: as above.
unsafe impl Sync for NodeRef {}

/// Where inner nodes come from: chunks that are freed with the tree, and a list of nodes to use again.
pub(super) struct Arena {
    /// No other arena of this process has it.
    id: u64,
    state: Mutex<ArenaState>,
}

#[derive(Default)]
struct ArenaState {
    chunks: Vec<Chunk>,
    /// Nodes of the last chunk handed out so far.
    used: usize,
    /// Free bottom nodes and free upper nodes: the one is never used as the other.
    free: [Vec<NonNull<Inner>>; 2],
}

struct Chunk {
    nodes: NonNull<Inner>,
    layout: Layout,
}

// SAFETY: nodes consist of atomics, and the chunks are owned by the arena alone.
unsafe impl Send for ArenaState {}

/// The first chunk is small, for the many small maps; later ones have the size and alignment of a huge page.
const FIRST_CHUNK: usize = sized(16 << 10, 4 << 10);
const CHUNK: usize = 2 << 20;

impl Arena {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            state: Mutex::default(),
        }
    }

    /// A node that nobody else knows, with nothing in it. It is locked, in case a reader still looks at what it was
    /// before; the caller fills it and drops the guard.
    pub(super) fn alloc(&self, level: u32) -> (&Inner, WriteGuard<'_>) {
        let mut state = lock(&self.state);
        let node = state.free[usize::from(level > 0)]
            .pop()
            .unwrap_or_else(|| state.carve());
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

    /// Takes back a node that is no longer reachable and not locked.
    pub(super) fn free(&self, node: &Inner) {
        let kind = usize::from(node.level() > 0);
        lock(&self.state).free[kind].push(NonNull::from(node));
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
    fn carve(&mut self) -> NonNull<Inner> {
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
            FIRST_CHUNK
        } else {
            CHUNK
        };
        let layout = Layout::from_size_align(size, size).expect("sizes are powers of two");
        // SAFETY: the layout has a size.
        let memory = unsafe { std::alloc::alloc(layout) };
        let Some(nodes) = NonNull::new(memory.cast()) else {
            std::alloc::handle_alloc_error(layout)
        };
        if size == CHUNK {
            // Before the first touch: pages that are there already stay small.
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
        for _ in 0..3 * CHUNK / size_of::<Inner>() {
            arena.alloc(0);
        }
        assert!(arena.bytes() > bytes + CHUNK as u64);
    }
}
