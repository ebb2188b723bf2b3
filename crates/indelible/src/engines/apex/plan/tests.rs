use super::*;
use crate::Key;
use crate::engines::apex::model::simulate_in;
use proptest::collection::btree_set;
use proptest::prelude::*;
use std::time::Instant;

/// Random numbers without a crate: splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// In (0, 1].
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }
}

fn sorted(mut keys: Vec<u64>) -> Vec<u64> {
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn many(count: usize, mut key: impl FnMut(&mut Random, u64) -> u64) -> Vec<u64> {
    let mut random = Random(7);
    sorted((0..count as u64).map(|i| key(&mut random, i)).collect())
}

/// Sets of about `count` keys, some as users have them, some as an adversary would choose them.
fn sets(count: usize) -> Vec<(&'static str, Vec<u64>)> {
    let size = count as u64;
    vec![
        ("uniform", many(count, |random, _| random.next())),
        ("dense", many(count, |_, i| i)),
        ("dense above 2^63", many(count, |_, i| (1 << 63) + i)),
        (
            "dense around 2^63",
            many(count, |_, i| (1 << 63) + i - size / 2),
        ),
        ("dense at the end", many(count, |_, i| u64::MAX - i)),
        ("even numbers", many(count, |_, i| 1000 + 2 * i)),
        (
            "a key far away",
            many(count, |_, i| if i == 0 { u64::MAX } else { i }),
        ),
        (
            "a key far below",
            many(count, |_, i| if i == 0 { 0 } else { u64::MAX - i }),
        ),
        (
            "lognormal",
            many(count, |random, _| {
                ((2.0 * random.normal()).exp() * 1e9) as u64
            }),
        ),
        (
            "log-uniform",
            many(count, |random, _| (random.unit() * 44.0).exp() as u64),
        ),
        ("squares", many(count, |_, i| i * i)),
        ("fourth powers", many(count, |_, i| (i % 60_000).pow(4))),
        (
            "powers of two",
            many(count, |_, i| (1 << (i % 64)) + i / 64),
        ),
        (
            "below powers of two",
            many(count, |_, i| (u64::MAX >> (i % 64)).saturating_sub(i / 64)),
        ),
        ("clusters of 10", clusters(count, 10)),
        ("clusters of 1000", clusters(count, 1000)),
        (
            "clusters at random",
            many(count, |random, i| {
                Random(i / 100).next() ^ random.below(1 << 20)
            }),
        ),
        (
            "nested clusters",
            many(count, |random, _| {
                (0..8).fold(0, |key, _| key << 8 | (1 << random.below(8)))
            }),
        ),
        (
            "every bit doubled",
            many(count, |random, _| {
                random.next() & random.next() & random.next() & random.next()
            }),
        ),
        (
            "time stamps",
            many(count, |random, i| {
                1_700_000_000_000_000_000 + i * 1_000_000 + random.below(500_000)
            }),
        ),
        (
            "ids with a prefix",
            many(count, |random, i| (i % 37) << 48 | random.below(1 << 30)),
        ),
    ]
}

/// Dense runs of `size` keys with wide gaps between them.
fn clusters(count: usize, size: u64) -> Vec<u64> {
    let gap = u64::MAX / (count as u64 / size + 1);
    many(count, |_, i| i / size * gap + i % size)
}

/// Statistics of a planned tree.
#[derive(Debug, Default)]
struct Tally {
    inner_nodes: usize,
    data_nodes: usize,
    empty_nodes: usize,
    inner_bytes: u64,
    data_bytes: u64,
    depth: usize,
    /// Inner nodes on the way to a record, over all records.
    steps: usize,
    overflowed: usize,
    in_other_line_pair: usize,
    bucket_entries: usize,
    stash: usize,
    /// Overflowed keys for which the stashes of their nodes have no room.
    extended: usize,
}

impl Tally {
    fn of(limits: NodeLimits, keys: &[u64], plan: &Plan) -> Self {
        let mut tally = Self::default();
        tally.add(limits, keys, plan, 0);
        tally
    }

    fn add(&mut self, limits: NodeLimits, keys: &[u64], plan: &Plan, depth: usize) {
        self.depth = self.depth.max(depth);
        match plan {
            Plan::Inner(inner) => {
                self.inner_nodes += 1;
                self.inner_bytes += 256 + (8 << inner.log_slots);
                for (_, child) in &inner.children {
                    self.add(limits, keys, child, depth + 1);
                }
            }
            Plan::Data(node) => {
                let keys = &keys[node.first..node.last];
                let fit = simulate_in(&node.model, keys, node.primary, limits.group_slots);
                self.data_nodes += 1;
                self.empty_nodes += usize::from(keys.is_empty());
                self.data_bytes += node.bytes;
                self.steps += keys.len() * depth;
                self.overflowed += fit.overflowed;
                self.in_other_line_pair += fit.in_other_line_pair;
                self.bucket_entries += fit.bucket_entries;
                self.stash += node.stash;
                self.extended += fit.overflowed.saturating_sub(node.stash);
            }
        }
    }

    fn print(&self, name: &str, records: usize) {
        let per_record = |count: usize| count as f64 / records.max(1) as f64;
        println!(
            "{name:20} {records:9} records: depth {:2} (mean {:.2}), {:6} data nodes ({:5} empty), {:6} inner, \
             {:5.1} + {:5.2} bytes a record, \
             overflow {:5.2} % (buckets of {:.1}, extended {:.2} %), beyond two lines {:5.2} %, stash {:4.1} %",
            self.depth,
            per_record(self.steps),
            self.data_nodes,
            self.empty_nodes,
            self.inner_nodes,
            per_record(self.data_bytes as usize),
            per_record(self.inner_bytes as usize),
            100.0 * per_record(self.overflowed),
            self.bucket_entries as f64 / self.overflowed.max(1) as f64,
            100.0 * per_record(self.extended),
            100.0 * per_record(self.in_other_line_pair),
            1600.0 * self.stash as f64 / self.data_bytes as f64,
        );
    }

    fn bytes(&self) -> u64 {
        self.inner_bytes + self.data_bytes
    }
}

/// The data node that `key` is routed to.
fn route(mut plan: &Plan, key: u64) -> &DataPlan {
    loop {
        match plan {
            Plan::Data(node) => return node,
            Plan::Inner(inner) => {
                let slot =
                    (key.saturating_sub(inner.base) >> inner.shift).min((1 << inner.log_slots) - 1);
                let child = inner
                    .children
                    .partition_point(|&(first, _)| first as u64 <= slot);
                plan = &inner.children[child - 1].1;
            }
        }
    }
}

fn check_inner(limits: NodeLimits, plan: &Plan) {
    let Plan::Inner(inner) = plan else { return };
    assert!((1..=limits.max_log_slots).contains(&inner.log_slots) && inner.shift < 64);
    assert!(inner.children.len() > 1 && inner.children[0].0 == 0);
    let ends = inner
        .children
        .iter()
        .skip(1)
        .map(|child| child.0)
        .chain([1 << inner.log_slots]);
    for ((slot, child), end) in inner.children.iter().zip(ends) {
        let size = end - slot;
        assert!(
            size.is_power_of_two() && slot.is_multiple_of(size),
            "slots {slot} to {end} are not an aligned group"
        );
        check_inner(limits, child);
    }
}

/// Checks that `plan` is a tree for exactly `keys`, with nodes that the pool can hold.
fn check(limits: NodeLimits, keys: &[u64], (low, high): (u64, u64), fill: f64, plan: &Plan) {
    check_inner(limits, plan);
    let (mut next_key, mut next_low) = (0, u128::from(low));
    let mut copy = plan.clone();
    copy.data_nodes(&mut |node| {
        assert_eq!(
            (node.first, u128::from(node.low)),
            (next_key, next_low),
            "{node:?}"
        );
        assert!(node.first <= node.last && node.low <= node.high);
        assert!(
            !(node.low == 0 && node.high == u64::MAX),
            "no key is left to mark free slots with"
        );
        (next_key, next_low) = (node.last, u128::from(node.high) + 1);
        for key in [node.low, node.high]
            .iter()
            .chain(&keys[node.first..node.last])
        {
            assert!((node.low..=node.high).contains(key));
            assert_eq!(route(plan, *key), node);
        }
        check_node(limits, fill, node);
    });
    assert_eq!((next_key, next_low), (keys.len(), u128::from(high) + 1));
}

fn check_node(limits: NodeLimits, fill: f64, node: &DataPlan) {
    assert!(node.bytes.is_power_of_two() && (512..=limits.max_data_bytes).contains(&node.bytes));
    assert_eq!(node.primary + node.stash, slots_in(node.bytes));
    assert_eq!(
        node.primary,
        model::primary_slots(node.primary, limits.group_slots)
    );
    assert!(node.stash > 0 && node.model.is_valid_for(node.primary));
    assert!((node.last - node.first) as f64 <= fill * (node.primary + node.stash) as f64);
}

#[test]
fn every_set_is_partitioned() {
    for limits in [SMALL_LIMITS, REAL_LIMITS] {
        for count in [0, 1, 2, 3, 40, 300, 5000, 40_000] {
            for (name, keys) in sets(count.max(1)) {
                let keys = if count == 0 { vec![] } else { keys };
                let plan = limits.plan_tree(&keys, (0, u64::MAX), 0.7, 1);
                check(limits, &keys, (0, u64::MAX), 0.7, &plan);
                let tally = Tally::of(limits, &keys, &plan);
                if count == 40_000 {
                    tally.print(name, keys.len());
                }
                assert!(tally.depth <= 24, "{name}: {tally:?}");
                let most = if limits.min_records == REAL_LIMITS.min_records {
                    100
                } else {
                    200
                };
                assert!(
                    tally.bytes() <= 4096 + most * keys.len() as u64,
                    "{name}: {tally:?}"
                );
            }
        }
    }
}

#[test]
fn a_subtree_covers_its_place() {
    for limits in [SMALL_LIMITS, REAL_LIMITS] {
        for (_, keys) in sets(20_000) {
            let quarter = keys.len() / 4;
            let part = &keys[quarter..3 * quarter];
            let (low, high) = (keys[quarter - 1] + 1, keys[3 * quarter] - 1);
            let plan = limits.plan_tree(part, (low, high), 0.7, 1);
            check(limits, part, (low, high), 0.7, &plan);
            let (low, high) = (part[0], part[part.len() - 1]);
            check(
                limits,
                part,
                (low, high),
                0.9,
                &limits.plan_tree(part, (low, high), 0.9, 1),
            );
            check(
                limits,
                part,
                (0, high),
                0.5,
                &limits.plan_tree(part, (0, high), 0.5, 1),
            );
            check(
                limits,
                part,
                (low, u64::MAX),
                0.5,
                &limits.plan_tree(part, (low, u64::MAX), 0.5, 1),
            );
        }
    }
}

#[test]
fn no_keys_make_two_nodes() {
    let Plan::Inner(inner) = SMALL_LIMITS.plan_tree(&[], (0, u64::MAX), 0.7, 1) else {
        panic!("one node would cover all keys")
    };
    assert_eq!(
        (
            inner.base,
            inner.shift,
            inner.log_slots,
            inner.children.len()
        ),
        (0, 63, 1, 2)
    );
    assert!(matches!(
        SMALL_LIMITS.plan_tree(&[], (0, 1 << 63), 0.7, 1),
        Plan::Data(_)
    ));
    assert!(matches!(
        SMALL_LIMITS.plan_tree(&[7], (1, u64::MAX), 0.7, 1),
        Plan::Data(_)
    ));
}

#[test]
fn few_keys_share_a_node() {
    let middle = 1 << 63;
    for keys in [
        vec![0, 1, 2],
        vec![u64::MAX - 1, u64::MAX],
        vec![middle - 1, middle],
        vec![middle - 1, 3 * (middle / 2)],
    ] {
        let plan = SMALL_LIMITS.plan_tree(&keys, (0, u64::MAX), 0.7, 1);
        let node = route(&plan, keys[0]);
        assert_eq!((node.first, node.last), (0, keys.len()), "{keys:?}");
    }
    let ends = SMALL_LIMITS.plan_tree(&[0, u64::MAX], (0, u64::MAX), 0.7, 1);
    assert_ne!(route(&ends, 0), route(&ends, u64::MAX));
}

#[test]
fn threads_do_not_change_the_plan() {
    for (name, keys) in sets(50_000) {
        for limits in [SMALL_LIMITS, REAL_LIMITS] {
            let one = limits.plan_tree(&keys, (0, u64::MAX), 0.7, 1);
            assert_eq!(
                one,
                limits.plan_tree(&keys, (0, u64::MAX), 0.7, 3),
                "{name}"
            );
        }
    }
}

#[test]
fn uniform_keys_take_little_space() {
    for count in [10_000, 100_000, 1_000_000] {
        let keys = many(count, |random, _| random.next());
        let tally = Tally::of(
            REAL_LIMITS,
            &keys,
            &REAL_LIMITS.plan_tree(&keys, (0, u64::MAX), 0.7, 2),
        );
        assert!(tally.bytes() <= 46 * count as u64, "{tally:?}");
        assert!(tally.depth == 1 && tally.overflowed * 20 < count);
    }
}

#[test]
fn nodes_are_as_a_tuning_says() {
    let limits = NodeLimits {
        max_data_bytes: 1 << 10,
        max_log_slots: 6,
        stash_ratio: Some(0.5),
        ..REAL_LIMITS
    };
    for (name, keys) in sets(20_000) {
        let mut plan = limits.plan_tree(&keys, (0, u64::MAX), 0.4, 1);
        check(limits, &keys, (0, u64::MAX), 0.4, &plan);
        plan.data_nodes(&mut |node| {
            let share = node.stash as f64 / slots_in(node.bytes) as f64;
            assert!(
                node.bytes == 512 || (0.4..0.8).contains(&share),
                "{name}: {node:?}"
            );
        });
    }
    let options = ApexOptions::default()
        .max_data_bytes(1 << 10)
        .max_inner_bytes(512)
        .stash_percent(50)
        .fill_percent(40);
    let tuned = NodeLimits::of(options, Format::Two);
    let sizes = (tuned.max_data_bytes, tuned.max_log_slots);
    assert_eq!(
        (sizes, tuned.stash_ratio, tuned.fill),
        ((1 << 10, 6), Some(0.5), 0.4)
    );
}

#[test]
fn one_data_node_takes_whatever_it_is_given() {
    for (_, keys) in sets(2000) {
        for stash_ratio in [None, Some(0.01), Some(0.2), Some(0.9)] {
            let limits = NodeLimits {
                stash_ratio,
                ..SMALL_LIMITS
            };
            for range in [0..0, 0..1, 5..300, 0..keys.len(), 0..usize::MAX] {
                let node = limits.plan_data_node(&keys, range, (0, u64::MAX - 1), 0.7);
                assert!(
                    node.bytes <= MAX_DATA_BYTES
                        && node.model.is_valid_for(node.primary)
                        && node.stash > 0
                );
                let most = stash_ratio.unwrap_or(0.3) * slots_in(node.bytes) as f64;
                assert!(node.stash as f64 <= most + 20.0);
            }
        }
    }
}

#[test]
fn strange_arguments_do_not_panic() {
    for fill in [f64::NAN, -1.0, 0.0, 1.0, f64::INFINITY] {
        let plan = SMALL_LIMITS.plan_tree(&many(1000, |random, _| random.next()), (5, 3), fill, 1);
        assert!(matches!(plan, Plan::Inner(_)));
    }
    SMALL_LIMITS.plan_tree(&[7; 1000], (0, u64::MAX), 0.7, 1);
}

/// Keys as adversaries and users choose them: wide, dense, or clustered.
fn any_keys() -> impl Strategy<Value = Vec<u64>> {
    let shapes = (any::<u64>(), 0u32..64).prop_map(|(bits, shift)| bits >> shift);
    let near = (0u64..4, 0u64..300).prop_map(|(cluster, at)| (cluster << 62).wrapping_sub(at));
    btree_set(prop_oneof![any::<u64>(), shapes, near], 0..1000)
        .prop_map(|set| set.into_iter().collect())
}

proptest! {
    #[test]
    fn any_keys_are_partitioned(keys in any_keys(), low: u64, high: u64, fill in 0.1..0.9, threads in 1usize..3) {
        let all = (0, u64::MAX);
        check(SMALL_LIMITS, &keys, all, fill, &SMALL_LIMITS.plan_tree(&keys, all, fill, threads));
        check(REAL_LIMITS, &keys, all, fill, &REAL_LIMITS.plan_tree(&keys, all, fill, threads));
        let (low, high) = (low.min(high), low.max(high));
        let within: Vec<u64> = keys.into_iter().filter(|key| (low..=high).contains(key)).collect();
        check(SMALL_LIMITS, &within, (low, high), fill, &SMALL_LIMITS.plan_tree(&within, (low, high), fill, threads));
    }
}

/// `cargo test --profile ci -p indelible --lib apex::plan -- --ignored --nocapture shapes`
#[test]
#[ignore = "a measurement"]
fn shapes_of_large_trees() {
    let count = std::env::var("RECORDS").map_or(10_000_000, |text| text.parse().expect("a number"));
    for (name, keys) in sets(count) {
        let mut times = [0.0; 2];
        for threads in [1, 2] {
            let start = Instant::now();
            let plan =
                std::hint::black_box(REAL_LIMITS.plan_tree(&keys, (0, u64::MAX), 0.7, threads));
            times[threads - 1] = start.elapsed().as_secs_f64();
            if threads == 2 {
                Tally::of(REAL_LIMITS, &keys, &plan).print(name, keys.len());
            }
        }
        println!(
            "{:20} {:.0} ns a record, {:.0} with two threads",
            "",
            1e9 * times[0] / keys.len() as f64,
            1e9 * times[1] / keys.len() as f64
        );
    }
}

/// Figure 10 of the paper: how many keys would overflow if a window had more or fewer line pairs than two, and how many
/// line pairs a lookup would read before the stash. `cargo test --profile ci -p indelible --lib apex::plan -- --ignored --nocapture distance`
#[test]
#[ignore = "a measurement"]
fn overflow_by_probing_distance() {
    let count = std::env::var("RECORDS").map_or(1_000_000, |text| text.parse().expect("a number"));
    let lognormal = sets(count)
        .into_iter()
        .find(|(name, _)| *name == "lognormal");
    let [longitudes, longlat] = places(count);
    let sets = lognormal
        .into_iter()
        .chain([("longitudes", longitudes), ("longlat", longlat)]);
    for (name, keys) in sets {
        for fill in [0.7, UPPER_DENSITY] {
            let mut plan = REAL_LIMITS.plan_tree(&keys, (0, u64::MAX), fill, 2);
            for pairs in [1, 2, 4, 8, 16] {
                let (mut overflowed, mut read) = (0, 0);
                plan.data_nodes(&mut |node| {
                    let (beyond, pairs) = probed(node, &keys[node.first..node.last], pairs);
                    overflowed += beyond;
                    read += pairs;
                });
                println!(
                    "{name:12} nodes up to {:.0} % full, {:3} slots: {:6.2} % overflow, {:.2} line pairs per lookup",
                    fill * 100.0,
                    pairs * model::LINE_PAIR_SLOTS,
                    100.0 * overflowed as f64 / keys.len() as f64,
                    read as f64 / keys.len() as f64
                );
            }
        }
    }
}

/// How many keys of a data node overflow if each may lie in `window` line pairs of its group and they are inserted in a
/// random order, and how many line pairs are read if each key is looked up once.
fn probed(node: &DataPlan, keys: &[u64], window: usize) -> (usize, usize) {
    let pairs = node.primary / model::LINE_PAIR_SLOTS;
    let mut taken = vec![0; pairs];
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_unstable_by_key(|&at| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let (mut overflowed, mut read) = (0, 0);
    for at in order {
        let predicted = node.model.predict(keys[at]) / model::LINE_PAIR_SLOTS;
        let group = predicted / (REAL_LIMITS.group_slots / model::LINE_PAIR_SLOTS)
            * (REAL_LIMITS.group_slots / model::LINE_PAIR_SLOTS);
        let end = (group + REAL_LIMITS.group_slots / model::LINE_PAIR_SLOTS).min(pairs);
        let first = predicted.min(end.saturating_sub(window).max(group));
        let others = (first..end.min(first + window)).filter(|&pair| pair != predicted);
        let free = std::iter::once(predicted)
            .chain(others)
            .zip(1..)
            .find(|&(pair, _)| taken[pair] < model::LINE_PAIR_SLOTS);
        if let Some((pair, _)) = free {
            taken[pair] += 1;
        }
        overflowed += usize::from(free.is_none());
        read += free.map_or(window, |(_, read)| read);
    }
    (overflowed, read)
}

/// Keys as `longitudes` and `lon-lat` of the bench.
fn places(count: usize) -> [Vec<u64>; 2] {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/cities.csv");
    let text = std::fs::read_to_string(file).expect("the places");
    let place = |line: &str| {
        let mut cells = line.split(',').map(|cell| cell.parse::<f64>().ok());
        let (latitude, longitude) = (cells.next()??, cells.next()??);
        Some((longitude, latitude))
    };
    let places: Vec<(f64, f64)> = text.lines().filter_map(place).collect();
    let keys: [fn(f64, f64) -> f64; 2] = [
        |longitude, _| longitude,
        |longitude, latitude| 180.0 * longitude.floor() + latitude,
    ];
    keys.map(|key| {
        many(count, |random, i| {
            let (longitude, latitude) = places[i as usize % places.len()];
            let mut near = |degrees: f64| ((degrees + 0.05 * random.normal()) * 1e7).round() / 1e7;
            let key = key(near(longitude), near(latitude));
            key.encode().expect("a place is a number")
        })
    })
}
