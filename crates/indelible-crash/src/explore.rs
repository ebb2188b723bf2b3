//! The search: every image that a crash could leave, recovered and compared with what may be there.

use crate::coverage::Coverage;
use crate::history::History;
use crate::model::{Choice, Model};
use crate::planted::{self, Mutated, Mutation};
use crate::record::Recording;
use crate::recovery::{self, Way};
use crate::report::{Failure, Place};
use crate::tally::{Fingerprints, Tally};
use crate::{Contents, CrashModel, MEMORY_BYTES, Structure};
use indelible::pmem::trace::{Action, Event};
use indelible::pmem::{Cell, Memory};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// How far the search goes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Images at one point at most; where there could be more, a sample. 0: only what operations return, and what is there in the end.
    pub images_per_point: usize,
    /// Of one image in this many the recovery is crashed as well; and of those, of one in an eighth as many the recovery
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

/// A line, what happens there (a store, a flush or a fence), and the file. The file is compared last, since texts take longest.
pub(crate) type EventKey = (u32, u8, &'static str);

/// The key of an event, if it is one of these.
pub(crate) fn event_key(event: &Event) -> Option<EventKey> {
    let kind = match event.action {
        Action::Store { .. } => 0,
        Action::Flush { .. } => 1,
        Action::Fence => 2,
        _ => return None,
    };
    Some((event.source.line(), kind, event.source.file()))
}

/// Explores recordings of one structure.
pub(crate) struct Explorer<'a, S: Structure> {
    structure: &'a S,
    crash_model: CrashModel,
    limits: Limits,
    memory: Arc<Memory>,
    random: SmallRng,
    tally: &'a Tally,
    /// When to look at no more images.
    pub(crate) until: Option<Instant>,
    /// How many images the tally may count before no more are looked at.
    pub(crate) most_images: u64,
    pub(crate) coverage: Coverage,
    /// A bug to plant in recoveries, and how many more of those with it in them are searched.
    pub(crate) mutation: Option<(Mutation, u32)>,
    /// Whether each image is recovered in every way, and not only in its own.
    pub(crate) every_way: bool,
    /// If wanted: one event of each kind and line of source that recoveries have; and whether it is a commit that could come too early.
    pub(crate) in_recovery: Option<BTreeMap<EventKey, (Event, bool)>>,
    /// Kept for their memory.
    buffers: Vec<Vec<Event>>,
    undo: Vec<(usize, u64)>,
}

/// Probes are numbered from here on, so that they are not mistaken for operations that were in flight.
const FIRST_PROBE: usize = 1 << 20;

/// Of the points at which a process could die with stores in the caches, one in this many is looked at.
const DEATH_EVERY: u64 = 16;

/// Images at one point of the recovery from such a death, where all lines can be tried alone with fewer.
const IMAGES_AFTER_DEATH: usize = 16;

const LEAK: &str =
    "the structure has written behind the recorder's back: images leak into each other";

/// What is being explored: a recording, or a recovery.
struct Scene<'a, O> {
    events: &'a [Event],
    operations: &'a [O],
    saw: &'a [Vec<crate::Saw>],
    /// Of a recording: the contents after all operations.
    after: Option<&'a Contents>,
    /// The first event that is of interest.
    from: usize,
    /// Of the events from there on, and of the end: which are of interest. All if empty.
    differs: &'a [bool],
    /// The number of the first operation.
    first: usize,
    depth: usize,
    /// Of a recovery after the death of a process whose stores are in the caches still: what was there when it was read. Such a recovery is crashed as long as some of
    /// those stores can be taken back; from then on it is one like others.
    inherited: Option<&'a Contents>,
}

impl<O> Scene<'_, O> {
    /// Whether to look at what a crash before event `at` could leave.
    fn is_of_interest(&self, at: usize) -> bool {
        at >= self.from && self.differs.get(at).is_none_or(|&differs| differs)
    }
}

impl<'a, S: Structure> Explorer<'a, S> {
    pub(crate) fn new(
        structure: &'a S,
        crash_model: CrashModel,
        limits: Limits,
        seed: u64,
        tally: &'a Tally,
    ) -> Self {
        Self {
            structure,
            crash_model,
            limits,
            memory: Arc::new(Memory::new(MEMORY_BYTES)),
            random: SmallRng::seed_from_u64(seed),
            tally,
            until: None,
            most_images: u64::MAX,
            coverage: Coverage::default(),
            mutation: None,
            every_way: false,
            in_recovery: None,
            buffers: Vec::new(),
            undo: Vec::new(),
        }
    }

