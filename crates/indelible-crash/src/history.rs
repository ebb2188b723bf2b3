//! What may be there: durable linearizability, key by key.
//!
//! A map is linearizable if each of its keys is, so every key has a history of its own: a register that holds a value or
//! nothing. Of a register we keep every state that some order of the operations so far explains, given what they
//! returned. An operation in flight may have taken effect or not; one that has returned has, and has seen what it says.
//! If no order explains what came back, the history is not linearizable. What a crash may leave of a key is the value in
//! any of those states, with any of the operations in flight added.

mod register;

use register::Register;
use std::collections::BTreeMap;

/// What an operation does to one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Looks.
    Get,
    /// Sets the value.
    Put(u64),
    /// Sets the value if there is none.
    PutNew(u64),
    /// Sets the value if there is one.
    Update(u64),
    /// Takes the key out.
    Remove,
    /// Sets the value to the second if it is the first.
    Exchange(Option<u64>, Option<u64>),
    /// Looks at many registers, and not at one moment: a search of many leaves.
    Look,
    /// The value is four [`Counts`]: one more at this place.
    Add(u8),
    /// One less at this place, if there is one.
    Take(u8),
    /// One less at the first place and one more at the second, if there is one at the first.
    Move(u8, u8),
}

/// How many records of one payload there are at each of four places: one word of a register, 16 bits for each place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts(pub u64);

impl Counts {
    /// How many there are at a place.
    #[must_use]
    pub fn at(self, place: u8) -> u64 {
        self.0 >> (16 * place) & 0xffff
    }

    /// With as many more at a place, which are at most `u16::MAX` then.
    #[must_use]
    pub fn with(self, more: u64, place: u8) -> Self {
        Self(self.0 + (more << (16 * place)))
    }

    /// With one less at a place, if there is one.
    fn without(self, place: u8) -> Option<Self> {
        (self.at(place) > 0).then(|| Self(self.0 - (1 << (16 * place))))
    }

    fn of(value: Option<u64>) -> Self {
        Self(value.unwrap_or(0))
    }

    /// As the value of a register: nothing if there is no record.
    #[must_use]
    pub fn value(self) -> Option<u64> {
        (self.0 > 0).then_some(self.0)
    }
}

impl Change {
    pub(crate) fn after(self, now: Option<u64>) -> Option<u64> {
        match self {
            Self::Get | Self::Look => now,
            Self::Put(value) => Some(value),
            Self::PutNew(value) => now.or(Some(value)),
            Self::Update(value) => now.and(Some(value)),
            Self::Remove => None,
            Self::Exchange(from, to) if now == from => to,
            Self::Exchange(..) => now,
            Self::Add(place) => Counts::of(now).with(1, place).value(),
            Self::Take(place) => match Counts::of(now).without(place) {
                Some(less) => less.value(),
                None => now,
            },
            Self::Move(from, to) => match Counts::of(now).without(from) {
                Some(less) => less.with(1, to).value(),
                None => now,
            },
        }
    }
}

/// What an operation does: a change of each of its keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Keys and what is done to them. One after the other, if a key comes twice.
    pub steps: Vec<(u64, Change)>,
    /// Whether a crash leaves all of them or none. Only for operations that run alone.
    pub atomic: bool,
}

impl Steps {
    /// One change of one key.
    #[must_use]
    pub fn one(key: u64, change: Change) -> Self {
        Self {
            steps: vec![(key, change)],
            atomic: true,
        }
    }
}

/// What an operation told of a key: the value before its change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saw {
    /// Nothing.
    Nothing,
    /// The value.
    Value(Option<u64>),
    /// Whether there was one.
    Presence(bool),
    /// Whether there was a record at a place.
    PresenceAt(u8, bool),
    /// At each place at least so many records, and at most so many.
    Between(Counts, Counts),
}

