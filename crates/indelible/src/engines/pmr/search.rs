//! Searches by window, and all that reads the leaves of the tree.
//!
//! A search reads the word of a node, and remembers the children that it wants. When it comes to a child, the child may have been replaced: then it
//! stays as it was at that moment for as long as the search is pinned. What has replaced it is in the new state of the parent, which the search has
//! not read and does not read. So each record is met once. `quiet` says what relocations need besides.

use super::Tree;
use super::node::View;
use crate::Result;
use crate::engines::rect::Visits;
use crate::spatial::{Geometry, Rect};

impl<G: Geometry> Tree<G> {
    /// Reads each leaf below children that `wants` accepts the boxes of. The caller is pinned.
    fn visit_leaves(
        &self,
        wants: impl Fn(&Rect) -> bool,
        mut visit: impl FnMut(View<'_, G>),
    ) -> Result<()> {
        let mut waiting = vec![self.root()?];
        let mut visits = Visits::new(&self.space);
        while let Some(link) = waiting.pop() {
            visits.count()?;
            let view = self.view(link)?;
            if view.level == 0 {
                visit(view);
                continue;
            }
            let wanted = view.slots().filter(|&slot| wants(&view.rect(slot)));
            waiting.extend(wanted.map(|slot| view.link_to(slot)));
        }
        Ok(())
    }

    /// See [`Spatial::search`](crate::engines::Spatial::search).
    pub(super) fn search(&self, windows: &[Rect], found: &mut Vec<(G, u64)>) -> Result<()> {
        let windows = windows.to_vec();
        let mut records = self.undisturbed(move |tree| {
            let meets = |rect: &Rect| windows.iter().any(|window| window.intersects(rect));
            let mut records = Vec::new();
            tree.visit_leaves(meets, |leaf| {
                let all = leaf.slots().map(|slot| leaf.entry(slot));
                let found = all.filter(|record| meets(&record.rect::<G>()));
                records.extend(found.map(|record| (record.shape::<G>(), record.payload::<G>())));
            })?;
            Ok(records)
        })?;
        found.append(&mut records);
        Ok(())
    }

    /// See [`Spatial::leaves`](crate::engines::Spatial::leaves).
    pub(super) fn leaf_boxes(&self) -> Result<Vec<(Rect, usize)>> {
        self.undisturbed(|tree| {
            let mut boxes = Vec::new();
            tree.visit_leaves(|_| true, |leaf| boxes.push((leaf.bounds(), leaf.count())))?;
            Ok(boxes)
        })
    }

    /// See [`Spatial::bounds`](crate::engines::Spatial::bounds). Exact: the sides of the box are those of records.
    pub(super) fn bounds(&self) -> Result<Option<Rect>> {
        let boxes = self.leaf_boxes()?;
        let boxes = boxes.iter().filter(|(_, records)| *records > 0);
        let all = boxes.map(|(rect, _)| *rect);
        Ok(all.reduce(|all, rect| all.join(&rect)))
    }
}
