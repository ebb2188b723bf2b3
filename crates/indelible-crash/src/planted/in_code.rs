//! Bugs in the code: histories in which they have to give themselves away.

use super::{LIMITS, is_deep};
use crate::CrashModel;
use crate::any;
use crate::explore::{Explorer, Limits};
use crate::record::record;
use crate::report::Failure;
use crate::tally::Tally;
use indelible::checker::{AnyKind, Bug, Size, plant};
use std::fmt::{Display, Formatter};
use std::num::ParseIntError;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

/// The history that showed a bug in the code. A hunt that begins with it is over at once, as long as nothing that the history does has
/// changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Witness {
    /// Its number in [`stages`].
    stage: usize,
    seed: u64,
}

impl Display for Witness {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.stage, self.seed)
    }
}

impl FromStr for Witness {
    type Err = ParseIntError;

    /// What [`Display`] has written.
    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        let (stage, seed) = text.split_once(' ').unwrap_or((text, ""));
        Ok(Self {
            stage: stage.parse()?,
            seed: seed.parse()?,
        })
    }
}

/// Plants a bug in the code and looks for it, first in the history that showed it the last time.
pub(super) fn hunt(
    (bug, kind): (&'static Bug, AnyKind),
    last_time: Option<Witness>,
    tally: &Tally,
) -> Option<(Box<Failure>, Witness)> {
    plant(Some(bug));
    let stages = stages(kind.theme_of(bug));
    let explore = |number: usize, mut histories: Range<u64>| {
        let stage = stages.get(number)?;
        histories.find_map(|seed| {
            let failure = stage.explore(kind, seed, LIMITS, tally).err()?;
            let stage = number;
            Some((failure, Witness { stage, seed }))
        })
    };
    let in_turn = |numbers: Range<usize>| {
        (0..TURNS).find_map(|turn| {
            let mut numbers = numbers.clone();
            numbers.find_map(|number| explore(number, stages[number].part(turn)))
        })
    };
    let last = STAGES_IN_TURN.len();
    let found = last_time
        .and_then(|Witness { stage, seed }| explore(stage, seed..seed + 1))
        .or_else(|| in_turn(last + 1..stages.len()))
        .or_else(|| in_turn(0..last))
        .or_else(|| explore(last, RARE.histories..LAST_STAGE.histories));
    plant(None);
    if let Some((_, Witness { stage, seed })) = found
        && let Err(failure) =
            stages[stage]
                .without_bug()
                .explore(kind, seed, LIMITS, &Tally::default())
    {
        panic!(
            "{kind}, history {stage} {seed} is wrong without {} too: {failure}",
            bug.name
        );
    }
    found
}

/// [`STAGES_IN_TURN`], [`LAST_STAGE`], and those of the theme that a bug is at home in, if there is one.
fn stages(theme: Option<u64>) -> Vec<Stage> {
    let of_theme = theme.map(|theme| [0, 24].map(|images| Stage::of_theme(theme, images)));
    let for_all = STAGES_IN_TURN.into_iter().chain([LAST_STAGE]);
    for_all.chain(of_theme.into_iter().flatten()).collect()
}

/// Histories that a bug in the code has to give itself away in.
#[derive(Clone, Copy)]
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

    /// Histories of one theme by two threads, without crashes or with so many images at each point.
    const fn of_theme(theme: u64, images_per_point: usize) -> Self {
        let histories = if images_per_point == 0 { 9_600 } else { 240 };
        Self::new(histories, 24, 2, images_per_point, Some(theme))
    }

    /// The same to look whether its histories are sound without a bug: in the short form with few images at each point, since nothing ends
    /// the search before the end of the history.
    fn without_bug(self) -> Self {
        let images_per_point = match is_deep() {
            true => self.images_per_point,
            false => self.images_per_point.min(4),
        };
        Self {
            images_per_point,
            ..self
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
        Explorer::new(&*structure, CrashModel::Pmem, limits, 0, tally).explore(&recording)
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
