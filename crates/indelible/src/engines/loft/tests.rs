//! What the tests that all engines share do not reach.

use super::layout::{
    BUCKET_MARK, DATA_MARK, DataHeader, HALTED, HAS_PIECES, INNER_MARK, IS_INNER, LINE, NO_CHILD,
    NO_LINK, SMALLEST_BLOCK, STATE_SHIFT, bare, first_slot_line, state,
};
use super::node::Child;
use super::options::LARGE_NODES;
use super::recover::{MOST_NESTED, MOST_NESTED_BEFORE};
use super::search::End;
use super::{Index, LoftOptions};
use crate::concurrency::epochs;
use crate::engines::damage::Words;
use crate::engines::{Decision, Engine, EngineOptions, Place};
use crate::host::AnyMap;
use crate::pool::EXTENT_BYTES;
use crate::{Error, FactValue, Kind, Map, MapOptions, Pool, Result};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

type Hook = Box<dyn FnMut() -> Result<()>>;

/// When tests want something to happen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    /// A target has been built that does not count yet. An error says that there was no space for it.
    TargetIsBuilt,
    /// A data node has been put where there was none, and its parent's word does not lead to it yet.
    NodeIsCreated,
    /// A parent's word leads to a target, and its child in DRAM does not yet.
    WordIsReplaced,
    /// A node links to its successor, and nothing has been copied there.
    MoveIsLinked,
    /// A bucket or a data node is to be made. An error says that there is no space for it.
    RoomIsWanted,
}

thread_local! {
    /// What a test wants to happen when this thread has come to a moment.
    static HOOK: RefCell<Option<(Moment, Hook)>> = const { RefCell::new(None) };
}

fn set_hook(moment: Moment, hook: impl FnMut() -> Result<()> + 'static) {
    HOOK.set(Some((moment, Box::new(hook))));
}

pub(super) fn reached(moment: Moment) -> Result<()> {
    // What the hook does may come here again.
    let hook = HOOK.with_borrow_mut(|hook| hook.take_if(|hook| hook.0 == moment));
    let Some((_, mut hook)) = hook else {
        return Ok(());
    };
    let result = hook();
    HOOK.with_borrow_mut(|next| {
        // The hook may have set another one.
        next.get_or_insert((moment, hook));
    });
    result
}

/// The index of a map.
fn index_of(map: &Map<u64, u64>) -> &Index {
    let AnyMap::Loft(host) = map.index() else {
        panic!("not a LOFT");
    };
    host.engine()
}

fn assert_holds(map: &Map<u64, u64>, model: &BTreeMap<u64, u64>) {
    assert_eq!(map.check().unwrap(), [""; 0]);
    assert_eq!(map.len().unwrap(), model.len() as u64);
    let records = map.iter().map(Result::unwrap);
    assert!(records.eq(model.iter().map(|(&key, &value)| (key, value))));
    let records = map.iter().rev().map(Result::unwrap);
    assert!(records.eq(model.iter().rev().map(|(&key, &value)| (key, value))));
}

/// A copy of an open pool's file is what a process leaves that dies: at many moments, also while nodes are moved.
#[test]
fn copies_of_an_open_pool_have_all_records() {
    let directory = tempfile::tempdir().unwrap();
    let (path, image) = (
        directory.path().join("a.pool"),
        directory.path().join("b.pool"),
    );
    let pool = Pool::create(&path).unwrap();
    let map = pool.map_with::<u64, u64>("m", Kind::Loft).unwrap();
    let mut model = BTreeMap::new();
    for i in 0..4_000_u64 {
        let key = (mix(i / 300) << 20) | (mix(i) % 300 * 37);
        if i % 5 == 4 {
            let old = *model.keys().nth(model.len() / 2).unwrap();
            assert_eq!(map.remove(old).unwrap(), model.remove(&old));
        }
        assert_eq!(map.insert(key, i).unwrap(), model.insert(key, i));
        if i % 97 == 0 {
            std::fs::copy(&path, &image).unwrap();
            for read_only in [true, false] {
                let pool = match read_only {
                    true => Pool::options().salvage(true).open(&image).unwrap(),
                    false => Pool::open(&image).unwrap(),
                };
                assert_holds(&pool.open_map("m").unwrap(), &model);
            }
        }
    }
    assert_holds(&map, &model);
}

