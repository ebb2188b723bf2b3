//! Bugs in the code: histories in which they have to give themselves away.

use super::LIMITS;
use crate::CrashModel;
use crate::any;
use crate::explore::{Explorer, Limits};
use crate::record::record;
use crate::report::Failure;
use crate::tally::Tally;
use indelible::checker::{AnyKind, Bug, Size, plant};
use std::ops::Range;
use std::sync::Arc;

/// Plants a bug in the code and looks for it.
pub(super) fn hunt(bug: &'static Bug, kind: AnyKind, tally: &Tally) -> Option<Box<Failure>> {
    plant(Some(bug));
    let explore = |stage: &Stage, mut histories: Range<u64>| {
        histories.find_map(|seed| stage.explore(kind, seed, LIMITS, tally).err())
    };
    let in_turn = |stages: &[Stage]| {
        (0..TURNS).find_map(|turn| {
            let mut stages = stages.iter();
            stages.find_map(|stage| explore(stage, stage.part(turn)))
        })
    };
    let theme = kind.theme_of(bug);
    let failure = theme
        .and_then(|theme| in_turn(&[0, 24].map(|images| Stage::of_theme(theme, images))))
        .or_else(|| in_turn(&STAGES_IN_TURN))
        .or_else(|| explore(&LAST_STAGE, RARE.histories..LAST_STAGE.histories));
    plant(None);
    failure
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

    /// Histories of one theme by two threads, without crashes or with so many images at each point.
    const fn of_theme(theme: u64, images_per_point: usize) -> Self {
        let histories = if images_per_point == 0 { 9_600 } else { 240 };
        Self::new(histories, 24, 2, images_per_point, Some(theme))
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
