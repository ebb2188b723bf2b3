//! Indexes of every family and kind under the checker: [`Maps`], [`Spatials`] or [`Strings`].

use crate::history::{Saw, Steps};
use crate::maps::{self, Maps};
use crate::places::{self, Spatials};
use crate::texts::{self, Strings};
use crate::{Contents, CrashModel, Memory, Structure, Workload};
use indelible::checker::{AnyKind, History, Operation, Size, SpatialOperation, Suite};
use indelible::{Box2, Box3, GeometryType, Point2, Point3, SpatialKind, StringKind};
use std::fmt::{Debug, Formatter};
use std::sync::Arc;

/// A pool with an index of any kind.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Any {
    Maps(Maps),
    Points2(Spatials<Point2>),
    Points3(Spatials<Point3>),
    Boxes2(Spatials<Box2>),
    Boxes3(Spatials<Box3>),
    Strings(Strings),
}

/// An open pool and its index.
#[allow(missing_docs)]
pub enum AnyOpen {
    Maps(maps::Open),
    Points2(places::Open<Point2>),
    Points3(places::Open<Point3>),
    Boxes2(places::Open<Box2>),
    Boxes3(places::Open<Box3>),
    Strings(texts::Open),
}

/// An operation on an index of any kind.
#[derive(Clone, PartialEq)]
#[allow(missing_docs)]
pub enum AnyOperation {
    /// On a map of words or of byte strings.
    Map(Operation),
    Spatial(SpatialOperation),
}

impl Debug for AnyOperation {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Map(operation) => operation.fmt(f),
            Self::Spatial(operation) => operation.fmt(f),
        }
    }
}

const OTHER_FAMILY: &str = "an operation, or an open pool, of another structure";

/// The same expression for whatever is open, with the structure that opened it.
macro_rules! of_open {
    ($any:expr, $open:expr, ($structure:ident, $its:ident) => $value:expr) => {
        match ($any, $open) {
            (Any::Maps($structure), AnyOpen::Maps($its)) => $value,
            (Any::Points2($structure), AnyOpen::Points2($its)) => $value,
            (Any::Points3($structure), AnyOpen::Points3($its)) => $value,
            (Any::Boxes2($structure), AnyOpen::Boxes2($its)) => $value,
            (Any::Boxes3($structure), AnyOpen::Boxes3($its)) => $value,
            (Any::Strings($structure), AnyOpen::Strings($its)) => $value,
            _ => unreachable!("{OTHER_FAMILY}"),
        }
    };
}

/// The same expression for whatever the structure and the operation are.
macro_rules! of_operation {
    ($any:expr, $operation:expr, ($structure:ident, $its:ident) => $value:expr) => {
        match ($any, $operation) {
            (Any::Maps($structure), AnyOperation::Map($its)) => $value,
            (Any::Points2($structure), AnyOperation::Spatial($its)) => $value,
            (Any::Points3($structure), AnyOperation::Spatial($its)) => $value,
            (Any::Boxes2($structure), AnyOperation::Spatial($its)) => $value,
            (Any::Boxes3($structure), AnyOperation::Spatial($its)) => $value,
            (Any::Strings($structure), AnyOperation::Map($its)) => $value,
            _ => unreachable!("{OTHER_FAMILY}"),
        }
    };
}

impl Structure for Any {
    type Open = AnyOpen;
    type Operation = AnyOperation;

    fn create(&self, memory: &Arc<Memory>) -> Result<AnyOpen, String> {
        match self {
            Self::Maps(of) => of.create(memory).map(AnyOpen::Maps),
            Self::Points2(of) => of.create(memory).map(AnyOpen::Points2),
            Self::Points3(of) => of.create(memory).map(AnyOpen::Points3),
            Self::Boxes2(of) => of.create(memory).map(AnyOpen::Boxes2),
            Self::Boxes3(of) => of.create(memory).map(AnyOpen::Boxes3),
            Self::Strings(of) => of.create(memory).map(AnyOpen::Strings),
        }
    }

