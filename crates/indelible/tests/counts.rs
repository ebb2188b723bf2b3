//! What operations cost, counted exactly. The numbers are those of the LB+-Tree paper or better, and do not jitter.

mod kinds;

use indelible::pmem::count::{self, Counts};
use indelible::{Kind, Map, MapOptions, Pool};
use kinds::{KINDS, map_of};

fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

/// What a change costs that writes one line.
fn one_line() -> Counts {
    let mut one = Counts::default();
    (one.lines_flushed, one.fences, one.blocks_written) = (1, 1, 1);
    one
}

fn cost<T>(work: impl FnOnce() -> T) -> Counts {
    let before = count::here();
    work();
    count::here() - before
}

/// The average cost of inserts that split nothing, and of those that do.
fn insert_costs(map: &Map<u64, u64>, keys: impl Iterator<Item = u64>) -> [(u64, f64, f64); 2] {
    let mut sums = [(0, Counts::default()); 2];
    let count_splits = || map.stat().unwrap().fact("splits").unwrap().value.as_u64();
    let mut splits = count_splits();
    for key in keys {
        let cost = cost(|| map.insert(key, key).unwrap());
        // An insert costs at most two lines unless it splits, which costs a leaf and more.
        let split = cost.lines_flushed > 2;
        let (count, sum) = &mut sums[usize::from(split)];
        *count += 1;
        *sum += cost;
        splits += u64::from(split);
    }
    assert_eq!(
        count_splits(),
        splits,
        "an insert that splits is told by its cost"
    );
    sums.map(|(count, sum)| {
        (
            count,
            sum.lines_flushed as f64 / count as f64,
            sum.fences as f64 / count as f64,
        )
    })
}

#[test]
fn inserts_flush_no_more_lines_than_the_paper_proves() {
    if !count::enabled() {
        return eprintln!("not counted: build with the feature `count`");
    }
    let pool = Pool::in_memory().unwrap();
    let map = map_of(&pool, Kind::LbTree);
    (0..200_000).for_each(|i| assert_eq!(map.insert(mix(i), i).unwrap(), None));
    let [(plain, lines, fences), (splits, split_lines, split_fences)] =
        insert_costs(&map, (200_000..400_000).map(mix));
    println!("{plain} inserts without a split: {lines:.3} lines, {fences:.3} fences each");
    println!(
        "{splits} inserts with a split: {split_lines:.2} lines, {split_fences:.2} fences each"
    );
    assert!(lines <= 1.31, "theorem 3.5 allows 1.31 lines, not {lines}");
    assert!(fences <= 1.31);
    assert!(split_lines < 12.0 && split_fences < 6.0);
}

/// What inserts cost that change no structure, which is the same for each of them, and how many there were; and the sum over
/// all inserts.
fn apex_insert_costs(map: &Map<u64, u64>, keys: impl Iterator<Item = u64>) -> (u64, u64, Counts) {
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
    let grown = map_of(&Pool::in_memory().unwrap(), Kind::Apex);
    (0..200_000).for_each(|i| assert_eq!(grown.insert(mix(i), i).unwrap(), None));
    let ascending = map_of(&Pool::in_memory().unwrap(), Kind::Apex);
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
        let (plain, all, sum) = apex_insert_costs(&map, keys.into_iter());
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

/// A map of 200,000 records, bulk loaded.
fn loaded(kind: Kind, fill: f64) -> Map<u64, u64> {
    let map = map_of(&Pool::in_memory().unwrap(), kind);
    let mut keys: Vec<u64> = (0..200_000).map(mix).collect();
    keys.sort_unstable();
    map.bulk_load(keys.iter().map(|&key| (key, key)), fill)
        .unwrap();
    map
}

#[test]
fn the_first_inserts_after_a_bulk_load_flush_one_line() {
    if !count::enabled() {
        return;
    }
    let map = loaded(Kind::LbTree, 0.7);
    let [(_, lines, _), _] = insert_costs(&map, (200_000..220_000).map(mix));
    println!("{lines:.3} lines per insert");
    assert!(lines <= 1.1, "at most 1.1 lines, not {lines}");
}

#[test]
fn update_and_remove_cost_one_line_and_one_fence_and_get_costs_nothing() {
    if !count::enabled() {
        return;
    }
    for &kind in KINDS {
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

#[test]
fn a_batch_shares_its_fences() {
    if !count::enabled() {
        return;
    }
    let map = loaded(Kind::LbTree, 0.5);
    let batch: Vec<(u64, u64)> = (200_000..201_024).map(|i| (mix(i), i)).collect();
    let cost = cost(|| map.insert_batch(&batch).unwrap());
    let fences = cost.fences as f64 / batch.len() as f64;
    assert!(
        fences < 0.2,
        "a fence for 16 records, not {fences} per record"
    );
}