    /// Looks at all images of a recording; stops at the first that is wrong.
    pub(crate) fn explore(
        &mut self,
        recording: &Recording<S::Operation>,
    ) -> Result<(), Box<Failure>> {
        let scene = Scene {
            events: &recording.events,
            operations: &recording.operations,
            saw: &recording.saw,
            after: recording.after.as_ref(),
            from: recording.from,
            differs: &recording.differs,
            first: 0,
            depth: 0,
            inherited: None,
        };
        let model = Model::new(
            Arc::clone(&self.memory),
            recording.address,
            self.crash_model,
        );
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
            if scene.inherited.is_some() && !model.has_inherited() {
                return Ok(());
            }
            if let (Action::Looked, Some(contents)) = (event.action, scene.inherited) {
                // From now on a power cut may not take back what the process that died had done.
                let version = history.version;
                history = History::new(contents);
                history.version += version;
            }
            if scene.is_of_interest(at) && self.limits.images_per_point > 0 && model.is_point(event)
            {
                self.at_point(scene, &model, &history, &mut seen, at)?;
                if self.crash_model == CrashModel::Process {
                    self.coverage.both_sides(event);
                }
            }
            if scene.is_of_interest(at) && self.can_die(scene, &model, event) {
                self.at_death(scene, &model, &history, at)?;
            }
            if at >= scene.from {
                self.coverage.note(event);
                self.coverage.events += u64::from(scene.depth == 0);
            }
            if let Action::Mark(mark) = event.action {
                let number = mark as usize / 2;
                let told = if mark % 2 == 0 {
                    let steps = self.structure.steps(&scene.operations[number]);
                    history.invoke(scene.first + number, &steps)
                } else {
                    history.returned(scene.first + number, &scene.saw[number])
                };
                if let Err(problem) = told {
                    return Err(self.failure(scene, &model, at, problem, None));
                }
            }
            model.replay(event);
        }
        let end = scene.events.len();
        let allowed = scene.after.map_or(Ok(()), |after| history.allows(after));
        if let Err(problem) = allowed {
            let problem = format!("without a crash: {problem}");
            return Err(self.failure(scene, &model, end, problem, None));
        }
        let is_over = scene.inherited.is_some() && !model.has_inherited();
        if is_over || self.limits.images_per_point == 0 || !scene.is_of_interest(end) {
            return Ok(());
        }
        self.at_point(scene, &model, &history, &mut seen, end)?;
        // Within a recovery the memory is looked at with its recording.
        if scene.depth == 0 && !model.is_intact() {
            return Err(self.failure(scene, &model, end, LEAK.into(), None));
        }
        Ok(())
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
        let most = match scene.inherited {
            Some(_) => self.limits.images_per_point.min(IMAGES_AFTER_DEATH),
            None => self.limits.images_per_point,
        };
        model.for_each_choice(most, &mut random, |choice| {
            let image = model.hash_of(choice);
            if self.tally.images() >= self.most_images
                || self.until.is_some_and(|until| Instant::now() >= until)
            {
                return false;
            }
            if !seen.insert(image ^ version) {
                return true;
            }
            self.tally.add(image);
            self.coverage.images[scene.depth.min(2)] += 1;
            if let Err(problem) = self.look_at_in_all_ways(scene, model, history, choice, image) {
                failure = Some(match problem {
                    Problem::Here(problem) => {
                        let shrunk = self.shrink(model, history, choice, image);
                        self.failure(scene, model, at, problem, Some(&shrunk))
                    }
                    Problem::InRecovery(mut failure) => {
                        let place = Place::of(scene.events, at, scene.operations);
                        failure.outer.push(place);
                        failure
                    }
                });
            }
            failure.is_none()
        });
        failure.map_or(Ok(()), Err)
    }

    /// Looks at an image in its own way; in the others too, if that is wanted.
    fn look_at_in_all_ways(
        &mut self,
        scene: &Scene<'_, S::Operation>,
        model: &Model,
        history: &History,
        choice: &Choice,
        image: u64,
    ) -> Result<(), Problem> {
        let own = Way::of(image, history);
        self.look_at(scene, model, history, choice, (image, own))?;
        if self.every_way {
            for way in Way::all(history).filter(|&way| way != own) {
                self.look_at(scene, model, history, choice, (image, way))?;
            }
        }
        Ok(())
    }

    /// Makes an image, recovers it and looks what is there. Leaves the memory as it was.
    fn look_at(
        &mut self,
        scene: &Scene<'_, S::Operation>,
        model: &Model,
        history: &History,
        choice: &Choice,
        (image, way): (u64, Way),
    ) -> Result<(), Problem> {
        let mut undo = std::mem::take(&mut self.undo);
        model.apply(choice, &mut undo);
        let probes = self.probes(image, history);
        let whole = self.whole_before(&probes);
        let buffer = self.buffers.pop().unwrap_or_default();
        let (events, outcome) =
            recovery::try_out(self.structure, &self.memory, &probes, way, history, buffer);
        self.take_back(&events, &whole);
        self.collect(&events);
        let mut result = Ok(());
        match outcome {
            Err(problem) => result = Err(Problem::Here(problem)),
            Ok(outcome) if scene.depth < self.limits.depth && way == Way::of(image, history) => {
                let mutated = self.mutated(&events);
                let is_new = scene.depth == 0 && self.has_new_change(&events);
                if mutated.is_some() || is_new || self.is_chosen(image, scene.depth) {
                    let differs = mutated.as_ref().map_or_else(Vec::new, Mutated::differs);
                    let nested = mutated.as_ref().map_or(&events, |mutated| &mutated.events);
                    let recovery = Scene {
                        events: nested,
                        operations: &probes,
                        saw: &outcome.saw,
                        after: None,
                        from: 0,
                        differs: &differs,
                        first: scene.first + FIRST_PROBE,
                        depth: scene.depth + 1,
                        inherited: None,
                    };
                    // What the recovery has shown is settled; what it has not may still be either way.
                    let before = match &outcome.contents {
                        Some(contents) => History::new(contents),
                        None => history.clone(),
                    };
                    let model = Model::within(&self.memory, self.crash_model, image);
                    result = self
                        .search(&recovery, model, before)
                        .map_err(Problem::InRecovery);
                    self.take_back(nested, &whole);
                }
            }
            Ok(_) => {}
        }
        model.restore(&undo);
        if image.is_multiple_of(4099) && result.is_ok() && !model.is_intact() {
            result = Err(Problem::Here(LEAK.into()));
        }
        self.undo = undo;
        self.buffers.push(events);
        result
    }

    /// Whether the recovery of an image is searched as well: by the image's own fingerprint, so that it does not depend on
    /// the order, and by other bits of it at each depth.
    fn is_chosen(&self, image: u64, depth: usize) -> bool {
        let every = (self.limits.nested_every >> (3 * depth)).max(1);
        (image >> (8 + 16 * depth)).is_multiple_of(every)
    }

    /// Whether the process can die before this event with stores that are in the caches and nowhere else, of which there are fewer behind it.
    fn can_die(&self, scene: &Scene<'_, S::Operation>, model: &Model, event: &Event) -> bool {
        matches!(event.action, Action::Flush { .. } | Action::Mark(_))
            && self.crash_model == CrashModel::Pmem
            && self.limits.images_per_point > 0
            && scene.depth < self.limits.depth
            // A mutation changes what a power cut leaves at once.
            && scene.differs.is_empty()
            && self.mutation.is_none()
            && model.is_any_cached()
    }

    /// A process dies before event `at`, and the power is cut later, while the next one recovers: until then that one sees all stores of the first, of which the
    /// caches may have some.
    fn at_death(
        &mut self,
        scene: &Scene<'_, S::Operation>,
        model: &Model,
        history: &History,
        at: usize,
    ) -> Result<(), Box<Failure>> {
        let choice = model.all();
        let image = model.hash_of(&choice);
        let is_over = self.tally.images() >= self.most_images
            || self.until.is_some_and(|until| Instant::now() >= until);
        if is_over || !(image >> 36).is_multiple_of(DEATH_EVERY) {
            return Ok(());
        }
        self.tally.add(image);
        self.coverage.images[scene.depth.min(2)] += 1;
        let mut undo = std::mem::take(&mut self.undo);
        model.apply(&choice, &mut undo);
        let probes = self.probes(image, history);
        let whole = self.whole_before(&probes);
        let buffer = self.buffers.pop().unwrap_or_default();
        let (events, outcome) = recovery::try_out(
            self.structure,
            &self.memory,
            &probes,
            Way::Warm,
            history,
            buffer,
        );
        self.take_back(&events, &whole);
        model.restore(&undo);
        self.undo = undo;
        let result = match outcome {
            Err(problem) => Err(self.failure(scene, model, at, problem, Some(&choice))),
            Ok(outcome) => {
                let recovery = Scene {
                    events: &events,
                    operations: &probes,
                    saw: &outcome.saw,
                    after: None,
                    from: 0,
                    differs: &[],
                    first: scene.first + FIRST_PROBE,
                    depth: scene.depth + 1,
                    inherited: outcome.contents.as_ref(),
                };
                let durable = Whole::of(&self.memory);
                let result = self.search(&recovery, model.inherited(), history.clone());
                durable.restore(&self.memory);
                result.map_err(|mut failure| {
                    let place = Place::of(scene.events, at, scene.operations);
                    failure.outer.push(place);
                    failure
                })
            }
        };
        self.buffers.push(events);
        result
    }

    /// Whether the recovery itself, before the first probe, makes a change of structure that nothing had which was crashed in this history: such a recovery is crashed, however
    /// seldom it is.
    fn has_new_change(&self, events: &[Event]) -> bool {
        let mut own = events
            .iter()
            .take_while(|event| !matches!(event.action, Action::Mark(_)));
        self.limits.nested_every < u64::MAX
            && own.any(|event| match event.action {
                Action::Note { change, variant } => {
                    let met = self.coverage.changes.get(change);
                    // Every recovery is an open.
                    change != "open" && met.is_none_or(|met| !met.contains_key(&variant))
                }
                _ => false,
            })
    }

    /// The recovery with the planted bug in it.
    fn mutated(&mut self, events: &[Event]) -> Option<Mutated> {
        let (mutation, left) = self.mutation.as_mut().filter(|(_, left)| *left > 0)?;
        let mutated = mutation.of_events(events, 0)?;
        *left -= 1;
        Some(mutated)
    }

    fn collect(&mut self, events: &[Event]) {
        let Some(found) = &mut self.in_recovery else {
            return;
        };
        for event in events {
            let Some(key) = event_key(event) else {
                continue;
            };
            let (_, can_be_early) = found.entry(key).or_insert((*event, false));
            if !*can_be_early && planted::is_commit(event) {
                *can_be_early = Mutation::early(event).of_events(events, 0).is_some();
            }
        }
    }

    /// What is tried after the recovery of an image. A bug that is planted in recoveries shows itself by what is written to blocks that were freed too early, and so by records
    /// that are new, anywhere.
    fn probes(&self, image: u64, history: &History) -> Vec<S::Operation> {
        let near = match self.mutation {
            Some(_) => &[],
            None => history.near(),
        };
        self.structure.probes(image, near)
    }

    /// All of the memory, if one of the probes may make it shorter.
    fn whole_before(&self, probes: &[S::Operation]) -> Option<Whole> {
        let mut probes = probes.iter();
        let is_needed = probes.any(|probe| self.structure.may_shorten(probe));
        is_needed.then(|| Whole::of(&self.memory))
    }

    /// Takes back what was done to the memory under the recorder. (After a shrink the events do not tell what was cut off.)
    fn take_back(&self, events: &[Event], whole: &Option<Whole>) {
        if let Some(whole) = whole {
            return whole.restore(&self.memory);
        }
        for event in events.iter().rev() {
            match event.action {
                Action::Store {
                    address, before, ..
                } => self.memory.set((address - self.memory.base()) / 8, before),
                Action::Length { from, .. } => self.memory.set_length_unseen(from),
                _ => {}
            }
        }
    }

    /// Lets everything arrive that may arrive without mending the image, so that what is still missing is at fault.
    fn shrink(&mut self, model: &Model, history: &History, choice: &Choice, image: u64) -> Choice {
        let mut least = choice.clone();
        let lengths: Vec<usize> = model
            .pending
            .values()
            .map(|line| line.stores.len())
            .collect();
        for (line, &length) in lengths.iter().enumerate() {
            let mut fuller = least.clone();
            fuller[line] = length;
            if fuller != least && self.is_wrong(model, history, &fuller, image) {
                least = fuller;
            }
        }
        least
    }

    /// Whether the image is wrong when it is recovered in one of the ways in which the image with the fingerprint `image` was.
    fn is_wrong(&mut self, model: &Model, history: &History, choice: &Choice, image: u64) -> bool {
        let own = Way::of(image, history);
        let mut ways = Way::all(history).filter(|&way| way == own || self.every_way);
        let mut undo = Vec::new();
        model.apply(choice, &mut undo);
        let probes = self.probes(image, history);
        let whole = self.whole_before(&probes);
        let is_wrong = ways.any(|way| {
            let (events, outcome) = recovery::try_out(
                self.structure,
                &self.memory,
                &probes,
                way,
                history,
                Vec::new(),
            );
            self.take_back(&events, &whole);
            outcome.is_err()
        });
        model.restore(&undo);
        is_wrong
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
}

/// All of a memory.
struct Whole {
    words: Vec<u64>,
    length: u64,
}

impl Whole {
    fn of(memory: &Memory) -> Self {
        Self {
            // Behind the end all words are zero.
            words: memory.words()[..memory.length() as usize / 8]
                .iter()
                .map(Cell::load)
                .collect(),
            length: memory.length(),
        }
    }

    fn restore(&self, memory: &Memory) {
        memory.set_length_unseen(self.length);
        let words = self.words.iter().enumerate();
        words.for_each(|(at, &word)| memory.set(at, word));
    }
}

/// What is wrong with an image.
enum Problem {
    Here(String),
    InRecovery(Box<Failure>),
}
