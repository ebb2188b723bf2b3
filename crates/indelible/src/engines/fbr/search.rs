//! Searches by window, and all that reads the leaves of the tree without the mutex.
//!
//! A search reads a node whole under its version, and remembers the children that it wants. When it comes to a child, the child may have been
//! split: then it has left the tree, and stays as it was at that moment for as long as the search is pinned. The two halves are children of the
//! new state of the parent, which the search has not read and does not read. So each record is met once. The head of `mod` says what relocations
//! need besides.

use super::Tree;
use super::node::Node;
use crate::Result;
use crate::concurrency::epochs;
use crate::engines::rect::{Link, Visits};
use crate::spatial::{Geometry, Rect};

impl<G: Geometry> Tree<G> {
    /// Reads a node, which a link leads to that was read while the thread was pinned: calls `read` until no writer has come in between.
    pub(super) fn read_whole<T>(
        &self,
        link: Link,
        mut read: impl FnMut(Node<'_, G>) -> T,
    ) -> Result<T> {
        self.sweep.expect_owned(&self.space, link.offset)?;
        let lock = self.locks.of(link.offset.get());
        loop {
            let version = lock.read();
            let node = self.nodes.at(link.offset);
            let word = node.word();
            let result = read(node);
            if lock.validate(version) {
                self.expect_level(link.offset, word, link.level)?;
                return Ok(result);
            }
        }
    }

    /// Calls `attempt`, pinned, until no relocation between leaves has taken place meanwhile.
    pub(super) fn undisturbed<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        self.relocations.undisturbed(|| {
            let _guard = epochs::pin();
            attempt()
        })
    }

    /// Reads each leaf below children that `wants` accepts the boxes of, and calls `take` with what `read` has made of the leaf, whole. The caller is
    /// pinned.
    fn visit_leaves<T>(
        &self,
        wants: impl Fn(&Rect) -> bool,
        mut read: impl FnMut(Node<'_, G>) -> T,
        mut take: impl FnMut(T),
    ) -> Result<()> {
        let mut waiting = vec![self.root()];
        let mut children = Vec::new();
        let mut visits = Visits::new(&self.space);
        while let Some(link) = waiting.pop() {
            visits.count()?;
            if link.level == 0 {
                take(self.read_whole(link, &mut read)?);
                continue;
            }
            self.read_whole(link, |node| {
                children.clear();
                for slot in node.slots(link.level) {
                    let child = node.child(link.level, slot);
                    if wants(&child.rect) {
                        children.push(Link {
                            offset: child.offset,
                            level: link.level - 1,
                        });
                    }
                }
            })?;
            waiting.append(&mut children);
        }
        Ok(())
    }

    /// See [`Spatial::search`](crate::engines::Spatial::search).
    pub(super) fn search(&self, windows: &[Rect], found: &mut Vec<(G, u64)>) -> Result<()> {
        let meets = |rect: &Rect| windows.iter().any(|window| window.intersects(rect));
        let mut records = self.undisturbed(|| {
            let mut records = Vec::new();
            let of_leaf = |leaf: Node<'_, G>| -> Vec<(G, u64)> {
                let all = leaf.slots(0).map(|slot| leaf.entry(0, slot));
                let found = all.filter(|record| meets(&record.rect::<G>()));
                let found = found.map(|record| (record.shape::<G>(), record.payload::<G>()));
                found.collect()
            };
            self.visit_leaves(meets, of_leaf, |mut found| records.append(&mut found))?;
            Ok(records)
        })?;
        found.append(&mut records);
        Ok(())
    }

    /// See [`Spatial::leaves`](crate::engines::Spatial::leaves).
    pub(super) fn leaf_boxes(&self) -> Result<Vec<(Rect, usize)>> {
        self.undisturbed(|| {
            let mut boxes = Vec::new();
            let of_leaf = |leaf: Node<'_, G>| (leaf.bounds(), leaf.count());
            self.visit_leaves(|_| true, of_leaf, |leaf| boxes.push(leaf))?;
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
