//! Bugs to plant, one at a time: a checker that does not find them proves nothing.
//!
//! Most are planted in recordings: what the program did is left as it was, but a flush or a fence is taken out, or a commit
//! is moved to where it comes too early. The rest are in the code (see [`Bug`]).

use crate::Medium;
use crate::coverage::{CommitPoint, commit_points, function_at, line_at};
use crate::explore::{Explorer, Limits, Tally};
use crate::lbtree::{self, KINDS, KINDS_TOGETHER, LbTree, Operation};
use crate::record::{Recording, record};
use crate::report::Failure;
use indelible::planted::{Bug, plant};
use indelible::pmem::trace::{Action, Event};
use std::collections::BTreeSet;
use std::fmt::{Display, Formatter};
use std::panic::Location;
use std::sync::Arc;

/// A line of the library's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    /// File, under the library's `src`.
    pub file: &'static str,
    /// Line.
    pub line: u32,
    /// The function that it is in.
    pub function: &'static str,
    /// What it says.
    pub text: &'static str,
}

impl Site {
    fn is(&self, event: &Event) -> bool {
        event.source.line() == self.line && event.source.file().ends_with(self.file)
    }

    fn of(event: &Event) -> Self {
        Self::at(event.source)
    }

    fn at(source: &'static Location<'static>) -> Self {
        let file = source.file();
        let file = file.rsplit_once("/src/").map_or(file, |(_, file)| file);
        Self {
            file,
            line: source.line(),
            function: function_at(file, source.line()).unwrap_or("?"),
            text: line_at(file, source.line()).unwrap_or(""),
        }
    }
}

impl Display for Site {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{} ({})", self.file, self.line, self.function)
    }
}

/// One planted bug.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mutation {
    /// All flushes of a line of source are left out.
    NoFlush(Site),
    /// All fences of a line of source are left out.
    NoFence(Site),
    /// A commit's store comes before what it depends on: right after the operation's beginning, or the commit before.
    EarlyCommit(Site),
    /// The second of two commits of an operation comes before the first.
    Swapped(Site, Site),
    /// Wrong code.
    Code(Bug),
}

impl Display for Mutation {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoFlush(site) => write!(f, "no flush at {site}"),
            Self::NoFence(site) => write!(f, "no fence at {site}"),
            Self::EarlyCommit(site) => write!(f, "commit before persist at {site}"),
            Self::Swapped(first, second) => write!(f, "commits swapped: {first}, {second}"),
            Self::Code(bug) => write!(f, "{bug:?}: {}", bug.story()),
        }
    }
}

impl Mutation {
    /// Why this one changes nothing that a crash could show, if that is so.
    #[must_use]
    pub fn excuse(self) -> Option<&'static str> {
        match self {
            Self::NoFlush(at) | Self::NoFence(at) => match (at.function, at.text) {
                (
                    "directory_or_create",
                    ".commit(&self.root_block()?.heads[self.level + 1], head.offset);",
                ) => Some("without its directory, recovery only takes longer"),
                ("record", _) => Some("a number that is not durable is not believed"),
                ("build_chain", _) => {
                    Some("each thread's own; of one thread, the commit's does for both")
                }
                ("begin_writing", "self.pm.fence();") => {
                    Some("what is not wiped for good is wiped again")
                }
                ("free_extents", _) => {
                    Some("an extent that is found owned is swept and freed again")
                }
                ("take_extents", "self.pm.fence();" | "self.pm.flush(self.table(extent));") => {
                    Some("the head of a run speaks for the rest of it")
                }
                _ => None,
            },
            Self::EarlyCommit(at) => match at.function {
                "update" | "publish_update" => Some("a value depends on nothing"),
                "remove" | "remove_entry" | "free_extents" => Some("a removal depends on nothing"),
                "take_extents" => Some("nothing lies in the extent as yet"),
                _ => None,
            },
            Self::Swapped(_, second) => match second.function {
                "update" | "publish_update" => Some("a batch is not one transaction"),
                "take_extents" => Some("nothing lies in the extent as yet"),
                _ => None,
            },
            Self::Code(_) => None,
        }
    }

    /// What the recording would be with this bug in it, and the first event that differs; `None` if none does.
    fn of_events(self, events: &[Event]) -> Option<(Vec<Event>, usize)> {
        let mut mutated = Vec::with_capacity(events.len());
        let mut first = None;
        match self {
            Self::NoFlush(site) | Self::NoFence(site) => {
                let is_fence = matches!(self, Self::NoFence(_));
                for event in events {
                    let is_kind = match event.action {
                        Action::Flush { .. } => !is_fence,
                        Action::Fence => is_fence,
                        _ => false,
                    };
                    if is_kind && site.is(event) {
                        first.get_or_insert(mutated.len());
                    } else {
                        mutated.push(*event);
                    }
                }
            }
            Self::EarlyCommit(site) => {
                for event in events {
                    let to = boundary(&mutated, event);
                    let is_moved =
                        is_store(event) && site.is(event) && mutated[to..].iter().any(is_store);
                    let to = if is_moved { to } else { mutated.len() };
                    if is_moved {
                        first = Some(first.map_or(to, |first: usize| first.min(to)));
                    }
                    mutated.insert(to, *event);
                }
            }
            Self::Swapped(a, b) => {
                for event in events {
                    let to = boundary(&mutated, event);
                    let is_swapped = is_store(event)
                        && b.is(event)
                        && to > 0
                        && is_store(&mutated[to - 1])
                        && a.is(&mutated[to - 1])
                        && address(&mutated[to - 1]) != address(event);
                    let to = if is_swapped { to - 1 } else { mutated.len() };
                    if is_swapped {
                        first = Some(first.map_or(to, |first: usize| first.min(to)));
                    }
                    mutated.insert(to, *event);
                }
            }
            Self::Code(_) => {}
        }
        first.map(|first| (mutated, first))
    }
}

