//! Small windows, several at once: all nodes of a level are asked for before the first of them is read, then all leaves.
//!
//! The ordinary search (see `scan`) goes from leaf to leaf, and mostly waits for memory before each of them. Here the waits overlap: of a window whose
//! leaves are few, and, in a batch, of several windows. Such a search goes down level by level:
//!
//! 1. of each node of a level, the children are found whose boxes meet the window, and the caches are asked for what is read of these;
//! 2. the versions of the children are taken;
//! 3. the nodes are validated. So the children still were theirs when their versions were taken.
//!
//! Leaves are children like others: once their versions have been taken, the bottom nodes are validated, then each leaf is read whole, and
//! validated. So all leaves are read as they were at one moment, that of step 3 at the lowest level: no split and no merge can have come between. A node or a
//! leaf that is not visited had a box that did not meet the window while the version of its parent was the one that is validated; until then its box
//! did not shrink, so it contained all records that had been there when the search began. What remains is a relocation from leaf to leaf, after which
//! the search begins again, as in `scan`.
//!
//! Whatever is in the way (a validation that fails, an unindexed range, a window that meets many nodes) leaves the window to the ordinary search.

use super::inner::{Bounds, Child, Inner};
use super::scan::{add_meeting, children_meeting};
use super::{Bug, Tree};
use crate::Result;
use crate::concurrency::epochs;
use crate::concurrency::locks::Version;
use crate::engines::slots;
use crate::kernels::{Kernel, Simd, dispatch};
use crate::pmem::geometry::sized_in_tests;
use crate::pmem::planted::planted;
use crate::spatial::{Geometry, Rect};

/// Windows of a batch that are searched together: enough to keep the memory busy, few enough for their leaves to stay in the caches.
const LANES: usize = 16;

/// Records for which a list gets room at first, if it has none: small windows mostly find fewer, and to move them to a larger list each time takes longer.
const FIRST_ROOM: usize = 40;

/// Most nodes and most leaves that one window may meet. A search of a larger one has waits enough of its own. Fewer under test, so that the
/// ordinary search is tested as well.
const MOST_NODES: usize = sized_in_tests(16, 6);
const MOST_LEAVES: usize = sized_in_tests(32, 4);

/// A node that is visited for a window.
#[derive(Clone, Copy)]
struct Visited<'a> {
    node: &'a Inner,
    version: Version,
    /// The children that meet the window, as bits.
    children: u64,
    lane: usize,
}

/// A leaf that is read for a window.
#[derive(Clone, Copy)]
struct Reached {
    child: Child,
    version: Version,
    lane: usize,
}

/// One search.
struct Lane<'s, G> {
    windows: &'s [Rect],
    limits: [Bounds; 2],
    found: &'s mut Vec<(G, u64)>,
    /// What was in `found` before.
    before: usize,
    has_failed: bool,
}

impl<'s, G> Lane<'s, G> {
    /// More windows than two are left to the ordinary search.
    fn new(windows: &'s [Rect], found: &'s mut Vec<(G, u64)>) -> Self {
        let (limits, has_failed) = match windows {
            [] => ([Bounds::NOTHING; 2], false),
            [one] => ([Bounds::limits(one); 2], false),
            [one, two] => ([Bounds::limits(one), Bounds::limits(two)], false),
            _ => ([Bounds::NOTHING; 2], true),
        };
        Self {
            windows,
            limits,
            before: found.len(),
            found,
            has_failed,
        }
    }

    /// None once the search has failed, so that it goes no further.
    fn limits(&self) -> &[Bounds] {
        let count = if self.has_failed {
            0
        } else {
            self.windows.len()
        };
        &self.limits[..count]
    }
}

/// Searches that go down together.
struct Together<'t, 'l, 's, G> {
    tree: &'t Tree<G>,
    lanes: &'l mut [Lane<'s, G>],
    /// Room for the nodes of all levels, and for all leaves.
    nodes: &'l mut [Visited<'t>],
    leaves: &'l mut [Reached],
}

impl<G: Geometry> Tree<G> {
    /// Searches a window whose leaves are few, all of which are asked for at once. `false` if this window needs the ordinary search; then nothing has
    /// been found.
    #[inline(always)]
    pub(super) fn search_together(&self, windows: &[Rect], found: &mut Vec<(G, u64)>) -> bool {
        if found.capacity() == 0 {
            found.reserve(FIRST_ROOM);
        }
        let mut lanes = [Lane::new(windows, found)];
        let (node, leaf) = self.fillers();
        self.go_down(
            &mut lanes,
            &mut [node; MOST_NODES],
            &mut [leaf; MOST_LEAVES],
        );
        !lanes[0].has_failed
    }

    /// See [`Spatial::search_many`](crate::engines::Spatial::search_many).
    pub(super) fn search_many(
        &self,
        searches: &[&[Rect]],
        found: &mut [Vec<(G, u64)>],
    ) -> Result<()> {
        let (node, leaf) = self.fillers();
        let mut nodes = vec![node; LANES * MOST_NODES];
        let mut leaves = vec![leaf; LANES * MOST_LEAVES];
        // Lists that grow once for all windows; what is found is copied to lists that are as long as they have to be.
        let mut buffers = [const { Vec::new() }; LANES];
        for (searches, found) in searches.chunks(LANES).zip(found.chunks_mut(LANES)) {
            let mut lanes = Vec::with_capacity(LANES);
            for (windows, buffer) in searches.iter().zip(&mut buffers) {
                lanes.push(Lane::new(windows, buffer));
            }
            self.go_down(&mut lanes, &mut nodes, &mut leaves);
            for ((lane, windows), found) in lanes.into_iter().zip(searches).zip(found) {
                if lane.has_failed {
                    self.search(windows, found)?;
                } else {
                    found.extend_from_slice(lane.found);
                    lane.found.clear();
                }
            }
        }
        Ok(())
    }

