//! Search for the nearest records: best first (Hjaltason and Samet: "Distance browsing in spatial databases", ACM TODS 24(2), 1999). A heap holds nodes
//! by the least distance that something in their boxes can have, and the search ends when the first of the heap is farther away than the records
//! that it has found. What a search by window relies on holds here too: see `search`.

use super::Tree;
use crate::Result;
use crate::engines::rect::{Best, Link, Queue, Visits};
use crate::engines::{Nearest, Neighbour};
use crate::spatial::{Geometry, Metric};

impl<G: Geometry> Tree<G> {
    /// See [`Spatial::nearest`](crate::engines::Spatial::nearest).
    pub(super) fn nearest<M: Metric>(
        &self,
        metric: &M,
        request: &mut Nearest<'_, G>,
        found: &mut Vec<Neighbour<G>>,
    ) -> Result<()> {
        let mut nearest = self.undisturbed(|| self.try_nearest(metric, request))?;
        found.append(&mut nearest);
        Ok(())
    }

    fn try_nearest<M: Metric>(
        &self,
        metric: &M,
        request: &mut Nearest<'_, G>,
    ) -> Result<Vec<Neighbour<G>>> {
        let mut best = Best::new(request);
        let mut queue = Queue::default();
        queue.push(0.0, self.root());
        let mut near = Vec::new();
        let mut children = Vec::new();
        let mut visits = Visits::new(&self.space);
        while let Some((bound, link)) = queue.pop() {
            let within = best.limit();
            if bound > within {
                break;
            }
            visits.count()?;
            let Link { level, .. } = link;
            self.read_whole(link, |node| {
                near.clear();
                children.clear();
                for slot in node.slots(level) {
                    if level > 0 {
                        let child = node.child(level, slot);
                        children.push((metric.bound(&child.rect), child.offset));
                        continue;
                    }
                    let record = node.entry(0, slot);
                    let shape = record.shape::<G>();
                    near.push(Neighbour {
                        distance: metric.comparable(&shape),
                        shape,
                        payload: record.payload::<G>(),
                    });
                }
            })?;
            near.drain(..).for_each(|neighbour| best.offer(neighbour));
            for (bound, offset) in children.drain(..).filter(|(bound, _)| *bound <= within) {
                let level = level - 1;
                queue.push(bound, Link { offset, level });
            }
        }
        Ok(best.into_sorted())
    }
}
