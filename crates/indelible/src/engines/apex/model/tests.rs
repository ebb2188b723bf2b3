use super::*;
use proptest::collection::btree_set;
use proptest::prelude::*;

/// Random numbers without a crate: splitmix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn sorted(mut keys: Vec<u64>) -> Vec<u64> {
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn random_keys(count: usize) -> Vec<u64> {
    let mut state = 1;
    sorted((0..count).map(|_| random(&mut state)).collect())
}

/// Key sets that have broken models elsewhere.
fn hard_sets() -> Vec<Vec<u64>> {
    let top = 1 << 63;
    vec![
        vec![],
        vec![0],
        vec![u64::MAX],
        vec![0, u64::MAX],
        vec![top, top + 1],
        vec![u64::MAX - 1, u64::MAX],
        (0..1000).map(|i| top + i).collect(),
        (0..1000).map(|i| u64::MAX - 999 + i).collect(),
        (0..1000).collect(),
        (0..64).map(|i| 1 << i).collect(),
        (0..1000).map(|i| i * i).collect(),
        (0..1000).chain([u64::MAX]).collect(),
        [0].into_iter()
            .chain((0..1000).map(|i| u64::MAX - 999 + i))
            .collect(),
        random_keys(1000),
    ]
}

fn check(model: &Model, slots: usize) {
    assert!(model.is_valid_for(slots), "{model:?} for {slots}");
    let edges = [
        0,
        1,
        model.base,
        model.base.saturating_add(model.limit),
        1 << 63,
        u64::MAX,
    ];
    for key in edges
        .iter()
        .flat_map(|&edge| [edge.wrapping_sub(1), edge, edge.wrapping_add(1)])
    {
        assert!(model.predict(key) < slots);
    }
    for predicted in (0..=slots).step_by((slots / 50).max(1)) {
        check_first_key(model, predicted);
    }
}

fn check_first_key(model: &Model, predicted: usize) {
    match model.first_key_of(predicted) {
        Some(key) => {
            assert!(
                model.predict(key) >= predicted,
                "{model:?}: {key} is predicted before slot {predicted}"
            );
            assert!(
                key == 0 || model.predict(key - 1) < predicted,
                "{model:?}: {key} is not the first key of slot {predicted}"
            );
        }
        None => assert!(
            model.predict(u64::MAX) < predicted,
            "{model:?}: slot {predicted} has a key"
        ),
    }
}

#[test]
fn models_of_hard_sets_are_valid() {
    for keys in hard_sets() {
        let (first, last) = (
            keys.first().copied().unwrap_or(7),
            keys.last().copied().unwrap_or(9),
        );
        for slots in [16, 20, 700, 1432, MAX_PRIMARY_SLOTS - 4, MAX_PRIMARY_SLOTS] {
            for (low, high) in [
                (0, u64::MAX),
                (first, last),
                (first / 2, last),
                (first, last.max(u64::MAX / 2)),
            ] {
                check(&Model::fit(&keys, slots, low, high), slots);
            }
            for density in [0.0, 0.5, 0.9, 2.0] {
                check(&Model::fit_append(&keys, slots, density), slots);
            }
        }
    }
}

#[test]
fn a_node_of_one_key_is_valid() {
    for key in [0, 1, 1 << 63, u64::MAX] {
        check(&Model::fit(&[key], 24, key, key), 24);
        check(&Model::fit(&[], 24, key, key), 24);
    }
}

#[test]
fn without_keys_predicted_slots_are_spread() {
    let model = Model::fit(&[], 16, 0, u64::MAX);
    assert_eq!(
        (0..16).map(|i| model.predict(i << 60)).collect::<Vec<_>>(),
        (0..16).collect::<Vec<_>>()
    );
    let model = Model::fit(&[1007], 16, 1000, 1015);
    assert_eq!(model.predict(1007), 7);
}

