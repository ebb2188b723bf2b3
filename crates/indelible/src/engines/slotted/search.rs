//! From a key to its leaf.

use super::inner::{Child, Inner, Seek};
use super::layout::hash;
use super::leaf::{Leaf, Probe, Search, ValueCopy};
use super::records::Value;
use super::separator::Separator;
use super::{Bug, Tree};
use crate::Result;
use crate::concurrency::epochs;
use crate::concurrency::locks::{Version, WriteGuard};
use crate::engines::arena::Node;
use crate::engines::inner_nodes::InnerNode;
use crate::kernels::prefetch;
use crate::pmem::planted::planted;

/// Where a search ended: a child of a bottom node, and the version that node had.
#[derive(Clone, Copy)]
pub(super) struct Spot<'a> {
    pub(super) parent: &'a Inner,
    pub(super) version: Version,
    pub(super) slot: usize,
    pub(super) child: Child,
    /// The upper end of `parent`: the separator of the node to its right, if there is one.
    pub(super) end: Option<Separator>,
    /// Whether the search has compared all that it should; otherwise the leaf may be the wrong one, see [`inner`](super::inner).
    pub(super) is_sure: bool,
}

impl<'a> Spot<'a> {
    /// Whether the bottom node is still what it was when the search ended there.
    #[inline(always)]
    pub(super) fn is_current(&self) -> bool {
        self.parent.lock().validate(self.version)
    }

    /// The low key of a child of the bottom node. The caller is pinned since before the search.
    pub(super) fn low_of(&self, slot: usize) -> &'a [u8] {
        // SAFETY: the separator was in the node while the caller was pinned, as `inner` says, and the caller stays pinned.
        unsafe { self.parent.separator(slot).bytes() }
    }

    /// The low key of the child to the right of one, which is that child's upper end; none for the last leaf. The caller is pinned since before
    /// the search.
    pub(super) fn high_of(&self, slot: usize) -> Option<&'a [u8]> {
        let high = self.parent.next_separator(slot).or(self.end);
        // SAFETY: as in `low_of`.
        high.map(|high| unsafe { high.bytes() })
    }

    /// Whether the key that was sought lies between the ends of the leaf, if the bottom node is still what it was: the caller asks for that
    /// afterwards. The caller is pinned since before the search.
    pub(super) fn covers(&self, key: &[u8]) -> bool {
        self.is_sure || self.low() <= key && self.high().is_none_or(|high| key < high)
    }

    pub(super) fn low(&self) -> &'a [u8] {
        self.low_of(self.slot)
    }

    pub(super) fn high(&self) -> Option<&'a [u8]> {
        self.high_of(self.slot)
    }
}

/// A leaf and the right to write it.
pub(super) struct LockedLeaf<'a> {
    pub(super) spot: Spot<'a>,
    pub(super) leaf: Leaf<'a>,
    pub(super) guard: WriteGuard<'a>,
}

/// How an attempt at a lookup ended.
pub(super) enum Lookup {
    Done(bool),
    Changed,
    /// The search was not sure, and has led to the wrong leaf.
    Misled,
    Unindexed,
}

