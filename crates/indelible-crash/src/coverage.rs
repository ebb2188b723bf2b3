//! What a run has looked at.

use crate::model::Model;
use indelible::pmem::trace::{Action, Event};
use std::collections::{BTreeMap, BTreeSet};

/// Counts of a run; see the fields.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// Operations, by name.
    pub operations: BTreeMap<String, u64>,
    /// Changes of structure, by kind, also those of recoveries that were crashed; and of each kind its shapes.
    pub changes: BTreeMap<&'static str, BTreeMap<u64, u64>>,
    /// Events replayed.
    pub events: u64,
    /// Points at which crashes were tried.
    pub points: u64,
    /// Images recovered: of crashes in operations, in recovery, and in the recovery from that.
    pub images: [u64; 3],
    /// Recordings.
    pub histories: u64,
    /// Commits (see [`CommitPoint`]) that were crashed on both sides, by file and line of their store.
    pub commits: BTreeSet<(&'static str, u32)>,
}

impl Coverage {
    pub(crate) fn note(&mut self, event: &Event) {
        if let Action::Note { kind, shape } = event.action {
            *self
                .changes
                .entry(kind)
                .or_default()
                .entry(shape)
                .or_default() += 1;
        }
    }

    /// A crash before the event has been tried, and the next one will be after it.
    pub(crate) fn both_sides(&mut self, event: &Event) {
        if matches!(event.action, Action::Store { .. }) {
            self.commits
                .insert((event.source.file(), event.source.line()));
        }
    }

    /// At a point all that is pending is tried both ways.
    pub(crate) fn point(&mut self, model: &Model) {
        self.points += 1;
        for store in model.pending.values().flat_map(|line| &line.stores) {
            self.commits
                .insert((store.source.file(), store.source.line()));
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
        for (kind, shapes) in other.changes {
            let mine = self.changes.entry(kind).or_default();
            for (shape, count) in shapes {
                *mine.entry(shape).or_default() += count;
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

/// A place in the library that says of itself, in a comment, that it commits a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommitPoint {
    /// File, under the library's `src`.
    pub file: &'static str,
    /// Lines of the comment and of the statement that it speaks of.
    pub lines: (u32, u32),
    /// The comment's first words.
    pub description: &'static str,
}

macro_rules! source {
    ($file:literal) => {
        ($file, include_str!(concat!("../../indelible/src/", $file)))
    };
}
/// Files of the library that write to the pool. (A test looks whether one that commits is missing.)
pub(crate) const SOURCES: &[(&str, &str)] = &[
    source!("index/apex/build.rs"),
    source!("index/apex/bulk.rs"),
    source!("index/apex/insert.rs"),
    source!("index/apex/layout.rs"),
    source!("index/apex/merge.rs"),
    source!("index/apex/relocate.rs"),
    source!("index/apex/smo.rs"),
    source!("index/lbtree/bulk.rs"),
    source!("index/lbtree/insert.rs"),
    source!("index/lbtree/layout.rs"),
    source!("index/lbtree/leaf.rs"),
    source!("index/lbtree/recover.rs"),
    source!("index/tally.rs"),
    source!("pool/core.rs"),
    source!("pool/core/extents.rs"),
];

/// A line of the library's source.
pub(crate) fn line_at(file: &str, line: u32) -> Option<&'static str> {
    let (_, text) = SOURCES.iter().find(|(name, _)| *name == file)?;
    text.lines().nth(line as usize - 1).map(str::trim)
}

/// The function that a line of the library's source is in.
pub(crate) fn function_at(file: &str, line: u32) -> Option<&'static str> {
    let (_, text) = SOURCES.iter().find(|(name, _)| *name == file)?;
    let before: Vec<&'static str> = text.lines().take(line as usize).collect();
    let (_, rest) = before
        .iter()
        .rev()
        .find_map(|line| line.split_once(" fn "))?;
    rest.split(['(', '<']).next()
}

/// Every place in the library that commits a change: the comments that say `COMMIT`, each with the statement after it.
#[must_use]
pub fn commit_points() -> Vec<CommitPoint> {
    let mut points = Vec::new();
    for &(file, text) in SOURCES {
        let lines: Vec<&'static str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let Some((_, description)) = line.split_once("// COMMIT") else {
                continue;
            };
            let is_comment = |line: &&&str| line.trim_start().starts_with("//");
            let comments = lines[at..].iter().take_while(is_comment).count();
            let statement = &lines[at + comments..];
            let length = statement
                .iter()
                .take_while(|line| !line.contains(';'))
                .count();
            let first = (at + comments + 1) as u32;
            points.push(CommitPoint {
                file,
                lines: (first, first + length as u32),
                description: description.trim_start_matches([':', ',']).trim(),
            });
        }
    }
    points
}

impl Coverage {
    /// The commit points that were not crashed on both sides.
    #[must_use]
    pub fn commits_missed(&self) -> Vec<CommitPoint> {
        let is_hit = |point: &CommitPoint| {
            self.commits.iter().any(|&(file, line)| {
                file.ends_with(point.file) && (point.lines.0..=point.lines.1).contains(&line)
            })
        };
        commit_points()
            .into_iter()
            .filter(|point| !is_hit(point))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_file_that_commits_is_listed() {
        fn look(folder: &Path, found: &mut BTreeSet<String>, root: &Path) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    look(&path, found, root);
                } else if std::fs::read_to_string(&path)
                    .is_ok_and(|text| text.contains("// COMMIT"))
                {
                    let name = path.strip_prefix(root).unwrap();
                    found.insert(name.to_str().unwrap().replace('\\', "/"));
                }
            }
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../indelible/src");
        let mut found = BTreeSet::new();
        look(&root, &mut found, &root);
        let listed = SOURCES.iter().map(|&(file, _)| file.to_owned()).collect();
        assert!(found.is_subset(&listed), "{found:?}");
    }

    #[test]
    fn commit_points_are_statements() {
        let points = commit_points();
        assert!(points.len() >= 15, "{points:#?}");
        assert!(points.iter().all(|point| point.lines.1 - point.lines.0 < 6));
    }
}
