//! A persistent linked list in sixty lines, with a bug. `cargo run --release -p indelible-crash --example linked_list`
//!
//! Word 0 is the head: the number of the first node, or 0. Node `n` is the two words `8 n` (key) and `8 n + 1` (next).

use indelible_crash::indelible::pmem::{Medium, Memory, Pm};
use indelible_crash::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

struct List;

struct Open {
    memory: Arc<Memory>,
    pm: Pm,
    nodes: Mutex<u64>,
}

impl Structure for List {
    type Open = Open;
    /// Pushes a key to the front.
    type Operation = u64;

    fn create(&self, memory: &Arc<Memory>) -> Result<Open, String> {
        memory.set_length(memory.capacity() as u64);
        self.recover(memory)
    }

    fn recover(&self, memory: &Arc<Memory>) -> Result<Open, String> {
        memory.sync(); // What a process that has died left in the caches.
        let (memory, pm) = (Arc::clone(memory), Pm::new(Medium::Pmem));
        let nodes = Mutex::new(memory.words()[0].load());
        Ok(Open { memory, pm, nodes })
    }

    fn run(&self, open: &Open, &key: &u64) -> Result<Vec<Saw>, String> {
        let (words, mut nodes) = (open.memory.words(), lock(&open.nodes));
        *nodes += 1;
        let node = &words[8 * *nodes as usize..][..2];
        open.pm.store(&node[0], key);
        open.pm.store(&node[1], words[0].load());
        open.pm.flush(node); // The bug: nothing waits for this before the head points to the node.
        open.pm.commit(&words[0], *nodes, "list.length");
        Ok(vec![Saw::Nothing])
    }

    fn steps(&self, &key: &u64) -> Steps {
        Steps::one(key, Change::Put(0))
    }

    fn contents(&self, open: &Open) -> Result<Contents, String> {
        let (words, mut contents) = (open.memory.words(), Contents::new());
        let mut node = words[0].load();
        while node != 0 {
            contents.push((words[8 * node as usize].load(), 0));
            node = words[8 * node as usize + 1].load();
        }
        contents.sort_unstable();
        Ok(contents)
    }
}

/// Looks for the bug.
pub fn report() -> Option<String> {
    let run = Search {
        history: &|_| {
            (
                List,
                Workload {
                    before: vec![],
                    threads: vec![(1..9).collect()],
                },
            )
        },
        crash_model: CrashModel::Pmem,
        limits: Limits::default(),
        seed: 0,
        histories: 1,
        time: None,
        workers: 1,
    };
    let (tally, begun) = (Default::default(), AtomicU64::new(0));
    let summary = run.go(&tally, &begun);
    println!(
        "{} histories, {} images",
        begun.load(Ordering::Relaxed),
        tally.images()
    );
    summary.failure.map(|failure| failure.to_string())
}

#[allow(dead_code)]
fn main() {
    println!("{}", report().expect("the bug is found"));
}
