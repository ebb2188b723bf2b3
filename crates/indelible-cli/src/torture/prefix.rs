//! What writers left of which it is known only how much they had acknowledged at some moment before: those that went on while the state of the disk was
//! copied, and those whose operations return before they are durable. Of each thread, that many operations are there, or some more, and none behind the
//! first that is missing.

use super::Step;
use super::target::{Target, TargetArgs};
use crate::output::Output;
use anyhow::{Result, bail, ensure};
use clap::Args;
use indelible::Pool;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Operations that a thread may have finished after the last number that it was heard of with.
const UNHEARD: u64 = 1 << 20;

/// Opens a pool that the writers wrote to, and compares.
#[derive(Args)]
pub struct Verify {
    pool: PathBuf,
    seed: u64,
    /// Operations that were acknowledged, of each thread.
    #[arg(value_delimiter = ',', required = true)]
    acknowledged: Vec<u64>,
    #[command(flatten)]
    new: TargetArgs,
}

impl Verify {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let pool = Pool::open(&self.pool)?;
        let map = Target::open(&pool, &self.new)?;
        let there = count(&map, self.seed, &self.acknowledged)?;
        let acknowledged: u64 = self.acknowledged.iter().sum();
        let problems = map.check()?;
        ensure!(problems.is_empty(), "the index is damaged: {problems:#?}");
        let problems = pool.check();
        ensure!(problems.is_empty(), "the pool is damaged: {problems:#?}");
        let facts = [
            ("operations acknowledged", json!(acknowledged)),
            (
                "operations there that were not heard of",
                json!(there.iter().sum::<u64>() - acknowledged),
            ),
            ("records", json!(map.len()?)),
        ];
        output.facts("everything acknowledged is there", &facts)?;
        Ok(true)
    }
}

/// How many operations of each thread are there: at least as many as it has acknowledged.
pub(super) fn count(map: &Target, seed: u64, acknowledged: &[u64]) -> Result<Vec<u64>> {
    let mut of_threads = vec![BTreeMap::new(); acknowledged.len()];
    for (key, value) in map.records()? {
        match of_threads.get_mut(Step::thread_of(key) as usize) {
            Some(of_thread) => of_thread.insert(key, value),
            None => bail!("nobody wrote the key {key}"),
        };
    }
    let threads = (0..).zip(of_threads.iter().zip(acknowledged));
    threads
        .map(|(thread, (found, &acknowledged))| expect_prefix(seed, thread, found, acknowledged))
        .collect()
}

/// How many operations of a thread these records are the result of: at least as many as it has acknowledged.
fn expect_prefix(
    seed: u64,
    thread: u64,
    found: &BTreeMap<u64, u64>,
    acknowledged: u64,
) -> Result<u64> {
    let mut model = BTreeMap::new();
    // Keys that are not in the model as they were found.
    let mut different = found.len();
    let mut sound = None;
    for done in 0..=acknowledged + UNHEARD {
        if different == 0 {
            sound = Some(done);
            if done >= acknowledged {
                return Ok(done);
            }
        }
        let step = Step::at(seed, thread, done);
        let expected = found.get(&step.key());
        let was_different = model.get(&step.key()) != expected;
        match step {
            Step::Put(key, value) => model.insert(key, value),
            Step::Remove(key) => model.remove(&key),
        };
        let is_different = model.get(&step.key()) != expected;
        different = different + usize::from(is_different) - usize::from(was_different);
    }
    match sound {
        Some(there) => bail!(
            "thread {thread}: {acknowledged} operations were acknowledged, and only the first {there} are there"
        ),
        None => {
            bail!("thread {thread}: what is there is the result of no number of its operations")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(steps: impl Iterator<Item = u64>) -> BTreeMap<u64, u64> {
        let mut model = BTreeMap::new();
        for i in steps {
            match Step::at(7, 2, i) {
                Step::Put(key, value) => model.insert(key, value),
                Step::Remove(key) => model.remove(&key),
            };
        }
        model
    }

    #[test]
    fn what_is_there_is_a_prefix_that_is_long_enough() {
        assert_eq!(
            expect_prefix(7, 2, &after(0..20_000), 19_990).unwrap(),
            20_000
        );
        assert_eq!(
            expect_prefix(7, 2, &after(0..20_000), 20_000).unwrap(),
            20_000
        );
        let lost = expect_prefix(7, 2, &after(0..1_999), 2_000).unwrap_err();
        assert!(lost.to_string().contains("only the first 1999"), "{lost}");
        let hole = after((0..1_000).chain(1_001..2_000));
        let hole = expect_prefix(7, 2, &hole, 1_500).unwrap_err();
        assert!(hole.to_string().contains("no number"), "{hole}");
    }
}
