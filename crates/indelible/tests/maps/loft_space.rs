//! What a LOFT takes of the file while it grows, and how evenly its inserts flush.

use crate::costs::{average, cost, mix, new_map};
use indelible::pmem::count::{self, Counts};
use indelible::{Kind, Pool};

/// With sizes of nodes that are twice apart, all nodes of uniform keys are replaced at about the same time, and the file holds the old and the new ones: 54
/// bytes per record were measured.
#[test]
fn a_map_that_has_grown_takes_little_space() {
    const RECORDS: u64 = 2_000_000;
    let pool = Pool::in_memory().unwrap();
    let map = pool.map_with::<u64, u64>("m", Kind::Loft).unwrap();
    for i in 0..RECORDS {
        map.insert(mix(i), i).unwrap();
    }
    let per_record = || pool.stat().file_bytes as f64 / RECORDS as f64;
    let grown = per_record();
    assert!(grown < 38.0, "{grown} bytes per record");
    pool.shrink().unwrap();
    let shrunk = per_record();
    assert!(shrunk < 29.0, "{shrunk} bytes per record");
    assert_eq!(map.check().unwrap(), [""; 0]);
    assert_eq!(map.len().unwrap(), RECORDS);
}

/// A record is flushed when it is inserted, and never again: a new node is streamed with its records.
#[test]
fn inserts_of_a_map_that_grows_flush_a_line_and_stream_evenly() {
    if !count::enabled() {
        return;
    }
    let map = new_map(Kind::Loft);
    (0..600_000).for_each(|i| assert_eq!(map.insert(mix(i), i).unwrap(), None));
    for part in 6..12_u64 {
        let mut sum = Counts::default();
        for i in part * 100_000..(part + 1) * 100_000 {
            sum += cost(|| map.insert(mix(i), i).unwrap());
        }
        let (lines, fences) = average(sum, 100_000);
        assert!((1.0..1.1).contains(&lines), "{lines} lines per insert");
        assert!((1.0..1.15).contains(&fences), "{fences} fences per insert");
        // With sizes of nodes that are twice apart, all nodes would be replaced in one of the parts.
        let streamed = sum.lines_streamed as f64 / 100_000.0;
        assert!((0.6..1.8).contains(&streamed), "{streamed} lines streamed");
    }
}
