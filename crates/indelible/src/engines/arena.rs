//! The memory of inner nodes, which lie in DRAM.

use crate::concurrency::locks::{VersionLock, WriteGuard};
use crate::concurrency::sync::lock;
use crate::pmem::geometry::sized;
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// An inner node, as far as its memory is concerned.
///
/// # Safety
///
/// The node consists of atomics alone, so that all-zero bytes are a node, and any thread may have a reference to it.
pub(crate) unsafe trait Node {
    fn lock(&self) -> &VersionLock;

    /// 0 if the children are leaves.
    fn level(&self) -> u32;

    /// Makes this an empty node of `level`. The caller holds its lock.
    fn reset(&self, level: u32);
}

/// A reference to a node, to be used later. By then the node may have been freed and reused, so the user checks its version.
pub(crate) struct NodeRef<N> {
    node: NonNull<N>,
    arena: u64,
}

impl<N> Clone for NodeRef<N> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<N> Copy for NodeRef<N> {}

/// A [`NodeRef`] that does not say of which type the node is: the arena knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnyNodeRef {
    address: usize,
    arena: u64,
}

impl<N: Node> NodeRef<N> {
    pub(crate) fn without_type(self) -> AnyNodeRef {
        AnyNodeRef {
            address: self.node.as_ptr().expose_provenance(),
            arena: self.arena,
        }
    }
}

// SAFETY: the node consists of atomics, and only its arena gives access to it.
unsafe impl<N: Node> Send for NodeRef<N> {}
// SAFETY: as for `Send`: the node consists of atomics.
unsafe impl<N: Node> Sync for NodeRef<N> {}

/// Allocates inner nodes from chunks of DRAM, which are freed with the tree, and keeps lists of free nodes to reuse.
pub(crate) struct Arena<N> {
    /// A number that no other arena of this process has.
    id: u64,
    state: Mutex<ArenaState<N>>,
}

struct ArenaState<N> {
    chunks: Vec<Chunk<N>>,
    /// Nodes of the last chunk handed out so far.
    used: usize,
    /// Free bottom nodes and free upper nodes. A node of one list is never used as a node of the other.
    free: [Vec<NonNull<N>>; 2],
}

struct Chunk<N> {
    nodes: NonNull<N>,
    layout: Layout,
}

// SAFETY: nodes consist of atomics, and the chunks are owned by the arena alone.
unsafe impl<N: Node> Send for ArenaState<N> {}

/// Bytes in the first chunk of an arena: small, since most maps are small.
const FIRST_CHUNK_BYTES: usize = sized(16 << 10, 4 << 10);
/// Bytes in each further chunk, and its alignment: those of a huge page. The crash checker opens an index thousands of times a second, with
/// some tens of nodes each time: to clear a huge page would take it longer than all the rest.
const CHUNK_BYTES: usize = sized(2 << 20, 64 << 10);

impl<N: Node> Arena<N> {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            state: Mutex::new(ArenaState {
                chunks: Vec::new(),
                used: 0,
                free: [Vec::new(), Vec::new()],
            }),
        }
    }

    /// An empty node that is not reachable yet. It is locked, because a reader may still look at what the node was before it was
    /// freed; the caller fills the node and drops the guard.
    pub(crate) fn alloc(&self, level: u32) -> (&N, WriteGuard<'_>) {
        let mut state = lock(&self.state);
        let node = state.free[usize::from(level > 0)]
            .pop()
            .unwrap_or_else(|| state.take_unused());
        drop(state);
        // SAFETY: the node lies in a chunk, which is freed only with the arena; zeroed or used, it is a valid node.
        let node: &N = unsafe { node.as_ref() };
        let guard = node.lock().lock();
        node.reset(level);
        (node, guard)
    }

    /// Remembers `node`, which is one of this arena's: a tree sees no others.
    #[inline(always)]
    pub(crate) fn remember(&self, node: &N) -> NodeRef<N> {
        NodeRef {
            node: NonNull::from(node),
            arena: self.id,
        }
    }

    /// The node that this arena remembered. It may have been freed and used again: the caller checks its version.
    #[inline(always)]
    pub(crate) fn recall(&self, node: NodeRef<N>) -> &N {
        assert_eq!(node.arena, self.id, "a node of another tree");
        // SAFETY: the node lies in a chunk of this arena, which is freed only with the arena.
        unsafe { node.node.as_ref() }
    }

    /// As [`recall`](Self::recall).
    #[inline(always)]
    pub(crate) fn recall_any(&self, node: AnyNodeRef) -> &N {
        assert_eq!(node.arena, self.id, "a node of another tree");
        let node = std::ptr::with_exposed_provenance::<N>(node.address);
        // SAFETY: this arena has remembered the node, since its number is in the reference; so it is an `N` in a chunk of this arena.
        unsafe { &*node }
    }

    /// Frees a node that is no longer reachable and not locked, so that it can be reused.
    pub(crate) fn free(&self, node: &N) {
        let list = usize::from(node.level() > 0);
        lock(&self.state).free[list].push(NonNull::from(node));
    }

    /// Bytes of DRAM in use by nodes.
    pub(crate) fn bytes(&self) -> u64 {
        let state = lock(&self.state);
        let whole: usize = state
            .chunks
            .iter()
            .rev()
            .skip(1)
            .map(|chunk| chunk.layout.size())
            .sum();
        (whole + state.used * size_of::<N>()) as u64
    }
}

impl<N> ArenaState<N> {
    /// A node that has never been used.
    fn take_unused(&mut self) -> NonNull<N> {
        let room = self
            .chunks
            .last()
            .map_or(0, |chunk| chunk.layout.size() / size_of::<N>());
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
        // SAFETY: the range was just allocated. All-zero bytes are a valid node: it consists of atomic words.
        unsafe { memory.write_bytes(0, size) };
        self.chunks.push(Chunk { nodes, layout });
        self.used = 0;
    }
}

impl<N> Drop for ArenaState<N> {
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
    use std::sync::atomic::AtomicU32;

    #[derive(Default)]
    struct Inner {
        lock: VersionLock,
        level: AtomicU32,
    }

    // SAFETY: both fields are atomics.
    unsafe impl Node for Inner {
        fn lock(&self) -> &VersionLock {
            &self.lock
        }

        fn level(&self) -> u32 {
            self.level.load(Ordering::Relaxed)
        }

        fn reset(&self, level: u32) {
            self.level.store(level, Ordering::Relaxed);
        }
    }

    #[test]
    fn freed_nodes_are_used_again_for_what_they_were() {
        let arena = Arena::<Inner>::new();
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
