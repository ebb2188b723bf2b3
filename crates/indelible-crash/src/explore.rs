//! The search: every image that a crash could leave, recovered and compared with what may be there.

use crate::coverage::Coverage;
use crate::history::History;
use crate::model::{Choice, Model};
use crate::record::{Recording, guarded};
use crate::report::{Failure, Place};
use crate::{MEMORY_BYTES, Medium, Structure};
use indelible::pmem::Memory;
use indelible::pmem::trace::{self, Action, Event};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How far the search goes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Images at one point at most; where there could be more, a sample. 0: only what operations return is looked at.
    pub images_per_point: usize,
    /// Of one image in this many the recovery is crashed as well, and of one recovery in this many of those the recovery
    /// after that.
    pub nested_every: u64,
    /// How often in a row recovery is crashed.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            images_per_point: 256,
            nested_every: 512,
            depth: 2,
        }
    }
}

/// Fingerprints need no further hashing.
#[derive(Default)]
pub(crate) struct Fingerprint(u64);

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

type Fingerprints = HashSet<u64, BuildHasherDefault<Fingerprint>>;

/// All images of a run, by fingerprint, and how the run is getting on.
pub struct Tally {
    shards: [Mutex<Fingerprints>; 64],
    distinct: AtomicU64,
    images: AtomicU64,
}

/// Distinct images beyond which a run forgets those that it has seen: 16 bytes each.
const MOST_REMEMBERED: u64 = 64 << 20;

impl Default for Tally {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            distinct: AtomicU64::new(0),
            images: AtomicU64::new(0),
        }
    }
}

impl Tally {
    fn add(&self, image: u64) {
        self.images.fetch_add(1, Ordering::Relaxed);
        let mut shard = self.shards[image as usize % 64]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if shard.len() as u64 * 64 > MOST_REMEMBERED {
            shard.clear();
        }
        if shard.insert(image) {
            self.distinct.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Distinct images so far, those in recovery included.
    #[must_use]
    pub fn distinct(&self) -> u64 {
        self.distinct.load(Ordering::Relaxed)
    }

    /// Images recovered and checked so far. (An image comes back when what may be there has changed.)
    #[must_use]
    pub fn images(&self) -> u64 {
        self.images.load(Ordering::Relaxed)
    }
}

/// Explores recordings of one structure.
pub(crate) struct Explorer<'a, S: Structure> {
    structure: &'a S,
    medium: Medium,
    limits: Limits,
    memory: Arc<Memory>,
    random: SmallRng,
    tally: &'a Tally,
    pub(crate) coverage: Coverage,
    probes: Arc<[S::Operation]>,
    /// Kept for their memory.
    buffers: Vec<Vec<Event>>,
    undo: Vec<(usize, u64)>,
}

/// What is being explored: a recording, or a recovery.
struct Scene<'a, O> {
    events: &'a [Event],
    operations: &'a [O],
    saw: &'a [Vec<crate::Saw>],
    /// The first event that is of interest.
    from: usize,
    depth: usize,
}

impl<'a, S: Structure> Explorer<'a, S> {
    pub(crate) fn new(
        structure: &'a S,
        medium: Medium,
        limits: Limits,
        seed: u64,
        tally: &'a Tally,
    ) -> Self {
        Self {
            structure,
            medium,
            limits,
            memory: Arc::new(Memory::new(MEMORY_BYTES)),
            random: SmallRng::seed_from_u64(seed),
            tally,
            coverage: Coverage::default(),
            probes: structure.probes().into(),
            buffers: Vec::new(),
            undo: Vec::new(),
        }
    }

    /// Looks at all images of a recording from event `from` on; stops at the first that is wrong.
    pub(crate) fn explore(
        &mut self,
        recording: &Recording<S::Operation>,
        from: usize,
    ) -> Result<(), Box<Failure>> {
        for (at, &word) in recording.words.iter().enumerate() {
            self.memory.set(at, word);
        }
        self.memory
            .set_length_unseen(recording.words.len() as u64 * 8);
        let scene = Scene {
            events: &recording.events,
            operations: &recording.operations,
            saw: &recording.saw,
            from,
            depth: 0,
        };
        let model = Model::new(Arc::clone(&self.memory), recording.address, self.medium);
        self.search(&scene, model, History::new(&recording.before))
    }

