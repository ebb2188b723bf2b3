//! Inserts of many records at once: those of one leaf share the fences and the store that commits them.

use super::Tree;
use super::inner::Bounds;
use super::layout::Shape;
use crate::Result;
use crate::concurrency::epochs;
use crate::engines::rect::Record;
use crate::spatial::Geometry;
use std::cmp::Reverse;

impl<G: Geometry> Tree<G> {
    /// See [`Spatial::insert_batch`](crate::engines::Spatial::insert_batch). O(n log n) for the sort, and one way down per leaf.
    pub(super) fn insert_batch(&self, records: &mut Vec<(G, u64)>) -> Result<()> {
        while !records.is_empty() {
            let grid = self.grids.number();
            // Descending, since records are taken out from the end. Without a grid all keys are equal.
            let key =
                |(shape, payload): &(G, u64)| Reverse(self.key(&Record::new(shape, *payload)));
            records.sort_by_cached_key(key);
            while !records.is_empty() && self.grids.number() == grid {
                let added = self.insert_run(records, grid)?;
                records.truncate(records.len() - added);
            }
        }
        Ok(())
    }

    /// Inserts as many of the last records, which are in descending order of their keys in a grid, as one leaf takes. Returns how
    /// many: none if the grid is another one meanwhile, and so the order.
    fn insert_run(&self, records: &[(G, u64)], grid: u32) -> Result<usize> {
        let mut run = Vec::with_capacity(Shape::<G>::RECORDS);
        let _guard = epochs::pin();
        loop {
            if self.grids.number() != grid {
                return Ok(0);
            }
            let all = records.iter().rev();
            let mut all = all.map(|(shape, payload)| Record::new(shape, *payload));
            let Some(first) = all.next() else {
                return Ok(0);
            };
            let key = self.key_to_insert(self.key(&first));
            // What the leaf has room for is seen without a lock, and looked at again below.
            let spot = self.locate(key)?;
            let (high, count) = (spot.high(), self.leaves.at(spot.child.offset()).count());
            if !spot.is_current() {
                continue;
            }
            let is_below = |record: &Record| high.is_none_or(|high| self.key(record) < high);
            run.clear();
            run.push(first);
            let room = Shape::<G>::RECORDS - count;
            run.extend(all.take_while(is_below).take(room.saturating_sub(1)));
            let mut bounds = Bounds::of(&first.rect::<G>());
            for record in &run {
                self.make_reach(record)?;
                bounds = bounds.join(Bounds::of(&record.rect::<G>()));
            }
            let Some(locked) = self.lock_room(key, &bounds, grid)? else {
                continue;
            };
            // The leaf covers `key`, and so all records from the first one's smallest key on that are below its end: records with the smallest key of
            // the first one may lie anywhere among its keys.
            let is_below =
                |record: &&Record| locked.high.is_none_or(|high| self.key(record) < high);
            let room = Shape::<G>::RECORDS - locked.leaf.count();
            let others = run[1..].iter().take_while(is_below).take(room - 1).count();
            let run = &run[..1 + others];
            locked.leaf.insert_all(self.pm, run);
            self.count_change(&locked, run.len() as i64);
            return Ok(run.len());
        }
    }
}
