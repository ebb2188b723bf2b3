//! Search for the nearest records: best first (Hjaltason and Samet: "Distance browsing in spatial databases", ACM TODS 24(2), 1999). A heap holds nodes
//! by the least distance that something in their boxes can have, and the search ends when the first of the heap is farther away than the records
//! that it has found. What a search by window relies on holds here too: see `search`.

use super::Tree;
use super::quiet::MOST_FAILURES;
use crate::Result;
use crate::engines::rect::{Best, Queue, Visits};
use crate::engines::{Nearest, Neighbour};
use crate::spatial::{Geometry, Metric};

/// By how much more records an announced search asks for, if too few of those that it has found are accepted.
const MORE: usize = 4;

impl<G: Geometry> Tree<G> {
    /// See [`Spatial::nearest`](crate::engines::Spatial::nearest).
    pub(super) fn nearest<M: Metric>(
        &self,
        metric: &M,
        request: &mut Nearest<'_, G>,
        found: &mut Vec<Neighbour<G>>,
    ) -> Result<()> {
        for _ in 0..MOST_FAILURES {
            if let Some(mut nearest) = self.attempt(|| self.try_nearest(metric, request))? {
                found.append(&mut nearest);
                return Ok(());
            }
        }
        found.append(&mut self.nearest_announced(metric, request)?);
        Ok(())
    }

    /// Asks for the nearest records that an announced search finds. Other threads cannot ask which of them the caller accepts: asks for more, until enough
    /// are accepted.
    #[cold]
    fn nearest_announced<M: Metric>(
        &self,
        metric: &M,
        request: &mut Nearest<'_, G>,
    ) -> Result<Vec<Neighbour<G>>> {
        let mut wanted = request.wanted;
        loop {
            let (metric, within, from) = (metric.clone(), request.within, request.from);
            let mut nearest = self.announced(move |tree| {
                let mut request = Nearest {
                    wanted,
                    within,
                    from,
                    accepts: None,
                };
                tree.try_nearest(&metric, &mut request)
            })?;
            let are_all = nearest.len() < wanted;
            nearest.retain(|found| request.accepts(found));
            if are_all || nearest.len() >= request.wanted {
                nearest.truncate(request.wanted);
                return Ok(nearest);
            }
            wanted = wanted.saturating_mul(MORE);
        }
    }

    fn try_nearest<M: Metric>(
        &self,
        metric: &M,
        request: &mut Nearest<'_, G>,
    ) -> Result<Vec<Neighbour<G>>> {
        let mut best = Best::new(request);
        let mut queue = Queue::default();
        queue.push(0.0, self.root()?);
        let mut visits = Visits::new(&self.space);
        while let Some((bound, link)) = queue.pop() {
            let within = best.limit();
            if bound > within {
                break;
            }
            visits.count()?;
            let view = self.view(link)?;
            for slot in view.slots() {
                if view.level > 0 {
                    let bound = metric.bound(&view.rect(slot));
                    if bound <= within {
                        queue.push(bound, view.link_to(slot));
                    }
                    continue;
                }
                let record = view.entry(slot);
                let shape = record.shape::<G>();
                best.offer(Neighbour {
                    distance: metric.comparable(&shape),
                    shape,
                    payload: record.payload::<G>(),
                });
            }
        }
        Ok(best.into_sorted())
    }
}