/// Keys that ascend, or descend, and that no line fits, once made a chain of inner nodes, each above or below all parts of the one before: 500 of
/// them with 300,000 records.
#[test]
fn keys_that_ascend_unevenly_make_no_long_way() {
    let mut key = 1 << 40;
    let ascending: Vec<u64> = (0..30_000)
        .map(|i| {
            key += 1 + (1_u64 << (mix(i / 20) % 28)) + mix(i) % 8;
            key
        })
        .collect();
    let descending: Vec<u64> = ascending.iter().rev().copied().collect();
    for keys in [ascending, descending] {
        let pool = Pool::in_memory().unwrap();
        let map = pool.map_with::<u64, u64>("m", Kind::Loft).unwrap();
        let mut model = BTreeMap::new();
        for (i, &key) in (0..).zip(&keys) {
            assert_eq!(map.insert(key, i).unwrap(), model.insert(key, i));
        }
        assert_holds(&map, &model);
        let stat = map.stat().unwrap();
        let levels = stat
            .facts
            .iter()
            .find(|fact| fact.name == "levels")
            .unwrap();
        println!("{levels:?}");
        assert!(
            matches!(levels.value, FactValue::Whole(..=MOST_LEVELS)),
            "{levels:?}"
        );
    }
}

/// Levels of a map whose keys are spread over 2^40: four bits for each, twice.
const MOST_LEVELS: u64 = 24;

/// A number among the facts of a map.
fn fact(map: &Map<u64, u64>, name: &str) -> f64 {
    let stat = map.stat().unwrap();
    let fact = stat.facts.iter().find(|fact| fact.name == name).unwrap();
    fact.value.as_f64()
}

#[test]
fn nodes_know_what_operations_come_to_them() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.map_with::<u64, u64>("m", Kind::Loft).unwrap();
    let mut model = BTreeMap::new();
    let grow = |model: &mut BTreeMap<u64, u64>, numbers: std::ops::Range<u64>| {
        for i in numbers {
            assert_eq!(map.insert(mix(i), i).unwrap(), model.insert(mix(i), i));
        }
    };
    grow(&mut model, 0..6_000);
    let half = || fact(&map, "data-nodes") / 2.0;
    assert!(fact(&map, "written") > half());
    for _ in 0..20 {
        for (&key, &value) in &model {
            assert_eq!(map.get(key).unwrap(), Some(value));
        }
    }
    assert!(fact(&map, "read") > half());
    for _ in 0..20 {
        assert_holds(&map, &model);
    }
    assert!(fact(&map, "scanned") > half());
    // Nodes of each pattern have successors.
    grow(&mut model, 6_000..12_000);
    assert_holds(&map, &model);
}

/// Orders and sets of keys that hurt learned indexes.
#[test]
fn adversarial_orders_lose_nothing() {
    let orders: [fn(u64) -> u64; 6] = [
        |i| i,
        |i| u64::MAX - i,
        |i| 1 << (i % 64) | i >> 6,
        |i| (i % 2) * (u64::MAX / 2) + i,
        |i| (mix(i / 1000) & !0xffff) | (i % 1000),
        |i| i.wrapping_mul(1 << 61),
    ];
    for order in orders {
        let pool = Pool::in_memory().unwrap();
        let map = pool.map_with::<u64, u64>("m", Kind::Loft).unwrap();
        let mut model = BTreeMap::new();
        for i in 0..20_000 {
            assert_eq!(map.insert(order(i), i).unwrap(), model.insert(order(i), i));
        }
        assert_holds(&map, &model);
        for i in (0..20_000).filter(|i| i % 7 != 0) {
            assert_eq!(map.remove(order(i)).unwrap(), model.remove(&order(i)));
        }
        for i in 0..5_000 {
            assert_eq!(map.insert(order(i), i).unwrap(), model.insert(order(i), i));
        }
        assert_holds(&map, &model);
    }
}

/// Keys that are removed and return, by several threads beside readers: no record is lost, or there twice.
#[test]
fn churn_by_several_threads_keeps_every_record() {
    let pool = Pool::in_memory().unwrap();
    let options = MapOptions::from(LoftOptions::default().max_data_bytes(1 << 10).window(8));
    let map = pool.map_with::<u64, u64>("m", options).unwrap();
    let stop = AtomicBool::new(false);
    let work = |thread: u64| {
        let mut model = BTreeMap::new();
        for i in 0..30_000 {
            let key = mix(i * 7 + thread) % 400 * 4 + thread;
            match i % 3 {
                0 => assert_eq!(map.remove(key).unwrap(), model.remove(&key)),
                _ => assert_eq!(map.insert(key, i).unwrap(), model.insert(key, i)),
            }
            assert_eq!(map.get(key).unwrap(), model.get(&key).copied());
        }
        model
    };
    let mut all = BTreeMap::new();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let keys: Vec<u64> = map.iter().map(|record| record.unwrap().0).collect();
                assert!(keys.is_sorted_by(|a, b| a < b));
            }
        });
        let threads = [0, 1, 2].map(|thread| scope.spawn(move || work(thread)));
        for thread in threads {
            all.extend(thread.join().unwrap());
        }
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    assert_holds(&map, &all);
}

