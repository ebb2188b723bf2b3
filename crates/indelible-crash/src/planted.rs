//! Bugs to plant, one at a time: a checker that does not find them proves nothing.
//!
//! Most are planted in recordings: what the program did is left as it was, but a flush or a fence is taken out, or a commit
//! is moved to where it comes too early. The rest are in the code (see [`Bug`]).

mod in_code;
mod mutated;

pub use in_code::Witness;
pub(crate) use mutated::{Mutated, is_commit};

use crate::CrashModel;
use crate::any::{self, Any, AnyOperation, Made};
use crate::explore::{EventKey, Explorer, Limits, event_key};
use crate::record::{Recording, record};
use crate::report::Failure;
use crate::tally::Tally;
use indelible::checker::{AnyKind, Bug, EquivalentMutant, Mutant, Size, common, is_named};
use indelible::pmem::trace::{Action, Event};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Formatter};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// A place in the library that writes, flushes or fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    /// Line. Compared first: nearly all places differ in it.
    pub line: u32,
    /// The stable name under which the place writes, or nothing.
    pub name: &'static str,
    /// File, under the library's `src`.
    pub file: &'static str,
}

impl Site {
    fn is(&self, event: &Event) -> bool {
        // Nearly all events differ in the line, and no text has to be looked at.
        self.line == event.source.line() && *self == Self::of(event)
    }

    fn of(event: &Event) -> Self {
        let file = event.source.file();
        let file = file.rsplit_once("/src/").map_or(file, |(_, file)| file);
        Self {
            name: event.name,
            file,
            line: event.source.line(),
        }
    }
}

impl Display for Site {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Self { name, file, line } = self;
        if name.is_empty() {
            write!(f, "{file}:{line}")
        } else {
            write!(f, "{name} ({file}:{line})")
        }
    }
}

/// One planted bug.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Mutation {
    /// All flushes of a line of source are left out.
    NoFlush(Site),
    /// All fences of a line of source are left out.
    NoFence(Site),
    /// A commit's store comes before what it depends on: right after the operation's beginning, or the commit before.
    EarlyCommit(Site),
    /// The first of two commits in a row of an operation is durable only after the second.
    Swapped(Site, Site),
    /// Wrong code, with one kind of index.
    Code(&'static Bug, AnyKind),
}

impl Display for Mutation {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoFlush(site) => write!(f, "no flush at {site}"),
            Self::NoFence(site) => write!(f, "no fence at {site}"),
            Self::EarlyCommit(site) => write!(f, "commit before persist at {site}"),
            Self::Swapped(first, second) => write!(f, "commits swapped: {first}, {second}"),
            Self::Code(bug, kind) => write!(f, "{} ({kind}): {}", bug.name, bug.description),
        }
    }
}

impl Mutation {
    /// The entry of the lists of equivalent mutants that says why no crash shows this one, if there is one.
    #[must_use]
    pub fn equivalent(self) -> Option<&'static EquivalentMutant> {
        equivalent_mutants().find(|entry| self.is(entry.mutant))
    }

    /// The commit of an event before what it depends on.
    pub(crate) fn early(event: &Event) -> Self {
        Self::EarlyCommit(Site::of(event))
    }

    /// The places that the bug is about.
    fn sites(self) -> [Option<Site>; 2] {
        match self {
            Self::NoFlush(site) | Self::NoFence(site) | Self::EarlyCommit(site) => {
                [Some(site), None]
            }
            Self::Swapped(first, second) => [Some(first), Some(second)],
            Self::Code(..) => [None, None],
        }
    }

    /// Whether an entry of these lists speaks of this one.
    #[must_use]
    pub fn is(self, mutant: Mutant) -> bool {
        match (self, mutant) {
            (Self::NoFlush(site), Mutant::NoFlush(name))
            | (Self::NoFence(site), Mutant::NoFence(name))
            | (Self::EarlyCommit(site), Mutant::EarlyCommit(name)) => site.name == name,
            (Self::Swapped(a, b), Mutant::Swapped(first, second)) => {
                is_named(a.name, first) && is_named(b.name, second)
            }
            _ => false,
        }
    }
}

/// All entries of the lists of equivalent mutants. An engine's own entries are closer to it than those for all, and come first.
pub fn equivalent_mutants() -> impl Iterator<Item = &'static EquivalentMutant> {
    let kinds = AnyKind::all().into_iter();
    let of_engines = kinds.flat_map(|kind| kind.equivalent_mutants());
    of_engines.chain(common::EQUIVALENT)
}

