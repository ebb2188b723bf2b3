//! Separators of inner nodes: byte strings in DRAM.

use super::blobs::MOST_KEY_BYTES;
use crate::concurrency::epochs;
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that somebody else keeps alive: a key that is searched for, or a separator. It has no lifetime, because the code that all kinds of
/// inner nodes share takes keys that are `Copy` and nothing else.
#[derive(Clone, Copy)]
pub(super) struct Text {
    at: NonNull<u8>,
    length: usize,
}

impl Text {
    pub(super) const EMPTY: Self = Self {
        at: NonNull::dangling(),
        length: 0,
    };

    pub(super) fn of(bytes: &[u8]) -> Self {
        Self {
            at: NonNull::from(bytes).cast(),
            length: bytes.len(),
        }
    }

    /// The bytes.
    ///
    /// # Safety
    ///
    /// What the text was made of is alive during `'a` and is not changed.
    pub(super) unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.length) }
    }
}

/// A separator: the address of a length, less one, and the bytes after it, which never change; 0 for the empty string. Each slot of a node
/// has a separator of its own, and the node that drops one retires it: a reader that has seen the address is pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Separator(u64);

/// Bytes of DRAM in separators, of all trees of the process.
static BYTES: AtomicU64 = AtomicU64::new(0);

/// [`BYTES`], for who has to know how much memory is in use.
pub(super) fn bytes_in_use() -> u64 {
    BYTES.load(Ordering::Relaxed)
}

/// A separator has at least a byte, and its length less one fits into 16 bits.
pub(super) const LENGTH_BYTES: usize = 2;

const _: () = assert!(MOST_KEY_BYTES <= 1 << 16);

impl Separator {
    /// The empty string, which is below all others.
    pub(super) const LOWEST: Self = Self(0);

    pub(super) fn new(bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return Self::LOWEST;
        }
        let layout = Self::layout(bytes.len());
        // SAFETY: the layout has a size.
        let memory = unsafe { std::alloc::alloc(layout) };
        if memory.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        let length = u16::try_from(bytes.len() - 1).expect("invariant: keys have at most 64 KiB");
        // SAFETY: the memory was just allocated, with room for the length and the bytes, and is aligned for the length.
        unsafe {
            memory.cast::<u16>().write(length);
            memory
                .add(LENGTH_BYTES)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
        Self(memory as u64)
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(LENGTH_BYTES + bytes, LENGTH_BYTES).expect("a separator is short")
    }

    pub(super) fn from_word(word: u64) -> Self {
        Self(word)
    }

    pub(super) fn word(self) -> u64 {
        self.0
    }

    /// The bytes.
    ///
    /// # Safety
    ///
    /// The separator was in a node at some moment since the caller has pinned its thread, or is in a node that the caller has locked; and it
    /// stays so during `'a`.
    #[inline(always)]
    pub(super) unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.0 == 0 {
            return &[];
        }
        let memory = self.0 as *const u8;
        // SAFETY: `new` has written a length and as many bytes there, and nobody has freed them: they are retired, and freed after an epoch
        // that the caller's pin prevents from passing.
        unsafe {
            let length = usize::from(memory.cast::<u16>().read()) + 1;
            std::slice::from_raw_parts(memory.add(LENGTH_BYTES), length)
        }
    }

    /// Frees a separator that has just left its node, when no reader can have it any more.
    pub(super) fn retire(self) {
        if self.0 == 0 {
            return;
        }
        // SAFETY: it has left its node, so that threads which pin later do not see it; and no other node has it.
        unsafe { epochs::retire(self.0, |address| Self(address).free()) };
    }

    /// Frees the memory.
    ///
    /// # Safety
    ///
    /// Nobody has the separator or will come across it.
    pub(super) unsafe fn free(self) {
        if self.0 == 0 {
            return;
        }
        // SAFETY: the caller has the only reference.
        let layout = Self::layout(unsafe { self.bytes() }.len());
        BYTES.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: allocated in `new` with this layout.
        unsafe { std::alloc::dealloc(self.0 as *mut u8, layout) }
    }
}