fn is_store(event: &Event) -> bool {
    matches!(event.action, Action::Store { .. })
}

fn address(event: &Event) -> Option<usize> {
    match event.action {
        Action::Store { address, .. } => Some(address),
        _ => None,
    }
}

/// Whether the event is a store that commits something.
fn is_commit(event: &Event) -> bool {
    thread_local! {
        static POINTS: Vec<CommitPoint> = commit_points();
    }
    let line = event.source.line();
    is_store(event)
        && POINTS.with(|points| {
            points.iter().any(|point| {
                (point.lines.0..=point.lines.1).contains(&line)
                    && event.source.file().ends_with(point.file)
            })
        })
}

/// Where the operation of `moved` began, or its last commit was; or where its word was written before.
fn boundary(events: &[Event], moved: &Event) -> usize {
    events
        .iter()
        .rposition(|event| {
            let is_own = event.thread == moved.thread
                && (matches!(event.action, Action::Mark(_) | Action::Length { .. })
                    || is_commit(event));
            is_own || address(event).is_some() && address(event) == address(moved)
        })
        .map_or(0, |at| at + 1)
}

/// What became of a planted bug.
#[derive(Clone, Debug)]
pub struct Hunt {
    /// The bug.
    pub mutation: Mutation,
    /// What gave it away, if anything did.
    pub failure: Option<Box<Failure>>,
    /// Images looked at.
    pub images: u64,
}

/// Finds planted bugs in the LB+-tree and its pool.
pub struct Hunter {
    recordings: Vec<(LbTree, Recording<Operation>)>,
    limits: Limits,
}

impl Default for Hunter {
    fn default() -> Self {
        Self::new()
    }
}

impl Hunter {
    /// Records the histories.
    ///
    /// # Panics
    ///
    /// If one of them is wrong without any planted bug.
    #[must_use]
    pub fn new() -> Self {
        let record = |(kind, seed, operations, threads)| {
            let (structure, workload) = lbtree::history_of_kind(kind, seed, operations, threads);
            let recording = record(&Arc::new(structure), &workload, seed);
            let recording = recording.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            (structure, recording)
        };
        let alone = (0..4 * KINDS).map(|seed| (seed % KINDS, seed, 150, 1));
        let together = (0..4 * KINDS_TOGETHER).map(|seed| (seed % KINDS_TOGETHER, seed, 40, 2));
        // Both threads split, and need another extent.
        let extents = (0..24).map(|seed| (KINDS_TOGETHER - 1, seed, 30, 2));
        Self {
            recordings: alone.chain(together).chain(extents).map(record).collect(),
            limits: Limits {
                images_per_point: 96,
                nested_every: 64,
                depth: 2,
            },
        }
    }

