//! Bulk load: a whole map, built aside and switched in with one store.

use super::Tree;
use super::build::{Aside, Built, Record};
use super::data::Data;
use super::inner::{Child, Inner};
use super::layout::Link;
use super::plan::{InnerPlan, Plan};
use super::smo::Frozen;
use crate::concurrency::epochs;
use crate::concurrency::locks::Wait;
use crate::concurrency::sync::lock;
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// All keys.
const DOMAIN: (u64, u64) = (0, u64::MAX);

/// Children of the root that a thread of a bulk load builds at a time.
const PART: usize = 16;

impl Tree {
    /// Builds a map without records, of which nobody knows yet, and returns its root.
    pub(super) fn build_empty(&self) -> Result<Link> {
        let mut aside = Aside::new(self);
        let plan = self.shape.plan(&[], DOMAIN, 1.0, 1);
        let (link, child) = aside.plant(&plan, &[], DOMAIN, 0)?;
        self.pm.fence();
        self.root.store(child.as_inner(), Ordering::Release);
        aside.open();
        Ok(link)
    }

    /// See `Map::bulk_load`.
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
        let plan = self.shape.plan(&keys, DOMAIN, fill, threads);
        drop(keys);
        let mut aside = Aside::new(self);
        let (link, child) = match &plan {
            Plan::Inner(plan) => self.plant_parallel(&mut aside, plan, records, threads)?,
            // A plan for the whole domain has an inner node at its root.
            Plan::Data(_) => aside.plant(&plan, records, DOMAIN, 0)?,
        };
        self.pm.fence();
        let _root = lock(&self.changing_root);
        // COMMIT: the root, in the catalog. Before this store the map is empty and the new nodes are swept; after it the map
        // is complete.
        self.pm.commit(self.root_cell(), link.0, "apex.load");
        self.root.store(child.as_inner(), Ordering::Release);
        // Nobody writes while all nodes are frozen, so whatever lock this is counted under is as good as held.
        self.count
            .change(self.locks.entry(0), 0, records.len() as i64);
        for inner in old.inners {
            let _slots = lock(&inner.changing);
            // One with a single child may have been taken out meanwhile.
            if !inner.is_dead() {
                self.retire_inner(inner);
            }
        }
        for frozen in &old.nodes {
            self.retire_data(frozen.data);
        }
        aside.open();
        Ok(())
    }

    /// Freezes all data nodes, none of which may have a record.
    fn freeze_all(&self) -> Result<AllFrozen<'_>> {
        let mut all = AllFrozen::default();
        let (mut from, mut inners, mut wait) = (0, BTreeMap::new(), Wait::default());
        loop {
            let path = self.path_to(from)?;
            let data = path.data;
            if self.has_records(data) {
                return Err(Error::NotEmpty);
            }
            let Some(frozen) = self.freeze(data) else {
                wait.step();
                continue;
            };
            all.nodes.push(frozen);
            if self.has_records(data) {
                return Err(Error::NotEmpty);
            }
            for step in path.steps {
                inners.insert(step.inner.head, step.inner);
            }
            match data.high.checked_add(1) {
                Some(next) => from = next,
                None => break,
            }
        }
        // With all of their data nodes frozen they do not change.
        all.inners = inners
            .into_values()
            .filter(|inner| !inner.is_dead())
            .collect();
        Ok(all)
    }

    fn has_records(&self, data: &Data) -> bool {
        (0..data.group_count()).any(|group| !self.keys_of(data, group).is_empty())
    }

    /// Builds a tree with several threads.
    fn plant_parallel<'a>(
        &'a self,
        aside: &mut Aside<'a>,
        plan: &InnerPlan,
        records: &[Record],
        threads: usize,
    ) -> Result<(Link, Child)> {
        let count = plan.children.len();
        let next = Mutex::new((0..count).step_by(PART));
        let work = || {
            let (mut aside, mut built) = (Aside::new(self), Vec::new());
            loop {
                let from = lock(&next).next();
                let Some(from) = from else {
                    break;
                };
                let which = from..(from + PART).min(count);
                built.append(&mut aside.plant_children(plan, which, records, DOMAIN, 0)?);
            }
            // A fence speaks for its own thread only.
            self.pm.named("apex.load.part").fence();
            Ok((aside, built))
        };
        let results: Vec<Result<(Aside<'_>, Vec<Built>)>> = std::thread::scope(|scope| {
            let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, work);
            // Without more threads this one does it all.
            let others: Vec<_> = (1..threads).filter_map(|i| spawn(i).ok()).collect();
            let mine = work();
            let theirs = others.into_iter().filter_map(|thread| thread.join().ok());
            std::iter::once(mine).chain(theirs).collect()
        });
        let mut built = Vec::with_capacity(count);
        for result in results {
            let (theirs, mut children) = result?;
            aside.absorb(theirs);
            built.append(&mut children);
        }
        built.sort_by_key(|child| child.first);
        aside.plant_over(plan.radix(), &built, DOMAIN, 0)
    }
}

/// All nodes of a map without records.
#[derive(Default)]
struct AllFrozen<'a> {
    nodes: Vec<Frozen<'a>>,
    inners: Vec<&'a Inner>,
}