impl Saw {
    pub(crate) fn agrees(self, before: Option<u64>) -> bool {
        match self {
            Self::Nothing => true,
            Self::Value(value) => value == before,
            Self::Presence(presence) => presence == before.is_some(),
            Self::PresenceAt(place, presence) => presence == (Counts::of(before).at(place) > 0),
            Self::Between(least, most) => (0..4).all(|place| {
                let count = Counts::of(before).at(place);
                (least.at(place)..=most.at(place)).contains(&count)
            }),
        }
    }
}

/// An operation that a crash leaves whole or not at all: what it makes of each of its keys.
type Whole = Vec<WholeStep>;
/// A key, and its value before and after.
type WholeStep = (u64, Option<u64>, Option<u64>);

/// What may be there at one point of a recording.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    registers: BTreeMap<u64, Register>,
    /// Operations in flight: the number of their first step, and their keys.
    in_flight: BTreeMap<usize, (usize, Steps)>,
    next_step: usize,
    whole: Option<(usize, Whole)>,
    near: Vec<u64>,
    /// Keys with one possible value, in order.
    certain: Vec<(u64, u64)>,
    /// Keys with several.
    uncertain: Vec<(u64, Vec<Option<u64>>)>,
    /// Identifies what may be there, so that an image is looked at again only when that has changed.
    pub(crate) version: u64,
}

impl History {
    /// A history that begins with `contents`, ascending.
    pub(crate) fn new(contents: &[(u64, u64)]) -> Self {
        let registers = contents
            .iter()
            .map(|&(key, value)| (key, Register::new(Some(value))));
        let mut history = Self {
            registers: registers.collect(),
            ..Self::default()
        };
        history.refresh();
        history
    }

    /// An operation has begun.
    pub(crate) fn invoke(&mut self, operation: usize, steps: &Steps) -> Result<(), String> {
        let is_whole = steps.atomic && steps.steps.len() > 1;
        if self.whole.is_some() || is_whole && !self.in_flight.is_empty() {
            return Err("an atomic operation on several keys has to run alone".into());
        }
        let first = self.next_step;
        self.next_step += steps.steps.len();
        for (step, &(key, change)) in (first..).zip(&steps.steps) {
            let register = self
                .registers
                .entry(key)
                .or_insert_with(|| Register::new(None));
            register.begin(step, first, change);
        }
        if is_whole {
            let mut whole: BTreeMap<u64, (Option<u64>, Option<u64>)> = BTreeMap::new();
            for &(key, change) in &steps.steps {
                let before = self.registers[&key].states[0].value;
                let (_, now) = whole.entry(key).or_insert((before, before));
                *now = change.after(*now);
            }
            let whole = whole.into_iter().map(|(key, (from, to))| (key, from, to));
            self.whole = Some((operation, whole.collect()));
        }
        self.in_flight.insert(operation, (first, steps.clone()));
        let in_flight = self.in_flight.values();
        let keys = in_flight.flat_map(|(_, of)| of.steps.iter().map(|step| step.0));
        self.near = keys.collect();
        self.refresh();
        Ok(())
    }

    /// Keys of the operations in flight; if there are none, of the one that began last.
    pub(crate) fn near(&self) -> &[u64] {
        &self.near
    }

    /// Whether an atomic operation on several keys is in flight.
    pub(crate) fn has_whole(&self) -> bool {
        self.whole.is_some()
    }

    /// An operation has returned, and what it saw of each step.
    pub(crate) fn returned(&mut self, operation: usize, saw: &[Saw]) -> Result<(), String> {
        let Some((first, steps)) = self.in_flight.remove(&operation) else {
            return Ok(());
        };
        if self.whole.as_ref().is_some_and(|(of, _)| *of == operation) {
            self.whole = None;
        }
        if saw.len() != steps.steps.len() {
            return Err(format!(
                "the operation has {} steps and says what it saw of {}",
                steps.steps.len(),
                saw.len()
            ));
        }
        for (at, (&(key, change), &saw)) in steps.steps.iter().zip(saw).enumerate() {
            let explained = self
                .registers
                .get_mut(&key)
                .is_none_or(|register| register.returned(first + at, saw));
            if !explained {
                return Err(format!(
                    "not linearizable: no order of the operations explains that {change:?} of key {key} saw {saw:?}"
                ));
            }
        }
        self.refresh();
        Ok(())
    }

