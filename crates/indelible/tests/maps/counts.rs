//! What operations cost, counted exactly: what all kinds of index have in common.

use crate::costs::{cost, mix, one_line};
use indelible::pmem::count::{self, Counts};
use indelible::pmem::{Cell, Medium, Pm};
use indelible::{Kind, MapOptions, Pool};

#[test]
fn update_and_remove_cost_one_line_and_one_fence_and_get_costs_nothing() {
    if !count::enabled() {
        return;
    }
    for &kind in Kind::all() {
        for options in MapOptions::extremes(kind).into_iter().chain([kind.into()]) {
            assert_changes_cost_one(options);
        }
    }
}

fn assert_changes_cost_one(options: MapOptions) {
    let pool = Pool::in_memory().unwrap();
    let map = pool.map_with::<u64, u64>("m", options).unwrap();
    (0..10_000).for_each(|i| assert_eq!(map.insert(mix(i), i).unwrap(), None));
    map.warm_up().unwrap();
    // What inserts leave to later operations, as those of LOFT do, is done by these.
    for i in (0..10_000).chain(0..10_000) {
        map.update(mix(i), i).unwrap();
    }
    let one = one_line();
    for i in 0..1000 {
        assert_eq!(cost(|| map.update(mix(i), 7).unwrap()), one);
        assert_eq!(cost(|| map.insert(mix(i), 8).unwrap()), one);
        assert_eq!(cost(|| map.get(mix(i)).unwrap()), Counts::default());
        assert_eq!(
            cost(|| map.update(mix(i + 100_000), 7).unwrap()),
            Counts::default()
        );
    }
    assert_eq!(cost(|| map.iter().count()), Counts::default());
    // Fewer than a quarter of a leaf's records go, so no leaf gets small enough to merge.
    let removed = (0..10_000).step_by(10);
    for i in removed {
        assert_eq!(cost(|| map.remove(mix(i)).unwrap()), one);
    }
}

/// Four lines and more, at the beginning of a block of 256 bytes.
#[repr(C, align(256))]
struct Lines([Cell; 24]);

#[test]
fn counters_count_lines_fences_and_streamed_lines_on_every_medium() {
    if !count::enabled() {
        return;
    }
    for medium in [
        Medium::Dram,
        Medium::Process,
        Medium::Pmem,
        Medium::PmemEadr,
    ] {
        let pm = Pm::new(medium);
        let memory = Lines(std::array::from_fn(|_| Cell::new(0)));
        // What was written before lies in a block of its own.
        pm.fence();
        let cost = cost(|| {
            pm.persist(&memory.0[..16]);
            pm.commit(&memory.0[0], 1, "test");
            pm.stream(&memory.0[16..], &[0; 8]);
        });
        let expected = [cost.lines_flushed, cost.fences, cost.lines_streamed];
        assert_eq!(expected, [3, 2, 1]);
        assert_eq!((cost.blocks_written, cost.bytes_allocated), (3, 0));
    }
}