#[test]
fn dense_keys_fill_all_slots_evenly() {
    for start in [0, 1 << 40, 1 << 63, u64::MAX - 5000] {
        let keys: Vec<u64> = (0..5000).map(|i| start + i).collect();
        let model = Model::fit(&keys, 10_000, 0, u64::MAX);
        for (rank, &key) in keys.iter().enumerate() {
            assert!(model.predict(key).abs_diff(rank * 2) <= 1);
        }
        assert_eq!(simulate(&model, &keys, 10_000), Fit::default());
    }
}

#[test]
fn keys_beyond_the_last_go_on_with_its_slope() {
    let keys: Vec<u64> = (0..1000).map(|i| 5000 + 10 * i).collect();
    let model = Model::fit_append(&keys, 2000, 0.9);
    for rank in 0..1700 {
        let predicted = rank as f64 / 0.9;
        assert!((model.predict(5000 + 10 * rank) as f64 - predicted).abs() <= 2.0);
    }
    assert_eq!(model.predict(u64::MAX), 1999);
    // With more keys than the density allows, the keys fill the whole array.
    let model = Model::fit_append(&keys, 1000, 0.9);
    assert!(model.predict(5000 + 9990) >= 998);
}

#[test]
fn words_that_mislead_are_refused() {
    let good = Model::fit(&random_keys(1000), 1432, 0, u64::MAX);
    let words = [good.base, good.limit, good.mult, good.bias];
    assert_eq!(Model::from_words(words, good.left_shift, 1432), Some(good));
    assert_eq!(Model::from_words(words, good.left_shift, 1400), None);
    assert_eq!(Model::from_words(words, good.left_shift, 0), None);
    assert_eq!(Model::from_words(words, 64, 1432), None);
    assert_eq!(
        Model::from_words([good.base, u64::MAX, good.mult, u64::MAX], 1, 1432),
        None
    );
    assert_eq!(
        Model::from_words([0, u64::MAX, u64::MAX, u64::MAX], 0, MAX_PRIMARY_SLOTS),
        None
    );
}

#[test]
fn the_last_group_has_room_for_a_window() {
    for slots in 0..2000 {
        let primary = primary_slots(slots, 64);
        assert!(primary.is_multiple_of(LINE_PAIR_SLOTS) && primary >= WINDOW_SLOTS);
        assert!(
            primary <= slots.max(WINDOW_SLOTS) && primary + WINDOW_SLOTS + LINE_PAIR_SLOTS > slots
        );
        assert!(primary.is_multiple_of(64) || primary % 64 >= WINDOW_SLOTS);
    }
}

/// Inserts keys slot by slot, in a random order, as inserts into a data node choose slots.
fn insert_all(model: &Model, keys: &[u64], slots: usize, group: usize) -> Fit {
    let mut order: Vec<u64> = keys.to_vec();
    let mut state = 99;
    for i in (1..order.len()).rev() {
        order.swap(i, random(&mut state) as usize % (i + 1));
    }
    let mut taken = vec![false; slots];
    let mut buckets = vec![0usize; slots.div_ceil(16)];
    let mut fit = Fit::default();
    for key in order {
        let predicted = model.predict(key);
        let group_end = ((predicted / group + 1) * group).min(slots);
        let start = (predicted / LINE_PAIR_SLOTS * LINE_PAIR_SLOTS).min(group_end - WINDOW_SLOTS);
        let predicted_pair = predicted / LINE_PAIR_SLOTS - start / LINE_PAIR_SLOTS;
        let in_pair =
            |pair: usize| start + pair * LINE_PAIR_SLOTS..start + (pair + 1) * LINE_PAIR_SLOTS;
        let found = (0..2).find_map(|step| {
            let pair = in_pair((predicted_pair + step) % 2);
            let from_predicted = pair.clone().filter(|&slot| slot >= predicted);
            from_predicted
                .chain(pair)
                .find(|&slot| !taken[slot])
                .map(|slot| (step, slot))
        });
        match found {
            Some((step, slot)) => {
                taken[slot] = true;
                fit.in_other_line_pair += step;
            }
            None => {
                fit.overflowed += 1;
                buckets[predicted / 16] += 1;
            }
        }
    }
    fit.bucket_entries = buckets.iter().map(|bucket| bucket * bucket).sum();
    fit
}

