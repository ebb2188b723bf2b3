//! Search by window.
//!
//! A search visits the leaves whose boxes meet the window in the order of keys, and remembers how far it has come: the key below which
//! everything has been visited. Nodes are read under their versions; if one has changed, the search comes down again from the root, to that key.
//! Every record belongs to one key, and every key to one leaf at any time, so that splits can neither hide a record nor show one twice. What
//! *can* is a relocation. One from leaf to leaf is announced, and the search begins again if one began meanwhile (see `rect::changes`). One within a
//! leaf is not: it is seen whole or not at all, since a leaf is read whole at once. So a search begins again, too, if the leaf that it has visited
//! last has been merged with the next one (see [`Merges`](super::merges::Merges)). Without such a merge no record can be relocated within a leaf
//! across the key that the search has reached; and a merge changes a node on the way down to this key, so that the search comes down again.
//!
//! A node whose box does not meet the window is passed by as of the moment when its parent was validated: the box contained all records
//! that were there by then.

use super::Bug;
use super::Tree;
use super::boxes::BoxNode;
use super::inner::{Bounds, Child, Inner, Key, code_of, key_of};
use super::leaf::Leaf;
use super::way::{Changed, MOST_LEVELS};
use crate::Result;
use crate::concurrency::epochs;
use crate::concurrency::locks::{Version, VersionLock, Wait};
use crate::engines::rect::Record;
use crate::engines::slots;
use crate::kernels::{Kernel, Simd, dispatch};
use crate::pmem::planted::planted;
use crate::spatial::{Geometry, Rect};

/// Leaves that are prefetched when a bottom node has been searched.
const LEAVES_AHEAD: usize = 3;

/// A node that is being visited.
#[derive(Clone, Copy)]
struct Level<'a> {
    node: &'a Inner,
    version: Version,
    /// The children that are still to be visited, as bits.
    children: u64,
    /// Where the node to the right begins.
    end: Option<Key>,
}

/// How a visit ended.
enum Visit {
    /// All has been visited.
    Done,
    /// The leaf begins before the key that has been reached, because it has been merged with one that had been visited: begin again.
    Restart,
    /// Go on from the key that has been reached: a node has changed, or it is time to let others reuse blocks.
    Again,
    /// The key lies in an unindexed range, which has to be indexed first.
    Index(Key),
}

/// Leaves after which a search lets go of its epoch: until then no block is reused that was freed meanwhile.
const LEAVES_PER_PIN: u32 = 256;

/// A search in progress.
struct Search<'a, G> {
    tree: &'a Tree<G>,
    windows: &'a [Rect],
    limits: [Bounds; 2],
    /// Everything below this key has been visited.
    from: Key,
    found: &'a mut Vec<(G, u64)>,
}

impl<G: Geometry> Tree<G> {
    /// See [`Spatial::search`](crate::engines::Spatial::search).
    pub(super) fn search(&self, windows: &[Rect], found: &mut Vec<(G, u64)>) -> Result<()> {
        if self.search_together(windows, found) {
            return Ok(());
        }
        let before = found.len();
        self.relocations.undisturbed(|| {
            found.truncate(before);
            self.search_once(windows, found)
        })
    }

