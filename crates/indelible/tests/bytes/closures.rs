//! Closures that read a value while they use the pool for something else.

use indelible::{Kind, Pool, Result, SpatialKind};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// More than any of this takes, on the slowest machine.
const LONGEST: Duration = Duration::from_secs(120);

type Work = fn(&Pool) -> Result<()>;

/// Records of "m" come and go, so that blocks wait for readers.
fn thin_out(pool: &Pool, kind: Kind) -> Result<()> {
    let map = pool.map_with::<u64, u64>("m", kind)?;
    map.extend((0..20_000).map(|key| (key, key)))?;
    map.remove_range(1_000..19_000)?;
    Ok(())
}

/// Works within a closure that reads a value. Meanwhile another thread shrinks the pool, and waits for the readers.
fn work_beside_a_shrink(pool: &Pool, work: Work, ended: &Sender<()>) {
    let other = pool.bytes("other").unwrap();
    other.insert("key", "value").unwrap();
    let (begin, has_begun) = channel();
    std::thread::spawn({
        let (pool, ended) = (pool.clone(), ended.clone());
        move || {
            has_begun.recv().unwrap();
            pool.shrink().unwrap();
            ended.send(()).unwrap();
        }
    });
    std::thread::spawn({
        let (pool, ended) = (pool.clone(), ended.clone());
        move || {
            let worked = other.get_with("key", |_| {
                begin.send(()).unwrap();
                // Long enough for the other thread to come to where it waits.
                std::thread::sleep(Duration::from_millis(50));
                work(&pool)
            });
            worked.unwrap().unwrap().unwrap();
            ended.send(()).unwrap();
        }
    });
}

/// Once, each of them waited for the other one: the shrink for the closure, and the closure for a lock of the shrink.
#[test]
fn a_closure_may_compact_what_another_thread_compacts() {
    let compact: Work = |pool| pool.shrink().map(drop);
    let load: Work = |pool| match pool.open_map::<u64, u64>("m")?.bulk_load([(1, 1)], 0.7) {
        Err(indelible::Error::NotEmpty) => Ok(()),
        result => result,
    };
    let (ended, has_ended) = channel();
    for &kind in Kind::all() {
        for work in [compact, load] {
            let pool = Pool::in_memory().unwrap();
            thin_out(&pool, kind).unwrap();
            for &kind in SpatialKind::all() {
                let index = pool
                    .spatial_with::<indelible::Point2>(&format!("{kind}"), kind)
                    .unwrap();
                let points = |from: u32| {
                    (from..from + 2_000).map(|i| (indelible::Point2::from([f64::from(i), 0.5]), 1))
                };
                index.insert_batch(&points(0).collect::<Vec<_>>()).unwrap();
                points(0)
                    .for_each(|(point, payload)| assert!(index.remove(point, payload).unwrap()));
            }
            work_beside_a_shrink(&pool, work, &ended);
            for _ in 0..2 {
                let result = has_ended.recv_timeout(LONGEST);
                assert!(result.is_ok(), "{kind}: two threads wait for each other");
            }
        }
    }
}
