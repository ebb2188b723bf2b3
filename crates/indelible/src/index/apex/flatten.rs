//! A structure change that keeps trees flat: where node was split below node, again and again, they are laid out anew together.
//!
//! That happens where keys come in leaps, each of which is too far for the inner nodes that there are. Only the lower part of the way is
//! laid out anew, a few levels of it, so that a tree that grows by leaps becomes flat piece by piece.

use super::Tree;
use super::build::{Aside, Record};
use super::inner::Inner;
use super::smo::{Frozen, Step};
use crate::sync::lock;
use crate::{Result, reclaim};
use std::collections::BTreeMap;

const SMALL: bool = cfg!(feature = "small");

/// Inner nodes above a data node from which on the way is too long.
const LONG: usize = if SMALL { 4 } else { 8 };
/// How many of them are laid out anew with what is beneath.
const LEVELS: usize = if SMALL { 3 } else { 6 };
/// Data nodes that this may take, at most: others wait for them.
const MOST_NODES: usize = 256;

impl Tree {
    /// Makes the way to `key` shorter, if it is long. A hint that something should be done: if others are at it, or there is too much
    /// beneath, nothing is.
    pub(super) fn flatten(&self, key: u64) -> Result<()> {
        let _guard = reclaim::pin();
        let path = self.path_to(key)?;
        if path.steps.len() <= LONG {
            return Ok(());
        }
        let at = path.steps.len() - LEVELS;
        let (above, inner) = (&path.steps[at - 1], path.steps[at].inner);
        let Some((frozen, inners)) = self.freeze_beneath(inner)? else {
            return Ok(());
        };
        let records: Vec<Record> = frozen
            .iter()
            .flat_map(|node| self.records_of(node.data))
            .collect();
        self.lay_out_anew(above, inner, &frozen, &inners, &records)
    }

    /// Freezes all data nodes beneath an inner node, and tells which inner nodes there are. None if one of them cannot be had.
    #[allow(clippy::type_complexity, reason = "a pair of lists, for one caller")]
    fn freeze_beneath<'a>(
        &'a self,
        inner: &Inner,
    ) -> Result<Option<(Vec<Frozen<'a>>, Vec<&'a Inner>)>> {
        let (mut frozen, mut inners) = (Vec::new(), BTreeMap::new());
        let mut from = inner.low;
        loop {
            let path = self.path_to(from)?;
            let beneath = path
                .steps
                .iter()
                .skip_while(|step| step.inner.head != inner.head);
            let before = inners.len();
            inners.extend(beneath.map(|step| (step.inner.head, step.inner)));
            let is_beneath = inners.len() > before || !inners.is_empty();
            // Nobody waits for a node here: others could be waiting for one of ours.
            let Some(node) = self.freeze(path.data).filter(|_| is_beneath) else {
                return Ok(None);
            };
            frozen.push(node);
            if path.data.high >= inner.high {
                return Ok(Some((frozen, inners.into_values().collect())));
            }
            if frozen.len() == MOST_NODES {
                return Ok(None);
            }
            from = path.data.high + 1;
        }
    }

    /// Puts a tree with `records` in the place of an inner node, all of whose data nodes are frozen.
    fn lay_out_anew(
        &self,
        above: &Step<'_>,
        inner: &Inner,
        frozen: &[Frozen<'_>],
        inners: &[&Inner],
        records: &[Record],
    ) -> Result<()> {
        let keys: Vec<u64> = records.iter().map(|&(key, _)| key).collect();
        let range = (inner.low, inner.high);
        let plan = self.shape.plan(&keys, range, self.shape.fill, 1);
        let mut aside = Aside::new(self);
        let (link, child) = aside.plant(&plan, records, range, inner.depth)?;
        self.pm.fence();
        let _above = lock(&above.inner.changing);
        if !self.is_child(Some(above), inner) {
            return Ok(());
        }
        self.pm.note("laid out anew", 0);
        self.relink_inner(Some(above), link, child);
        for inner in inners {
            let _slots = lock(&inner.changing);
            // One with a single child may have been taken out meanwhile.
            if !inner.is_dead() {
                self.retire_inner(inner);
            }
        }
        for node in frozen {
            self.retire_data(node.data);
        }
        aside.open();
        Ok(())
    }
}
