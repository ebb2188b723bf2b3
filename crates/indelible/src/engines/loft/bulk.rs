//! Bulk loads: everything is built aside, and the root is moved there.

use super::Index;
use super::inner::Inner;
use super::node::{Child, load_move};
use super::plan::{LEAST_EXPANSION, Record};
use crate::concurrency::epochs;
use crate::engines::unless_full;
use crate::{Error, Result};

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
        let root = self.touched_root()?;
        let moved = self.move_inner(root, self.root_cell(), &self.root, built);
        if matches!(moved, Ok(false)) {
            // A compaction moves the root, which may have no records.
            if let Some(other) = load_move(&root.moving) {
                self.finish_inner(root, other)?;
            }
            return self.load(records, fill);
        }
        self.count_change(records.len() as i64);
        if moved.is_err() {
            let moved = load_move(&root.moving).expect("the move was installed");
            self.capture(root, moved, false)?;
        }
        self.count_change(-self.count_among(root, records)?);
        // The load has been committed. What was inserted beside it and has found no space there can be read where it is until there is some.
        unless_full(moved.map(drop))
    }

    /// How many records beneath a root that is moved, all of them frozen, have keys of these records. Whoever inserted them has counted them, and they were
    /// not copied.
    fn count_among(&self, root: &Inner, loaded: &[Record]) -> Result<i64> {
        let mut inserted = Vec::new();
        self.collect(Child::inner(root), &mut inserted)?;
        let is_loaded = |record: &&Record| {
            loaded
                .binary_search_by_key(&record.0, |loaded| loaded.0)
                .is_ok()
        };
        Ok(inserted.iter().filter(is_loaded).count() as i64)
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