/// What became of a planted bug.
#[derive(Clone, Debug)]
pub struct Hunt {
    /// The bug.
    pub mutation: Mutation,
    /// What gave it away, if anything did.
    pub failure: Option<Box<Failure>>,
    /// If the bug is in the code: the history that gave it away.
    pub witness: Option<Witness>,
    /// Images looked at.
    pub images: u64,
}

/// Finds planted bugs in indexes and their pool.
pub struct Hunter {
    recordings: Vec<(Any, Recording<AnyOperation>)>,
    /// Of each recording, the places that wrote, flushed or fenced.
    sites: Vec<BTreeSet<Site>>,
    in_recovery: Vec<InRecovery>,
}

impl Default for Hunter {
    fn default() -> Self {
        Self::new()
    }
}

/// Recordings that recoveries are taken from: of one thread, two of each theme.
fn alone() -> usize {
    let themes = AnyKind::all().into_iter().map(|kind| kind.themes(1));
    2 * themes.sum::<u64>() as usize
}

/// The bugs in the code, each with the kinds of index that can have it.
fn in_code() -> impl Iterator<Item = Mutation> {
    let kinds = AnyKind::all().into_iter();
    kinds.flat_map(|kind| {
        let harmless = kind.harmless_bugs();
        let does_harm =
            move |bug: &&'static Bug| harmless.iter().all(|&(name, _)| name != bug.name);
        let common = common::bugs().filter(does_harm);
        common
            .chain(kind.bugs())
            .map(move |bug| Mutation::Code(bug, kind))
    })
}

fn is_deep() -> bool {
    std::env::var_os("INDELIBLE_DEEP").is_some()
}

/// Images in which a bug in the recordings is looked for, at most. Few for an equivalent mutant: the short form of the tests would spend most of
/// its time on what is not to be found.
fn most_images(mutation: Mutation) -> u64 {
    match (mutation.equivalent().is_some(), is_deep()) {
        (true, false) => 120,
        (true, true) => 500_000,
        (false, false) => 100_000,
        (false, true) => u64::MAX,
    }
}

/// Recoveries of one recording in which a bug is planted, at most.
const MOST_RECOVERIES: u32 = 300;

/// What a workload does, recorded. Panics if it is wrong without any planted bug.
fn recorded((structure, workload): Made, seed: u64) -> (Any, Recording<AnyOperation>) {
    let recording = record(&Arc::new(structure.clone()), &workload, seed)
        .unwrap_or_else(|error| panic!("{structure:?}, seed {seed}: {error}"));
    (structure, recording)
}

/// A flush, a fence or a commit that only recoveries have.
struct InRecovery {
    event: Event,
    /// If it is a commit: whether it could come too early.
    can_be_early: bool,
    /// The recordings whose recoveries have it.
    recordings: Vec<usize>,
}

impl InRecovery {
    fn mutation(&self) -> Option<Mutation> {
        let site = Site::of(&self.event);
        match self.event.action {
            Action::Flush { .. } => Some(Mutation::NoFlush(site)),
            Action::Fence => Some(Mutation::NoFence(site)),
            _ if self.can_be_early => Some(Mutation::EarlyCommit(site)),
            _ => None,
        }
    }
}

/// How far recordings and histories with a bug in them are searched.
const LIMITS: Limits = Limits {
    images_per_point: 96,
    nested_every: 64,
    depth: 2,
};

/// How far recoveries are searched for what no recording has.
const LIMITS_IN_RECOVERY: Limits = Limits {
    images_per_point: 12,
    nested_every: u64::MAX,
    depth: 0,
};

/// How far recoveries are searched without a bug, at a point where the bug has shown itself in them.
const ALL_RECOVERIES: Limits = Limits {
    images_per_point: 6,
    nested_every: 1,
    depth: 1,
};

/// Images that are looked at without a bug, at most, at a point where the bug has shown itself.
fn most_images_without() -> u64 {
    if is_deep() { u64::MAX } else { 100 }
}

/// What is found with a bug has to be due to the bug: at the same point, nothing is wrong without it.
fn expect_sound_without(
    mutation: Mutation,
    explore: impl FnOnce(&Tally) -> Result<(), Box<Failure>>,
) {
    if let Err(failure) = explore(&Tally::default()) {
        panic!("without the bug \"{mutation}\" too: {failure}");
    }
}

