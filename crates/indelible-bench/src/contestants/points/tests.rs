//! One contract for all spatial contestants, compared with a list of points.

use crate::contestants::{Contestant, Place, all, entrant, name_of_spatial};
use crate::data::points::{self, Point, point};
use crate::data::{Source, generate};
use crate::index::Index;
use crate::plan::Mix;
use crate::workload::value_of;
use indelible::SpatialKind;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use std::collections::HashMap;
use tempfile::TempDir;

/// Points of the tests.
const POINTS: usize = 1500;

fn spatial() -> impl Iterator<Item = Contestant> {
    all()
        .into_iter()
        .filter(|contestant| contestant.points.is_some())
}

fn is_mutable(contestant: &Contestant) -> bool {
    contestant.can(&Mix::INSERT)
}

/// A directory, a new index in it, and its points, which are loaded as a job loads them.
fn loaded(contestant: &Contestant) -> (TempDir, Place, Box<dyn Index>, Vec<u64>) {
    let directory = tempfile::tempdir().expect("a directory");
    let place = contestant.place(directory.path().to_owned());
    let index = (contestant.create)(&place).expect("an index");
    let source: Source = "points:cities".parse().expect("a source");
    let mut keys = generate(&source, POINTS, 1).expect("points");
    keys.shuffle(&mut SmallRng::seed_from_u64(3));
    let records: Vec<_> = keys.iter().map(|&key| (key, value_of(key))).collect();
    let loads_at_once = contestant
        .points
        .as_ref()
        .is_some_and(|of| of.loads_at_once);
    if loads_at_once {
        assert!(index.bulk_load(&records, 1.0), "{}", contestant.name);
    } else {
        let (some, others) = records.split_at(POINTS / 2);
        index.insert_batch(some);
        others
            .iter()
            .for_each(|&(key, value)| index.insert(key, value));
    }
    (directory, place, index, keys)
}

/// Everything that is found in windows and near points is what a look at all points finds.
fn compare(contestant: &Contestant, index: &dyn Index, keys: &[u64]) {
    let name = &contestant.name;
    let by_value: HashMap<u64, u64> = keys.iter().map(|&key| (value_of(key), key)).collect();
    let mut random = SmallRng::seed_from_u64(5);
    for side in [0, 1_000_000, 50_000_000, u32::MAX] {
        for _ in 0..20 {
            let centre = keys[random.random_range(0..keys.len())];
            if contestant.can(&Mix::WINDOW) {
                let (low, high) = points::window(centre, side);
                let mut found = vec![1];
                index.window(low, high, &mut found);
                assert_eq!(found.remove(0), 1, "{name} appends");
                found.sort_unstable();
                assert_eq!(found, inside(keys, low, high), "{name}: {low:?} {high:?}");
            }
            let from = points::beside(centre, side);
            let nearest = sorted_distances(keys, from);
            for count in [1, 10, 2 * POINTS] {
                let mut found = Vec::new();
                index.nearest(from, count, &mut found);
                assert_eq!(
                    distances(&by_value, &found, from),
                    nearest[..count.min(nearest.len())],
                    "{name}"
                );
            }
        }
    }
    for &key in keys {
        assert_eq!(index.get(key), Some(value_of(key)), "{name}: {key}");
        assert_eq!(index.get(key ^ 1 << 20), None, "{name}: {key}");
    }
}

/// The values of the points in a window, ascending.
fn inside(keys: &[u64], low: Point, high: Point) -> Vec<u64> {
    let is_inside = |key: &&u64| {
        let [x, y] = point(**key);
        low[0] <= x && x <= high[0] && low[1] <= y && y <= high[1]
    };
    let mut values: Vec<u64> = keys
        .iter()
        .filter(is_inside)
        .map(|&key| value_of(key))
        .collect();
    values.sort_unstable();
    values
}

fn distance(key: u64, [x, y]: Point) -> f64 {
    let place = point(key);
    (place[0] - x).powi(2) + (place[1] - y).powi(2)
}

/// The distances of the points with these values, in their order. `keys` has the point of each value.
fn distances(keys: &HashMap<u64, u64>, values: &[u64], from: Point) -> Vec<f64> {
    let distance = |value| distance(*keys.get(value).expect("a point that is there"), from);
    values.iter().map(distance).collect()
}

fn sorted_distances(keys: &[u64], from: Point) -> Vec<f64> {
    let mut distances: Vec<f64> = keys.iter().map(|&key| distance(key, from)).collect();
    distances.sort_by(f64::total_cmp);
    distances
}