/// A range reads many slots at once, and none of them with the value from before its insert.
#[test]
fn ranges_beside_inserts_see_values_with_their_keys() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.map_with::<u64, u64>("m", Kind::Loft).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for record in map.iter() {
                    let (key, value) = record.unwrap();
                    assert_eq!(value, !key);
                }
            }
        });
        for i in 0..30_000 {
            let key = mix(i);
            map.insert(key, !key).unwrap();
            if i % 3 == 0 {
                assert_eq!(map.remove(key).unwrap(), Some(!key));
                map.insert(key, !key).unwrap();
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(map.iter().count(), 30_000);
}

/// A word of a file's bytes.
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Where the data nodes of a file are, as far as their marks say so, and their bytes.
fn data_nodes(bytes: &[u8]) -> Vec<(usize, u64)> {
    let node_at = |at: usize| {
        let mark = word(bytes, at);
        let block = mark & 0xffff_ffff;
        let is_node = mark >> 32 == DATA_MARK >> 32 && block.is_multiple_of(LINE);
        (is_node && at + block as usize <= bytes.len()).then_some((at, block))
    };
    let lines = (0..bytes.len()).step_by(LINE as usize);
    lines.filter_map(node_at).collect()
}

/// Slots of a node whose move has failed stay frozen when the pool is closed. The next open undoes that, and until then nobody misses a record.
#[test]
fn a_node_whose_move_has_failed_is_as_before_after_an_open() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pool");
    let pool = Pool::create(&path).unwrap();
    let map = pool.map_with::<u64, u64>("m", Kind::Loft).unwrap();
    let mut model = BTreeMap::new();
    for i in 0..3_000_u64 {
        assert_eq!(map.insert(mix(i), i).unwrap(), model.insert(mix(i), i));
    }
    drop(map);
    pool.close().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let (mut frozen, mut closed) = (0, 0);
    for (at, block) in data_nodes(&bytes) {
        bytes[at + 56..at + 64].copy_from_slice(&HALTED.to_le_bytes());
        let slots = at + (LINE * first_slot_line(block, false)) as usize;
        // Every other slot, as if whoever moved it had stopped there.
        for slot in (slots..at + block as usize).step_by(32) {
            let old = word(&bytes, slot);
            let new = match old >> STATE_SHIFT {
                state::LIVE => old ^ bare(state::LIVE ^ state::FROZEN),
                state::EMPTY => bare(state::CLOSED),
                _ => continue,
            };
            bytes[slot..slot + 8].copy_from_slice(&new.to_le_bytes());
            frozen += 1;
            if new == bare(state::CLOSED) {
                closed = slot;
            }
        }
    }
    assert!(frozen > 1_000, "{frozen}");
    std::fs::write(&path, &bytes).unwrap();
    // A closed slot has no key: one that has was not written by a move.
    let damaged = directory.path().join("b.pool");
    bytes[closed] ^= 1;
    std::fs::write(&damaged, &bytes).unwrap();
    for is_read_only in [true, false] {
        let pool = match is_read_only {
            true => Pool::options().open_read_only(&damaged).unwrap(),
            false => Pool::open(&damaged).unwrap(),
        };
        let map = pool.open_map::<u64, u64>("m").unwrap();
        assert!(map.iter().any(|it| matches!(it, Err(Error::Damaged(_)))));
    }
    let pool = Pool::options().open_read_only(&path).unwrap();
    assert_holds(&pool.open_map("m").unwrap(), &model);
    drop(pool);
    let pool = Pool::open(&path).unwrap();
    let map = pool.open_map::<u64, u64>("m").unwrap();
    assert_holds(&map, &model);
    for i in 0..6_000_u64 {
        assert_eq!(map.insert(mix(i), !i).unwrap(), model.insert(mix(i), !i));
    }
    assert_holds(&map, &model);
}

/// Keys of which the first few make one node.
fn near(i: u64) -> u64 {
    (1 << 40) + mix(i) % (1 << 30)
}

