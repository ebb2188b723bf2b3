//! What a LOFT takes of the file while it grows, and how evenly its inserts flush.

use crate::child::in_child;
use crate::costs::{average, cost, mix, new_map};
use indelible::pmem::count::{self, Counts};
use indelible::{Kind, LoftOptions, Pool};

/// With sizes of nodes that are twice apart, all nodes of uniform keys are replaced at about the same time, and the file holds the old and the new ones: 54
/// bytes per record were measured.
///
/// In a process of its own: no block is reused while any thread of the process is in the middle of an operation, and other tests have threads that may have
/// lost their core there.
#[test]
fn a_map_that_has_grown_takes_little_space() {
    let test = "a_map_that_has_grown_takes_little_space";
    in_child(module_path!(), test, |_| grow_a_map());
}

fn grow_a_map() {
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

/// Of each hundred thousand inserts into a map of 600,000 records, which are flushed once each: the lines streamed into new nodes per insert.
fn streamed_while_growing(options: LoftOptions) -> [f64; 6] {
    let map = new_map(options);
    (0..600_000).for_each(|i| assert_eq!(map.insert(mix(i), i).unwrap(), None));
    std::array::from_fn(|part| {
        let begin = 600_000 + part as u64 * 100_000;
        let mut sum = Counts::default();
        for i in begin..begin + 100_000 {
            sum += cost(|| map.insert(mix(i), i).unwrap());
        }
        let (lines, fences) = average(sum, 100_000);
        assert!((1.0..1.1).contains(&lines), "{lines} lines per insert");
        assert!((1.0..1.15).contains(&fences), "{fences} fences per insert");
        sum.lines_streamed as f64 / 100_000.0
    })
}

/// A record is flushed when it is inserted, and never again: a new node is streamed with its records.
#[test]
fn inserts_of_a_map_that_grows_flush_a_line_and_stream_evenly() {
    if !count::enabled() {
        return;
    }
    // With sizes of nodes that are twice apart, all nodes would be replaced in one of the parts.
    for streamed in streamed_while_growing(LoftOptions::default().max_data_bytes(32 << 10)) {
        assert!((0.6..1.8).contains(&streamed), "{streamed} lines streamed");
    }
    // Of larger nodes there are 128 here, half of which are divided in the last part; if all were replaced in one, 5 lines would be streamed there.
    let streamed = streamed_while_growing(LoftOptions::default());
    let all: f64 = streamed.iter().sum();
    assert!(all < 6.6, "{streamed:?}");
    assert!(streamed.iter().all(|&lines| lines < 3.0), "{streamed:?}");
}
