//! How long after a crash until the first answer.

use crate::workload::mix;
use indelible::{Pool, Result};
use std::path::Path;
use std::time::{Duration, Instant};

/// Crashes per measurement.
const CRASHES: u64 = 5;
/// Lookups after the first one, while the index warms up.
const LOOKUPS: u64 = 1000;

/// Loads `records` and, as often as [`CRASHES`] says, opens a copy of the file of the still open pool: what a process
/// that died at that moment would leave.
pub fn measure(records: u64, fill: f64, directory: &Path) -> Result<()> {
    let (path, image) = (
        directory.join("indelible-recovery.pool"),
        directory.join("indelible-recovery.image"),
    );
    let _ = (std::fs::remove_file(&path), std::fs::remove_file(&image));
    let step = u64::MAX / records;
    let key = |i: u64| i * step + mix(i) % step;
    let pool = Pool::create(&path)?;
    let map = pool.map::<u64, u64>("records")?;
    let loaded: Vec<(u64, u64)> = (0..records).map(|i| (key(i), i)).collect();
    map.bulk_load(&loaded, fill)?;
    drop(loaded);
    let stat = map.stat()?;
    let per_record = |bytes: u64| bytes as f64 / records as f64;
    println!(
        "{records} records at fill {fill}: {:.2} bytes of file and {:.2} of DRAM per record",
        per_record(pool.stat().file_bytes),
        per_record(stat.dram_bytes)
    );
    println!("open    map     first get   next {LOOKUPS} gets, worst   all warm (ms)");
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    for crash in 0..CRASHES {
        std::fs::copy(&path, &image).expect("the directory has room for a second file");
        let present = |i: u64| key(mix(crash * (LOOKUPS + 1) + i) % records);
        let start = Instant::now();
        let opened = Pool::open(&image)?;
        let open = start.elapsed();
        let map = opened.map::<u64, u64>("records")?;
        let mapped = start.elapsed();
        assert!(map.get(present(0))?.is_some(), "a record is missing");
        let first = start.elapsed();
        let mut worst = Duration::ZERO;
        for i in 1..=LOOKUPS {
            let before = Instant::now();
            assert!(map.get(present(i))?.is_some(), "a record is missing");
            worst = worst.max(before.elapsed());
        }
        let more = start.elapsed() - first;
        map.warm_up()?;
        println!(
            "{:<7.3} {:<7.3} {:<11.3} {:<7.1}      {:<7.3} {:.0}",
            ms(open),
            ms(mapped),
            ms(first),
            ms(more),
            ms(worst),
            ms(start.elapsed())
        );
    }
    drop(map);
    drop(pool);
    let _ = (std::fs::remove_file(&path), std::fs::remove_file(&image));
    Ok(())
}