/// A map with a node that is frozen and has no target: a record changed between the building of the first target and the freezing, and there was no
/// space for a second target. Returns what the map holds, too, and a key of the node.
fn with_halted_node(path: &Path) -> (Pool, Map<u64, u64>, BTreeMap<u64, u64>, u64) {
    let pool = Pool::create(path).unwrap();
    let map = Rc::new(pool.map_with::<u64, u64>("m", Kind::Loft).unwrap());
    let mut model = BTreeMap::new();
    for i in 0..20 {
        assert_eq!(map.insert(near(i), i).unwrap(), model.insert(near(i), i));
    }
    let (key, is_full) = (near(0), Rc::new(Cell::new(false)));
    set_hook(Moment::TargetIsBuilt, {
        let (map, is_full) = (Rc::clone(&map), Rc::clone(&is_full));
        move || {
            if is_full.replace(true) {
                return Err(Error::NoSpace("by the test".into()));
            }
            map.insert(key, u64::MAX).map(drop)
        }
    });
    for i in 20.. {
        assert_eq!(map.insert(near(i), i).unwrap(), model.insert(near(i), i));
        if is_full.get() {
            break;
        }
    }
    model.insert(key, u64::MAX);
    // It is read, and not written.
    assert_holds(&map, &model);
    for (&key, &value) in &model {
        assert_eq!(map.get(key).unwrap(), Some(value));
    }
    for refused in [map.insert(key, 1), map.remove(key), map.insert(key + 1, 1)] {
        assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
    }
    assert_holds(&map, &model);
    // There is space again.
    HOOK.set(None);
    let map = Rc::into_inner(map).expect("the hook is gone");
    (pool, map, model, key)
}

#[test]
fn a_node_whose_second_target_finds_no_space_is_written_again_later() {
    let directory = tempfile::tempdir().unwrap();
    let [path, image] = ["a.pool", "b.pool"].map(|name| directory.path().join(name));
    let go_on = |map: &Map<u64, u64>, mut model: BTreeMap<u64, u64>, key: u64| {
        assert_holds(map, &model);
        assert_eq!(map.remove(key).unwrap(), model.remove(&key));
        for i in 0..3_000 {
            assert_eq!(map.insert(near(i), !i).unwrap(), model.insert(near(i), !i));
        }
        assert_holds(map, &model);
    };
    // Behind the death of the process, and in the same one.
    let (pool, map, model, key) = with_halted_node(&path);
    std::fs::copy(&path, &image).unwrap();
    go_on(&map, model.clone(), key);
    drop((pool, map));
    let pool = Pool::open(&image).unwrap();
    go_on(&pool.open_map("m").unwrap(), model, key);
    drop(pool);
    // Behind a close.
    std::fs::remove_file(&path).unwrap();
    let (pool, map, model, key) = with_halted_node(&path);
    drop(map);
    pool.close().unwrap();
    let pool = Pool::open(&path).unwrap();
    go_on(&pool.open_map("m").unwrap(), model, key);
}

/// A compaction comes to a node that has just been made, before the parent's word leads to it, and replaces it. Once, that word led nowhere for ever.
#[test]
fn a_node_that_is_replaced_before_it_is_linked_keeps_its_records() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pool");
    let pool = Pool::create(&path).unwrap();
    let map = Rc::new(pool.map_with::<u64, u64>("m", Kind::Loft).unwrap());
    let is_moved = Rc::new(Cell::new(false));
    set_hook(Moment::NodeIsCreated, {
        let (map, is_moved) = (Rc::clone(&map), Rc::clone(&is_moved));
        move || {
            let index = index_of(&map);
            let _pinned = epochs::pin();
            let spot = index.walk(index.top(), near(0))?;
            let (End::Node(node), Some((parent, at))) = (spot.end, spot.parent) else {
                panic!("the node has been created");
            };
            index.move_node(node, parent, at, None)?;
            assert!(parent.child(at) != Child::node(node));
            is_moved.set(true);
            Ok(())
        }
    });
    let mut model = BTreeMap::new();
    for i in 0..100 {
        assert_eq!(map.insert(near(i), i).unwrap(), model.insert(near(i), i));
    }
    assert!(is_moved.get());
    HOOK.set(None);
    assert_holds(&map, &model);
    drop(map);
    pool.close().unwrap();
    let pool = Pool::open(&path).unwrap();
    assert_holds(&pool.open_map("m").unwrap(), &model);
}

