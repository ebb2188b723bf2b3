//! Eight threads do everything at once to a few keys, and afterwards each key's history must have an order that explains it.
//!
//! `INDELIBLE_ROUNDS` makes it longer, `INDELIBLE_SEED` begins elsewhere. The library's own tests run it a second time, with small
//! nodes, so that nodes of all kinds come and go all the time.

use super::image::crash;
use indelible::{CompareExchange, Kind, Map, MapOptions, Pool, PoolOptions};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

const THREADS: u64 = 8;

/// What was done to a key, or seen of it.
#[derive(Clone, Copy, Debug)]
enum Step {
    Get,
    Insert(u64),
    InsertNew(u64),
    Update(u64),
    Remove,
    Exchange(Option<u64>, Option<u64>),
}

/// What an operation told of the key from before.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Saw {
    Nothing,
    Value(Option<u64>),
    Presence(bool),
}

#[derive(Clone, Copy, Debug)]
struct Event {
    thread: u64,
    key: u64,
    began: u64,
    ended: u64,
    step: Step,
    saw: Saw,
}

impl Event {
    /// The value after this step, if it can have come when the value was `now`.
    fn apply(&self, now: Option<u64>) -> Option<Option<u64>> {
        let agrees = match self.saw {
            Saw::Nothing => true,
            Saw::Value(value) => value == now,
            Saw::Presence(presence) => presence == now.is_some(),
        };
        agrees.then_some(match self.step {
            Step::Get => now,
            Step::Insert(value) => Some(value),
            Step::InsertNew(value) => now.or(Some(value)),
            Step::Update(value) => now.and(Some(value)),
            Step::Remove => None,
            Step::Exchange(from, to) if from == now => to,
            Step::Exchange(..) => now,
        })
    }
}

/// Finds out whether some order explains the events of one key, each thread's one after the other. A state is a value, with the
/// threads whose operation in flight has taken effect.
fn explain(events: &[Event], first: Option<u64>) -> Result<(), String> {
    let mut moments: Vec<(u64, bool, &Event)> = events
        .iter()
        .flat_map(|event| [(event.began, true, event), (event.ended, false, event)])
        .collect();
    moments.sort_unstable_by_key(|&(time, ..)| time);
    let mut states = vec![(first, 0_u64)];
    let mut in_flight: Vec<&Event> = Vec::new();
    for (at, &(_, begins, event)) in moments.iter().enumerate() {
        if begins {
            in_flight.push(event);
            continue;
        }
        let mut next = 0;
        while let Some(&(value, done)) = states.get(next) {
            for event in &in_flight {
                let bit = 1 << event.thread;
                let after = event.apply(value).filter(|_| done & bit == 0);
                if let Some(state) = after.map(|after| (after, done | bit))
                    && !states.contains(&state)
                {
                    states.push(state);
                }
            }
            next += 1;
        }
        let bit = 1 << event.thread;
        states.retain(|&(_, done)| done & bit != 0);
        states.iter_mut().for_each(|(_, done)| *done &= !bit);
        states.sort_unstable();
        states.dedup();
        in_flight.retain(|other| other.thread != event.thread);
        if states.is_empty() {
            let around: Vec<String> = moments[at.saturating_sub(30)..=at]
                .iter()
                .map(|(time, begins, event)| format!("{time} {begins} {event:?}"))
                .collect();
            return Err(format!(
                "nothing explains {event:?}:\n{}",
                around.join("\n")
            ));
        }
    }
    Ok(())
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }
}

