//! Compare-and-exchange of durable words: of one word, and of two neighbours, which lie in one aligned pair of 16 bytes.
//!
//! For engines whose operations take no lock. A pair is exchanged by one instruction where the processor has one (`cmpxchg16b`);
//! elsewhere by two stores under one of [`STRIPES`] spin locks, which is correct and not lock-free.
//!
//! A power cut may tear a pair: each of its words is durable by itself. So an exchange of both words has to be one of which recovery
//! understands either half, and the recorder notes an exchange as stores of the words that change, in either order.

use super::journal;
use super::schedule::point;
use super::{Cell, Medium, Pm, trace};

/// Two words that can be exchanged together.
#[repr(C, align(16))]
#[derive(Debug, Default)]
pub struct Pair {
    /// The first word.
    pub first: Cell,
    /// The second word.
    pub second: Cell,
}

const _: () = assert!(size_of::<Pair>() == 16 && align_of::<Pair>() == 16);

/// Whether pairs are exchanged by one instruction.
#[must_use]
pub(crate) fn is_lock_free() -> bool {
    has_instruction()
}

#[cfg(target_arch = "x86_64")]
fn has_instruction() -> bool {
    std::arch::is_x86_feature_detected!("cmpxchg16b") && !prefers_locks()
}

#[cfg(not(target_arch = "x86_64"))]
fn has_instruction() -> bool {
    false
}

/// Whether `INDELIBLE_PAIRS=locks` asks for the way of processors that cannot exchange pairs, so that tests can run it.
#[cfg(target_arch = "x86_64")]
fn prefers_locks() -> bool {
    static ASKED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *ASKED.get_or_init(|| std::env::var_os("INDELIBLE_PAIRS").is_some_and(|way| way == "locks"))
}

impl Pm {
    /// Replaces `old` by `new` in `cell`, if `old` is there, and says whether it was. Ordered with nothing durable, as
    /// [`store`](Self::store) is.
    #[inline(always)]
    #[cfg_attr(feature = "trace", track_caller)]
    pub(crate) fn exchange(&self, cell: &Cell, old: u64, new: u64) -> bool {
        point();
        // The recorder reads the word from before, so the event precedes the exchange. No other thread comes in between under a scheduler.
        if cfg!(feature = "trace") && cell.load() == old {
            trace::store(cell, new, self.name, self.medium);
        }
        let done = cell.compare_exchange(old, new);
        if done && let Some(journal) = self.journal {
            journal::capture(journal, cell, new);
        }
        done
    }

    /// Replaces the words `old` by `new` in `pair`, if `old` is there, and says whether it was.
    #[inline(always)]
    #[cfg_attr(feature = "trace", track_caller)]
    pub(crate) fn exchange_pair(&self, pair: &Pair, old: [u64; 2], new: [u64; 2]) -> bool {
        point();
        if cfg!(feature = "trace") && [pair.first.load(), pair.second.load()] == old {
            self.record_pair(pair, old, new);
        }
        let done = compare_exchange(pair, old, new);
        if done && let Some(journal) = self.journal {
            for (cell, new) in changed(pair, old, new) {
                journal::capture(journal, cell, new);
            }
        }
        done
    }

    /// Tells the recorder of an exchange. On persistent memory either word may be durable first, so each comes first in every other exchange.
    /// Elsewhere there is one order, if they can be told apart at all. On a disk a batch is always appended between the two, which in a real
    /// log happens when the batch is full.
    #[inline(always)]
    #[cfg_attr(feature = "trace", track_caller)]
    fn record_pair(&self, pair: &Pair, old: [u64; 2], new: [u64; 2]) {
        let is_disk = self.medium == Medium::Disk;
        let mut words: [Option<(&Cell, u64)>; 2] = [None; 2];
        words
            .iter_mut()
            .zip(changed(pair, old, new))
            .for_each(|(to, word)| *to = Some(word));
        if self.medium == Medium::Pmem && trace::is_at_odd_event() {
            words.reverse();
        }
        for (number, (cell, new)) in words.into_iter().flatten().enumerate() {
            if is_disk && number > 0 {
                trace::append();
            }
            trace::store(cell, new, self.name, self.medium);
        }
    }
}

