//! What a run has looked at.

use crate::model::Model;
use indelible::checker::{AnyKind, StructureChange, common};
use indelible::pmem::trace::{Action, Event};
use std::collections::{BTreeMap, BTreeSet};

/// Counts of a run; see the fields.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// Operations, by name.
    pub operations: BTreeMap<String, u64>,
    /// Changes of structure, by name, also those of recoveries that were crashed; and of each name its variants.
    pub changes: BTreeMap<&'static str, BTreeMap<u64, u64>>,
    /// Events replayed.
    pub events: u64,
    /// Points at which crashes were tried.
    pub points: u64,
    /// Images recovered: of crashes in operations, in recovery, and in the recovery from that.
    pub images: [u64; 3],
    /// Recordings.
    pub histories: u64,
    /// Names of the commit points that were crashed on both sides.
    pub commits: BTreeSet<&'static str>,
}

impl Coverage {
    pub(crate) fn note(&mut self, event: &Event) {
        if let Action::Note { change, variant } = event.action {
            let variants = self.changes.entry(change).or_default();
            *variants.entry(variant).or_default() += 1;
        }
    }

    /// A crash before the event has been tried, and the next one will be after it.
    pub(crate) fn both_sides(&mut self, event: &Event) {
        if matches!(event.action, Action::Store { .. }) {
            self.commits.insert(event.name);
        }
    }

    /// At a point all that is pending is tried both ways.
    pub(crate) fn point(&mut self, model: &Model) {
        self.points += 1;
        for store in model.pending.values().flat_map(|line| &line.stores) {
            self.commits.insert(store.name);
        }
    }

    pub(crate) fn operation(&mut self, operation: &impl std::fmt::Debug) {
        let text = format!("{operation:?}");
        let end = text.find(|c: char| !c.is_alphanumeric());
        let name = text[..end.unwrap_or(text.len())].to_owned();
        *self.operations.entry(name).or_default() += 1;
    }

    /// Adds what another explorer has looked at.
    pub fn merge(&mut self, other: Self) {
        for (name, count) in other.operations {
            *self.operations.entry(name).or_default() += count;
        }
        for (change, variants) in other.changes {
            let mine = self.changes.entry(change).or_default();
            for (variant, count) in variants {
                *mine.entry(variant).or_default() += count;
            }
        }
        self.events += other.events;
        self.points += other.points;
        self.histories += other.histories;
        for (mine, theirs) in self.images.iter_mut().zip(other.images) {
            *mine += theirs;
        }
        self.commits.extend(other.commits);
    }
}

/// The names of all commit points of the pool, the host and the engines of `kinds`, but for those of the superblock, which commits by
/// its checksum.
#[must_use]
pub fn commit_points(kinds: &[AnyKind]) -> BTreeSet<&'static str> {
    let of_engines = kinds.iter().flat_map(|kind| kind.commits());
    common::COMMITS.iter().chain(of_engines).copied().collect()
}

impl Coverage {
    /// The commit points that were not crashed on both sides.
    #[must_use]
    pub fn commits_missed(&self, kinds: &[AnyKind]) -> Vec<&'static str> {
        let points = commit_points(kinds).into_iter();
        points.filter(|name| !self.commits.contains(name)).collect()
    }

    /// The changes of structure that no history had, or not in as many variants as there are.
    #[must_use]
    pub fn changes_missed(&self, kinds: &[AnyKind]) -> Vec<String> {
        let of_engines = kinds.iter().flat_map(|kind| kind.changes());
        let all = common::CHANGES.iter().chain(of_engines);
        all.filter_map(|change| self.missed(change)).collect()
    }

    /// Names that were written under and that no list of commit points has.
    #[must_use]
    pub fn commits_unlisted(&self, kinds: &[AnyKind]) -> Vec<&'static str> {
        let listed = commit_points(kinds);
        let is_listed = |name: &&str| {
            name.is_empty()
                || listed.contains(*name)
                || common::CHECKSUMS.contains(name)
                || common::OTHER_NAMES.contains(name)
        };
        let names = self.commits.iter().copied();
        names.filter(|name| !is_listed(name)).collect()
    }

    /// What histories of one kind of index have not reached of what belongs to its engine: commit points that were not crashed on both
    /// sides, and changes of structure.
    #[must_use]
    pub fn missed_of_engine(&self, kind: AnyKind) -> Vec<String> {
        let commits = kind.commits().iter();
        let commits = commits.filter(|name| !self.commits.contains(*name));
        let commits = commits.map(|name| (*name).to_owned());
        commits
            .chain(
                kind.changes()
                    .iter()
                    .filter_map(|change| self.missed(change)),
            )
            .collect()
    }

    fn missed(&self, change: &StructureChange) -> Option<String> {
        let variants = self.changes.get(change.name);
        let met = variants.map_or(0, |met| met.keys().filter(|&&v| (change.counts)(v)).count());
        (met < change.variants)
            .then(|| format!("{}: {met} of {} variants", change.name, change.variants))
    }
}