/// A thread that replaces a node loses its core between the parent's word and the parent's child in DRAM. Once, ranges went round and round until it came back.
#[test]
fn ranges_and_inserts_wait_for_no_thread_that_replaces_a_node() {
    let pool = Pool::in_memory().unwrap();
    let map = Rc::new(pool.map_with::<u64, u64>("m", Kind::Loft).unwrap());
    let times = Rc::new(Cell::new(0));
    set_hook(Moment::WordIsReplaced, {
        let (map, times) = (Rc::clone(&map), Rc::clone(&times));
        move || {
            times.set(times.get() + 1);
            let (other, (sender, receiver)) = (Map::clone(&map), mpsc::channel());
            // Not in a scope, which would wait for the thread.
            std::thread::spawn(move || {
                let count = other.iter().map(Result::unwrap).count();
                let _ = other.insert(near(0), 0);
                let _ = sender.send(count);
            });
            let count = receiver.recv_timeout(Duration::from_secs(60));
            assert_eq!(
                count.expect("the range comes to its end"),
                map.iter().count()
            );
            Ok(())
        }
    });
    let mut model = BTreeMap::new();
    for i in 0..1_000 {
        assert_eq!(map.insert(near(i), 0).unwrap(), model.insert(near(i), 0));
    }
    HOOK.set(None);
    assert!(times.get() > 0);
    assert_holds(&map, &model);
}

/// Children of inner nodes that have no keys count as touched. Once, compactions merged next to nothing in maps that had been open before.
#[test]
fn a_map_that_was_open_before_is_merged_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pool");
    let pool = Pool::create(&path).unwrap();
    let map = pool.map_with::<u64, u64>("m", Kind::Loft).unwrap();
    let mut model: BTreeMap<u64, u64> = (0..30_000).map(|i| (mix(i), i)).collect();
    for (&key, &value) in &model {
        map.insert(key, value).unwrap();
    }
    model.retain(|&key, &mut value| {
        let stays = value % 20 == 0;
        if !stays {
            map.remove(key).unwrap();
        }
        stays
    });
    assert_eq!(fact(&map, "merges"), 0.0);
    drop(map);
    pool.close().unwrap();
    let pool = Pool::open(&path).unwrap();
    let map = pool.open_map::<u64, u64>("m").unwrap();
    let before = fact(&map, "inner-nodes");
    pool.shrink().unwrap();
    let (merges, after) = (fact(&map, "merges"), fact(&map, "inner-nodes"));
    let are_merged = before > 100.0 && merges > before / 2.0 && after < before / 4.0;
    assert!(are_merged, "{before}, {merges}, {after}");
    assert_holds(&map, &model);
}

/// The smallest node with the bit that says that its model has pieces: the pieces alone would be larger. Once, builds that check for overflows panicked.
#[test]
fn a_small_node_that_claims_to_have_pieces_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pool");
    let pool = Pool::create(&path).unwrap();
    let map = pool.map_with::<u64, u64>("m", Kind::Loft).unwrap();
    map.insert(7, 8).unwrap();
    drop(map);
    pool.close().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let nodes = data_nodes(&bytes);
    assert!(matches!(nodes[..], [(_, 256)]), "{nodes:?}");
    let shape = nodes[0].0 + offset_of!(DataHeader, shape);
    let damaged = word(&bytes, shape) ^ HAS_PIECES;
    bytes[shape..shape + 8].copy_from_slice(&damaged.to_le_bytes());
    std::fs::write(&path, &bytes).unwrap();
    let pool = Pool::open(&path).unwrap();
    let map = pool.open_map::<u64, u64>("m").unwrap();
    assert!(matches!(map.get(7), Err(Error::Damaged(_))));
}

