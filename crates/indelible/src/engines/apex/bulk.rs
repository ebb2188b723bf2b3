//! Bulk load: a whole tree, built unpublished by several threads and committed with one store.
//!
//! | step | what is durable | what recovery does |
//! |---|---|---|
//! | 1. freeze all data nodes, none of which has a record | the empty tree | nothing |
//! | 2. write the new tree, flush; each thread fences what it has written | the empty tree; new nodes that are unreachable | sweeps the new nodes |
//! | 3. store the root in the catalog (commit), flush, fence | the new tree | sweeps the old nodes |
//! | 4. point the root's mirror to the new tree, retire the old nodes, open the new nodes for writers | the new tree | sweeps the old nodes |

use super::Tree;
use super::build::{BuiltChild, Record, UnpublishedNodes};
use super::data::DataNode;
use super::inner::Child;
use super::layout::Link;
use super::plan::{InnerPlan, Plan};
use super::smo::FrozenNode;
use crate::concurrency::epochs;
use crate::concurrency::locks::Wait;
use crate::concurrency::sync::lock;
use crate::{Error, Result};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// The range of all keys.
const ALL_KEYS: (u64, u64) = (0, u64::MAX);

/// Children of the root that a thread of a bulk load builds before it asks for more: few, so that all threads end at
/// about the same time.
const CHILDREN_PER_BUILD_TASK: usize = 16;

impl Tree {
    /// Builds a tree without records, which is not reachable yet, and returns the link to its root.
    pub(super) fn build_empty(&self) -> Result<Link> {
        let mut unpublished = UnpublishedNodes::new(self);
        let plan = self.limits.plan_tree(&[], ALL_KEYS, 1.0, 1);
        let (link, child) = unpublished.build_subtree(&plan, &[], ALL_KEYS, 0)?;
        self.root.store(child.as_inner(), Ordering::Release);
        unpublished.open_for_writers();
        Ok(link)
    }

    /// Fills an empty map with `records`; see `Map::bulk_load`.
    pub(super) fn bulk_load(&self, records: &[Record], fill: f64) -> Result<()> {
        let _guard = epochs::pin();
        let old = self.freeze_all()?;
        if records.is_empty() {
            return Ok(());
        }
        self.pm.note("bulk load", 0);
        let keys: Vec<u64> = records.iter().map(|&(key, _)| key).collect();
        let threads = if self.core.runs_alone() {
            1
        } else {
            std::thread::available_parallelism().map_or(1, usize::from)
        };
        let plan = self.limits.plan_tree(&keys, ALL_KEYS, fill, threads);
        drop(keys);
        let mut unpublished = UnpublishedNodes::new(self);
        let (link, child) = match &plan {
            Plan::Inner(plan) => self.plant_parallel(&mut unpublished, plan, records, threads)?,
            // A plan for the range of all keys has an inner node at its root.
            Plan::Data(_) => unpublished.build_subtree(&plan, records, ALL_KEYS, 0)?,
        };
        self.pm.fence();
        let _root = lock(&self.changing_root);
        // Not earlier: a compaction moves inner nodes, and flattening replaces them, also above data nodes that are frozen.
        let mut inners = Vec::new();
        self.lock_subtree(self.root(), &mut inners);
        // COMMIT apex.load: the root, in the catalog. Before this store, recovery sees the empty tree and sweeps
        // the new nodes; after it, recovery sees all records and sweeps the old nodes.
        self.pm.commit(self.root_cell(), link.0, "apex.load");
        self.root.store(child.as_inner(), Ordering::Release);
        // All data nodes are frozen, so no writer holds this lock and counts under it.
        self.locks
            .count
            .change(self.locks.entry(0), 0, records.len() as i64);
        for (inner, _) in &inners {
            self.retire_inner(inner);
        }
        drop(inners);
        for frozen in &old {
            self.retire_data(frozen.data);
        }
        unpublished.open_for_writers();
        Ok(())
    }

    /// Freezes all data nodes. `Error::NotEmpty` if one has a record.
    fn freeze_all(&self) -> Result<Vec<FrozenNode<'_>>> {
        let mut all = Vec::new();
        let (mut from, mut wait) = (0, Wait::default());
        loop {
            let data = self.path_to(from)?.data;
            if data.low != from {
                // What this has frozen stays as it is. In a damaged pool one of these nodes is found again, and would be waited for.
                return Err(Error::Damaged(format!(
                    "the data node of key {from:#x} begins at {:#x}",
                    data.low
                )));
            }
            if self.has_records(data) {
                return Err(Error::NotEmpty);
            }
            let Some(frozen) = self.freeze(data) else {
                wait.step();
                continue;
            };
            all.push(frozen);
            if self.has_records(data) {
                return Err(Error::NotEmpty);
            }
            match data.high.checked_add(1) {
                Some(next) => from = next,
                None => return Ok(all),
            }
        }
    }

    /// Whether a data node has a record.
    fn has_records(&self, data: &DataNode) -> bool {
        (0..data.group_count()).any(|group| !self.keys_of(data, group).is_empty())
    }

    /// Builds the root of a bulk load with several threads, each of which builds some of the children. (The crash
    /// checker names this function in its list of excuses.)
    fn plant_parallel<'a>(
        &'a self,
        unpublished: &mut UnpublishedNodes<'a>,
        plan: &InnerPlan,
        records: &[Record],
        threads: usize,
    ) -> Result<(Link, Child)> {
        let count = plan.children.len();
        let next = Mutex::new((0..count).step_by(CHILDREN_PER_BUILD_TASK));
        let work = || {
            let (mut unpublished, mut built) = (UnpublishedNodes::new(self), Vec::new());
            loop {
                let from = lock(&next).next();
                let Some(from) = from else {
                    break;
                };
                let which = from..(from + CHILDREN_PER_BUILD_TASK).min(count);
                built.append(&mut unpublished.build_children(plan, which, records, ALL_KEYS, 0)?);
            }
            // A fence orders the flushes of its own thread only.
            self.pm.named("apex.load.part").fence();
            Ok((unpublished, built))
        };
        let results: Vec<Result<(UnpublishedNodes<'_>, Vec<BuiltChild>)>> =
            std::thread::scope(|scope| {
                let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, work);
                // If no thread can be started, this thread does all the work.
                let others: Vec<_> = (1..threads).filter_map(|i| spawn(i).ok()).collect();
                let mine = work();
                let theirs = others.into_iter().map(|thread| {
                    // A panic has lost children. Without them the tree must not be committed.
                    (thread.join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                });
                std::iter::once(mine).chain(theirs).collect()
            });
        let mut built = Vec::with_capacity(count);
        for result in results {
            let (theirs, mut children) = result?;
            unpublished.append(theirs);
            built.append(&mut children);
        }
        built.sort_by_key(|child| child.first);
        assert_eq!(built.len(), count, "apex I2: child groups tile the root");
        unpublished.build_inner_node_over(plan.radix(), &built, ALL_KEYS, 0)
    }
}