    fn refresh(&mut self) {
        self.version += 1;
        self.certain.clear();
        self.uncertain.clear();
        for (&key, register) in &self.registers {
            match (&*register.states, &*register.in_flight) {
                ([state], []) => self.certain.extend(state.value.map(|value| (key, value))),
                _ => {
                    let allowed = register.allowed();
                    match *allowed {
                        [value] => self.certain.extend(value.map(|value| (key, value))),
                        _ => self.uncertain.push((key, allowed)),
                    }
                }
            }
        }
    }

    /// Whether `found`, ascending, may be what a crash left.
    pub(crate) fn allows(&self, found: &[(u64, u64)]) -> Result<(), String> {
        self.allows_after(&[], found)
    }

    /// The same after some more operations, one after the other: the steps of each and what it saw of them.
    pub(crate) fn allows_after(
        &self,
        operations: &[(Steps, &[Saw])],
        found: &[(u64, u64)],
    ) -> Result<(), String> {
        // Only the keys that they touch have to be thought through again.
        let mut touched: BTreeMap<u64, Register> = BTreeMap::new();
        let steps = operations
            .iter()
            .flat_map(|(of, saw)| of.steps.iter().zip(*saw));
        for (number, (&(key, change), &saw)) in (usize::MAX / 2..).zip(steps) {
            let register = touched.entry(key).or_insert_with(|| {
                let known = self.registers.get(&key).cloned();
                known.unwrap_or_else(|| Register::new(None))
            });
            register.in_flight.push((number, number, change));
            if !register.returned(number, saw) {
                return Err(format!("{change:?} of key {key} saw {saw:?}"));
            }
        }
        let value = |key| {
            let at = found.binary_search_by_key(&key, |&(key, _)| key).ok()?;
            Some(found[at].1)
        };
        for (&key, register) in &touched {
            let (allowed, found) = (register.allowed(), value(key));
            if !allowed.contains(&found) {
                return Err(format!(
                    "key {key} is {found:?}, where {} is right",
                    list(&allowed)
                ));
            }
        }
        let is_other = |key: &u64| !touched.contains_key(key);
        let mut certain = self
            .certain
            .iter()
            .filter(|(key, _)| is_other(key))
            .peekable();
        let mut uncertain = self
            .uncertain
            .iter()
            .filter(|(key, _)| is_other(key))
            .peekable();
        let mut last = None;
        for &(key, value) in found {
            if last >= Some(key) {
                return Err(format!("key {key} comes after {last:?}"));
            }
            last = Some(key);
            if !is_other(&key) {
                continue;
            }
            while let Some((other, allowed)) = uncertain.next_if(|(other, _)| *other < key) {
                if !allowed.contains(&None) {
                    return Err(missing(*other, allowed));
                }
            }
            if let Some((_, allowed)) = uncertain.next_if(|(other, _)| *other == key) {
                if !allowed.contains(&Some(value)) {
                    return Err(wrong(key, value, allowed));
                }
                continue;
            }
            match certain.next() {
                Some(&expected) if expected == (key, value) => {}
                Some(&(other, expected)) if other < key => {
                    return Err(missing(other, &[Some(expected)]));
                }
                Some(&(other, expected)) if other == key => {
                    return Err(wrong(key, value, &[Some(expected)]));
                }
                _ => return Err(wrong(key, value, &[None])),
            }
        }
        if let Some(&(key, value)) = certain.next() {
            return Err(missing(key, &[Some(value)]));
        }
        if let Some((key, allowed)) = uncertain.find(|(_, allowed)| !allowed.contains(&None)) {
            return Err(missing(*key, allowed));
        }
        self.whole_or_not_at_all(found)
    }

