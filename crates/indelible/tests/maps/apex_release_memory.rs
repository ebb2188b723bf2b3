//! Memory that an APEX gives back is rebuilt on first touch, whatever else is going on.

use indelible::{Kind, Pool};
use std::sync::atomic::{AtomicBool, Ordering};

/// Clusters, so that stashes are used.
fn key(i: u64) -> u64 {
    ((i % 300) << 40) + (i.wrapping_mul(0x9e37_79b9) % 4096 * i % 5000)
}

/// Ends the other threads also if this one fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_map_gives_memory_back_beside_readers_and_writers() {
    let pool = Pool::in_memory().unwrap();
    let kind = Kind::Apex;
    let map = pool.map_with::<u64, u64>("m", kind).unwrap();
    let done = AtomicBool::new(false);
    let records = 200_000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut released = 0;
            while !done.load(Ordering::Relaxed) {
                released += map.release_memory();
                std::thread::yield_now();
            }
            assert!(released > 0);
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let keys: Vec<u64> = map
                    .range(..)
                    .unwrap()
                    .map(|record| record.unwrap().0)
                    .take(3000)
                    .collect();
                assert!(keys.is_sorted_by(|a, b| a < b));
            }
        });
        let _done = Done(&done);
        for i in 0..records {
            map.insert(key(i), i).unwrap();
            assert_eq!(map.get(key(i)).unwrap(), Some(i));
            if i % 3 == 0 {
                assert!(
                    map.remove(key(i / 2))
                        .unwrap()
                        .is_none_or(|value| value <= i)
                );
            }
        }
    });
    assert_eq!(map.check().unwrap(), [""; 0]);
    // Frees what is left of the writers.
    map.release_memory();
    let before = map.stat().unwrap();
    assert!(map.release_memory() > 0);
    // Now it is all there again, and once only.
    assert!(map.stat().unwrap().dram_bytes <= before.dram_bytes);
    assert_eq!(map.len().unwrap(), before.records);
    assert_eq!(map.iter().count() as u64, before.records);
    assert_eq!(map.check().unwrap(), [""; 0]);
}