    fn search_once(&self, windows: &[Rect], found: &mut Vec<(G, u64)>) -> Result<()> {
        let (first, second) = match windows {
            [] => return Ok(()),
            [one] => (one, one),
            [one, two] => (one, two),
            _ => {
                // A record that meets several windows is found once.
                let all = windows.iter().fold(Rect::NOTHING, Rect::join);
                let from = found.len();
                self.search_once(&[all], found)?;
                let meets = |(shape, _): &(G, u64)| {
                    let rect = Rect::of(shape);
                    windows.iter().any(|window| window.intersects(&rect))
                };
                let rest = found.split_off(from);
                found.extend(rest.into_iter().filter(meets));
                return Ok(());
            }
        };
        let limits = [Bounds::limits(first), Bounds::limits(second)];
        let first_found = found.len();
        let mut search = Search {
            tree: self,
            windows,
            limits,
            from: 0,
            found,
        };
        let mut wait = Wait::default();
        let mut merges_seen = 0;
        let (mut restarts, mut still) = (0, None);
        loop {
            // Where many leaves are merged it would begin again for ever: from then on none is.
            self.structure.pause_after(restarts, &mut still);
            let (before, merges) = (search.from, self.merges.count());
            let visit = {
                let _guard = epochs::pin();
                dispatch(
                    self.simd,
                    VisitFrom {
                        search: &mut search,
                    },
                )
            };
            // Between two visits and during the second one nothing else tells whether leaves that meet where the second one began were merged.
            let is_torn = before > 0
                && self.merges.may_have_been_at(before, merges_seen)
                && !planted(Bug::MergesIgnored);
            merges_seen = merges;
            match visit {
                Visit::Done if !is_torn => return Ok(()),
                Visit::Index(key) if !is_torn => self.index_on_demand(key)?,
                Visit::Again if !is_torn && search.from == before => wait.step(),
                Visit::Again if !is_torn => {}
                _ => {
                    search.begin_again(first_found);
                    restarts += 1;
                }
            }
        }
    }
}

impl<'a, G: Geometry> Search<'a, G> {
    /// Forgets what has been found, of which the first was to become number `first_found`.
    fn begin_again(&mut self, first_found: usize) {
        self.from = 0;
        self.found.truncate(first_found);
    }

    /// The children of a node that meet the windows and have not been visited.
    #[inline(always)]
    fn children_of<S: Simd>(&self, node: &Inner, low: Key) -> u64 {
        let children = children_meeting::<S, G>(node, &self.limits[..self.windows.len()]);
        if self.from > low {
            children & !0 << node.find::<S>(self.from)
        } else {
            children
        }
    }

    #[inline(always)]
    fn visit<S: Simd>(&mut self) -> Visit {
        let tree = self.tree;
        let root = tree.root();
        let version = root.lock().read();
        let children = self.children_of::<S>(root, 0);
        let mut levels = [Level {
            node: root,
            version,
            children,
            end: None,
        }; MOST_LEVELS];
        let (mut depth, mut leaves) = (0, 0);
        loop {
            let Level {
                node,
                version,
                children,
                end,
            } = levels[depth];
            if children == 0 {
                // What the node covers has been visited, as of its version.
                if !node.lock().validate(version) {
                    return Visit::Again;
                }
                match end {
                    Some(end) => self.from = self.from.max(end),
                    None if depth == 0 => return Visit::Done,
                    None => {}
                }
                if depth == 0 {
                    return Visit::Done;
                }
                depth -= 1;
                continue;
            }
            let slot = children.trailing_zeros() as usize;
            levels[depth].children &= children - 1;
            let low = node.key(slot);
            let child_end = node.next_key(slot).or(end);
            if node.level() > 0 {
                let child = node.node(slot);
                child.prefetch_bounds(G::AXES);
                let child_version = child.lock().read();
                if !node.lock().validate(version) {
                    return Visit::Again;
                }
                self.from = self.from.max(low);
                depth += 1;
                if depth == MOST_LEVELS {
                    return Visit::Again;
                }
                let children = self.children_of::<S>(child, low);
                levels[depth] = Level {
                    node: child,
                    version: child_version,
                    children,
                    end: child_end,
                };
                if child.level() == 0 {
                    for ahead in slots(children).take(LEAVES_AHEAD) {
                        tree.leaves.prefetch(child.child(ahead).offset());
                    }
                }
                continue;
            }
            if let Some(ahead) = slots(children).nth(LEAVES_AHEAD) {
                tree.leaves.prefetch(node.child(ahead).offset());
            }
            let child = node.child(slot);
            let lock = tree.locks.of(child.offset().get());
            let leaf_version = lock.read();
            if !node.lock().validate(version) {
                return Visit::Again;
            }
            self.from = self.from.max(low);
            if child.is_unindexed() {
                match self.first_in_gap(low, child_end) {
                    Some(key) => return Visit::Index(key),
                    None => continue,
                }
            }
            if self.from > low && !planted(Bug::MergesIgnored) {
                return Visit::Restart;
            }
            if self
                .read::<S>(tree.leaves.at(child.offset()), child, leaf_version, low)
                .is_err()
            {
                return Visit::Again;
            }
            let Some(end) = child_end else {
                // Nothing lies to the right of the last leaf.
                return Visit::Done;
            };
            self.from = self.from.max(end);
            leaves += 1;
            if leaves == LEAVES_PER_PIN {
                return Visit::Again;
            }
        }
    }