    fn whole_or_not_at_all(&self, found: &[(u64, u64)]) -> Result<(), String> {
        let Some((_, whole)) = &self.whole else {
            return Ok(());
        };
        let value = |key| {
            let at = found.binary_search_by_key(&key, |&(key, _)| key).ok()?;
            Some(found[at].1)
        };
        let is = |choose: fn(&WholeStep) -> Option<u64>| {
            whole.iter().all(|step| value(step.0) == choose(step))
        };
        if is(|step| step.1) || is(|step| step.2) {
            Ok(())
        } else {
            Err("the operation in flight is there in part".into())
        }
    }
}

fn missing(key: u64, allowed: &[Option<u64>]) -> String {
    format!("key {key} is missing, where {} is right", list(allowed))
}

fn wrong(key: u64, value: u64, allowed: &[Option<u64>]) -> String {
    format!("key {key} is {value}, where {} is right", list(allowed))
}

fn list(allowed: &[Option<u64>]) -> String {
    let word = |value: &Option<u64>| value.map_or("absent".into(), |value| value.to_string());
    allowed.iter().map(word).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_moved_is_at_one_place_at_every_moment() {
        let at = |place| Counts::default().with(1, place);
        let mut history = History::new(&[(1, at(0).0)]);
        history
            .invoke(0, &Steps::one(1, Change::Move(0, 2)))
            .unwrap();
        assert!(history.allows(&[(1, at(0).0)]).is_ok());
        assert!(history.allows(&[(1, at(2).0)]).is_ok());
        assert!(history.allows(&[(1, at(0).with(1, 2).0)]).is_err());
        assert!(history.allows(&[]).is_err());
        let look = |saw| {
            let mut history = history.clone();
            history.invoke(1, &Steps::one(1, Change::Look)).unwrap();
            history.returned(1, &[Saw::Between(saw, saw)])
        };
        assert!(look(at(0)).is_ok() && look(at(2)).is_ok());
        assert!(look(Counts::default()).is_err() && look(at(0).with(1, 2)).is_err());
        history.returned(0, &[Saw::PresenceAt(0, true)]).unwrap();
        assert!(history.allows(&[(1, at(0).0)]).is_err());
        assert!(history.allows(&[(1, at(2).0)]).is_ok());
    }

    #[test]
    fn a_record_that_is_added_may_be_moved_on_by_a_step_that_began_before() {
        let at = |place| Counts::default().with(1, place);
        let look = |moves: &[(u8, u8)]| {
            let mut history = History::new(&[]);
            for (number, &(from, to)) in moves.iter().enumerate() {
                let steps = Steps::one(1, Change::Move(from, to));
                history.invoke(10 + number, &steps).unwrap();
            }
            history.invoke(1, &Steps::one(1, Change::Look)).unwrap();
            history.invoke(2, &Steps::one(1, Change::Add(2))).unwrap();
            history.returned(1, &[Saw::Between(at(0), at(0))])
        };
        assert!(look(&[]).is_err() && look(&[(2, 1)]).is_err());
        assert!(look(&[(2, 0)]).is_ok() && look(&[(1, 0), (2, 1)]).is_ok());
    }

    #[test]
    fn what_has_returned_stays_and_what_is_in_flight_may_go() {
        let mut history = History::new(&[(1, 10)]);
        history.invoke(0, &Steps::one(1, Change::Put(11))).unwrap();
        assert!(history.allows(&[(1, 10)]).is_ok());
        assert!(history.allows(&[(1, 11)]).is_ok());
        assert!(history.allows(&[(1, 12)]).is_err());
        assert!(history.allows(&[]).is_err());
        history.returned(0, &[Saw::Value(Some(10))]).unwrap();
        assert!(history.allows(&[(1, 10)]).is_err());
        assert!(history.allows(&[(1, 11)]).is_ok());
        assert!(history.allows(&[(1, 11), (2, 0)]).is_err());
    }

    #[test]
    fn who_has_been_seen_is_durable() {
        let mut history = History::new(&[]);
        history.invoke(0, &Steps::one(5, Change::Put(1))).unwrap();
        history.invoke(1, &Steps::one(5, Change::Get)).unwrap();
        assert!(history.allows(&[]).is_ok());
        history.returned(1, &[Saw::Value(Some(1))]).unwrap();
        assert!(history.allows(&[]).is_err());
        assert!(history.allows(&[(5, 1)]).is_ok());
    }

    #[test]
    fn what_no_order_explains_is_refused() {
        let mut history = History::new(&[(5, 1)]);
        history.invoke(0, &Steps::one(5, Change::Put(2))).unwrap();
        history.returned(0, &[Saw::Value(Some(1))]).unwrap();
        history.invoke(1, &Steps::one(5, Change::Get)).unwrap();
        assert!(history.clone().returned(1, &[Saw::Value(Some(1))]).is_err());
        assert!(
            history
                .clone()
                .returned(1, &[Saw::Presence(false)])
                .is_err()
        );
        assert!(history.returned(1, &[Saw::Value(Some(2))]).is_ok());
    }

    #[test]
    fn two_writers_may_come_in_either_order_but_agree_on_it() {
        let mut history = History::new(&[]);
        history.invoke(0, &Steps::one(5, Change::Put(1))).unwrap();
        history.invoke(1, &Steps::one(5, Change::Put(2))).unwrap();
        history.returned(0, &[Saw::Value(Some(2))]).unwrap();
        // So the second came first, and has seen nothing.
        assert!(history.clone().returned(1, &[Saw::Value(Some(1))]).is_err());
        history.returned(1, &[Saw::Value(None)]).unwrap();
        assert!(history.allows(&[(5, 1)]).is_ok());
        assert!(history.allows(&[(5, 2)]).is_err());
    }

    #[test]
    fn an_atomic_operation_is_there_whole_or_not_at_all() {
        let mut history = History::new(&[]);
        let steps = vec![(1, Change::Put(1)), (2, Change::Put(2))];
        let mut load = Steps {
            steps,
            atomic: true,
        };
        history.invoke(0, &load).unwrap();
        assert!(history.allows(&[]).is_ok());
        assert!(history.allows(&[(1, 1), (2, 2)]).is_ok());
        assert!(history.allows(&[(2, 2)]).is_err());
        load.atomic = false;
        let mut history = History::new(&[]);
        history.invoke(0, &load).unwrap();
        assert!(history.allows(&[(2, 2)]).is_ok());
    }

    #[test]
    fn of_equal_keys_in_one_operation_the_last_wins() {
        let steps = vec![(5, Change::Put(1)), (5, Change::Put(2))];
        for atomic in [false, true] {
            let mut history = History::new(&[]);
            let batch = Steps {
                steps: steps.clone(),
                atomic,
            };
            history.invoke(0, &batch).unwrap();
            assert_eq!(history.allows(&[(5, 1)]).is_ok(), !atomic);
            assert!(history.allows(&[(5, 2)]).is_ok());
            history.returned(0, &[Saw::Nothing; 2]).unwrap();
            assert!(history.allows(&[(5, 1)]).is_err());
            assert!(history.allows(&[(5, 2)]).is_ok());
        }
    }

    #[test]
    fn what_is_atomic_on_several_keys_runs_alone_and_all_steps_are_told_of() {
        let mut history = History::new(&[]);
        let steps = vec![(1, Change::Put(1)), (2, Change::Put(2))];
        let load = Steps {
            steps,
            atomic: true,
        };
        history.invoke(0, &load).unwrap();
        assert!(history.invoke(1, &Steps::one(7, Change::Get)).is_err());
        assert!(history.returned(0, &[Saw::Nothing]).is_err());
    }

    #[test]
    fn an_exchange_depends_on_what_it_finds() {
        let mut history = History::new(&[(5, 1)]);
        history
            .invoke(0, &Steps::one(5, Change::Exchange(Some(1), None)))
            .unwrap();
        assert!(history.allows(&[]).is_ok());
        history.returned(0, &[Saw::Value(Some(1))]).unwrap();
        assert!(history.allows(&[(5, 1)]).is_err());
        history
            .invoke(1, &Steps::one(5, Change::Exchange(Some(1), Some(2))))
            .unwrap();
        history.returned(1, &[Saw::Value(None)]).unwrap();
        assert!(history.allows(&[]).is_ok());
    }
}