    /// Every bug that can be planted: each flush, fence and commit that the recordings have, each pair of commits, and
    /// all that are in the code.
    #[must_use]
    pub fn mutations(&self) -> Vec<Mutation> {
        let mut flushes = BTreeSet::new();
        let mut fences = BTreeSet::new();
        let mut commits = BTreeSet::new();
        let mut pairs = BTreeSet::new();
        for (_, recording) in &self.recordings {
            let mut last = None;
            for event in &recording.events {
                let site = Site::of(event);
                match event.action {
                    Action::Flush { .. } => drop(flushes.insert(site)),
                    Action::Fence => drop(fences.insert(site)),
                    Action::Mark(_) => last = None,
                    Action::Store { .. } if is_commit(event) => {
                        commits.insert(site);
                        if let Some(last) = last.filter(|&last| last != site) {
                            pairs.insert((last, site));
                        }
                        last = Some(site);
                    }
                    _ => {}
                }
            }
        }
        let all = flushes
            .into_iter()
            .map(Mutation::NoFlush)
            .chain(fences.into_iter().map(Mutation::NoFence))
            .chain(commits.into_iter().map(Mutation::EarlyCommit))
            .chain(pairs.into_iter().map(|(a, b)| Mutation::Swapped(a, b)))
            .filter(|mutation| {
                let mut recordings = self.recordings.iter();
                recordings.any(|(_, recording)| mutation.of_events(&recording.events).is_some())
            });
        all.chain(Bug::ALL.iter().map(|&bug| Mutation::Code(bug)))
            .collect()
    }

    /// Plants a bug and looks for it.
    #[must_use]
    pub fn hunt(&self, mutation: Mutation) -> Hunt {
        let tally = Tally::default();
        let failure = match mutation {
            Mutation::Code(bug) => self.in_code(bug, &tally),
            _ => self.in_recordings(mutation, &tally),
        };
        Hunt {
            mutation,
            failure,
            images: tally.images(),
        }
    }

    fn in_recordings(&self, mutation: Mutation, tally: &Tally) -> Option<Box<Failure>> {
        self.recordings.iter().find_map(|(structure, recording)| {
            let (events, first) = mutation.of_events(&recording.events)?;
            let recording = Recording {
                events,
                ..recording.clone()
            };
            Explorer::new(structure, Medium::Pmem, self.limits, 0, tally)
                .explore(&recording, first)
                .err()
        })
    }

    fn in_code(&self, bug: Bug, tally: &Tally) -> Option<Box<Failure>> {
        plant(Some(bug));
        let failure = STAGES.iter().find_map(|stage| {
            (0..stage.histories).find_map(|seed| stage.explore(seed, self.limits, tally).err())
        });
        plant(None);
        failure
    }
}

/// Histories that a bug in the code has to give itself away in.
struct Stage {
    histories: u64,
    operations: usize,
    threads: usize,
    images_per_point: usize,
    /// All of one kind, or all kinds in turn.
    kind: Option<u64>,
}

impl Stage {
    const fn new(
        histories: u64,
        operations: usize,
        threads: usize,
        images_per_point: usize,
        kind: Option<u64>,
    ) -> Self {
        Self {
            histories,
            operations,
            threads,
            images_per_point,
            kind,
        }
    }

    fn explore(&self, seed: u64, limits: Limits, tally: &Tally) -> Result<(), Box<Failure>> {
        let kinds = if self.threads < 2 {
            KINDS
        } else {
            KINDS_TOGETHER
        };
        let kind = self.kind.unwrap_or(seed % kinds);
        let (structure, workload) =
            lbtree::history_of_kind(kind, seed, self.operations, self.threads);
        let recording =
            record(&Arc::new(structure), &workload, seed).map_err(Failure::without_crash)?;
        let limits = Limits {
            images_per_point: self.images_per_point,
            ..limits
        };
        Explorer::new(&structure, Medium::Pmem, limits, 0, tally).explore(&recording, 0)
    }
}

/// One thread, with crashes; several, without; several, with; and many in which leaves and extents come and go under readers.
const STAGES: [Stage; 4] = [
    Stage::new(48, 60, 1, 96, None),
    Stage::new(4_000, 24, 2, 0, None),
    Stage::new(400, 24, 2, 24, None),
    Stage::new(20_000, 24, 2, 0, Some(3)),
];
