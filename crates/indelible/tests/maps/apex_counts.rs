//! What inserts into an APEX cost, counted exactly.

use crate::costs::{cost, loaded, mix, new_map, one_line};
use indelible::pmem::count::{self, Counts};
use indelible::{Kind, Map};

/// What inserts cost that change no structure, which is the same for each of them, and how many there were; and the sum over
/// all inserts.
fn insert_costs(map: &Map<u64, u64>, keys: impl Iterator<Item = u64>) -> (u64, u64, Counts) {
    let one = one_line();
    let (mut plain, mut all, mut sum) = (0, 0, Counts::default());
    for key in keys {
        let cost = cost(|| map.insert(key, key).unwrap());
        all += 1;
        sum += cost;
        // Whatever changes the structure takes a block.
        if cost.bytes_allocated == 0 {
            plain += 1;
            assert_eq!(cost, one, "an insert is one line and one fence");
        }
    }
    (plain, all, sum)
}

#[test]
fn an_insert_into_apex_flushes_one_line_and_structure_changes_add_little() {
    if !count::enabled() {
        return;
    }
    let grown = new_map(Kind::Apex);
    (0..200_000).for_each(|i| assert_eq!(grown.insert(mix(i), i).unwrap(), None));
    let ascending = new_map(Kind::Apex);
    (0..200_000).for_each(|i| assert_eq!(ascending.insert(i, i).unwrap(), None));
    let random = || (200_000..400_000).map(mix);
    // Records grow to twice their number, so each of them is laid out anew once or twice: lines of four records, half full.
    for (name, map, keys, most_lines) in [
        (
            "grown by random inserts",
            grown,
            random().collect::<Vec<_>>(),
            2.0,
        ),
        ("loaded", loaded(Kind::Apex, 0.7), random().collect(), 1.1),
        ("ascending", ascending, (200_000..400_000).collect(), 2.2),
    ] {
        let (plain, all, sum) = insert_costs(&map, keys.into_iter());
        let per = |part: u64| part as f64 / all as f64;
        let lines = per(sum.lines_flushed + sum.lines_streamed);
        println!(
            "{name}: {} of {all} inserts change the structure; all in all {:.4} lines flushed and {:.3} streamed, {:.4} fences, \
             {:.1} bytes allocated each",
            all - plain,
            per(sum.lines_flushed),
            per(sum.lines_streamed),
            per(sum.fences),
            per(sum.bytes_allocated),
        );
        assert!(
            plain as f64 >= 0.99 * all as f64,
            "{name}: {plain} of {all}"
        );
        assert!(lines <= most_lines, "{name}: {lines} lines");
        assert!(
            per(sum.fences) <= 1.02,
            "{name}: {} fences",
            per(sum.fences)
        );
    }
}
