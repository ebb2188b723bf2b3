//! What may be chosen about APEX is recorded with the map, and obeyed.

use indelible::{ApexOptions, Error, Map, MapOptions, Pool};

fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

#[test]
fn a_tuning_is_recorded_and_obeyed_after_the_next_open() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tuned.pool");
    let apex = ApexOptions::default()
        .max_data_bytes(4 << 10)
        .max_inner_bytes(1 << 10)
        .stash_percent(20)
        .fill_percent(50);
    let pool = Pool::create(&path).unwrap();
    let map: Map<u64, u64> = pool.map_with("tuned", apex).unwrap();
    (0..50_000).for_each(|i| assert_eq!(map.insert(mix(i), i).unwrap(), None));
    drop((map, pool));
    let pool = Pool::open(&path).unwrap();
    assert_eq!(pool.maps()[0].options, apex.into());
    // Other options are refused, unless any will do.
    let other = MapOptions::from(ApexOptions::default());
    let refused = pool.map_with::<u64, u64>("tuned", other.clone());
    assert!(matches!(refused, Err(Error::OtherOptions { .. })));
    let map: Map<u64, u64> = pool.map_with("tuned", other.accept_any(true)).unwrap();
    (50_000..200_000).for_each(|i| assert_eq!(map.insert(mix(i), i).unwrap(), None));
    let stat = map.stat().unwrap();
    let fact = |name| stat.fact(name).unwrap().value.as_f64();
    assert_eq!(fact("largest-node"), 4096.0);
    assert!((0.18..0.24).contains(&fact("stash-share")), "{stat:?}");
    assert!(fact("max-depth") > 2.0, "{stat:?}");
    assert_eq!(map.check().unwrap(), [""; 0]);
}

#[test]
fn nonsense_is_refused_and_leaves_no_map() {
    let pool = Pool::in_memory().unwrap();
    let apex = ApexOptions::default().max_data_bytes(16 << 20);
    let refused = pool.map_with::<u64, u64>("nonsense", apex);
    assert!(matches!(refused, Err(Error::BadOption(_))));
    assert!(pool.maps().is_empty());
}

#[test]
fn the_ends_of_what_may_be_chosen_work_on_hard_keys() {
    let sets: [fn(u64) -> u64; 3] = [
        mix,
        |i| i * i * i,
        // Dense runs, far apart.
        |i| ((i % 97) << 40) | (i / 97),
    ];
    for key in sets {
        for (stash_percent, max_data_bytes) in [(1, 1 << 10), (1, 256 << 10), (90, 256 << 10)] {
            let apex = ApexOptions::default()
                .max_data_bytes(max_data_bytes)
                .max_inner_bytes(512)
                .stash_percent(stash_percent)
                .fill_percent(80);
            let pool = Pool::in_memory().unwrap();
            let map: Map<u64, u64> = pool.map_with("ends", apex).unwrap();
            (0..30_000).for_each(|i| assert_eq!(map.insert(key(i), i).unwrap(), None));
            assert!((0..30_000).all(|i| map.get(key(i)).unwrap() == Some(i)));
            (0..29_000).for_each(|i| assert_eq!(map.remove(key(i)).unwrap(), Some(i)));
            assert_eq!(map.check().unwrap(), [""; 0]);
            assert_eq!(map.len().unwrap(), 1000);
        }
    }
}
