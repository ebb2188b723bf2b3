//! How space comes back: inner nodes whose children have few records become data nodes, data nodes with few records become smaller, and
//! blocks in surplus extents are laid out anew nearer to the front.

use super::Index;
use super::blocks::Surplus;
use super::build::Plan;
use super::layout::LINE_SLOTS;
use super::node::{Child, Inner, Kin, Node, load_move};
use super::search::End;
use crate::concurrency::epochs;
use crate::{Error, Result};
use std::sync::atomic::Ordering;

/// A node is laid out anew if it has fewer records than this share of its slots, in percent.
const COLD_PERCENT: usize = 50;
/// Slots per hundred records in a node that is laid out anew for space.
const COLD_EXPANSION: u64 = 125;
/// Rounds in which blocks are moved to the front, at most.
const ROUNDS: usize = 4;

impl Index {
    pub(super) fn compact_all(&self) -> Result<()> {
        {
            let _pinned = epochs::pin();
            self.merge_below(&mut Vec::new(), Child(self.root.load(Ordering::Acquire)))?;
        }
        self.relay_nodes(None)?;
        self.blocks.give_back();
        for _ in 0..ROUNDS {
            let surplus = self.blocks.surplus();
            if surplus.is_empty() {
                break;
            }
            self.relay_nodes(Some(&surplus))?;
            self.blocks.give_back();
        }
        Ok(())
    }

    /// Merges the children of inner nodes beneath `child`, the lowest first.
    fn merge_below<'a>(&'a self, path: &mut Vec<(&'a Inner, usize)>, child: Child) -> Result<()> {
        // SAFETY: the thread is pinned, and has loaded the child since.
        let Kin::Inner(inner) = (unsafe { child.kin::<'a>() }) else {
            return Ok(());
        };
        for index in 0..inner.children.len() {
            path.push((inner, index));
            let merged = self.merge_below(path, inner.child(index));
            path.pop();
            merged?;
        }
        let Some(&(parent, index)) = path.last() else {
            return Ok(());
        };
        let mut records = Vec::new();
        let plan = self.cold_plan(None);
        let most = self.most_records(&plan) * 3 / 4;
        for index in 0..inner.children.len() {
            // SAFETY: as above.
            match unsafe { inner.child(index).kin() } {
                Kin::Node(node) => records.extend(self.records_of(node)),
                Kin::Empty => {}
                _ => return Ok(()),
            }
            if records.len() > most {
                return Ok(());
            }
        }
        records.sort_unstable();
        let built = match self.build((inner.low, inner.high), &records, &plan) {
            Ok(built) => built,
            Err(Error::NoSpace(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        // SAFETY: it has just been built.
        if let Kin::Inner(_) = unsafe { built.child.kin() } {
            return Ok(());
        }
        if !parent.settling.is_over() {
            return Ok(());
        }
        self.pm.note("loft: nodes merged", 0);
        super::Changes::add(&self.changes.merges);
        self.move_inner(inner, parent.cell(index), &parent.children[index], built)?;
        Ok(())
    }

    fn cold_plan<'a>(&self, surplus: Option<&'a Surplus>) -> Plan<'a> {
        Plan {
            expansion: COLD_EXPANSION,
            surplus: surplus.map(|surplus| (surplus, crate::pool::Offset::MAX)),
            ..self.plan()
        }
    }

    /// Lays out data nodes anew: those with few records, or those with a block in a surplus extent.
    fn relay_nodes(&self, surplus: Option<&Surplus>) -> Result<()> {
        let mut next = Some(0);
        while let Some(key) = next {
            let _pinned = epochs::pin();
            let spot = self.walk(Child(self.root.load(Ordering::Acquire)), key)?;
            let high = self.node_at(key)?.1.1;
            if let (End::Node(node), Some((parent, index))) = (&spot.end, spot.parent) {
                if let Some(moved) = load_move(&node.moving) {
                    if !moved.done.is_empty() {
                        self.finish(node, moved)?;
                    }
                } else if self.is_to_relay(node, surplus) {
                    self.relay(node, parent, index, surplus)?;
                }
            }
            next = high.checked_add(1);
        }
        Ok(())
    }

    fn is_to_relay(&self, node: &Node, surplus: Option<&Surplus>) -> bool {
        match surplus {
            Some(surplus) => {
                let blocks = node.all_buckets().map(|bucket| bucket.block.offset);
                blocks
                    .chain([node.block.offset])
                    .any(|offset| surplus.has(offset))
            }
            None => {
                let records = self.records_of(node).len();
                node.slot_count > 2 * LINE_SLOTS && records * 100 < node.slot_count * COLD_PERCENT
            }
        }
    }

    fn relay(
        &self,
        node: &Node,
        parent: &Inner,
        index: usize,
        surplus: Option<&Surplus>,
    ) -> Result<()> {
        let mut plan = self.cold_plan(surplus);
        if let Some((_, before)) = &mut plan.surplus {
            *before = node.block.offset;
        }
        match self.begin_move(node, parent, index, Some(plan)) {
            Ok(()) => {}
            Err(Error::NoSpace(_)) => return Ok(()),
            Err(error) => return Err(error),
        }
        match load_move(&node.moving) {
            Some(moved) if !moved.done.is_empty() => self.finish(node, moved),
            _ => Ok(()),
        }
    }
}
