//! Bugs to plant, one at a time: a checker that does not find them proves nothing.
//!
//! Most are planted in recordings: what the program did is left as it was, but a flush or a fence is taken out, or a commit
//! is moved to where it comes too early. The rest are in the code (see [`Bug`]).

use crate::CrashModel;
use crate::any::{self, Any, AnyOperation, Made};
use crate::coverage::commit_points;
use crate::explore::{Explorer, Limits};
use crate::record::{Recording, record};
use crate::report::Failure;
use crate::tally::Tally;
use indelible::checker::{AnyKind, Bug, EquivalentMutant, Mutant, Size, common, is_named, plant};
use indelible::pmem::trace::{Action, Event};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Formatter};
use std::ops::Range;
use std::sync::Arc;

/// A place in the library that writes, flushes or fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    /// The stable name under which the place writes, or nothing.
    pub name: &'static str,
    /// File, under the library's `src`.
    pub file: &'static str,
    /// Line.
    pub line: u32,
}

impl Site {
    fn is(&self, event: &Event) -> bool {
        *self == Self::of(event)
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
        let kinds = AnyKind::all().into_iter();
        let of_engines = kinds.flat_map(|kind| kind.equivalent_mutants());
        common::EQUIVALENT
            .iter()
            .chain(of_engines)
            .find(|entry| self.is(entry.mutant))
    }