    /// What the lists of nodes and leaves hold before anything has been visited.
    fn fillers(&self) -> (Visited<'_>, Reached) {
        let root = self.root();
        let version = root.lock().read();
        let node = Visited {
            node: root,
            version,
            children: 0,
            lane: 0,
        };
        let leaf = Reached {
            child: Child::NONE,
            version,
            lane: 0,
        };
        (node, leaf)
    }

    #[inline(always)]
    fn go_down<'t>(
        &'t self,
        lanes: &mut [Lane<'_, G>],
        nodes: &mut [Visited<'t>],
        leaves: &mut [Reached],
    ) {
        let seen = self.relocations.read();
        if seen.is_some() {
            let _guard = epochs::pin();
            let together = Together {
                tree: self,
                lanes: &mut *lanes,
                nodes,
                leaves,
            };
            dispatch(self.simd, together);
        }
        let is_torn = seen.is_none_or(|seen| !self.relocations.are_none_since(seen));
        for lane in lanes {
            lane.has_failed |= is_torn;
            if lane.has_failed {
                lane.found.truncate(lane.before);
            }
        }
    }
}

impl<G: Geometry> Kernel for Together<'_, '_, '_, G> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self) {
        let root = self.tree.root();
        let version = root.lock().read();
        let levels = root.level();
        for (lane, (visited, search)) in self.nodes.iter_mut().zip(&mut *self.lanes).enumerate() {
            *visited = Visited {
                node: root,
                version,
                children: children_meeting::<S, G>(root, search.limits()),
                lane,
            };
        }
        let (mut from, mut to) = (0, self.lanes.len());
        for _ in 0..levels {
            let end = self.visit_children::<S>(from, to);
            (from, to) = (to, end);
        }
        let reached = self.reach_leaves(from, to);
        for leaf in &self.leaves[..reached] {
            let lane = &mut self.lanes[leaf.lane];
            let lock = self.tree.locks.of(leaf.child.offset().get());
            // What a search has read of a node that has changed need not be a leaf.
            if lane.has_failed {
                continue;
            }
            let at = self.tree.leaves.at(leaf.child.offset());
            let whole = (lock, leaf.version);
            let added = add_meeting::<S, G>(at, lane.windows, whole, lane.found, |_| true);
            lane.has_failed = added.is_err();
        }
    }
}

impl<G: Geometry> Together<'_, '_, '_, G> {
    /// The children of a node that meet its window. None if there is no room for all of them: the search has failed then.
    #[inline(always)]
    fn slots_to_visit(
        &mut self,
        parent: Visited<'_>,
        room: usize,
    ) -> impl Iterator<Item = usize> + use<G> {
        let has_room = parent.children.count_ones() as usize <= room;
        self.lanes[parent.lane].has_failed |= !has_room;
        slots(if has_room { parent.children } else { 0 })
    }

    /// Visits the children of the upper nodes in a part of the list. Returns where the list ends then.
    #[inline(always)]
    fn visit_children<S: Simd>(&mut self, from: usize, to: usize) -> usize {
        let mut end = to;
        for at in from..to {
            let parent = self.nodes[at];
            let room = self.nodes.len() - end;
            for slot in self.slots_to_visit(parent, room) {
                let child = parent.node.node(slot);
                child.prefetch_bounds(G::AXES);
                child.prefetch_children();
                self.nodes[end] = Visited {
                    node: child,
                    children: 0,
                    ..parent
                };
                end += 1;
            }
        }
        for child in &mut self.nodes[to..end] {
            child.version = child.node.lock().read();
        }
        self.validate(from, to);
        for child in &mut self.nodes[to..end] {
            let lane = &self.lanes[child.lane];
            // None if the node may be of another level because its parent has changed.
            child.children = children_meeting::<S, G>(child.node, lane.limits());
        }
        end
    }

    /// Asks for all leaves below the bottom nodes in a part of the list, and takes their versions. Returns how many there are.
    #[inline(always)]
    fn reach_leaves(&mut self, from: usize, to: usize) -> usize {
        let tree = self.tree;
        let mut count = 0;
        for at in from..to {
            let parent = self.nodes[at];
            let room = self.leaves.len() - count;
            for slot in self.slots_to_visit(parent, room) {
                let child = parent.node.child(slot);
                if child.is_unindexed() {
                    self.lanes[parent.lane].has_failed = true;
                    break;
                }
                tree.leaves.prefetch(child.offset());
                self.leaves[count] = Reached {
                    child,
                    version: parent.version,
                    lane: parent.lane,
                };
                count += 1;
            }
        }
        for leaf in &mut self.leaves[..count] {
            leaf.version = tree.locks.of(leaf.child.offset().get()).read();
        }
        self.validate(from, to);
        count
    }

    /// Whether the nodes in a part of the list are still those whose children have been taken: if one is not, its search has failed.
    #[inline(always)]
    fn validate(&mut self, from: usize, to: usize) {
        for visited in &self.nodes[from..to] {
            let is_current = visited.node.lock().validate(visited.version);
            let is_believed = visited.node.level() == 0 && planted(Bug::NodesNotValidated);
            if !is_current && !is_believed {
                self.lanes[visited.lane].has_failed = true;
            }
        }
    }
}