/// The keys of a round, ascending.
fn keys(random: &mut Random) -> Vec<u64> {
    let count = [24, 100, 400, 1_500][random.below(4) as usize];
    let key = |i: u64, way: u64| match way {
        0 => i,
        1 => i * (u64::MAX / count),
        // Crowds, far apart.
        2 => ((i / 32) << 50) | (i % 32),
        // As many keys between one power of two and the next.
        3 => {
            let start = 1 << (4 + i * 59 / count);
            start + i * 59 % count * (start / count.min(start))
        }
        4 => u64::MAX - i * 3,
        // Crowds with leaps of all sizes in between.
        _ => (1 << (i / 48 % 60)) + ((i / 48 / 60) << 20) + (i % 48) * 2,
    };
    let way = random.below(6);
    let mut keys: Vec<u64> = (0..count).map(|i| key(i, way)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// What a thread does, and writes down.
struct Worker<'a> {
    map: &'a Map<u64, u64>,
    clock: &'a AtomicU64,
    keys: &'a [u64],
    thread: u64,
    random: Random,
    value: u64,
    events: Vec<Event>,
}

impl Worker<'_> {
    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn note(&mut self, began: u64, key: u64, step: Step, saw: Saw) {
        // With its operation, unless it is told.
        self.events.push(Event {
            thread: self.thread,
            key,
            began,
            ended: 0,
            step,
            saw,
        });
    }

    fn run(mut self, operations: u64) -> Vec<Event> {
        let count = self.keys.len() as u64;
        // From filling to emptying and back; not all threads at the same time.
        let stretch = 100 + self.random.below(600);
        let (mut hot, mut up) = (self.random.below(count), 0);
        for i in 0..operations {
            if i % 64 == 0 {
                hot = self.random.below(count);
            }
            let phase = i / stretch % 4;
            up = (up + 1) % count;
            let number = match self.random.below(8) {
                0..2 => self.random.below(count),
                2 => up,
                _ => (hot + self.random.below(12)) % count,
            };
            let began = self.now();
            let first = self.events.len();
            self.one(began, number as usize, phase);
            let ended = self.now();
            let events = self.events[first..].iter_mut();
            let open = events.filter(|event| event.ended == 0);
            open.for_each(|event| event.ended = ended);
        }
        self.events
    }

    fn one(&mut self, began: u64, number: usize, phase: u64) {
        let (map, key) = (self.map, self.keys[number]);
        self.value += 1;
        let value = self.thread << 32 | self.value;
        let fills = phase.is_multiple_of(2);
        match self.random.below(32) {
            0..10 if fills => self.insert(began, key, value),
            0..10 => {
                let saw = Saw::Value(map.remove(key).unwrap());
                self.note(began, key, Step::Remove, saw);
            }
            10..13 => self.insert(began, key, value),
            13..15 => {
                let saw = Saw::Value(map.remove(key).unwrap());
                self.note(began, key, Step::Remove, saw);
            }
            15..20 => {
                let saw = Saw::Value(map.get(key).unwrap());
                self.note(began, key, Step::Get, saw);
            }
            20 => {
                let saw = Saw::Value(map.update(key, value).unwrap());
                self.note(began, key, Step::Update(value), saw);
            }
            21 => {
                let saw = Saw::Presence(!map.insert_new(key, value).unwrap());
                self.note(began, key, Step::InsertNew(value), saw);
            }
            22 => self.exchange(began, key, value),
            23..26 => {
                let keys = self.some(number, 40);
                let values = map.get_batch(&keys).unwrap();
                for (key, value) in keys.into_iter().zip(values) {
                    self.note(began, key, Step::Get, Saw::Value(value));
                }
            }
            26..28 if fills => {
                let keys = self.some(number, 40);
                let records: Vec<_> = keys.iter().map(|&key| (key, value)).collect();
                map.insert_batch(&records).unwrap();
                for key in keys {
                    self.note(began, key, Step::Insert(value), Saw::Nothing);
                }
            }
            // A whole stretch goes.
            26..28 => {
                for key in self.some(number, 24) {
                    let began = self.now();
                    let saw = Saw::Value(map.remove(key).unwrap());
                    let ended = self.now();
                    self.note(began, key, Step::Remove, saw);
                    self.events.last_mut().unwrap().ended = ended;
                }
            }
            28..31 => self.range(began, number),
            _ if self.random.below(8) == 0 => drop(map.release_memory()),
            _ => {
                map.len().unwrap();
            }
        }
    }

    /// Neighbours of a key, from it on, some of them left out.
    fn some(&mut self, number: usize, most: u64) -> Vec<u64> {
        let step = 1 + self.random.below(3) as usize;
        let count = 1 + self.random.below(most) as usize;
        let keys = self.keys[number..].iter().step_by(step);
        keys.take(count).copied().collect()
    }

    fn insert(&mut self, began: u64, key: u64, value: u64) {
        let saw = Saw::Value(self.map.insert(key, value).unwrap());
        self.note(began, key, Step::Insert(value), saw);
    }

    fn exchange(&mut self, began: u64, key: u64, value: u64) {
        let now = self.map.get(key).unwrap();
        let ended = self.now();
        self.note(began, key, Step::Get, Saw::Value(now));
        self.events.last_mut().unwrap().ended = ended;
        let to = (!value.is_multiple_of(3)).then_some(value);
        let between = self.now();
        let result = self.map.compare_exchange(key, now, to).unwrap();
        let saw = Saw::Value(match result {
            CompareExchange::Exchanged => now,
            CompareExchange::Unchanged(found) => found,
        });
        self.note(between, key, Step::Exchange(now, to), saw);
    }

    /// A range upwards, downwards, from both ends, or in one page; perhaps not to its end.
    fn range(&mut self, began: u64, number: usize) {
        let count = 1 + self.random.below(100) as usize;
        let last = (number + count).min(self.keys.len()) - 1;
        let bounds = self.keys[number]..=self.keys[last];
        let most = [10, 200][self.random.below(2) as usize];
        let (way, mut from, mut to) = (self.random.below(4), number, last + 1);
        let mut range = self.map.range(bounds.clone()).unwrap();
        let mut page = Vec::new();
        if way == 3 {
            range.read(most, &mut page).unwrap();
        }
        let mut page = page.into_iter();
        for turn in 0.. {
            if turn == most {
                break;
            }
            let backwards = way == 1 || way == 2 && self.random.below(2) == 0;
            let found = if backwards {
                range.next_back().transpose().unwrap()
            } else if way == 3 {
                page.next()
            } else {
                range.next().transpose().unwrap()
            };
            let Some((key, value)) = found else {
                // What lies between was not there.
                for key in &self.keys[from..to] {
                    self.note(began, *key, Step::Get, Saw::Value(None));
                }
                break;
            };
            // In order, none twice, none that nobody ever wrote.
            let at = self.keys[from..to].binary_search(&key);
            let at = from + at.unwrap_or_else(|_| panic!("{key:#x} in a range over {bounds:x?}"));
            let passed = if backwards { at + 1..to } else { from..at };
            for key in &self.keys[passed] {
                self.note(began, *key, Step::Get, Saw::Value(None));
            }
            self.note(began, key, Step::Get, Saw::Value(Some(value)));
            (from, to) = if backwards { (from, at) } else { (at + 1, to) };
        }
    }
}