/// A line of slots that was never written, in a node that then gets more inserts than it has room for: the node is not moved, and nobody is told that its
/// other records are all that there are.
#[test]
fn ranges_tell_of_a_line_that_was_never_written_however_full_the_node_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pool");
    let pool = Pool::create(&path).unwrap();
    let map = pool.map_with::<u64, u64>("m", Kind::Loft).unwrap();
    for i in 0..400 {
        map.insert(near(i), i).unwrap();
    }
    let (at, block, keys) = {
        let _pinned = epochs::pin();
        let node_of = |i| index_of(&map).node_at(near(i)).unwrap().0.unwrap();
        let node = (0..400).map(node_of).max_by_key(|node| node.slot_count);
        let node = node.unwrap();
        let block = &node.block;
        (block.offset.get(), block.bytes, node.low..=node.high)
    };
    assert!(block >= 1024, "{block}");
    drop(map);
    pool.close().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let (slots, end) = (at + LINE * first_slot_line(block, false), at + block);
    let mut lines = (slots as usize..end as usize).step_by(LINE as usize);
    let has_record = |&line: &usize| word(&bytes, line) >> STATE_SHIFT == state::LIVE;
    // The first one: inserts that are predicted behind it do not come by.
    let line = lines.find(has_record).unwrap();
    bytes[line..line + LINE as usize].fill(0);
    std::fs::write(&path, &bytes).unwrap();
    let pool = Pool::open(&path).unwrap();
    let map = pool.open_map::<u64, u64>("m").unwrap();
    let is_told = || map.iter().any(|it| matches!(it, Err(Error::Damaged(_))));
    assert!(is_told());
    let buckets = fact(&map, "buckets");
    // Those that come by the line are refused.
    let more = (400..40_000).map(near).filter(|key| keys.contains(key));
    more.take(4_000).for_each(|key| drop(map.insert(key, 0)));
    // So far away from their places have inserts gone that a whole node would have been moved.
    assert!(fact(&map, "buckets") > buckets);
    assert_eq!(fact(&map, "moving"), 0.0);
    assert!(is_told());
    assert!(
        map.iter()
            .rev()
            .any(|it| matches!(it, Err(Error::Damaged(_))))
    );
}

/// From now on there is no space for buckets and new data nodes in this thread.
fn fill_pool() {
    let is_full = || Err(Error::NoSpace("by the test".into()));
    set_hook(Moment::RoomIsWanted, is_full);
}

/// A closed pool at `path` with a map whose bulk load has begun, and could not copy the record that was inserted beside it. Returns what the map holds.
fn close_with_half_a_load(path: &Path) -> BTreeMap<u64, u64> {
    let pool = Pool::create(path).unwrap();
    let map = Rc::new(pool.map_with::<u64, u64>("m", Kind::Loft).unwrap());
    let mut model: BTreeMap<u64, u64> = (0..3_000).map(|i| (near(i), i)).collect();
    let loaded = model.clone();
    set_hook(Moment::MoveIsLinked, {
        let map = Rc::clone(&map);
        move || {
            // In another eighth of the keys, where the new root has no node; and one that the load has too.
            map.insert(u64::MAX, 7)?;
            map.insert(near(0), 9)?;
            fill_pool();
            Ok(())
        }
    });
    // It is committed, so it has not failed.
    map.bulk_load(loaded, 0.7).unwrap();
    HOOK.set(None);
    model.insert(u64::MAX, 7);
    assert_eq!(map.len().unwrap(), model.len() as u64);
    assert_eq!(map.check().unwrap(), [""; 0]);
    for (&key, &value) in &model {
        assert_eq!(map.get(key).unwrap(), Some(value), "{key:#x}");
    }
    drop(map);
    pool.close().unwrap();
    model
}

/// The move of an inner node, half done, in a pool without space. Once, the first touch failed for that, and all that came later found damage.
#[test]
fn a_subtree_whose_move_finds_no_space_is_read_after_an_open() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pool");
    let mut model = close_with_half_a_load(&path);
    assert_holds(
        &Pool::options()
            .open_read_only(&path)
            .unwrap()
            .open_map("m")
            .unwrap(),
        &model,
    );
    let pool = Pool::open(&path).unwrap();
    // Not opened by the host, which would finish the move in a thread of its own. So what there is has to be counted, as after a crash.
    let place = Place {
        core: Arc::clone(pool.core()),
        slot: pool.core().slots().next().unwrap(),
    };
    let index = Index::open(&place, LoftOptions::default(), LoftOptions::FORMAT).unwrap();
    fill_pool();
    for _ in 0..2 {
        for (&key, &value) in &model {
            assert_eq!(index.find_value(key).unwrap(), Some(value), "{key:#x}");
        }
    }
    assert!(index.touch_all(&|| true).unwrap());
    assert_eq!(index.locks.total(), model.len() as u64);
    // Where there is room, it is written, too.
    let key = near(1);
    assert_eq!(
        index
            .apply_to(key, &mut |_| Decision::Put(1 << 40))
            .unwrap(),
        model.insert(key, 1 << 40)
    );
    let key = near(2);
    assert_eq!(
        index.apply_to(key, &mut |_| Decision::Remove).unwrap(),
        model.remove(&key)
    );
    assert_eq!(index.locks.total(), model.len() as u64);
    // The number that the last close has recorded stays right.
    assert_eq!(
        index.apply_to(key, &mut |_| Decision::Put(3)).unwrap(),
        model.insert(key, 3)
    );
    assert_eq!(index.locks.total(), model.len() as u64);
    // There is space again.
    HOOK.set(None);
    index.compact_all().unwrap();
    {
        let _pinned = epochs::pin();
        // SAFETY: the thread is pinned, and has loaded the root since.
        assert!(unsafe { index.top().target() }.is_none());
    }
    for (&key, &value) in &model {
        assert_eq!(index.find_value(key).unwrap(), Some(value), "{key:#x}");
    }
    drop(index);
    let map = pool.open_map("m").unwrap();
    assert_holds(&map, &model);
}

