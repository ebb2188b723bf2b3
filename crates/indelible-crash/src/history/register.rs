//! The history of one key: a register, and every state of it that some order of the operations so far explains.

use super::{Change, Counts, Saw};

/// A state that some order of the operations explains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) value: Option<u64>,
    /// Steps in flight that have taken effect in it, and the value that each found.
    done: Vec<(usize, Option<u64>)>,
}

/// A look that is under way. It reads leaf by leaf, and so not at one moment: of several records of a payload each is seen as it was when its
/// leaf was read. What it has to see is every record that is there throughout, and none that was at no time; and, of a payload with one record that
/// is only relocated meanwhile, that record once.
#[derive(Clone, Copy, Debug)]
struct Watch {
    step: usize,
    /// At each place, the records that are there throughout, at least.
    least: Counts,
    /// At each place, the records that are there at some time, at most.
    most: Counts,
    /// Whether there is one record at most, which is neither added nor taken out meanwhile: then it is seen as at one moment.
    is_at_one_moment: bool,
}

impl Watch {
    /// Another step has begun, beside these that are in flight.
    fn meet(&mut self, change: Change, in_flight: &[(usize, usize, Change)]) {
        match change {
            Change::Add(place) => self.arrive(place, in_flight),
            Change::Take(place) => self.least = self.least.without(place).unwrap_or(self.least),
            Change::Move(from, to) => {
                self.least = self.least.without(from).unwrap_or(self.least);
                self.arrive(to, in_flight);
            }
            _ => {}
        }
        self.is_at_one_moment &= !matches!(change, Change::Add(_) | Change::Take(_));
    }

    /// A record may come to `place`, and be moved on from there by steps that are in flight, once by each.
    fn arrive(&mut self, place: u8, in_flight: &[(usize, usize, Change)]) {
        self.most = self.most.with(1, place);
        for (at, &(.., change)) in in_flight.iter().enumerate() {
            if let Change::Move(from, to) = change
                && from == place
            {
                let others: Vec<_> = [&in_flight[..at], &in_flight[at + 1..]].concat();
                self.arrive(to, &others);
            }
        }
    }

    fn allows(&self, least: Counts, most: Counts) -> bool {
        (0..4).all(|at| least.at(at) <= self.most.at(at) && most.at(at) >= self.least.at(at))
    }
}

/// One key.
#[derive(Clone, Debug)]
pub(super) struct Register {
    watches: Vec<Watch>,
    pub(super) states: Vec<State>,
    /// Steps in flight, ascending: number, number of the operation's first step, change.
    pub(super) in_flight: Vec<(usize, usize, Change)>,
}

impl Register {
    pub(super) fn new(value: Option<u64>) -> Self {
        let done = Vec::new();
        Self {
            watches: Vec::new(),
            states: vec![State { value, done }],
            in_flight: Vec::new(),
        }
    }

    /// Adds every state that comes of steps in flight taking effect.
    fn close(&mut self) {
        let mut at = 0;
        while at < self.states.len() {
            for &(step, first, change) in &self.in_flight {
                let state = &self.states[at];
                let is_done = |step| state.done.iter().any(|&(done, _)| done == step);
                // An operation that comes to a key twice does so in order.
                let mut earlier = self
                    .in_flight
                    .iter()
                    .filter(|other| other.1 == first && other.0 < step);
                if is_done(step) || earlier.any(|&(other, ..)| !is_done(other)) {
                    continue;
                }
                let mut next = state.clone();
                // What an addition found is not asked: states that differ in that alone are one.
                let found = match change {
                    Change::Add(_) => None,
                    _ => state.value,
                };
                next.done.push((step, found));
                next.done.sort_unstable();
                next.value = change.after(state.value);
                if !self.states.contains(&next) {
                    self.states.push(next);
                }
            }
            at += 1;
        }
    }

    /// A step begins.
    pub(super) fn begin(&mut self, step: usize, first: usize, change: Change) {
        for watch in &mut self.watches {
            watch.meet(change, &self.in_flight);
        }
        if change == Change::Look {
            let values = self.allowed();
            let all = || values.iter().map(|&value| Counts::of(value));
            let by_place = |choose: fn(u64, u64) -> u64, from: u64| {
                (0..4).fold(Counts::default(), |counts, place| {
                    let chosen = all().map(|counts| counts.at(place)).fold(from, choose);
                    counts.with(chosen, place)
                })
            };
            let is_moved_only = |&(.., change): &(usize, usize, Change)| {
                !matches!(change, Change::Add(_) | Change::Take(_))
            };
            let has_one = |counts: Counts| (0..4).map(|place| counts.at(place)).sum::<u64>() <= 1;
            self.watches.push(Watch {
                step,
                least: by_place(u64::min, 0xffff),
                most: by_place(u64::max, 0),
                is_at_one_moment: self.in_flight.iter().all(is_moved_only) && all().all(has_one),
            });
        }
        self.in_flight.push((step, first, change));
    }

    /// The step has returned. `false` if no order explains what it saw.
    pub(super) fn returned(&mut self, step: usize, saw: Saw) -> bool {
        let mut saw = saw;
        if let Some(at) = self.watches.iter().position(|watch| watch.step == step) {
            let watch = self.watches.swap_remove(at);
            if let Saw::Between(least, most) = saw {
                if !watch.allows(least, most) {
                    return false;
                }
                if !watch.is_at_one_moment {
                    saw = Saw::Nothing;
                }
            }
        }
        self.close();
        self.in_flight.retain(|&(other, ..)| other != step);
        let mut states = Vec::new();
        for mut state in std::mem::take(&mut self.states) {
            let found = state.done.iter().position(|&(done, _)| done == step);
            if let Some(at) = found.filter(|&at| saw.agrees(state.done[at].1)) {
                state.done.swap_remove(at);
                state.done.sort_unstable();
                if !states.contains(&state) {
                    states.push(state);
                }
            }
        }
        self.states = states;
        !self.states.is_empty()
    }

    /// The values that a crash may leave.
    pub(super) fn allowed(&self) -> Vec<Option<u64>> {
        let mut closed = self.clone();
        // What only looks leaves every value as it is, and with each look there would be twice as many states.
        closed
            .in_flight
            .retain(|&(.., change)| !matches!(change, Change::Get | Change::Look));
        closed.close();
        let mut values: Vec<_> = closed.states.iter().map(|state| state.value).collect();
        values.sort_unstable();
        values.dedup();
        values
    }
}
