//! What operations of an LB+-Tree cost, counted exactly. The numbers are those of the paper or better, and do not jitter.

use crate::costs::{cost, loaded, mix, new_map};
use indelible::pmem::count::{self, Counts};
use indelible::{Kind, Map};

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
    let map = new_map(Kind::LbTree);
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

#[test]
fn it_has_no_memory_to_give_back() {
    let map = new_map(Kind::LbTree);
    map.insert(1, 2).unwrap();
    assert_eq!(map.release_memory(), 0);
    assert_eq!(map.get(1).unwrap(), Some(2));
}