#[test]
fn the_simulation_is_close_to_inserting() {
    let clustered = (0..100).flat_map(|i| (0..100).map(move |j| (i << 32) + (j << 16)));
    let sets = [
        random_keys(10_000),
        clustered.collect(),
        (0..10_000).map(|i| i * i).collect(),
    ];
    for keys in sets {
        for density in [0.5, 0.7, 0.9, 1.0] {
            for group in [128, 256] {
                let slots = primary_slots((keys.len() as f64 / density) as usize, group);
                let model = Model::fit(&keys, slots, 0, u64::MAX);
                let real = insert_all(&model, &keys, slots, group);
                let guess = simulate_in(&model, &keys, slots, group);
                println!("density {density} group {group}: {real:?} {guess:?}");
                let near = |a: usize, b: usize| a.abs_diff(b) <= keys.len() / 30;
                assert!(near(real.overflowed, guess.overflowed));
                assert!(near(real.in_other_line_pair, guess.in_other_line_pair));
                assert!(
                    guess.bucket_entries.abs_diff(real.bucket_entries)
                        <= 100 + real.bucket_entries / 3
                );
            }
        }
    }
}

#[test]
fn a_misleading_model_does_not_panic() {
    let keys = random_keys(100);
    let model = Model::fit(&keys, 1000, 0, u64::MAX);
    assert!(simulate(&model, &keys, 16).overflowed >= 84);
    assert_eq!(simulate(&model, &[], 16), Fit::default());
}

#[test]
#[ignore = "a measurement"]
fn speed() {
    let keys = random_keys(10_000);
    let model = Model::fit(&keys, 14_000, 0, u64::MAX);
    let start = std::time::Instant::now();
    for _ in 0..1000 {
        std::hint::black_box(simulate_in(
            &model,
            std::hint::black_box(&keys),
            14_000,
            256,
        ));
    }
    println!(
        "simulate: {:.2} ns per key",
        start.elapsed().as_nanos() as f64 / 1e7
    );
    let start = std::time::Instant::now();
    for predicted in 0..10_000 {
        std::hint::black_box(model.first_key_of(std::hint::black_box(predicted)));
    }
    println!(
        "first_key_of: {:.2} ns",
        start.elapsed().as_nanos() as f64 / 1e4
    );
}

/// Keys as adversaries and users choose them: wide, dense, or clustered.
fn any_keys() -> impl Strategy<Value = Vec<u64>> {
    let shapes = (any::<u64>(), 0u32..64).prop_map(|(bits, shift)| bits >> shift);
    let near = (0u64..4, 0u64..50).prop_map(|(cluster, at)| (cluster << 62) | at);
    btree_set(prop_oneof![any::<u64>(), shapes, near], 0..200)
        .prop_map(|set| set.into_iter().collect())
}

proptest! {
    #[test]
    fn any_model_is_valid_and_monotone(
        keys in any_keys(),
        slots in 4usize..=MAX_PRIMARY_SLOTS / 4,
        low: u64,
        high: u64,
        density in 0.0..1.5,
    ) {
        let slots = slots * 4;
        let low = low.min(keys.first().copied().unwrap_or(low)).min(high);
        let high = high.max(keys.last().copied().unwrap_or(high));
        for model in [Model::fit(&keys, slots, low, high), Model::fit_append(&keys, slots, density)] {
            check(&model, slots);
            prop_assert!(keys.windows(2).all(|pair| model.predict(pair[0]) <= model.predict(pair[1])));
            for &key in &keys {
                check_first_key(&model, model.predict(key));
            }
        }
    }

    #[test]
    fn words_of_any_kind_do_not_overflow(
        words: [u64; 4],
        shift in 0u32..64,
        left_shift in 0u32..70,
        slots in 0usize..20_000,
        key: u64,
    ) {
        let [base, limit, mult, bias] = words;
        if let Some(model) = Model::from_words([base, limit >> shift, mult >> shift, bias >> 2], left_shift, slots) {
            prop_assert!(model.predict(key) < slots);
            check(&model, slots);
        }
    }
}
