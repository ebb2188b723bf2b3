//! Searches while other threads write: what is there throughout is found exactly once, and a record that moves is in one place.

use indelible::{Box2, Point2, Pool, Spatial, SpatialKind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Records that nobody touches: payloads below this.
const STILL: u64 = 2_000;
/// Records that are moved from place to place, each by one thread: payloads from here on.
const MOVING: u64 = 1_000_000;
const MOVERS: u64 = 64;
const WRITERS: u64 = 3;
/// How often a reader searches, at least.
const SEARCHES: u64 = 200;
/// Rounds of the writers that searches go on beside, at least: they have begun, and do not come to an end between two searches.
const ROUNDS: u64 = 1_000;

fn square(low: f64, high: f64) -> Box2 {
    Box2::new(Point2::new(low, low), Point2::new(high, high))
}

/// A number from 0 to below 1 that looks random.
fn spread(number: u64) -> f64 {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1_u64 << 53) as f64
}

fn place(number: u64) -> Point2 {
    Point2::new(spread(number) * 100.0, spread(number ^ 0xffff_0000) * 100.0)
}

/// Inserts and removes records of its own, and moves those of its movers, until told to stop. Counts the rounds.
fn write(spatial: &Spatial<Point2>, writer: u64, stop: &AtomicBool, rounds: &AtomicU64) {
    let own = |round: u64| (place(round * WRITERS + writer), 10_000 + writer);
    let movers = (0..MOVERS).filter(|mover| mover % WRITERS == writer);
    let mut movers: Vec<(u64, u64)> = movers.map(|mover| (mover, mover)).collect();
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        let (shape, payload) = own(round);
        spatial.insert(shape, payload).unwrap();
        if round >= 500 {
            let (shape, payload) = own(round - 500);
            assert!(spatial.remove(shape, payload).unwrap());
        }
        let at = round as usize % movers.len();
        let (mover, from) = movers[at];
        let to = from + MOVERS * (round % 7 + 1);
        let moved = spatial.relocate(MOVING + mover, place(from), place(to));
        assert!(moved.unwrap());
        movers[at].1 = to;
        round += 1;
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

/// Searches while `goes_on` says so of a round, and looks for what must be there.
fn read(spatial: &Spatial<Point2>, reader: u64, goes_on: impl Fn(&u64) -> bool) {
    let everything = square(-1.0, 101.0);
    for round in (0..).take_while(goes_on) {
        let found = spatial.intersecting(everything).unwrap();
        let mut payloads: Vec<u64> = found.map(|record| record.payload).collect();
        payloads.retain(|payload| *payload < STILL || *payload >= MOVING);
        payloads.sort_unstable();
        let wanted = (0..STILL).chain(MOVING..MOVING + MOVERS);
        assert!(
            payloads.iter().copied().eq(wanted),
            "{} of them",
            payloads.len()
        );

        let low = spread(round ^ reader << 32) * 80.0;
        let window = square(low, low + 20.0);
        let is_in = |at: Point2| {
            let edges = low..=low + 20.0;
            edges.contains(&at.x) && edges.contains(&at.y)
        };
        let wanted: Vec<u64> = (0..STILL).filter(|still| is_in(place(*still))).collect();
        let found = spatial.intersecting(window).unwrap();
        let mut payloads: Vec<u64> = found.map(|record| record.payload).collect();
        payloads.retain(|payload| *payload < STILL);
        payloads.sort_unstable();
        assert_eq!(payloads, wanted);

        let nearest = spatial.nearest(Point2::new(low, 50.0)).unwrap();
        let mut nearest: Vec<(f64, u64)> = nearest
            .within(30.0)
            .unwrap()
            .map(|found| found.map(|(distance, of)| (distance, of.payload)).unwrap())
            .collect();
        assert!(nearest.is_sorted_by(|a, b| a.0 <= b.0));
        nearest.retain(|(_, payload)| *payload < STILL);
        let distance = |still: u64| (place(still).x - low).hypot(place(still).y - 50.0);
        let wanted = (0..STILL).filter(|still| distance(*still) < 29.999).count();
        assert!(nearest.len() >= wanted);
        let mut payloads: Vec<u64> = nearest.iter().map(|(_, payload)| *payload).collect();
        payloads.sort_unstable();
        payloads.dedup();
        assert_eq!(payloads.len(), nearest.len(), "none comes twice");
    }
}

#[test]
fn searches_beside_writers_find_what_is_there_exactly_once() {
    for &kind in SpatialKind::all() {
        let pool = Pool::in_memory().unwrap();
        let spatial = pool.spatial_with::<Point2>("s", kind).unwrap();
        for still in 0..STILL {
            spatial.insert(place(still), still).unwrap();
        }
        for mover in 0..MOVERS {
            spatial.insert(place(mover), MOVING + mover).unwrap();
        }
        let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
        let (reading, writing) = (AtomicU64::new(2), AtomicU64::new(WRITERS));
        // Writers that have all failed end the test too.
        let goes_on = |round: &u64| {
            let is_enough = *round >= SEARCHES && rounds.load(Ordering::Relaxed) >= ROUNDS;
            !is_enough && !stop.load(Ordering::Relaxed)
        };
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (spatial, stop, rounds) = (&spatial, &stop, &rounds);
                let running = &writing;
                scope.spawn(move || {
                    let _last = Last { stop, running };
                    write(spatial, writer, stop, rounds);
                });
            }
            for reader in 0..2 {
                let (spatial, stop, running) = (&spatial, &stop, &reading);
                scope.spawn(move || {
                    // Also if the reader finds something wrong, so that the test ends.
                    let _last = Last { stop, running };
                    read(spatial, reader, goes_on);
                });
            }
        });
        assert_eq!(spatial.check().unwrap(), [""; 0]);
    }
}

