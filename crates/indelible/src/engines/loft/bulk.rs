//! Bulk loads: everything is built aside, and the root is moved there.

use super::Index;
use super::node::{Child, Kin};
use super::plan::{LEAST_EXPANSION, Record};
use crate::concurrency::epochs;
use crate::{Error, Result};
use std::sync::atomic::Ordering;

impl Index {
    /// Fills the empty map. COMMIT loft.move of the root commits it: before that store the new nodes are unreachable; after it, recovery finds
    /// the old root moved to the new one.
    pub(super) fn load(&self, records: &[Record], fill: f64) -> Result<()> {
        let _pinned = epochs::pin();
        if !self.has_no_records()? {
            return Err(Error::NotEmpty);
        }
        let mut plan = self.plan();
        plan.stores = true;
        plan.expansion = ((100.0 / fill) as u64).clamp(LEAST_EXPANSION, 400);
        let built = self.build_root(records, &plan)?;
        self.pm.note("loft: loaded", 0);
        let root = Child(self.root.load(Ordering::Acquire));
        // SAFETY: the thread is pinned, and has loaded the root since.
        let Kin::Inner(root) = (unsafe { root.kin() }) else {
            return Err(Error::Damaged("no root".into()));
        };
        if !self.move_inner(root, self.root_cell(), &self.root, built)? {
            return Err(Error::NotEmpty);
        }
        self.count_change(records.len() as i64);
        Ok(())
    }

    fn has_no_records(&self) -> Result<bool> {
        let mut next = Some(0);
        while let Some(key) = next {
            let (node, (_, high)) = self.node_at(key)?;
            if let Some(node) = node
                && !self.records_of(node)?.is_empty()
            {
                return Ok(false);
            }
            next = high.checked_add(1);
        }
        Ok(true)
    }
}
