//! What one thread has been told to be there, another one finds at once.

use indelible::{BytesMap, PoolOptions, StringKind};
use std::sync::atomic::{AtomicU64, Ordering};

/// Keys that are handed over. Those whose bytes came late were 20 to 300 of 100,000.
const KEYS: u64 = 30_000;

/// Bytes of a key: too long for a leaf, so they lie in a block of their own, and do not end at the end of a line.
const LENGTHS: [usize; 3] = [280, 296, 300];

fn long_key(number: u64, length: usize) -> Vec<u8> {
    let mut key = number.to_be_bytes().to_vec();
    key.resize(length - 8, 7);
    key.extend(number.to_be_bytes());
    key
}

/// Waits until the other thread has got so far.
fn wait_for(place: &AtomicU64, number: u64) {
    let mut turns = 0_u32;
    while place.load(Ordering::Acquire) != number {
        turns += 1;
        // There may be one processor only.
        if turns.is_multiple_of(500) {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

/// Inserts keys, and after each of them has another thread look for it.
fn hand_over(map: &BytesMap, length: usize) {
    let [inserted, seen, missing] = [const { AtomicU64::new(0) }; 3];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=KEYS {
                let key = long_key(number, length);
                wait_for(&inserted, number);
                if !map.contains_key(&key).unwrap() {
                    missing.fetch_add(1, Ordering::Relaxed);
                }
                seen.store(number, Ordering::Release);
            }
        });
        for number in 1..=KEYS {
            let key = long_key(number, length);
            assert!(!map.insert(&key, b"1").unwrap());
            inserted.store(number, Ordering::Release);
            wait_for(&seen, number);
        }
    });
    assert_eq!(missing.into_inner(), 0, "of {KEYS} keys");
    assert_eq!(map.len().unwrap(), KEYS);
}

/// The bytes of long keys are written past the caches, and were once on their way when the record could already be seen: a key that was there was not found.
#[test]
fn a_long_key_that_one_thread_has_inserted_is_there_for_another_one() {
    let directory = tempfile::tempdir().unwrap();
    for &kind in StringKind::all() {
        for length in LENGTHS {
            let path = directory.path().join(format!("{kind}{length}"));
            let pool = PoolOptions::new().create(&path).unwrap();
            hand_over(&pool.bytes_with("m", kind).unwrap(), length);
        }
    }
}