#[test]
fn all_find_what_a_look_at_all_points_finds() {
    for contestant in spatial() {
        let (_directory, _place, index, mut keys) = loaded(&contestant);
        compare(&contestant, &*index, &keys);
        if !is_mutable(&contestant) {
            continue;
        }
        let name = &contestant.name;
        for gone in keys.split_off(POINTS * 2 / 3) {
            assert!(index.remove(gone), "{name}: {gone}");
            assert!(!index.remove(gone), "{name}: {gone}");
            assert!(!index.update(gone, 7), "{name}: {gone}");
        }
        for &key in &keys[..100] {
            assert!(index.update(key, !value_of(key)), "{name}: {key}");
            assert_eq!(index.get(key), Some(!value_of(key)), "{name}: {key}");
        }
        for &key in &keys[..50] {
            assert!(index.update(key, value_of(key)), "{name}: {key}");
            assert!(index.update(key, value_of(key)), "{name}: {key}");
        }
        for gone in keys.drain(50..100) {
            assert!(index.remove(gone), "{name}: an updated record");
        }
        compare(&contestant, &*index, &keys);
    }
}

#[test]
fn bulk_loads_take_points_in_any_order() {
    for contestant in spatial().filter(is_mutable) {
        let directory = tempfile::tempdir().expect("a directory");
        let index = (contestant.create)(&contestant.place(directory.path().to_owned()));
        let index = index.expect("an index");
        let (_, _, _, mut keys) = loaded(&contestant);
        let more = keys.split_off(POINTS - 100);
        let records: Vec<_> = keys.iter().map(|&key| (key, value_of(key))).collect();
        assert!(index.bulk_load(&records, 0.7), "{}", contestant.name);
        more.iter()
            .for_each(|&key| index.insert(key, value_of(key)));
        keys.extend(more);
        compare(&contestant, &*index, &keys);
    }
}

#[test]
fn what_was_closed_is_there_when_it_is_opened_again() {
    for contestant in spatial() {
        let Some(open) = contestant.open else {
            continue;
        };
        let (_directory, place, index, keys) = loaded(&contestant);
        drop(index);
        let index = open(&place).expect("an index");
        compare(&contestant, &*index, &keys);
        let statistics = index.statistics().map(|statistics| statistics.records);
        let expected = contestant.is_ours().then_some(POINTS as u64);
        assert_eq!(statistics, expected, "{}", contestant.name);
    }
}

#[test]
fn every_kind_has_three_contestants_with_any_options() {
    for &kind in SpatialKind::all() {
        for ending in ["", "-dram", "-pmem"] {
            let name = format!("{}{ending}", name_of_spatial(kind));
            let contestant = entrant(&name).expect("a contestant");
            assert_eq!(contestant.spatial(), Some(&kind.into()), "{name}");
            assert!(contestant.is_ours());
            assert!(entrant(&format!("{name}@nonsense=1")).is_err());
        }
    }
    let lonlat = entrant("indelible-hilbert@coordinates=lonlat").expect("a contestant");
    let options = lonlat.spatial().expect("options");
    assert_eq!(options.get("coordinates").as_deref(), Some("lonlat"));
}

#[test]
fn contestants_take_part_in_what_they_can_do() {
    let can = |name: &str, mix: &Mix| entrant(name).expect("a contestant").can(mix);
    assert!(!can("indelible", &Mix::WINDOW) && can("indelible-hilbert", &Mix::WINDOW));
    assert!(!can("indelible-hilbert", &Mix::SCAN));
    let points: Source = "points:uniform".parse().expect("a source");
    for contestant in all() {
        let suits = contestant.check_data(&points).is_ok();
        assert_eq!(suits, contestant.points.is_some(), "{}", contestant.name);
        assert_ne!(suits, contestant.check_data(&Source::Dense).is_ok());
    }
    #[cfg(feature = "peers")]
    for (name, mix, expected) in [
        ("kiddo", Mix::WINDOW, false),
        ("kiddo", Mix::NEAREST, true),
        ("geo-index", Mix::WINDOW, true),
        ("geo-index", Mix::INSERT, false),
        ("rstar-bulk", Mix::window_and_changes(0.5), true),
        ("rstar", Mix::INSERT_BATCH, false),
    ] {
        assert_eq!(can(name, &mix), expected, "{name} {mix:?}");
    }
}