/// Both have the key: the load's record counts, once.
#[test]
fn a_bulk_load_beside_an_insert_of_the_same_key_counts_it_once() {
    let pool = Pool::in_memory().unwrap();
    let map = Rc::new(pool.map_with::<u64, u64>("m", Kind::Loft).unwrap());
    set_hook(Moment::MoveIsLinked, {
        let map = Rc::clone(&map);
        move || map.insert(near(0), 9).map(drop)
    });
    let model: BTreeMap<u64, u64> = (0..3_000).map(|i| (near(i), i)).collect();
    map.bulk_load(model.clone(), 0.7).unwrap();
    HOOK.set(None);
    assert_holds(&map, &model);
}

/// A map beside the one of the test, which can be dropped.
const OTHER: &str = "other";

/// Has another map take the next extents of the pool, which are free when it is dropped.
fn fill_with_another_map(pool: &Pool) {
    let other = pool.map::<u64, u64>(OTHER).unwrap();
    other.bulk_load((0..500_000).map(|i| (i, i)), 1.0).unwrap();
}

/// An inner node at the end of the pool, with more records beneath it than are cheap to write again, would keep all that is free before it.
#[test]
fn an_inner_node_with_much_beneath_it_does_not_keep_the_pool_long() {
    for before in [1_000, 3_000, 10_000, 30_000] {
        let pool = Pool::in_memory().unwrap();
        let map = pool.map_with::<u64, u64>("m", Kind::Loft).unwrap();
        (0..before).for_each(|i| assert_eq!(map.insert(i, i).unwrap(), None));
        fill_with_another_map(&pool);
        (before..2 * before).for_each(|i| assert_eq!(map.insert(i, i).unwrap(), None));
        pool.drop_map(OTHER).unwrap();
        for i in (0..2 * before).filter(|i| !i.is_multiple_of(5)) {
            map.remove(i).unwrap();
        }
        pool.shrink().unwrap();
        let free = pool.stat().free_extents;
        assert!(free <= 1, "{before}: {free} free extents");
        assert_eq!(map.check().unwrap(), [""; 0]);
        assert_eq!(map.len().unwrap(), 2 * before / 5);
    }
}

#[test]
fn a_root_behind_free_extents_does_not_keep_the_pool_long() {
    let pool = Pool::in_memory().unwrap();
    fill_with_another_map(&pool);
    let map = pool.map_with::<u64, u64>("m", Kind::Loft).unwrap();
    let model: BTreeMap<u64, u64> = (0..20_000).map(|i| (mix(i), i)).collect();
    model.iter().for_each(|(&key, &value)| {
        assert_eq!(map.insert(key, value).unwrap(), None);
    });
    pool.drop_map(OTHER).unwrap();
    pool.shrink().unwrap();
    let free = pool.stat().free_extents;
    assert!(free <= 1, "{free} free extents");
    assert_holds(&map, &model);
}

/// How nodes hang together in [`with_nested_nodes`].
#[derive(Clone, Copy, Debug, PartialEq)]
enum Nested {
    /// Each is the only child of the one before.
    Children,
    /// Each is the target of a move of the one before.
    Targets,
}