    fn is(self, mutant: Mutant) -> bool {
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

    /// What the recording would be with this bug in it, and the first event that differs; `None` if none does. Operations begin
    /// at event `from`: before that commits of several are not told apart, and stay where they are.
    pub(crate) fn of_events(self, events: &[Event], from: usize) -> Option<(Vec<Event>, usize)> {
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
                mutated.extend_from_slice(&events[..from]);
                for event in &events[from..] {
                    let to = boundary(&mutated, event).max(from);
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
                mutated.extend_from_slice(events);
                let mut at = from;
                while at < mutated.len() {
                    if let Some((from, to)) = swap(&mut mutated, at, a, b) {
                        first.get_or_insert(from);
                        at = to;
                    }
                    at += 1;
                }
            }
            Self::Code(..) => {}
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

/// If there is a commit of `a` at `at`, and the thread's next is one of `b`: puts it, with its own flush and fence, behind the
/// fence after that one. Where it was, and where it is.
fn swap(events: &mut Vec<Event>, at: usize, a: Site, b: Site) -> Option<(usize, usize)> {
    let moved = events[at];
    if !is_store(&moved) || !a.is(&moved) {
        return None;
    }
    let is_own = |event: &Event| event.thread == moved.thread;
    let of_operation = |event: &Event| !matches!(event.action, Action::Mark(_));
    let next = (at + 1..events.len())
        .take_while(|&i| !is_own(&events[i]) || of_operation(&events[i]))
        .find(|&i| is_own(&events[i]) && is_commit(&events[i]))?;
    if !b.is(&events[next]) || address(&events[next]) == address(&moved) {
        return None;
    }
    let fence = (next + 1..events.len())
        .take_while(|&i| !is_own(&events[i]) || of_operation(&events[i]))
        .find(|&i| is_own(&events[i]) && matches!(events[i].action, Action::Fence))?;
    // The commit's flush and fence are of the same line of source.
    let with: Vec<usize> = (at..next)
        .filter(|&i| is_own(&events[i]) && a.is(&events[i]))
        .collect();
    let mut taken: Vec<Event> = with.iter().map(|&i| events[i]).collect();
    let count = taken.len();
    if !taken
        .iter()
        .any(|event| matches!(event.action, Action::Fence))
    {
        // It shares a fence with others, and needs one of its own now.
        taken.push(events[fence]);
    }
    events.splice(fence + 1..fence + 1, taken);
    for &i in with.iter().rev() {
        events.remove(i);
    }
    Some((at, fence + 1 - count))
}

/// Whether the event is a store that commits something, by itself. (A superblock commits by its checksum.)
fn is_commit(event: &Event) -> bool {
    thread_local! {
        static POINTS: BTreeSet<&'static str> = commit_points(&AnyKind::all());
    }
    !event.name.is_empty() && is_store(event) && POINTS.with(|points| points.contains(event.name))
}

/// Where the operation of `moved` began, or its last commit was; or where its word was written before.
fn boundary(events: &[Event], moved: &Event) -> usize {
    events
        .iter()
        .rposition(|event| {
            let is_own = event.thread == moved.thread
                && (matches!(event.action, Action::Mark(_) | Action::Length { .. })
                    || is_commit(event)
                    || is_superblock(event));
            is_own || address(event).is_some() && address(event) == address(moved)
        })
        .map_or(0, |at| at + 1)
}

/// Whether the event is a store to a copy of the superblock.
fn is_superblock(event: &Event) -> bool {
    is_store(event) && common::CHECKSUMS.contains(&event.name)
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

/// Finds planted bugs in indexes and their pool.
pub struct Hunter {
    recordings: Vec<(Any, Recording<AnyOperation>)>,
    /// One event of each kind and line of source that only recoveries have.
    in_recovery: Vec<Event>,
    limits: Limits,
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

/// Images in which an equivalent mutant is looked for: few in the short form of the tests, which would spend most of their time on what is
/// not to be found.
fn most_images_if_equivalent() -> u64 {
    if std::env::var_os("INDELIBLE_DEEP").is_some() {
        8_000
    } else {
        500
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

/// Recoveries of some images have flushes, fences and commits that no recording has.
fn only_in_recovery(recordings: &[(Any, Recording<AnyOperation>)]) -> Vec<Event> {
    let limits = Limits {
        images_per_point: 12,
        nested_every: u64::MAX,
        depth: 0,
    };
    let (tally, mut found) = (Tally::default(), BTreeMap::new());
    for (structure, recording) in recordings.iter().take(alone()) {
        let mut explorer = Explorer::new(structure, CrashModel::Pmem, limits, 0, &tally);
        explorer.in_recovery = Some(std::mem::take(&mut found));
        if let Err(failure) = explorer.explore(recording, 0) {
            panic!("without a planted bug: {failure}");
        }
        found = explorer.in_recovery.unwrap_or_default();
    }
    for event in recordings
        .iter()
        .flat_map(|(_, recording)| &recording.events)
    {
        let kind = match event.action {
            Action::Store { .. } => 0,
            Action::Flush { .. } => 1,
            _ => 2,
        };
        found.remove(&(event.source.file(), event.source.line(), kind));
    }
    found.into_values().collect()
}

impl Hunter {
    /// Records the histories.
    ///
    /// # Panics
    ///
    /// If one of them is wrong without any planted bug.
    #[must_use]
    pub fn new() -> Self {
        let of_theme = |(kind, theme, seed, size): (AnyKind, u64, u64, Size)| {
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
        let of_engines = kinds.clone().flat_map(any::hunts);
        let recordings: Vec<_> = some(4, Size::alone(150))
            .chain(some(4, two))
            .map(of_theme)
            .chain(of_engines.map(|(made, seed)| recorded(made, seed)))
            .collect();
        let in_recovery = only_in_recovery(&recordings);
        Self {
            recordings,
            in_recovery,
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
            for (at, event) in recording.events.iter().enumerate() {
                let site = Site::of(event);
                match event.action {
                    Action::Flush { .. } => drop(flushes.insert(site)),
                    Action::Fence => drop(fences.insert(site)),
                    Action::Mark(_) => last = None,
                    Action::Store { .. } if is_commit(event) && at >= recording.from => {
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
            .filter(|mutation| {
                let mut recordings = self.recordings.iter();
                recordings.any(|(_, recording)| {
                    mutation
                        .of_events(&recording.events, recording.from)
                        .is_some()
                })
            });
        let in_recovery = self
            .in_recovery
            .iter()
            .filter_map(|event| match event.action {
                Action::Flush { .. } => Some(Mutation::NoFlush(Site::of(event))),
                Action::Fence => Some(Mutation::NoFence(Site::of(event))),
                _ if is_commit(event) => Some(Mutation::EarlyCommit(Site::of(event))),
                _ => None,
            });
        recorded.chain(in_recovery).chain(in_code()).collect()
    }

    /// Plants a bug and looks for it.
    #[must_use]
    pub fn hunt(&self, mutation: Mutation) -> Hunt {
        let tally = Tally::default();
        let failure = match mutation {
            Mutation::Code(bug, kind) => self.in_code(bug, kind, &tally),
            _ => self.in_recordings(mutation, &tally),
        };
        Hunt {
            mutation,
            failure,
            images: tally.images(),
        }
    }

    fn in_recordings(&self, mutation: Mutation, tally: &Tally) -> Option<Box<Failure>> {
        // Of equivalent mutants, which nobody expects to be found, a part has to do.
        let most = mutation
            .equivalent()
            .map_or(u64::MAX, |_| most_images_if_equivalent());
        let mutated = || {
            self.in_mixed_order().filter_map(|(structure, recording)| {
                let (events, first) = mutation.of_events(&recording.events, recording.from)?;
                let recording = Recording {
                    events,
                    ..recording.clone()
                };
                Some((structure, recording, first))
            })
        };
        let is_recorded = mutated().next().is_some();
        // Most show themselves where little of what is in doubt has arrived, if only in few of the recordings.
        let quick = Limits {
            images_per_point: 6,
            nested_every: u64::MAX,
            ..self.limits
        };
        let found = [quick, self.limits].into_iter().find_map(|limits| {
            let before = tally.images();
            mutated()
                .take_while(|_| tally.images() - before < most)
                .find_map(|(structure, recording, from)| {
                    Explorer::new(structure, CrashModel::Pmem, limits, 0, tally)
                        .explore(&recording, from)
                        .err()
                })
        });
        if is_recorded {
            return found;
        }
        self.recordings
            .iter()
            .take(alone())
            .take_while(|_| tally.images() < most)
            .find_map(|(structure, recording)| {
                let mut explorer =
                    Explorer::new(structure, CrashModel::Pmem, self.limits, 0, tally);
                explorer.mutation = Some((mutation, MOST_RECOVERIES));
                explorer.explore(recording, 0).err()
            })
    }

    /// All recordings, those that are alike far apart: what only one sort of them shows is found soon.
    fn in_mixed_order(&self) -> impl Iterator<Item = &(Any, Recording<AnyOperation>)> {
        let count = self.recordings.len();
        let is_coprime =
            |step: &usize| (2..=*step).all(|n| !step.is_multiple_of(n) || !count.is_multiple_of(n));
        // About the golden section of them further each time.
        let step = (count * 5 / 8..count).find(is_coprime).unwrap_or(1);
        (0..count).map(move |i| &self.recordings[i * step % count])
    }

    fn in_code(&self, bug: &'static Bug, kind: AnyKind, tally: &Tally) -> Option<Box<Failure>> {
        plant(Some(bug));
        let explore = |stage: &Stage, mut histories: Range<u64>| {
            histories.find_map(|seed| stage.explore(kind, seed, self.limits, tally).err())
        };
        let failure = (0..TURNS)
            .find_map(|turn| {
                let mut stages = STAGES_IN_TURN.iter();
                stages.find_map(|stage| explore(stage, stage.part(turn)))
            })
            .or_else(|| explore(&LAST_STAGE, RARE.histories..LAST_STAGE.histories));
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
    /// All of one theme, or all themes in turn.
    theme: Option<u64>,
}

impl Stage {
    const fn new(
        histories: u64,
        operations: usize,
        threads: usize,
        images_per_point: usize,
        theme: Option<u64>,
    ) -> Self {
        Self {
            histories,
            operations,
            threads,
            images_per_point,
            theme,
        }
    }

    /// The histories of a turn.
    fn part(&self, turn: u64) -> Range<u64> {
        let begin_of = |turn| self.histories * turn / TURNS;
        begin_of(turn)..begin_of(turn + 1)
    }

    fn explore(
        &self,
        kind: AnyKind,
        seed: u64,
        limits: Limits,
        tally: &Tally,
    ) -> Result<(), Box<Failure>> {
        let themes = kind.themes(self.threads);
        let theme = self.theme.unwrap_or(seed) % themes;
        let size = Size {
            operations: self.operations,
            threads: self.threads,
        };
        let (structure, workload) = any::of_theme(kind, theme, seed, size);
        let structure = Arc::new(structure);
        let recording = record(&structure, &workload, seed).map_err(Failure::without_crash)?;
        let limits = Limits {
            images_per_point: self.images_per_point,
            ..limits
        };
        Explorer::new(&*structure, CrashModel::Pmem, limits, 0, tally).explore(&recording, 0)
    }
}

/// Several threads, without crashes; one thread, with; several, with; several, without, on a theme in which blocks and extents come and
/// go under readers, and on one in which places are rare. A bug shows itself in the first histories of one of these stages, and may never do so in another one. So they
/// take turns.
const STAGES_IN_TURN: [Stage; 5] = [
    Stage::new(4_000, 24, 2, 0, None),
    Stage::new(48, 60, 1, 96, None),
    Stage::new(400, 24, 2, 24, None),
    Stage::new(4_000, 24, 2, 0, Some(6)),
    RARE,
];

/// Turns of each stage: as many as the shortest one has histories.
const TURNS: u64 = 48;

const RARE: Stage = Stage::new(4_000, 24, 2, 0, Some(3));

/// For bugs that no turn shows: [`RARE`] goes on.
const LAST_STAGE: Stage = Stage {
    histories: 20_000,
    ..RARE
};
