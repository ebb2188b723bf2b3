//! What only the holder of a node's lock may do with the node.

use super::{
    Child, Children, FANOUT, Inner, NodeShape, SEGMENT_SLOTS, SEGMENTS, SLOTS, UNUSED, bound,
};
use crate::concurrency::sync::atomic::Ordering;

/// What only the holder of the node's lock may do.
impl Inner {
    /// Makes this an empty node of `level`.
    pub(in crate::engines::lbtree) fn reset(&self, level: u32) {
        // Fills the slots not in use of an upper node, which must hold pointers to nodes too.
        let filler = if level == 0 {
            0
        } else {
            std::ptr::from_ref(self) as u64
        };
        for slot in 0..SLOTS {
            self.set_unused(slot);
            self.set_word(slot, filler);
        }
        self.head.shape.store(u64::from(level), Ordering::Relaxed);
        self.set_pivots();
    }

    /// Stores the level and the numbers of children.
    pub(super) fn set_shape(&self, shape: NodeShape) {
        self.head.shape.store(shape.0, Ordering::Relaxed);
    }

    pub(super) fn set_pivots(&self) {
        let shape = self.shape();
        for segment in 1..=self.head.pivots.len() {
            let key = if segment < SEGMENTS && shape.in_segment(segment) > 0 {
                self.key_cell(segment * SEGMENT_SLOTS)
                    .load(Ordering::Relaxed)
            } else {
                UNUSED
            };
            self.head.pivots[segment - 1].store(key, Ordering::Relaxed);
        }
    }

    pub(super) fn set_word(&self, slot: usize, word: u64) {
        self.child_cell(slot).store(word, Ordering::Relaxed);
    }

    pub(super) fn set(&self, slot: usize, key: u64, word: u64) {
        self.key_cell(slot).store(bound(key), Ordering::Relaxed);
        self.set_word(slot, word);
    }

    /// Says that a slot has no child. The word stays: in an upper node it is a pointer to some node.
    pub(super) fn set_unused(&self, slot: usize) {
        self.key_cell(slot).store(UNUSED, Ordering::Relaxed);
    }

    pub(in crate::engines::lbtree) fn set_child(&self, slot: usize, child: Child) {
        self.set_word(slot, child.0);
    }

    /// Copies all children out.
    pub(in crate::engines::lbtree) fn children(&self) -> Children {
        self.slots()
            .map(|slot| (self.key(slot), self.word(slot)))
            .collect()
    }

    /// Replaces the children, which are spread evenly over all segments.
    pub(in crate::engines::lbtree) fn refill(&self, children: &[(u64, u64)]) {
        let (count, segments) = (children.len(), children.len().min(SEGMENTS));
        assert!(
            count > 0 && count <= FANOUT,
            "invariant: an inner node has 1 to {FANOUT} children, not {count}"
        );
        let mut shape = NodeShape(u64::from(self.level()));
        for segment in 0..SEGMENTS {
            let share = if segment < segments {
                &children[count * segment / segments..count * (segment + 1) / segments]
            } else {
                &[]
            };
            for place in 0..SEGMENT_SLOTS {
                let slot = segment * SEGMENT_SLOTS + place;
                match share.get(place) {
                    Some(&(key, word)) => self.set(slot, key, word),
                    None => self.set_unused(slot),
                }
            }
            shape = shape.with(segment, share.len());
        }
        self.set_shape(shape);
        self.set_pivots();
    }

    /// [`refill`](Self::refill) of a bottom node.
    pub(in crate::engines::lbtree) fn refill_leaves(&self, children: &[(u64, Child)]) {
        let words: Children = children
            .iter()
            .map(|&(key, child)| (key, child.0))
            .collect();
        self.refill(&words);
    }

    /// [`refill`](Self::refill) of an upper node.
    pub(in crate::engines::lbtree) fn refill_nodes(&self, children: &[(u64, &Inner)]) {
        let words: Children = children
            .iter()
            .map(|&(key, node)| (key, std::ptr::from_ref(node) as u64))
            .collect();
        self.refill(&words);
    }

    /// Adds a child to the right of `slot`. There are fewer than [`FANOUT`].
    pub(super) fn insert_word(&self, slot: usize, key: u64, word: u64) {
        let (segment, place) = (slot / SEGMENT_SLOTS, slot % SEGMENT_SLOTS + 1);
        let count = self.shape().in_segment(segment);
        if count == SEGMENT_SLOTS {
            let mut children = self.children();
            let at = children.partition_point(|child| child.0 < key);
            children.insert(at, (key, word));
            return self.refill(&children);
        }
        for place in (place..count).rev() {
            let from = segment * SEGMENT_SLOTS + place;
            self.set(from + 1, self.key(from), self.word(from));
        }
        self.set(segment * SEGMENT_SLOTS + place, key, word);
        self.set_shape(self.shape().with(segment, count + 1));
    }

    /// Adds a leaf to the right of `slot`.
    pub(in crate::engines::lbtree) fn insert_leaf(&self, slot: usize, key: u64, child: Child) {
        self.insert_word(slot, key, child.0);
    }

    /// Removes the child in `slot`, which is not the first. The child before it covers the keys of the removed child from then on.
    pub(in crate::engines::lbtree) fn remove(&self, slot: usize) {
        let (segment, place) = (slot / SEGMENT_SLOTS, slot % SEGMENT_SLOTS);
        let count = self.shape().in_segment(segment);
        assert!(
            slot > 0 && place < count,
            "invariant: the first child of an inner node is never removed alone"
        );
        if count == 1 {
            // Not by its key, which another one may have as well if the pool is damaged.
            let others = self.slots().filter(|&other| other != slot);
            let children: Children = others
                .map(|other| (self.key(other), self.word(other)))
                .collect();
            return self.refill(&children);
        }
        for to in slot..segment * SEGMENT_SLOTS + count - 1 {
            self.set(to, self.key(to + 1), self.word(to + 1));
        }
        let last = segment * SEGMENT_SLOTS + count - 1;
        self.set_unused(last);
        self.set_shape(self.shape().with(segment, count - 1));
        self.set_pivots();
    }
}