/// The words that an exchange of a pair changes, in the order in which a log gets them, and in which they are stored where no
/// instruction exchanges both.
fn changed(pair: &Pair, old: [u64; 2], new: [u64; 2]) -> impl Iterator<Item = (&Cell, u64)> {
    let words = [&pair.second, &pair.first];
    let values = [(old[1], new[1]), (old[0], new[0])];
    let all = words.into_iter().zip(values);
    all.filter_map(|(cell, (old, new))| (old != new).then_some((cell, new)))
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn compare_exchange(pair: &Pair, old: [u64; 2], new: [u64; 2]) -> bool {
    if has_instruction() {
        // SAFETY: the processor has the instruction.
        unsafe { compare_exchange_by_instruction(pair, old, new) }
    } else {
        compare_exchange_locked(pair, old, new)
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn compare_exchange(pair: &Pair, old: [u64; 2], new: [u64; 2]) -> bool {
    compare_exchange_locked(pair, old, new)
}

/// The instruction itself, in assembly: the function of `core::arch` cannot be inlined into callers that are compiled for processors
/// without it.
///
/// # Safety
///
/// The processor has `cmpxchg16b`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn compare_exchange_by_instruction(pair: &Pair, old: [u64; 2], new: [u64; 2]) -> bool {
    let done: u8;
    // SAFETY: `rdi` is the address of a pair, 16 bytes of atomics, aligned to 16; every other access to it is atomic. `rbx`, which the
    // compiler keeps for itself, is put back.
    unsafe {
        std::arch::asm!(
            "xchg rsi, rbx",
            "lock cmpxchg16b xmmword ptr [rdi]",
            "sete r8b",
            "mov rbx, rsi",
            in("rdi") pair.first.as_ptr(),
            inout("rsi") new[0] => _,
            in("rcx") new[1],
            inout("rax") old[0] => _,
            inout("rdx") old[1] => _,
            out("r8b") done,
            options(nostack),
        );
    }
    done != 0
}

/// Spin locks of the way without the instruction.
const STRIPES: usize = 64;

/// Exchanges a pair under a lock. Pairs are written by exchanges alone, so nobody else writes it meanwhile; a reader may see the new second
/// word beside the old first one, as after the two stores of any other writer.
fn compare_exchange_locked(pair: &Pair, old: [u64; 2], new: [u64; 2]) -> bool {
    use crate::concurrency::locks::VersionLock;
    static LOCKS: std::sync::LazyLock<Vec<VersionLock>> =
        std::sync::LazyLock::new(|| (0..STRIPES).map(|_| VersionLock::default()).collect());
    let _lock = LOCKS[(std::ptr::from_ref(pair) as usize >> 6) % STRIPES].lock();
    if [pair.first.load_acquire(), pair.second.load_acquire()] != old {
        return false;
    }
    for (cell, new) in changed(pair, old, new) {
        cell.set_release(new);
    }
    true
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_exchanged_only_if_both_words_are_the_old_ones() {
        for exchange in [compare_exchange, compare_exchange_locked] {
            let pair = Pair::default();
            assert!(!exchange(&pair, [0, 1], [2, 3]));
            assert!(!exchange(&pair, [1, 0], [2, 3]));
            assert!(exchange(&pair, [0, 0], [2, 3]));
            assert_eq!([pair.first.load(), pair.second.load()], [2, 3]);
        }
        let pm = Pm::new(Medium::Dram);
        let cell = Cell::new(7);
        assert!(!pm.exchange(&cell, 6, 8));
        assert!(pm.exchange(&cell, 7, 8));
        assert_eq!(cell.load(), 8);
    }

    #[test]
    fn threads_count_in_both_words_of_a_pair() {
        for exchange in [compare_exchange, compare_exchange_locked] {
            let pair = Pair::default();
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for _ in 0..2_000 {
                            loop {
                                let old = [pair.first.load_acquire(), pair.second.load_acquire()];
                                if exchange(&pair, old, [old[0] + 1, old[1] + 2]) {
                                    break;
                                }
                            }
                        }
                    });
                }
            });
            assert_eq!([pair.first.load(), pair.second.load()], [6_000, 12_000]);
        }
    }
}
