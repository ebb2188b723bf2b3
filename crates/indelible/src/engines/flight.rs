//! Writes in flight: exchanges that other threads can see and a crash could still take back.
//!
//! A writer *begins* on a line before it exchanges a word there, and ends when its fence is done. A reader looks at the line's place in
//! the table after it has read. If nobody is in flight there, what was read is durable. Otherwise, on persistent memory, the reader flushes
//! the line and fences by itself: nobody waits for a writer that has lost its core. In a pool with a log, where a word is appended by the
//! thread that has stored it, writers of a line take turns, and readers wait for them: a log is not lock-free anyway.
//!
//! Where a store is durable at once there is nothing to do.

use crate::concurrency::locks::{Version, VersionLock, WriteGuard};
use crate::concurrency::sync::atomic::{AtomicU32, Ordering};
use crate::engines::boxed_array;
use crate::pmem::geometry::sized;
use crate::pmem::schedule::point;
use crate::pmem::{Medium, Pm};
use std::ops::Range;

/// Places of the table, a power of two: 32 KiB. Lines that share a place cost a flush now and then.
const PLACES: usize = sized(8192, 64);

/// Places of the table of turns, a power of two: 8 KiB, so that readers find it in the nearest cache. Lines that share a place make two writers wait for each
/// other now and then.
const TURNS: usize = sized(1024, 64);

/// What there is to do before a store is durable.
enum Way {
    /// Nothing.
    Nothing,
    /// Flush and fence.
    Flush(Box<[AtomicU32; PLACES]>),
    /// Append to the log in turn.
    Turns(Box<[VersionLock; TURNS]>),
}

pub(in crate::engines) struct Flight {
    way: Way,
    pm: Pm,
    settling: Settling,
    /// Where the pool begins in memory. Lines are counted from there, so that it does not depend on addresses which lines share a place.
    base: usize,
}

/// How the readers of an engine flush.
#[derive(Clone, Copy)]
pub(in crate::engines) struct Settling {
    /// What the recorder calls it.
    pub(in crate::engines) name: &'static str,
    /// Whether a planted bug leaves it out.
    pub(in crate::engines) is_left_out: fn() -> bool,
}

/// A writer is in flight while this lives.
pub(in crate::engines) enum Ticket<'a> {
    Nothing,
    Flush(&'a AtomicU32),
    Turn { _guard: WriteGuard<'a> },
}

impl Drop for Ticket<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Ticket::Flush(count) = self {
            point();
            count.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Flight {
    pub(in crate::engines) fn new(pm: Pm, base: *const u8, settling: Settling) -> Self {
        let way = match pm.medium() {
            Medium::Dram | Medium::Process | Medium::PmemEadr => Way::Nothing,
            Medium::Pmem => Way::Flush(boxed_array(|| AtomicU32::new(0))),
            Medium::Disk => Way::Turns(boxed_array(VersionLock::default)),
        };
        Self {
            way,
            pm,
            settling,
            base: base as usize,
        }
    }

    /// The place in a table of the cache line in which a value of the pool lies.
    #[inline(always)]
    fn of<'t, T, P, const PLACES: usize>(&self, table: &'t [P; PLACES], value: &T) -> &'t P {
        let line = (std::ptr::from_ref(value) as usize).wrapping_sub(self.base) >> 6;
        &table[(line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % PLACES]
    }

    /// Whether the words of a pair may reach memory one without the other.
    #[inline(always)]
    pub(in crate::engines) fn may_tear(&self) -> bool {
        matches!(self.way, Way::Flush(_))
    }

    /// Whether there is anything to do before a store is durable.
    #[inline(always)]
    pub(in crate::engines) fn is_needed(&self) -> bool {
        !matches!(self.way, Way::Nothing)
    }

    /// Begins a write to the line of `value`.
    #[inline(always)]
    pub(in crate::engines) fn begin<T>(&self, value: &T) -> Ticket<'_> {
        match &self.way {
            Way::Nothing => Ticket::Nothing,
            Way::Flush(counts) => {
                point();
                let count = self.of(counts, value);
                count.fetch_add(1, Ordering::SeqCst);
                Ticket::Flush(count)
            }
            Way::Turns(locks) => Ticket::Turn {
                _guard: self.of(locks, value).lock(),
            },
        }
    }

    /// Begins a write that nothing durable depends on: it needs a turn, but no fence by others.
    #[inline(always)]
    pub(in crate::engines) fn begin_loose<T>(&self, value: &T) -> Ticket<'_> {
        match &self.way {
            Way::Turns(_) => self.begin(value),
            _ => Ticket::Nothing,
        }
    }

    /// Ends a write of [`begin_loose`](Self::begin_loose).
    #[inline(always)]
    pub(in crate::engines) fn end_loose(&self, ticket: Ticket<'_>) {
        if matches!(ticket, Ticket::Turn { .. }) {
            self.pm.fence();
        }
        drop(ticket);
    }

    /// Makes durable what the caller has read in the line of `value`, unless it is.
    #[inline(always)]
    pub(in crate::engines) fn settle<T>(&self, value: &T) {
        match &self.way {
            Way::Nothing => {}
            Way::Flush(counts) => {
                point();
                if self.of(counts, value).load(Ordering::Acquire) != 0 {
                    self.settle_flushing(value);
                }
            }
            Way::Turns(locks) => {
                let _: Version = self.of(locks, value).read();
            }
        }
    }

    #[cold]
    fn settle_flushing<T>(&self, value: &T) {
        if !(self.settling.is_left_out)() {
            self.pm.named(self.settling.name).persist(value);
        }
    }

    /// Settles each line of some words that were read.
    pub(in crate::engines) fn settle_lines<T>(&self, values: &[T], range: Range<usize>) {
        if matches!(self.way, Way::Nothing) {
            return;
        }
        values[range].iter().for_each(|value| self.settle(value));
    }

    /// Bytes of DRAM.
    pub(in crate::engines) fn bytes(&self) -> u64 {
        match &self.way {
            Way::Nothing => 0,
            Way::Flush(counts) => size_of_val(counts.as_ref()) as u64,
            Way::Turns(locks) => size_of_val(locks.as_ref()) as u64,
        }
    }
}

/// A number of this thread, to choose its counter.
#[inline(always)]
pub(in crate::engines) fn thread_number() -> usize {
    use std::cell::Cell;
    use std::sync::atomic::AtomicUsize;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    NUMBER.with(|number| {
        if number.get() == usize::MAX {
            // Four counters of 16 bytes lie in one line.
            number.set(NEXT.fetch_add(4, Ordering::Relaxed));
        }
        number.get()
    })
}
