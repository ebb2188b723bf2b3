use super::*;
use crate::pmem::journal;
use crate::{Durability, Pool, PoolOptions};
use proptest::prelude::*;

/// A pool whose first map is to own blocks of other sizes too.
fn pool() -> Pool {
    let pool = PoolOptions::new().huge_pages(false).in_memory().unwrap();
    drop(pool.map::<u64, u64>("m").unwrap());
    pool
}

fn space(pool: &Pool, block_bytes: u64) -> Arc<Space> {
    pool.core().space(0, block_bytes as u32).unwrap()
}

const SIZES: [u64; 5] = [
    EXTENT_BYTES / 16,
    EXTENT_BYTES / 2,
    EXTENT_BYTES,
    2 * EXTENT_BYTES,
    3 * EXTENT_BYTES,
];

fn all_but_one_extent_are_free(pool: &Pool) -> bool {
    let stat = pool.stat();
    stat.free_extents + 1 == stat.extents
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn blocks_of_all_sizes_never_overlap_and_the_table_knows_each(
        steps in proptest::collection::vec((any::<bool>(), 0..SIZES.len(), any::<usize>()), 0..150),
    ) {
        let pool = pool();
        let spaces = pool.core().spaces(0, SIZES.map(|bytes| bytes as u32));
        let mut model = BTreeMap::new();
        for (take, size, which) in steps {
            if take || model.is_empty() {
                let offset = spaces[size].alloc().unwrap();
                let before = model.range(..offset).next_back();
                prop_assert!(before.is_none_or(|(&at, &size)| at + SIZES[size] <= offset));
                let after = model.range(offset..).next();
                prop_assert!(after.is_none_or(|(&at, _)| offset + SIZES[size] <= at));
                model.insert(offset, size);
            } else {
                let (&offset, &size) = model.iter().nth(which % model.len()).unwrap();
                model.remove(&offset);
                spaces[size].free_now(offset);
                let is_left = spaces[size].owns(offset);
                prop_assert!(!is_left || SIZES[size] < EXTENT_BYTES, "a run is given back at once");
            }
            for (&offset, &size) in &model {
                prop_assert_eq!(pool.core().block_bytes_of(0, offset), Some(SIZES[size]));
                prop_assert!((0..SIZES.len()).all(|i| spaces[i].owns(offset) == (i == size)));
            }
            for (size, space) in spaces.iter().enumerate() {
                let stat = space.stat();
                let used = model.values().filter(|&&other| other == size).count() as u64;
                prop_assert_eq!(stat.used_blocks, used);
                prop_assert!(stat.file_bytes >= used * SIZES[size]);
            }
            prop_assert_eq!(pool.check(), [""; 0]);
        }
        drop(spaces);
        pool.drop_map("m").unwrap();
        prop_assert!(all_but_one_extent_are_free(&pool), "a dropped map leaves nothing, of whatever size");
        prop_assert_eq!(pool.check(), [""; 0]);
    }
}

#[test]
fn an_extent_that_runs_empty_is_given_back_if_another_has_room() {
    let pool = pool();
    let space = space(&pool, EXTENT_BYTES / 4);
    let blocks: Vec<Offset> = (0..8).map(|_| space.alloc().unwrap()).collect();
    let extents = || space.stat().file_bytes / EXTENT_BYTES;
    assert_eq!(extents(), 2);
    for &block in &blocks[..4] {
        space.free_now(block);
    }
    assert_eq!(extents(), 2, "the other one is full");
    space.free_now(blocks[4]);
    assert_eq!(extents(), 2, "neither has just run empty");
    let again = space.alloc().unwrap();
    assert_eq!(again, blocks[0], "the lowest free block comes first");
    space.free_now(again);
    assert_eq!(extents(), 1, "the other one has room");
    assert!(!space.owns(blocks[0]) && space.owns(blocks[5]));
    assert_eq!(pool.check(), [""; 0]);
}

#[test]
fn an_extent_that_another_size_has_emptied_is_used_before_the_pool_grows() {
    let pool = pool();
    let spaces = pool.core().spaces(0, [1024, 2048, 4096]);
    let (mut last, mut last_space) = (spaces[0].alloc_beside(&spaces, 0).unwrap(), 0);
    for space in [1, 2, 0, 1, 0] {
        let next = spaces[space].alloc_beside(&spaces, 0).unwrap();
        assert!(spaces[last_space].owns(last), "it is in use");
        spaces[last_space].free_now(last);
        (last, last_space) = (next, space);
        let extents = spaces.iter().map(|space| space.stat().file_bytes);
        assert!(extents.sum::<u64>() <= 2 * EXTENT_BYTES);
    }
    assert_eq!(pool.check(), [""; 0]);
}