/// What the recoveries of a recording do.
fn recoveries_of(
    (structure, recording): &(Any, Recording<AnyOperation>),
) -> BTreeMap<EventKey, (Event, bool)> {
    let tally = Tally::default();
    let mut explorer = Explorer::new(structure, CrashModel::Pmem, LIMITS_IN_RECOVERY, 0, &tally);
    explorer.in_recovery = Some(BTreeMap::new());
    if let Err(failure) = explorer.explore(recording) {
        panic!("without a planted bug: {failure}");
    }
    explorer.in_recovery.unwrap_or_default()
}

/// What `work` makes of each item, in the order of the items.
pub fn on_all_cores<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let take = || {
        items
            .iter()
            .enumerate()
            .nth(next.fetch_add(1, Ordering::Relaxed))
    };
    let work_on = || {
        while let Some((at, item)) = take() {
            let result = work(item);
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            results.push((at, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work_on);
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_unstable_by_key(|&(at, _)| at);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Recoveries of some images have flushes, fences and commits that no recording has.
fn only_in_recovery(recordings: &[(Any, Recording<AnyOperation>)]) -> Vec<InRecovery> {
    let recorded: BTreeSet<EventKey> = recordings
        .iter()
        .flat_map(|(_, recording)| recording.events.iter().filter_map(event_key))
        .collect();
    let alone = &recordings[..alone().min(recordings.len())];
    let mut all: BTreeMap<EventKey, InRecovery> = BTreeMap::new();
    for (number, found) in on_all_cores(alone, recoveries_of).into_iter().enumerate() {
        for (key, (event, can_be_early)) in found {
            if recorded.contains(&key) {
                continue;
            }
            let known = all.entry(key).or_insert(InRecovery {
                event,
                can_be_early,
                recordings: Vec::new(),
            });
            known.can_be_early |= can_be_early;
            known.recordings.push(number);
        }
    }
    all.into_values().collect()
}

impl Hunter {
    /// Records the histories.
    ///
    /// # Panics
    ///
    /// If one of them is wrong without any planted bug.
    #[must_use]
    pub fn new() -> Self {
        let of_theme = |&(kind, theme, seed, size): &(AnyKind, u64, u64, Size)| {
            recorded(any::of_theme(kind, theme, seed, size), seed)
        };
        let all_kinds = AnyKind::all();
        let kinds = all_kinds.iter().copied();
        let some = |rounds, size: Size| {
            let all = (0..rounds).flat_map(|round| kinds.clone().map(move |kind| (round, kind)));
            all.flat_map(move |(round, kind)| {
                let themes = kind.themes(size.threads);
                (0..themes).map(move |theme| (kind, theme, round * themes + theme, size))
            })
        };
        let two = Size {
            operations: 40,
            threads: 2,
        };
        let of_themes: Vec<_> = some(4, Size::alone(150)).chain(some(4, two)).collect();
        let mut recordings = on_all_cores(&of_themes, of_theme);
        let of_engines = on_all_cores(&all_kinds, |&kind| {
            let made = any::hunts(kind).into_iter();
            made.map(|(made, seed)| recorded(made, seed))
                .collect::<Vec<_>>()
        });
        recordings.extend(of_engines.into_iter().flatten());
        let in_recovery = only_in_recovery(&recordings);
        let sites = recordings.iter().map(|(_, recording)| {
            let events = recording.events.iter();
            events.map(Site::of).collect()
        });
        Self {
            sites: sites.collect(),
            recordings,
            in_recovery,
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
            for (at, event) in recording.events.iter().enumerate() {
                match event.action {
                    Action::Flush { .. } => drop(flushes.insert(Site::of(event))),
                    Action::Fence => drop(fences.insert(Site::of(event))),
                    Action::Mark(_) => last = None,
                    Action::Store { .. } if is_commit(event) && at >= recording.from => {
                        let site = Site::of(event);
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
        let recorded = flushes
            .into_iter()
            .map(Mutation::NoFlush)
            .chain(fences.into_iter().map(Mutation::NoFence))
            .chain(commits.into_iter().map(Mutation::EarlyCommit))
            .chain(pairs.into_iter().map(|(a, b)| Mutation::Swapped(a, b)))
            .filter(|&mutation| self.mutated(mutation).next().is_some());
        let in_recovery = self.in_recovery.iter().filter_map(InRecovery::mutation);
        recorded.chain(in_recovery).chain(in_code()).collect()
    }

    /// Plants a bug and looks for it.
    #[must_use]
    pub fn hunt(&self, mutation: Mutation) -> Hunt {
        self.hunt_again(mutation, None)
    }

    /// Plants a bug and looks for it, first in the history that showed it the last time. That is for bugs in the code.
    #[must_use]
    pub fn hunt_again(&self, mutation: Mutation, last_time: Option<Witness>) -> Hunt {
        let tally = Tally::default();
        let (failure, witness) = match mutation {
            Mutation::Code(bug, kind) => in_code::hunt((bug, kind), last_time, &tally).unzip(),
            _ => (self.in_recordings(mutation, &tally), None),
        };
        Hunt {
            mutation,
            failure,
            witness,
            images: tally.images(),
        }
    }

    fn in_recordings(&self, mutation: Mutation, tally: &Tally) -> Option<Box<Failure>> {
        let most = most_images(mutation);
        let is_recorded = self.mutated(mutation).next().is_some();
        // Most show themselves where little of what is in doubt has arrived, if only in few of the recordings.
        let quick = Limits {
            images_per_point: 6,
            nested_every: u64::MAX,
            ..LIMITS
        };
        let found = [quick, LIMITS].into_iter().find_map(|limits| {
            let most = most.saturating_add(tally.images());
            self.mutated(mutation)
                .take_while(|_| tally.images() < most)
                .find_map(|(structure, recording, mutated)| {
                    let taken_out = mutated.taken_out();
                    let explore = |recording: &Recording<_>, most, tally: &Tally| {
                        let mut explorer =
                            Explorer::new(structure, CrashModel::Pmem, limits, 0, tally);
                        explorer.every_way = limits.images_per_point > quick.images_per_point;
                        explorer.most_images = most;
                        explorer.explore(recording)
                    };
                    let failure = explore(&recording.with(mutated), most, tally).err()?;
                    let at = failure.at() + taken_out.partition_point(|&it| it <= failure.at());
                    expect_sound_without(mutation, |tally| {
                        explore(&recording.near(at), most_images_without(), tally)
                    });
                    Some(failure)
                })
        });
        if is_recorded {
            return found;
        }
        self.in_recoveries(mutation, tally, most)
    }

    fn in_recoveries(&self, mutation: Mutation, tally: &Tally, most: u64) -> Option<Box<Failure>> {
        let has_it = |found: &&InRecovery| found.mutation() == Some(mutation);
        let recordings = &self.in_recovery.iter().find(has_it)?.recordings;
        // At first the images in whose recoveries it was found.
        let quick = Limits {
            depth: LIMITS.depth,
            ..LIMITS_IN_RECOVERY
        };
        [quick, LIMITS].into_iter().find_map(|limits| {
            recordings
                .iter()
                .take_while(|_| tally.images() < most)
                .find_map(|&number| {
                    let (structure, recording) = &self.recordings[number];
                    let mut explorer = Explorer::new(structure, CrashModel::Pmem, limits, 0, tally);
                    explorer.mutation = Some((mutation, MOST_RECOVERIES));
                    explorer.most_images = most;
                    let failure = explorer.explore(recording).err()?;
                    expect_sound_without(mutation, |tally| {
                        let mut explorer =
                            Explorer::new(structure, CrashModel::Pmem, ALL_RECOVERIES, 0, tally);
                        explorer.most_images = most_images_without();
                        explorer.explore(&recording.near(failure.at()))
                    });
                    Some(failure)
                })
        })
    }

    /// The recordings that a bug changes, and what they are with the bug in them; those that are alike far apart, so that what only one sort of them
    /// shows is found soon.
    fn mutated(
        &self,
        mutation: Mutation,
    ) -> impl Iterator<Item = (&Any, &Recording<AnyOperation>, Mutated)> {
        let count = self.recordings.len();
        let is_coprime =
            |step: &usize| (2..=*step).all(|n| !step.is_multiple_of(n) || !count.is_multiple_of(n));
        // About the golden section of them further each time.
        let step = (count * 5 / 8..count).find(is_coprime).unwrap_or(1);
        let mixed = (0..count).map(move |i| i * step % count);
        mixed.filter_map(move |i| {
            let sites = mutation.sites();
            if !sites
                .iter()
                .flatten()
                .all(|site| self.sites[i].contains(site))
            {
                return None;
            }
            let (structure, recording) = &self.recordings[i];
            let mutated = mutation.of_events(&recording.events, recording.from)?;
            Some((structure, recording, mutated))
        })
    }
}
