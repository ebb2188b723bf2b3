//! Moments of threads that help each other which are met seldom, put together by hand.

use super::*;
use crate::engines::pmr::Tree;
use crate::engines::pmr::layout::RELOCATIONS;
use crate::{PmRtreeOptions, Point2, Pool};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The tree of an empty index, which has had one change of several words: one that has failed. Returns the number of its descriptor too.
fn after_a_failed_change(pool: &Pool) -> (Tree<Point2>, usize) {
    drop(pool.spatial_with::<Point2>("s", PmRtreeOptions::default()));
    let place = Place {
        core: Arc::clone(pool.core()),
        slot: pool.core().slots().next().unwrap(),
    };
    let tree = Tree::<Point2>::open(&place).unwrap();
    let relocations = tree.relocations().unwrap();
    let leaf = tree.view(tree.root().unwrap()).unwrap();
    let mut exchanges = [
        Exchange {
            cell: tree.words.root_cell(RELOCATIONS),
            old: relocations + 1,
            new: relocations + 2,
        },
        Exchange {
            cell: &leaf.node.block.word,
            old: leaf.word.0,
            new: leaf.word.frozen().0,
        },
    ];
    assert!(!tree.words.exchange_all(&mut exchanges).unwrap());
    let has_been_used = |part: &Part| part.number.load(Ordering::SeqCst) != NO_CHANGE;
    let number = tree.words.parts.iter().position(has_been_used).unwrap();
    (tree, number)
}

#[test]
fn a_mark_that_late_helpers_put_back_is_no_damage() {
    let pool = Pool::in_memory().unwrap();
    let (tree, number) = after_a_failed_change(&pool);
    let words = &tree.words;
    let leaf = tree.view(tree.root().unwrap()).unwrap();
    let (cell, old) = (&leaf.node.block.word, leaf.word.0);
    let status = words.descriptor(number).status.load_acquire();
    let mark = words.mark_of(number, Status::from_word(status).unwrap());
    // Once the mark has gone the change has ended, whatever is put back afterwards.
    assert!(
        words
            .help_with(number, cell, Mark::from_word(mark))
            .unwrap()
    );
    // A helper that is late puts the mark back.
    words.parts[number].users.fetch_add(1, Ordering::SeqCst);
    assert!(words.pm.exchange(cell, old, mark));
    words.help(cell, mark).unwrap();
    assert_eq!(cell.load(), old);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                words.pm.exchange(cell, old, mark);
                words.pm.exchange(cell, mark, old);
            }
        });
        let begin = Instant::now();
        let mut wrong = None;
        while wrong.is_none() && begin.elapsed() < Duration::from_millis(200) {
            wrong = (0..1_000)
                .map(|_| words.read(cell))
                .find(|read| !matches!(read, Ok(word) if *word == old));
        }
        stop.store(true, Ordering::Relaxed);
        assert!(wrong.is_none(), "{wrong:?}");
    });
    words.parts[number].users.fetch_sub(1, Ordering::SeqCst);
    assert_eq!(words.read(cell).unwrap(), old);
}

#[test]
fn a_change_that_meets_damage_leaves_no_marks() {
    let pool = Pool::in_memory().unwrap();
    let (tree, _) = after_a_failed_change(&pool);
    let words = &tree.words;
    let leaf = tree.view(tree.root().unwrap()).unwrap();
    let (cell, old) = (&leaf.node.block.word, leaf.word.0);
    let relocations = tree.relocations().unwrap();
    let of_no_change = Mark {
        descriptor: leaf.offset(),
        number: 1,
    };
    assert!(words.pm.exchange(cell, old, of_no_change.to_word()));
    let counter = words.root_cell(RELOCATIONS);
    let mut exchanges = [
        Exchange {
            cell: counter,
            old: relocations,
            new: relocations + 1,
        },
        Exchange {
            cell,
            old,
            new: leaf.word.frozen().0,
        },
    ];
    let result = words.exchange_all(&mut exchanges);
    assert!(matches!(result, Err(Error::Damaged(_))), "{result:?}");
    assert_eq!(counter.load(), relocations);
    let is_taken = |part: &Part| part.users.load(Ordering::SeqCst) != 0;
    assert!(!words.parts.iter().any(is_taken));
}

/// The word of a change that has ended may lie where nothing is any more: beyond the end of a file that has been cut since.
#[test]
fn who_waits_for_a_descriptor_leaves_the_words_of_changes_alone_that_have_ended() {
    let pool = Pool::in_memory().unwrap();
    let (tree, number) = after_a_failed_change(&pool);
    let words = &tree.words;
    let beyond = pool.stat().file_bytes + (64 << 20);
    words
        .pm
        .store(&words.descriptor(number).targets[1].offset, beyond);
    for part in &words.parts {
        part.users.store(OWNER, Ordering::SeqCst);
    }
    let taken = std::thread::scope(|scope| {
        let taker = scope.spawn(|| words.take_descriptor().map(|(number, _)| number));
        std::thread::sleep(Duration::from_millis(10));
        words.parts[7].users.store(0, Ordering::SeqCst);
        taker.join().unwrap()
    });
    assert_eq!(taken.unwrap(), 7);
}