    /// Adds the records of a leaf that meet the windows, if it can be read whole at once.
    #[inline(always)]
    fn read<S: Simd>(
        &mut self,
        leaf: Leaf<'_, G>,
        child: Child,
        version: Version,
        low: Key,
    ) -> Result<(), Changed> {
        let lock = self.tree.locks.of(child.offset().get());
        let (tree, from) = (self.tree, self.from);
        let accepts = |record: &Record| {
            !(planted(Bug::MergesIgnored) && from > low && tree.key(record) < from)
        };
        add_meeting::<S, G>(leaf, self.windows, (lock, version), self.found, accepts)
    }

    /// A key of the unindexed range from `low` to `high` at which a record may begin that meets the windows; `None` if there is none.
    #[cold]
    fn first_in_gap(&self, low: Key, high: Option<Key>) -> Option<Key> {
        let Some(grid) = self.tree.grids.get() else {
            return Some(low);
        };
        let from = self.from.max(low);
        let last = high.map_or(u64::MAX, |high| code_of(high - 1));
        let mut windows = self.windows.iter();
        let first = windows.by_ref().filter_map(|window| {
            let (low, high) = self.tree.cells_of(window)?;
            grid.next_in_window(code_of(from), low, high)
        });
        let first = first.min()?;
        (first <= last).then(|| key_of(first, 0).max(from))
    }
}

/// The children of a node whose boxes meet one of the windows of `limits`, as bits.
#[inline(always)]
pub(super) fn children_meeting<S: Simd, G: Geometry>(node: &Inner, limits: &[Bounds]) -> u64 {
    let mut children = 0;
    for limits in limits {
        children |= if G::AXES == 2 {
            node.meeting::<S, 2>(limits)
        } else {
            node.meeting::<S, 3>(limits)
        };
    }
    children
}

/// Adds the records of a leaf that meet one of one or two windows and that `accepts` accepts, if the leaf can be read whole at once: as of the version
/// of its lock.
#[inline(always)]
pub(super) fn add_meeting<S: Simd, G: Geometry>(
    leaf: Leaf<'_, G>,
    windows: &[Rect],
    (lock, version): (&VersionLock, Version),
    found: &mut Vec<(G, u64)>,
    accepts: impl Fn(&Record) -> bool,
) -> Result<(), Changed> {
    let before = found.len();
    let mut meets = leaf.meeting::<S>(&windows[0]);
    if let Some(second) = windows.get(1) {
        meets |= leaf.meeting::<S>(second);
    }
    found.reserve(meets.count_ones() as usize);
    for slot in slots(meets) {
        let record = leaf.record(slot);
        if accepts(&record) {
            found.push((record.shape(), record.payload::<G>()));
        }
    }
    if !lock.validate(version) && !planted(Bug::ReadWithoutVersion) {
        found.truncate(before);
        return Err(Changed);
    }
    Ok(())
}

struct VisitFrom<'s, 'a, G> {
    search: &'s mut Search<'a, G>,
}

impl<G: Geometry> Kernel for VisitFrom<'_, '_, G> {
    type Out = Visit;

    #[inline(always)]
    fn run<S: Simd>(self) -> Visit {
        self.search.visit::<S>()
    }
}