    fn search(
        &mut self,
        scene: &Scene<'_, S::Operation>,
        mut model: Model,
        mut history: History,
    ) -> Result<(), Box<Failure>> {
        let mut seen = Fingerprints::default();
        for (at, event) in scene.events.iter().enumerate() {
            if at >= scene.from && self.limits.images_per_point > 0 && model.is_point(event) {
                self.at_point(scene, &model, &history, &mut seen, at)?;
                if self.medium == Medium::Process {
                    self.coverage.both_sides(event);
                }
            }
            if scene.depth == 0 {
                self.coverage.event(event);
            }
            if let Action::Mark(mark) = event.action {
                let number = mark as usize / 2;
                if mark % 2 == 0 {
                    let steps = self.structure.steps(&scene.operations[number]);
                    history.invoke(number, &steps);
                } else if let Err(problem) = history.returned(number, &scene.saw[number]) {
                    return Err(self.failure(scene, &model, at, problem, None));
                }
            }
            model.replay(event);
        }
        if self.limits.images_per_point == 0 {
            return Ok(());
        }
        // And after the last event.
        self.at_point(scene, &model, &history, &mut seen, scene.events.len())
    }

    /// All images that a crash before event `at` could leave.
    fn at_point(
        &mut self,
        scene: &Scene<'_, S::Operation>,
        model: &Model,
        history: &History,
        seen: &mut Fingerprints,
        at: usize,
    ) -> Result<(), Box<Failure>> {
        self.coverage.point(model);
        let mut random = SmallRng::from_rng(&mut self.random);
        let mut failure = None;
        let version = history.version.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let most = self.limits.images_per_point;
        model.for_each_choice(most, &mut random, |choice| {
            let image = model.hash_of(choice);
            if !seen.insert(image ^ version) {
                return true;
            }
            self.tally.add(image);
            self.coverage.images[scene.depth.min(2)] += 1;
            if let Err(problem) = self.look_at(scene, model, history, choice, image) {
                failure = Some(match problem {
                    Problem::Here(problem) => {
                        let shrunk = self.shrink(model, history, choice);
                        self.failure(scene, model, at, problem, Some(&shrunk))
                    }
                    Problem::InRecovery(failure) => self.outer_failure(scene, model, at, failure),
                });
            }
            failure.is_none()
        });
        failure.map_or(Ok(()), Err)
    }

    /// Makes an image, recovers it and looks what is there. Leaves the memory as it was.
    fn look_at(
        &mut self,
        scene: &Scene<'_, S::Operation>,
        model: &Model,
        history: &History,
        choice: &Choice,
        image: u64,
    ) -> Result<(), Problem> {
        let mut undo = std::mem::take(&mut self.undo);
        model.apply(choice, &mut undo);
        let probes = Arc::clone(&self.probes);
        let again = image.is_multiple_of(16);
        let (events, found) = self.recover(&probes, again);
        self.take_back(&events);
        let mut result = found
            .and_then(|(contents, saw)| {
                history.allows(&contents)?;
                Ok((contents, saw))
            })
            .map_err(Problem::Here);
        // By the image's own fingerprint, so that which ones are chosen does not depend on the order.
        let is_chosen = (image >> 8).is_multiple_of(self.limits.nested_every);
        if let Ok((contents, saw)) = &result
            && scene.depth < self.limits.depth
            && is_chosen
        {
            let recovery = Scene {
                events: &events,
                operations: &probes,
                saw,
                from: 0,
                depth: scene.depth + 1,
            };
            let model = Model::within(&self.memory, self.medium, image);
            let nested = self.search(&recovery, model, History::new(contents));
            self.take_back(&events);
            if let Err(failure) = nested {
                result = Err(Problem::InRecovery(failure));
            }
        }
        model.restore(&undo);
        self.undo = undo;
        self.buffers.push(events);
        result.map(drop)
    }