/// Some rounds on one pool, which is closed or crashes in between.
fn round(directory: &Path, kind: Kind, seed: u64, operations: u64) {
    let mut random = Random(seed);
    let path = directory.join(format!("{kind:?}-{seed}.pool"));
    let keys = keys(&mut random);
    let mut options = PoolOptions::new();
    options.huge_pages(false);
    let map_options = MapOptions::from(kind);
    let mut pool = options.create(&path).unwrap();
    let mut contents = BTreeMap::new();
    for part in 0..3 {
        let map = pool.map_with("m", &map_options).unwrap();
        let clock = AtomicU64::new(0);
        let mut histories: BTreeMap<u64, Vec<Event>> = BTreeMap::new();
        let seeds: Vec<u64> = (0..THREADS).map(|_| random.next()).collect();
        let done: Vec<Vec<Event>> = std::thread::scope(|scope| {
            let spawn = |thread: u64| {
                let worker = Worker {
                    map: &map,
                    clock: &clock,
                    keys: &keys,
                    thread,
                    random: Random(seeds[thread as usize]),
                    value: part << 24,
                    events: Vec::new(),
                };
                scope.spawn(move || worker.run(operations))
            };
            let threads: Vec<_> = (0..THREADS).map(spawn).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Vec<Event>>| thread.join();
            threads.into_iter().map(|t| join(t).unwrap()).collect()
        });
        for event in done.into_iter().flatten() {
            histories.entry(event.key).or_default().push(event);
        }
        assert_eq!(map.check().unwrap(), [""; 0], "{kind}, seed {seed}");
        let found: BTreeMap<u64, u64> = map.iter().map(Result::unwrap).collect();
        assert_eq!(map.len().unwrap(), found.len() as u64);
        let now = clock.into_inner();
        for &key in &keys {
            let history = histories.entry(key).or_default();
            history.push(Event {
                thread: 0,
                key,
                began: now,
                ended: now + 1,
                step: Step::Get,
                saw: Saw::Value(found.get(&key).copied()),
            });
            let first = contents.get(&key).copied();
            if let Err(problem) = explain(history, first) {
                panic!("{kind}, seed {seed}, part {part}: {problem}");
            }
        }
        contents = found;
        if part == 0 {
            // What kill -9 would have left.
            crash(&path, || drop((map, pool)));
        } else {
            drop(map);
            pool.close().unwrap();
        }
        pool = Pool::open(&path).unwrap();
    }
    drop(pool);
    std::fs::remove_file(&path).unwrap();
}

fn number(name: &str, default: u64) -> u64 {
    let set = std::env::var(name).ok();
    set.map_or(default, |number| number.parse().expect("a number"))
}

#[test]
fn whatever_threads_do_at_once_has_an_order_that_explains_it() {
    let directory = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    let first = number("INDELIBLE_SEED", 0);
    for seed in first..first + number("INDELIBLE_ROUNDS", 8) {
        for &kind in Kind::all() {
            round(directory.path(), kind, seed, 2_500);
        }
    }
}

#[test]
fn what_no_order_explains_is_noticed() {
    let event = |thread, began, ended, step, saw| Event {
        thread,
        key: 5,
        began,
        ended,
        step,
        saw,
    };
    let value = |value| Saw::Value(value);
    let put = event(1, 0, 3, Step::Insert(7), value(None));
    let during = |saw| event(2, 1, 2, Step::Get, saw);
    let after = |saw| event(2, 4, 5, Step::Get, saw);
    assert!(explain(&[put, during(value(None))], None).is_ok());
    assert!(explain(&[put, during(value(Some(7)))], None).is_ok());
    assert!(explain(&[put, after(value(None))], None).is_err());
    assert!(explain(&[put, during(value(Some(7))), after(value(None))], None).is_err());
}
