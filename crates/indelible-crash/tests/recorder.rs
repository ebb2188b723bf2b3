//! The recorder of the library notes what was written, flushed and fenced, in order, with name and source; and what is wrong with a recording
//! before anything has crashed is found.

use indelible_crash::indelible::pmem::trace::{self, Action};
use indelible_crash::indelible::pmem::{Cell, Medium, Pm};
use indelible_crash::{
    Change, Contents, CrashModel, Failure, Limits, Memory, Saw, Search, Steps, Structure, Tally,
    Workload,
};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

#[repr(C, align(64))]
struct Line([Cell; 8]);

#[test]
fn stores_flushes_and_fences_are_recorded_in_order_with_name_and_source() {
    let pm = Pm::new(Medium::Dram);
    let line = Line(std::array::from_fn(|_| Cell::new(0)));
    let here = &line.0[3];
    trace::start(Vec::new());
    pm.commit(here, 9, "first");
    pm.store(here, 10);
    pm.named("second").persist(here);
    let events = trace::stop();
    pm.commit(here, 11, "third");
    assert!(trace::stop().is_empty());
    let address = std::ptr::from_ref(here) as usize;
    let store = |value, before| Action::Store {
        address,
        value,
        before,
    };
    let flush = Action::Flush {
        address: address & !63,
        bytes: 64,
    };
    let expected = [
        (store(9, 0), "first"),
        (flush, "first"),
        (Action::Fence, "first"),
        (store(10, 9), ""),
        (flush, "second"),
        (Action::Fence, "second"),
    ];
    let recorded: Vec<_> = events
        .iter()
        .map(|event| (event.action, event.name))
        .collect();
    assert_eq!(recorded, expected);
    let is_here = |file: &str| file.ends_with("recorder.rs");
    assert!(events.iter().all(|event| is_here(event.source.file())));
}

/// A structure of 512 words, in which a key's value is the word of that number; with a bug.
#[derive(Clone, Copy)]
enum Words {
    Sound,
    /// Every second key is not there after its insert.
    Loses,
    /// Writes behind the end of the memory.
    WritesBeyond,
    /// The same, in the recovery.
    RecoversBeyond,
    /// Writes a word behind the recorder's back.
    WritesUnseen,
    /// The same, in the recovery.
    RecoversUnseen,
    /// Believes what a process that has died left in the caches.
    BelievesCaches,
}

const WORDS: usize = 512;

impl Structure for Words {
    type Open = (Arc<Memory>, Pm);
    /// Inserts a key, with the value 1.
    type Operation = u64;

    fn create(&self, memory: &Arc<Memory>) -> Result<Self::Open, String> {
        memory.set_length(8 * WORDS as u64);
        Ok((Arc::clone(memory), Pm::new(Medium::Pmem)))
    }

    fn recover(&self, memory: &Arc<Memory>) -> Result<Self::Open, String> {
        let pm = Pm::new(Medium::Pmem);
        match self {
            Self::RecoversBeyond => pm.store(&memory.words()[WORDS], 1),
            Self::RecoversUnseen => memory.set(WORDS - 1, 1 + memory.words()[1].load()),
            Self::BelievesCaches => return Ok((Arc::clone(memory), pm)),
            _ => {}
        }
        memory.sync();
        Ok((Arc::clone(memory), pm))
    }

    fn run(&self, (memory, pm): &Self::Open, &key: &u64) -> Result<Vec<Saw>, String> {
        let at = match self {
            Self::WritesBeyond => WORDS,
            _ => key as usize,
        };
        if matches!(self, Self::WritesUnseen) {
            memory.set(WORDS - 1, key);
        }
        if !matches!(self, Self::Loses) || key % 2 == 1 {
            pm.commit(&memory.words()[at], 1, "insert");
        }
        Ok(vec![Saw::Value(None)])
    }

    fn steps(&self, &key: &u64) -> Steps {
        Steps::one(key, Change::Put(1))
    }

    fn contents(&self, (memory, _): &Self::Open) -> Result<Contents, String> {
        // The last one is no key's.
        let words = (0..).zip(&memory.words()[..WORDS - 1]);
        let records = words.map(|(key, word)| (key, word.load()));
        Ok(records.filter(|&(_, value)| value > 0).collect())
    }
}

/// What a search finds in one history of the structure, in which each thread inserts some keys.
fn failure(words: Words, threads: Vec<Vec<u64>>, limits: Limits) -> Option<Box<Failure>> {
    let workload = |_| {
        let (before, threads) = (vec![], threads.clone());
        (words, Workload { before, threads })
    };
    let run = Search {
        history: &workload,
        crash_model: CrashModel::Pmem,
        limits,
        seed: 0,
        histories: 1,
        time: None,
        workers: 1,
    };
    run.go(&Tally::default(), &AtomicU64::new(0)).failure
}

/// What is wrong with the structure, found with so many images at each point.
fn problem(words: Words, images_per_point: usize) -> Option<String> {
    let limits = Limits {
        images_per_point,
        ..Limits::default()
    };
    let threads = vec![(1..4).collect(), (4..8).collect()];
    failure(words, threads, limits).map(|failure| failure.problem)
}

#[test]
fn what_is_missing_without_a_crash_is_found_also_if_nothing_is_crashed() {
    assert_eq!(problem(Words::Sound, 0), None);
    let found = problem(Words::Loses, 0);
    let missing = "without a crash: key 2 is missing, where 1 is right";
    assert_eq!(found.as_deref(), Some(missing));
}

#[test]
fn a_store_beyond_the_end_of_the_memory_is_found_in_operations_and_in_recoveries() {
    assert_eq!(problem(Words::Sound, 8), None);
    for (words, images_per_point) in [(Words::WritesBeyond, 0), (Words::RecoversBeyond, 8)] {
        let found = problem(words, images_per_point).unwrap_or_default();
        assert!(found.starts_with("a store at "), "{found}");
        assert!(found.contains("to 0x1000, where the memory is 0x1000 long"));
    }
}

#[test]
fn what_is_written_behind_the_back_of_the_recorder_is_found() {
    let found = problem(Words::WritesUnseen, 0).unwrap_or_default();
    assert!(found.contains("the word at 0xff8 is 0x"), "{found}");
    let found = problem(Words::RecoversUnseen, 8).unwrap_or_default();
    assert!(found.contains("images leak into each other"), "{found}");
}

#[test]
fn what_a_dead_process_left_in_the_caches_is_not_durable_for_the_next_one() {
    assert_eq!(problem(Words::Sound, 8), None);
    let failure = failure(
        Words::BelievesCaches,
        vec![(1..200).collect()],
        Limits::default(),
    );
    let report = failure
        .expect("a structure that loses what was read")
        .to_string();
    assert!(report.contains("is missing, where 1 is right"), "{report}");
    assert!(
        report.contains("while recovering from a crash before"),
        "{report}"
    );
    assert!(report.contains("not flushed"), "{report}");
}