    /// Recovers what is in memory, and tries it out. The events, and the contents with what the probes saw.
    #[allow(clippy::type_complexity)]
    fn recover(
        &mut self,
        probes: &[S::Operation],
        again: bool,
    ) -> (
        Vec<Event>,
        Result<(Vec<(u64, u64)>, Vec<Vec<crate::Saw>>), String>,
    ) {
        trace::start(self.buffers.pop().unwrap_or_default());
        let found = guarded(|| {
            let open = self.structure.recover(&self.memory)?;
            let mut contents = self.structure.contents(&open)?;
            if again {
                // Opened once more, it is the same.
                self.structure.crash(&open);
                drop(open);
                let open = self.structure.recover(&self.memory)?;
                let second = self.structure.contents(&open)?;
                self.structure.crash(&open);
                if second != contents {
                    return Err("a second recovery finds other contents".into());
                }
                return Ok((contents, vec![Vec::new(); probes.len()]));
            }
            let mut saw = Vec::with_capacity(probes.len());
            for (number, probe) in probes.iter().enumerate() {
                trace::mark(2 * number as u64);
                saw.push(self.structure.run(&open, probe)?);
                trace::mark(2 * number as u64 + 1);
            }
            self.structure.crash(&open);
            drop(open);
            if !probes.is_empty() {
                self.check_probes(probes, &saw, &mut contents)?;
            }
            Ok((contents, saw))
        });
        (trace::stop(), found)
    }

    /// Whether the probes saw what they had to.
    fn check_probes(
        &self,
        probes: &[S::Operation],
        saw: &[Vec<crate::Saw>],
        contents: &mut [(u64, u64)],
    ) -> Result<(), String> {
        let mut changed: Vec<(u64, Option<u64>)> = Vec::new();
        for (probe, saw) in probes.iter().zip(saw) {
            let steps = self.structure.steps(probe).steps;
            for (&(key, change), saw) in steps.iter().zip(saw) {
                let known = changed.iter().rev().find(|&&(other, _)| other == key);
                let found = || {
                    let at = contents.binary_search_by_key(&key, |&(key, _)| key).ok()?;
                    Some(contents[at].1)
                };
                let now = known.map_or_else(found, |&(_, value)| value);
                if !saw.agrees(now) {
                    return Err(format!(
                        "after recovery {change:?} of key {key} saw {saw:?}, where {now:?} is right"
                    ));
                }
                changed.push((key, change.after(now)));
            }
        }
        Ok(())
    }

    /// Takes back what was done to the memory under the recorder.
    fn take_back(&self, events: &[Event]) {
        for event in events.iter().rev() {
            match event.action {
                Action::Store {
                    address, before, ..
                } => self.memory.set((address - self.memory.base()) / 8, before),
                Action::Length { from, to } => {
                    assert!(from < to, "recovery makes nothing shorter");
                    self.memory.set_length_unseen(from);
                }
                _ => {}
            }
        }
    }

    /// Lets everything arrive that may arrive without mending the image, so that what is still missing is at fault.
    fn shrink(&mut self, model: &Model, history: &History, choice: &Choice) -> Choice {
        let mut least = choice.clone();
        let lengths: Vec<usize> = model
            .pending
            .values()
            .map(|line| line.stores.len())
            .collect();
        for (line, &length) in lengths.iter().enumerate() {
            let mut fuller = least.clone();
            fuller[line] = length;
            if fuller != least && self.is_wrong(model, history, &fuller) {
                least = fuller;
            }
        }
        least
    }

    fn is_wrong(&mut self, model: &Model, history: &History, choice: &Choice) -> bool {
        let mut undo = Vec::new();
        model.apply(choice, &mut undo);
        let probes = Arc::clone(&self.probes);
        let (events, found) = self.recover(&probes, false);
        self.take_back(&events);
        model.restore(&undo);
        self.buffers.push(events);
        found
            .and_then(|(contents, _)| history.allows(&contents))
            .is_err()
    }

    fn failure(
        &self,
        scene: &Scene<'_, S::Operation>,
        model: &Model,
        at: usize,
        problem: String,
        choice: Option<&Choice>,
    ) -> Box<Failure> {
        let place = Place::of(scene.events, at, scene.operations);
        let lines = choice.map_or_else(Vec::new, |choice| crate::report::lines(model, choice));
        Box::new(Failure {
            problem,
            place,
            lines,
            outer: Vec::new(),
            seed: None,
        })
    }

    fn outer_failure(
        &self,
        scene: &Scene<'_, S::Operation>,
        _model: &Model,
        at: usize,
        mut failure: Box<Failure>,
    ) -> Box<Failure> {
        failure
            .outer
            .push(Place::of(scene.events, at, scene.operations));
        failure
    }
}

/// What is wrong with an image.
enum Problem {
    Here(String),
    InRecovery(Box<Failure>),
}