    fn recover(&self, memory: &Arc<Memory>) -> Result<AnyOpen, String> {
        match self {
            Self::Maps(of) => of.recover(memory).map(AnyOpen::Maps),
            Self::Points2(of) => of.recover(memory).map(AnyOpen::Points2),
            Self::Points3(of) => of.recover(memory).map(AnyOpen::Points3),
            Self::Boxes2(of) => of.recover(memory).map(AnyOpen::Boxes2),
            Self::Boxes3(of) => of.recover(memory).map(AnyOpen::Boxes3),
            Self::Strings(of) => of.recover(memory).map(AnyOpen::Strings),
        }
    }

    fn run(&self, open: &AnyOpen, operation: &AnyOperation) -> Result<Vec<Saw>, String> {
        match operation {
            AnyOperation::Map(operation) => match (self, open) {
                (Self::Maps(of), AnyOpen::Maps(open)) => of.run(open, operation),
                (Self::Strings(of), AnyOpen::Strings(open)) => of.run(open, operation),
                _ => unreachable!("{OTHER_FAMILY}"),
            },
            AnyOperation::Spatial(operation) => match (self, open) {
                (Self::Points2(of), AnyOpen::Points2(open)) => of.run(open, operation),
                (Self::Points3(of), AnyOpen::Points3(open)) => of.run(open, operation),
                (Self::Boxes2(of), AnyOpen::Boxes2(open)) => of.run(open, operation),
                (Self::Boxes3(of), AnyOpen::Boxes3(open)) => of.run(open, operation),
                _ => unreachable!("{OTHER_FAMILY}"),
            },
        }
    }

    fn steps(&self, operation: &AnyOperation) -> Steps {
        of_operation!(self, operation, (of, operation) => of.steps(operation))
    }

    fn contents(&self, open: &AnyOpen) -> Result<Contents, String> {
        of_open!(self, open, (of, open) => of.contents(open))
    }

    fn probes(&self, seed: u64, near: &[u64]) -> Vec<AnyOperation> {
        let spatial =
            |probes: Vec<SpatialOperation>| probes.into_iter().map(AnyOperation::Spatial).collect();
        match self {
            Self::Maps(of) => of
                .probes(seed, near)
                .into_iter()
                .map(AnyOperation::Map)
                .collect(),
            Self::Points2(of) => spatial(of.probes(seed, near)),
            Self::Points3(of) => spatial(of.probes(seed, near)),
            Self::Boxes2(of) => spatial(of.probes(seed, near)),
            Self::Boxes3(of) => spatial(of.probes(seed, near)),
            Self::Strings(of) => of
                .probes(seed, near)
                .into_iter()
                .map(AnyOperation::Map)
                .collect(),
        }
    }

    fn may_shorten(&self, operation: &AnyOperation) -> bool {
        of_operation!(self, operation, (of, operation) => of.may_shorten(operation))
    }

    fn crash(&self, open: &AnyOpen) {
        of_open!(self, open, (of, open) => of.crash(open));
    }
}

impl Any {
    /// Lets the pool promise to survive these crashes, and no others. (Without this it survives power cuts of persistent memory.)
    pub fn promise(&mut self, survives: CrashModel) {
        match self {
            Self::Maps(of) => of.survives = survives,
            Self::Strings(of) => of.survives = survives,
            Self::Points2(of) => of.survives = survives,
            Self::Points3(of) => of.survives = survives,
            Self::Boxes2(of) => of.survives = survives,
            Self::Boxes3(of) => of.survives = survives,
        }
    }
}

/// What the pool of the history of this seed promises to survive, if these crashes happen. When a process dies, every other history has a
/// pool that promises to survive no more than that. The others have one on persistent memory: a power cut that caches survive leaves the same.
#[must_use]
pub fn promised(crash_model: CrashModel, seed: u64) -> CrashModel {
    match crash_model {
        CrashModel::Process if seed.is_multiple_of(2) => CrashModel::Pmem,
        _ => crash_model,
    }
}

/// A structure, and what is done to it.
pub type Made = (Any, Workload<AnyOperation>);

