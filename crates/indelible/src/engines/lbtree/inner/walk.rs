//! From one child of a node to its neighbour, as ranges go.

use super::{Child, Inner, NodeShape, Position, SEGMENT_SLOTS, SEGMENTS, key_of};
use crate::concurrency::sync::atomic::Ordering;

/// A walk over the children of a node, from one to its neighbour. What it says has to be validated, as the node.
#[derive(Clone, Copy)]
pub(in crate::engines::lbtree) struct Walk<'a> {
    node: &'a Inner,
    shape: NodeShape,
    at: Position,
    /// Children in this segment.
    count: usize,
}

impl Inner {
    /// A walk that begins at `slot`.
    #[inline(always)]
    pub(in crate::engines::lbtree) fn walk_from(&self, slot: usize) -> Walk<'_> {
        let (shape, at) = (self.shape(), Position::of(slot));
        let count = shape.in_segment(at.segment);
        Walk {
            node: self,
            shape,
            at,
            count,
        }
    }
}

impl Walk<'_> {
    /// Goes to the next child to the right or to the left; `false` if there is none in this node.
    #[inline(always)]
    pub(in crate::engines::lbtree) fn step<const UP: bool>(&mut self) -> bool {
        if UP && self.at.place + 1 < self.count {
            self.at.place += 1;
            return true;
        }
        if !UP && self.at.place > 0 {
            self.at.place -= 1;
            return true;
        }
        let slot = self.at.slot();
        let next = if UP {
            self.shape.after(slot)
        } else {
            self.shape.before(slot)
        };
        let Some(next) = next else {
            return false;
        };
        self.at = Position::of(next);
        self.count = self.shape.in_segment(self.at.segment);
        true
    }

    #[inline(always)]
    pub(in crate::engines::lbtree) fn slot(&self) -> usize {
        self.at.slot()
    }

    /// The lowest key that the child covers.
    #[inline(always)]
    pub(in crate::engines::lbtree) fn key(&self) -> u64 {
        let place = self.at.place % SEGMENT_SLOTS;
        let keys = &self.node.segments[self.at.segment].keys;
        key_of(keys[place / 8].0[place % 8].load(Ordering::Relaxed))
    }

    /// The child of a bottom node.
    #[inline(always)]
    pub(in crate::engines::lbtree) fn child(&self) -> Child {
        self.child_at(self.at)
    }

    #[inline(always)]
    fn child_at(&self, at: Position) -> Child {
        let children = &self.node.segments[at.segment].children;
        Child(children[at.place % SEGMENT_SLOTS].load(Ordering::Relaxed))
    }

    /// About the child that comes after `by` steps, to ask the caches for.
    #[inline(always)]
    pub(in crate::engines::lbtree) fn ahead<const UP: bool>(&self, by: usize) -> Child {
        let Position { segment, place } = self.at;
        let at = if UP && place + by < self.count {
            Position {
                segment,
                place: place + by,
            }
        } else if !UP && place >= by {
            Position {
                segment,
                place: place - by,
            }
        } else if UP {
            // In the next segment, after what is left of this one.
            let place = (place + by).saturating_sub(self.count);
            Position {
                segment: (segment + 1).min(SEGMENTS - 1),
                place,
            }
        } else {
            let segment = segment.saturating_sub(1);
            let count = self.shape.in_segment(segment) + place;
            Position {
                segment,
                place: count.saturating_sub(by),
            }
        };
        self.child_at(at)
    }
}