/// A map whose root has so many inner nodes beneath its first part, each for the same keys as the one before.
fn with_nested_nodes(
    path: &Path,
    nested: Nested,
    levels: u32,
    format: u32,
) -> (Pool, Map<u64, u64>) {
    let pool = Pool::create(path).unwrap();
    drop(pool.map_with::<u64, u64>("m", Kind::Loft).unwrap());
    pool.close().unwrap();
    let file = Words::open(path);
    let root = file.get(file.first_root()) & !IS_INNER;
    // Behind the eight roots, the number of records and its generation.
    let format_at = file.first_root() + 80;
    assert_eq!(file.get(format_at), LARGE_NODES.into());
    file.set(format_at, format.into());
    let extent = root / EXTENT_BYTES * EXTENT_BYTES;
    let blocks = (extent..extent + EXTENT_BYTES).step_by(SMALLEST_BLOCK as usize);
    let nodes: Vec<u64> = blocks
        .filter(|&block| block != root)
        .take(levels as usize)
        .collect();
    assert_eq!(nodes.len(), levels as usize);
    file.set(root + LINE, nodes[0] | IS_INNER);
    for (at, next) in (0..).zip(&nodes) {
        let below = nodes.get(at + 1).map(|below| below | IS_INNER);
        let (child, target) = match nested {
            Nested::Children => (below.unwrap_or(NO_CHILD), NO_LINK),
            Nested::Targets => (NO_CHILD, below.unwrap_or(NO_LINK)),
        };
        // One part, which has all keys that the root has for its first one.
        let mark = INNER_MARK | u64::from(STATE_SHIFT) << 8;
        let words = [mark, 0, 0, (1 << STATE_SHIFT) - 1, target, 1, 1, 1];
        let words = words.into_iter().chain([child, NO_CHILD, NO_CHILD]);
        for (number, word) in (0..).zip(words) {
            file.set(next + number * 8, word);
        }
    }
    let pool = Pool::open(path).unwrap();
    let map = pool.open_map("m").unwrap();
    (pool, map)
}

/// Thousands of levels overflowed the stack when the map was checked or dropped.
#[test]
fn more_levels_than_a_map_has_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pool");
    let formats = [
        (LARGE_NODES, MOST_NESTED),
        (LARGE_NODES - 1, MOST_NESTED_BEFORE),
    ];
    for (nested, (format, most)) in [Nested::Children, Nested::Targets]
        .into_iter()
        .flat_map(|nested| formats.map(|format| (nested, format)))
    {
        for levels in [most, most + 1, 8_000] {
            let (pool, map) = with_nested_nodes(&path, nested, levels, format);
            for _ in 0..2 {
                match map.get(5) {
                    Ok(None) => assert_eq!(levels, most, "{nested:?}"),
                    Err(Error::Damaged(what)) => {
                        assert!(levels > most && what.contains("below"), "{what}");
                    }
                    other => panic!("{nested:?}, {levels} levels: {other:?}"),
                }
            }
            let _ = (map.check(), map.stat());
            drop(map);
            let _ = (pool.shrink(), pool.close());
            std::fs::remove_file(&path).unwrap();
        }
    }
}

/// What has been claimed for a node that is refused is given back: otherwise the next touch says that its block is reached twice.
#[test]
fn a_damaged_node_is_named_in_the_same_way_again_and_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pool");
    let marks = [INNER_MARK, DATA_MARK, BUCKET_MARK].map(|mark| mark >> 32);
    for mark in marks {
        let pool = Pool::create(&path).unwrap();
        let map = pool.map_with::<u64, u64>("m", Kind::Loft).unwrap();
        // Keys that no line fits: there are nodes of all kinds.
        for i in 0..20_000 {
            map.insert(mix(i) >> (mix(i) % 50), i).unwrap();
        }
        drop(map);
        pool.close().unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let root = Words::open(&path);
        let root = root.get(root.first_root()) & !IS_INNER;
        let is_node = |&at: &usize| at as u64 != root && word(&bytes, at) >> 32 == mark;
        let nodes: Vec<usize> = (0..bytes.len())
            .step_by(SMALLEST_BLOCK as usize)
            .filter(is_node)
            .collect();
        assert!(nodes.len() > 3, "{mark:#x}: {}", nodes.len());
        for &at in &nodes {
            bytes[at] ^= 0x80;
        }
        std::fs::write(&path, &bytes).unwrap();
        let pool = Pool::open(&path).unwrap();
        let map = pool.open_map::<u64, u64>("m").unwrap();
        let tell = || {
            (0..20_000)
                .filter_map(|i| map.get(mix(i) >> (mix(i) % 50)).err())
                .map(|error| error.to_string())
                .collect::<std::collections::BTreeSet<_>>()
        };
        let first = tell();
        assert!(!first.is_empty());
        assert!(
            first.iter().all(|told| !told.contains("reached twice")),
            "{first:?}"
        );
        assert_eq!(tell(), first);
        drop(map);
        let _ = pool.close();
        std::fs::remove_file(&path).unwrap();
    }
}