fn made<O>(any: Any, workload: Workload<O>, operation: fn(O) -> AnyOperation) -> Made {
    let all = |operations: Vec<O>| operations.into_iter().map(operation).collect();
    let workload = Workload {
        before: all(workload.before),
        threads: workload.threads.into_iter().map(all).collect(),
    };
    (any, workload)
}

fn of_maps(history: History) -> Made {
    let (structure, workload) = Maps::from_history(history);
    made(Any::Maps(structure), workload, AnyOperation::Map)
}

fn of_strings(history: History<StringKind>) -> Made {
    let (structure, workload) = Strings::from_history(history);
    made(Any::Strings(structure), workload, AnyOperation::Map)
}

pub(crate) fn of_places(history: History<SpatialKind>) -> Made {
    macro_rules! of {
        ($variant:ident) => {{
            let (structure, workload) = Spatials::from_history(history);
            made(Any::$variant(structure), workload, AnyOperation::Spatial)
        }};
    }
    match history.keys.of {
        GeometryType::Point2 => of!(Points2),
        GeometryType::Point3 => of!(Points3),
        GeometryType::Box2 => of!(Boxes2),
        GeometryType::Box3 => of!(Boxes3),
        other => unreachable!("{other} is a type of geometry that the checker does not know"),
    }
}

/// The history of a seed: `operations` of them by `threads` threads. Seeds take turns at the themes of histories, and, if no
/// kind of index is given, at those first.
#[must_use]
pub fn history(kind: Option<AnyKind>, seed: u64, operations: usize, threads: usize) -> Made {
    let (kind, seed) = kind.map_or_else(
        || {
            let kinds = AnyKind::all();
            let count = kinds.len() as u64;
            (kinds[(seed % count) as usize], seed / count)
        },
        |kind| (kind, seed),
    );
    match kind {
        AnyKind::Map(kind) => of_maps(maps::of_seed(kind, seed, operations, threads)),
        AnyKind::Spatial(kind) => of_places(maps::of_seed(kind, seed, operations, threads)),
        AnyKind::Strings(kind) => of_strings(maps::of_seed(kind, seed, operations, threads)),
    }
}

/// A history with all that its kind can have in a pool at the same time.
pub(crate) fn varied(kind: AnyKind) -> Made {
    match kind {
        AnyKind::Map(kind) => of_maps(kind.suite().varied(kind)),
        AnyKind::Spatial(kind) => of_places(kind.suite().varied(kind)),
        AnyKind::Strings(kind) => of_strings(kind.suite().varied(kind)),
    }
}

/// Creates the other object of a pool.
pub(crate) fn create_other(kind: AnyKind) -> AnyOperation {
    match kind {
        AnyKind::Spatial(_) => AnyOperation::Spatial(SpatialOperation::CreateOther),
        AnyKind::Map(_) | AnyKind::Strings(_) => AnyOperation::Map(Operation::CreateOther),
    }
}

/// A history of one theme.
pub(crate) fn of_theme(kind: AnyKind, theme: u64, seed: u64, size: Size) -> Made {
    match kind {
        AnyKind::Map(kind) => of_maps(kind.suite().history(kind, theme, seed, size)),
        AnyKind::Spatial(kind) => of_places(kind.suite().history(kind, theme, seed, size)),
        AnyKind::Strings(kind) => of_strings(kind.suite().history(kind, theme, seed, size)),
    }
}

/// The histories in which planted bugs are looked for besides those of the themes.
pub(crate) fn hunts(kind: AnyKind) -> Vec<(Made, u64)> {
    match kind {
        AnyKind::Map(kind) => all_hunts(kind.suite(), kind, of_maps),
        AnyKind::Spatial(kind) => all_hunts(kind.suite(), kind, of_places),
        AnyKind::Strings(kind) => all_hunts(kind.suite(), kind, of_strings),
    }
}

fn all_hunts<K: indelible::checker::Family>(
    suite: &dyn Suite<K>,
    kind: K,
    make: fn(History<K>) -> Made,
) -> Vec<(Made, u64)> {
    let hunts = suite.hunts(kind).into_iter();
    hunts.map(|(history, seed)| (make(history), seed)).collect()
}