impl Tree {
    pub(super) fn probe<'k>(&self, key: &'k [u8]) -> Probe<'k> {
        Probe {
            key,
            hash: hash(self.seed, key),
            is_long: key.len() > self.sizes.most_key(),
        }
    }

    /// The child that is sought. Optimistic lock coupling: every node's version is taken before its parent's is validated. The caller is
    /// pinned.
    #[inline]
    pub(super) fn try_descend(&self, seek: Seek<'_>) -> Option<Spot<'_>> {
        self.descend_by(|node| (node.find(seek), true))
    }

    /// As [`try_descend`](Self::try_descend), but the leaf need not be the one that covers the key: [`Spot::is_sure`] says it, and [`Spot::covers`]
    /// finds it out.
    #[inline]
    pub(super) fn try_descend_likely(&self, key: &[u8]) -> Option<Spot<'_>> {
        let spot = self.descend_by(|node| node.find_likely(key))?;
        if !spot.is_sure {
            spot.parent.prefetch_separator(spot.slot, 0);
            spot.parent.prefetch_separator(spot.slot + 1, 0);
        }
        Some(spot)
    }

    #[inline(always)]
    fn descend_by(&self, find: impl Fn(&Inner) -> (usize, bool)) -> Option<Spot<'_>> {
        let mut node = self.root();
        let mut version = node.lock().read();
        let mut end = None;
        let mut level = node.level();
        let mut is_sure = true;
        while level > 0 {
            let (slot, is_sure_here) = find(node);
            is_sure &= is_sure_here;
            end = node.next_separator(slot).or(end);
            let child = node.node(slot);
            child.prefetch();
            child.prefetch_children();
            let child_version = child.lock().read();
            // The child's version was taken while its parent still pointed to it for this key.
            if !node.lock().validate(version) {
                return None;
            }
            (node, version) = (child, child_version);
            level -= 1;
        }
        let (slot, is_sure_here) = find(node);
        let child = node.child(slot);
        self.prefetch_leaf(child);
        let spot = Spot {
            parent: node,
            version,
            slot,
            child,
            end,
            is_sure: is_sure && is_sure_here,
        };
        spot.is_current().then_some(spot)
    }

    /// Asks the caches for all lines of a leaf, which may be the wrong one: which of them the record is in is known only from the header.
    #[inline(always)]
    pub(super) fn prefetch_leaf(&self, child: Child) {
        let first = self.core.base().wrapping_add(child.offset().get() as usize);
        // Two lines at a time: a loop has more instructions than what it asks for.
        for line in (0..child.size().bytes()).step_by(2 * crate::pmem::LINE) {
            prefetch(first.wrapping_add(line).cast_const());
            prefetch(first.wrapping_add(line + crate::pmem::LINE).cast_const());
        }
    }

    /// The spot of what is sought, which may be an unindexed range. The caller is pinned.
    #[inline]
    pub(super) fn locate_any(&self, seek: Seek<'_>) -> Spot<'_> {
        loop {
            if let Some(spot) = self.try_descend(seek) {
                return spot;
            }
        }
    }

    /// The spot of what is sought, indexed on demand. The caller is pinned.
    #[inline]
    pub(super) fn locate(&self, seek: Seek<'_>) -> Result<Spot<'_>> {
        loop {
            let spot = self.locate_any(seek);
            if !spot.child.is_unindexed() {
                return Ok(spot);
            }
            self.index_on_demand(seek)?;
        }
    }

    /// The leaf that covers `key`, locked. The caller is pinned.
    pub(super) fn lock_leaf(&self, key: &[u8]) -> Result<LockedLeaf<'_>> {
        if let Some(spot) = self.try_descend_likely(key)
            && !spot.child.is_unindexed()
            && let Some(locked) = self.lock_at(spot)
            && spot.covers(key)
            && spot.is_current()
        {
            return Ok(locked);
        }
        loop {
            if let Some(locked) = self.lock_at(self.locate(Seek::At(key))?) {
                return Ok(locked);
            }
        }
    }

    /// The leaf of a spot, locked, if it still covers what was sought. The caller is pinned since before the search.
    #[inline(always)]
    pub(super) fn lock_at<'a>(&'a self, spot: Spot<'a>) -> Option<LockedLeaf<'a>> {
        let guard = self.locks.of(spot.child.offset().get()).lock();
        // The leaf is locked, so it cannot be split any more; unless it was before, it covers the key.
        let is_current = spot.is_current() || planted(Bug::WriteWithoutVersion);
        is_current.then(|| LockedLeaf {
            spot,
            leaf: self.leaf(spot.child),
            guard,
        })
    }

    #[inline]
    fn look_up(
        &self,
        probe: Probe<'_>,
        is_sure: bool,
        use_value: &mut dyn FnMut(&Value<'_>),
    ) -> Lookup {
        let spot = if is_sure {
            self.try_descend(Seek::At(probe.key))
        } else {
            self.try_descend_likely(probe.key)
        };
        match spot {
            Some(spot) => self.look_up_at(&spot, probe, use_value),
            None => Lookup::Changed,
        }
    }

    /// Looks a key up in the leaf that covered it when `spot` was found.
    #[inline(always)]
    pub(super) fn look_up_at(
        &self,
        spot: &Spot<'_>,
        probe: Probe<'_>,
        use_value: &mut dyn FnMut(&Value<'_>),
    ) -> Lookup {
        let lock = self.locks.of(spot.child.offset().get());
        let version = lock.read();
        // While its bottom node is unchanged the leaf covers the key; a split would have to lock that node.
        if !spot.is_current() {
            return Lookup::Changed;
        }
        if spot.child.is_unindexed() {
            let is_sure = spot.is_sure;
            return if is_sure {
                Lookup::Unindexed
            } else {
                Lookup::Misled
            };
        }
        let leaf = self.leaf(spot.child);
        let is_valid = || lock.validate(version) || planted(Bug::ReadWithoutVersion);
        match leaf.find(probe, &self.blobs, is_valid) {
            // In a wrong leaf another key may end as this one does.
            Search::Found(_) if !spot.is_sure && !leaf.has_prefix_of(probe.key) => {
                if is_valid() {
                    Lookup::Misled
                } else {
                    Lookup::Changed
                }
            }
            Search::Found(found) => {
                let mut copy = ValueCopy::new();
                let value = leaf.value(&found, &mut copy);
                if !is_valid() {
                    return Lookup::Changed;
                }
                use_value(&value);
                Lookup::Done(true)
            }
            Search::Absent if !spot.is_sure => {
                let is_covered = spot.covers(probe.key);
                match spot.is_current() && is_valid() {
                    true if is_covered => Lookup::Done(false),
                    true => Lookup::Misled,
                    false => Lookup::Changed,
                }
            }
            Search::Absent if is_valid() => Lookup::Done(false),
            Search::Absent | Search::Changed => Lookup::Changed,
        }
    }

    pub(super) fn look_up_until_done(
        &self,
        key: &[u8],
        use_value: &mut dyn FnMut(&Value<'_>),
    ) -> Result<bool> {
        let probe = self.probe(key);
        let mut is_sure = false;
        loop {
            let found = {
                let _guard = epochs::pin();
                self.look_up(probe, is_sure, use_value)
            };
            match found {
                Lookup::Done(is_there) => return Ok(is_there),
                Lookup::Changed => {}
                Lookup::Misled => is_sure = true,
                Lookup::Unindexed => self.index_on_demand(Seek::At(key))?,
            }
        }
    }

    /// See [`Strings::get_with`](crate::engines::Strings::get_with). A long value is handed out where it lies, while the thread is pinned.
    pub(super) fn get_with(&self, key: &[u8], use_value: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.look_up_until_done(key, &mut |value| use_value(self.bytes_of(value)))
    }

    /// The bytes of a value. Those of a long one lie in the pool; the caller is pinned while it uses them.
    #[inline(always)]
    pub(super) fn bytes_of<'v>(&'v self, value: &Value<'v>) -> &'v [u8] {
        match value {
            Value::Inline(value) => value,
            Value::Blob(blob) => self.blobs.bytes(*blob),
        }
    }

    pub(super) fn value_len(&self, key: &[u8]) -> Result<Option<u64>> {
        let mut found = None;
        self.look_up_until_done(key, &mut |value| found = Some(value.bytes()))?;
        Ok(found)
    }
}