/// The last reader to end, or the last writer, stops all.
struct Last<'a> {
    stop: &'a AtomicBool,
    running: &'a AtomicU64,
}

impl Drop for Last<'_> {
    fn drop(&mut self) {
        if self.running.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// Number `number`, below 2^24, of the payloads whose records at `place` have one place among equals in the index: the first 40 bits of their hashes are
/// equal. The hash is that of `Record::tie` of the library, and each of its steps is undone here.
fn payload_of_one_hash(place: Point2, number: u64) -> u64 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    // Each step of Newton's doubles the bits that are right.
    let inverse = (0..6).fold(1_u64, |inverse, _| {
        inverse.wrapping_mul(2_u64.wrapping_sub(MULTIPLIER.wrapping_mul(inverse)))
    });
    let fold = |word: u64| word ^ word >> 32;
    let mix = |hash: u64, word: u64| fold((hash ^ word).wrapping_mul(MULTIPLIER));
    let hash = 0x1234_5678_9a00_0000 | number;
    let payload = fold(hash).wrapping_mul(inverse)
        ^ [place.x, place.y]
            .iter()
            .fold(0, |hash, x| mix(hash, x.to_bits()));
    let coordinates = [place.x.to_bits(), place.y.to_bits()];
    let words = coordinates.into_iter().chain([payload]);
    assert_eq!(words.fold(0, mix), hash);
    payload
}

/// Records whose keys are equal fill several leaves, which are looked through one after the other. Others come and go among them, so that these
/// leaves are split and merged all the time.
#[test]
fn records_of_one_key_are_found_beside_leaves_that_are_split_and_merged() {
    const LOOKS: u64 = 300_000;
    let pool = Pool::in_memory().unwrap();
    let spatial = pool.spatial::<Point2>("s").unwrap();
    // So that the index has a grid.
    for number in 0..500 {
        spatial.insert(place(number), number).unwrap();
    }
    let here = Point2::new(7.5, 7.5);
    let payload = |number: u64| payload_of_one_hash(here, number);
    let looking = AtomicU64::new(2);
    thread::scope(|scope| {
        for looker in 0..2 {
            let (spatial, looking) = (&spatial, &looking);
            scope.spawn(move || {
                let _last = Leaves(looking);
                let mine = payload(looker);
                for look in 0..LOOKS {
                    if look % 8 == 0 {
                        spatial.insert(here, mine).unwrap();
                    }
                    // Finds the record, and has nothing to do then.
                    assert!(spatial.relocate(mine, here, here).unwrap());
                    if look % 8 == 7 {
                        assert!(spatial.remove(here, mine).unwrap());
                    }
                }
            });
        }
        for writer in 1..3 {
            let (spatial, looking) = (&spatial, &looking);
            scope.spawn(move || {
                for round in 0.. {
                    if looking.load(Ordering::Relaxed) == 0 {
                        break;
                    }
                    let mine = |number: u64| payload(1_000 * writer + number);
                    let count = 20 + round * 7 % 40;
                    for number in 0..count {
                        spatial.insert(here, mine(number)).unwrap();
                    }
                    for number in 0..count {
                        assert!(spatial.remove(here, mine(number)).unwrap());
                    }
                }
            });
        }
    });
    assert_eq!(spatial.at_point(here).unwrap().len(), 0);
    assert_eq!(spatial.check().unwrap(), [""; 0]);
}

/// Counts a thread that ends, also if it has found something wrong.
struct Leaves<'a>(&'a AtomicU64);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A record that leaps from one end of the index to the other and back is in one of these places all the time.
#[test]
fn the_box_of_all_records_contains_one_that_moves() {
    for kind in SpatialKind::all() {
        let pool = Pool::in_memory().unwrap();
        let spatial = pool.spatial_with::<Point2>("s", *kind).unwrap();
        for number in 0..STILL {
            spatial.insert(place(number), number).unwrap();
        }
        let ends = [Point2::new(-1000.0, 50.0), Point2::new(1000.0, 50.0)];
        spatial.insert(ends[0], MOVING).unwrap();
        let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 0_usize.. {
                    let (from, to) = (ends[round % 2], ends[(round + 1) % 2]);
                    assert!(spatial.relocate(MOVING, from, to).unwrap());
                    rounds.fetch_add(1, Ordering::Relaxed);
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let misses = |_: &u64| {
                let bounds = spatial.bounds().unwrap().unwrap();
                bounds.low.x > -1000.0 && bounds.high.x < 1000.0
            };
            let goes_on = |search: &u64| {
                let is_enough = *search >= SEARCHES && rounds.load(Ordering::Relaxed) >= ROUNDS;
                !is_enough && !writer.is_finished()
            };
            let missed = (0..).take_while(goes_on).filter(misses).count();
            stop.store(true, Ordering::Relaxed);
            assert_eq!(missed, 0, "{kind}");
        });
    }
}