#[test]
fn a_run_of_before_the_open_is_unswept_as_any_extent_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("runs.pool");
    let size = 2 * EXTENT_BYTES;
    let pool = Pool::create(&path).unwrap();
    drop(pool.map::<u64, u64>("m").unwrap());
    let runs = space(&pool, size).alloc_many(3).unwrap();
    pool.close().unwrap();

    let pool = Pool::open(&path).unwrap();
    let space = space(&pool, size);
    assert!(space.needs_sweep());
    assert!(runs.iter().all(|&run| space.owns(run)));
    assert_eq!(space.stat().file_bytes, 3 * size);
    let new = space.alloc().unwrap();
    assert!(!runs.contains(&new), "nothing comes from unswept extents");
    assert!(runs.iter().all(|&run| space.claim(run)));
    assert!(!space.claim(runs[0]), "it is claimed");
    assert!(!space.claim(new), "it was not there before");
    space.unclaim(runs[2]);
    space.free_now(runs[1]);
    space.finish_sweep();
    assert!(!space.needs_sweep());
    let is_left = runs.iter().map(|&run| space.owns(run));
    assert!(is_left.eq([true, false, false]));
    assert_eq!(space.stat().used_blocks, 2);
    space.close();
    assert_eq!(space.stat().file_bytes, 0);
    assert_eq!(pool.check(), [""; 0]);
}

#[test]
fn offsets_from_the_file_may_be_anything() {
    let pool = pool();
    let (small, large) = (space(&pool, 512), space(&pool, 2 * EXTENT_BYTES));
    let (block, run) = (small.alloc().unwrap(), large.alloc().unwrap());
    let size_at = |offset| pool.core().block_bytes_of(0, offset);
    assert_eq!(size_at(block), Some(512));
    assert_eq!(size_at(block + 512), Some(512));
    assert_eq!(size_at(run), Some(2 * EXTENT_BYTES));
    for offset in [
        Offset::NONE,
        Offset::from_word(64),
        block + 1,
        block + 256,
        run + 64,
        run + EXTENT_BYTES,
        Offset::from_word(pool.stat().file_bytes),
        Offset::from_word(1 << 50),
        Offset::MAX,
    ] {
        assert_eq!(size_at(offset), None, "{offset:#x}");
        assert!(!small.owns(offset) && !large.owns(offset));
    }
    assert_eq!(pool.core().block_bytes_of(1, block), None, "another map's");
}

#[test]
fn blocks_below_an_end_come_from_the_space_or_from_free_extents_and_the_pool_does_not_grow() {
    let pool = pool();
    let bytes = EXTENT_BYTES / 2;
    let (space, other) = (space(&pool, bytes), space(&pool, EXTENT_BYTES));
    let blocks: Vec<Offset> = (0..6).map(|_| space.alloc().unwrap()).collect();
    let start_of = |block: Offset| Offset::of_extent(block.extent());
    let high = start_of(blocks[5]);
    assert_eq!(space.alloc_below(high), None, "all below are full");
    // A free block below.
    space.free_now(blocks[2]);
    assert_eq!(space.alloc_below(high), Some(blocks[2]));
    assert_eq!(space.alloc_below(start_of(blocks[2])), None);
    // A free extent below, which another space has given back.
    let hole = other.alloc().unwrap();
    let above = other.alloc().unwrap();
    other.free_now(hole);
    let before = pool.stat().extents;
    assert_eq!(space.alloc_below(hole), None);
    assert_eq!(space.alloc_below(Offset::MAX), Some(hole));
    assert!(space.owns(hole) && !other.owns(hole));
    assert_eq!(other.alloc_below(above), None);
    assert_eq!(pool.stat().extents, before);
    assert_eq!(pool.check(), [""; 0]);
}

#[test]
fn runs_below_an_end_lie_there_whole() {
    let pool = pool();
    let (space, other) = (space(&pool, 2 * EXTENT_BYTES), space(&pool, EXTENT_BYTES));
    let holes: Vec<Offset> = (0..3).map(|_| other.alloc().unwrap()).collect();
    let _last = other.alloc().unwrap();
    holes.iter().for_each(|&hole| other.free_now(hole));
    assert_eq!(space.alloc_below(holes[0] + EXTENT_BYTES), None);
    let run = space.alloc_below(holes[2]);
    assert_eq!(run, Some(holes[0]));
    // A free block of the space itself is taken on the same condition.
    assert_eq!(space.alloc_below(Offset::MAX), None);
    assert_eq!(pool.check(), [""; 0]);
}

/// Appended later, these words would come behind those of the thread that has got the block.
#[test]
fn what_was_written_to_a_block_is_in_the_log_before_the_block_is_free() {
    let directory = tempfile::tempdir().unwrap();
    let pool = PoolOptions::new()
        .durability(Durability::PowerLoss)
        .log_anywhere(true)
        .create(directory.path().join("a.pool"))
        .unwrap();
    drop(pool.map::<u64, u64>("m").unwrap());
    let space = space(&pool, 4096);
    let block = space.alloc().unwrap();
    let pm = pool.core().pm();
    pm.fence();
    pm.store(&space.words(block)[0], 1);
    assert_eq!(journal::words_kept(), 1, "it has not been appended");
    space.free_now(block);
    assert_eq!(journal::words_kept(), 0);
}
