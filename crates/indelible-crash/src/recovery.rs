//! Recovering an image, and trying it out.

use crate::history::History;
use crate::record::{expect_inside, guarded};
use crate::{Contents, Memory, Saw, Steps, Structure};
use indelible::pmem::trace::{self, Action, Event};
use std::sync::Arc;

/// In which order things are looked at and tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Contents, then probes.
    Warm,
    /// The same, and then the contents once more.
    Thorough,
    /// Probes first: what recovery leaves for later has not been done yet.
    Cold,
    /// Recovery twice, with a crash in between.
    Again,
}

impl Way {
    /// All that can be judged after this history.
    pub(crate) fn all(history: &History) -> impl Iterator<Item = Self> + use<> {
        // A probe may change a key of an atomic operation, of which one could not tell any more whether it is whole.
        let cold = (!history.has_whole()).then_some(Self::Cold);
        [Self::Thorough, Self::Warm, Self::Again]
            .into_iter()
            .chain(cold)
    }

    /// That of an image, by its fingerprint.
    pub(crate) fn of(image: u64, history: &History) -> Self {
        match image % 16 {
            0 => Self::Again,
            1 => Self::Thorough,
            2 | 3 if !history.has_whole() => Self::Cold,
            _ => Self::Warm,
        }
    }
}

/// What came of it.
pub(crate) struct Outcome {
    /// The contents before the probes, if they were looked at.
    pub(crate) contents: Option<Contents>,
    /// What the probes saw.
    pub(crate) saw: Vec<Vec<Saw>>,
}

/// Recovers what is in memory. All that was done to it, and what came of it or what is wrong.
pub(crate) fn try_out<S: Structure>(
    structure: &S,
    memory: &Arc<Memory>,
    probes: &[S::Operation],
    way: Way,
    history: &History,
    buffer: Vec<Event>,
) -> (Vec<Event>, Result<Outcome, String>) {
    let length = memory.length();
    trace::start(buffer);
    let outcome = guarded(|| match way {
        Way::Warm | Way::Thorough => warm(structure, memory, probes, way, history),
        Way::Cold => cold(structure, memory, probes, history),
        Way::Again => again(structure, memory, probes, history),
    });
    let events = trace::stop();
    let is_shorter =
        |event: &Event| matches!(event.action, Action::Length { from, to } if to < from);
    let is_own = |event: &&Event| !matches!(event.action, Action::Mark(_));
    let outcome = match outcome {
        Ok(_) if events.iter().take_while(is_own).any(is_shorter) => {
            Err("recovery made the memory shorter, which the checker cannot take back".into())
        }
        outcome => outcome
            .and_then(|outcome| expect_inside(&events, memory.base(), length).map(|()| outcome)),
    };
    (events, outcome)
}

fn warm<S: Structure>(
    structure: &S,
    memory: &Arc<Memory>,
    probes: &[S::Operation],
    way: Way,
    history: &History,
) -> Result<Outcome, String> {
    let open = structure.recover(memory)?;
    let contents = structure.contents(&open)?;
    history.allows(&contents)?;
    trace::looked();
    let saw = run(structure, &open, probes)?;
    let changed = check(structure, probes, &saw, &contents)?;
    if way == Way::Thorough {
        let mut expected = contents.clone();
        for (key, value) in changed {
            match (expected.binary_search_by_key(&key, |&(key, _)| key), value) {
                (Ok(at), Some(value)) => expected[at].1 = value,
                (Ok(at), None) => drop(expected.remove(at)),
                (Err(at), Some(value)) => expected.insert(at, (key, value)),
                (Err(_), None) => {}
            }
        }
        if structure.contents(&open)? != expected {
            return Err(format!(
                "after recovery and {probes:?} the contents are wrong"
            ));
        }
    }
    structure.crash(&open);
    let contents = Some(contents);
    Ok(Outcome { contents, saw })
}

fn cold<S: Structure>(
    structure: &S,
    memory: &Arc<Memory>,
    probes: &[S::Operation],
    history: &History,
) -> Result<Outcome, String> {
    let open = structure.recover(memory)?;
    let saw = run(structure, &open, probes)?;
    let after = structure.contents(&open)?;
    expect(structure, history, probes, &saw, &after)?;
    structure.crash(&open);
    let contents = None;
    Ok(Outcome { contents, saw })
}

fn again<S: Structure>(
    structure: &S,
    memory: &Arc<Memory>,
    probes: &[S::Operation],
    history: &History,
) -> Result<Outcome, String> {
    let mut both = Vec::new();
    for _ in 0..2 {
        let open = structure.recover(memory)?;
        both.push(structure.contents(&open)?);
        structure.crash(&open);
    }
    if both[0] != both[1] {
        return Err("a second recovery finds other contents".into());
    }
    history.allows(&both[0])?;
    Ok(Outcome {
        contents: both.pop(),
        saw: vec![Vec::new(); probes.len()],
    })
}

fn run<S: Structure>(
    structure: &S,
    open: &S::Open,
    probes: &[S::Operation],
) -> Result<Vec<Vec<Saw>>, String> {
    let mut saw = Vec::with_capacity(probes.len());
    for (number, probe) in probes.iter().enumerate() {
        trace::mark(2 * number as u64);
        saw.push(structure.run(open, probe)?);
        trace::mark(2 * number as u64 + 1);
    }
    Ok(saw)
}

/// Whether what is there after the probes follows from `history` and what they saw.
fn expect<S: Structure>(
    structure: &S,
    history: &History,
    probes: &[S::Operation],
    saw: &[Vec<Saw>],
    after: &Contents,
) -> Result<(), String> {
    let told: Vec<(Steps, &[Saw])> = probes
        .iter()
        .map(|probe| structure.steps(probe))
        .zip(saw.iter().map(Vec::as_slice))
        .collect();
    let allowed = history.allows_after(&told, after);
    if probes.is_empty() {
        return allowed;
    }
    allowed.map_err(|problem| format!("after recovery and {probes:?}: {problem}"))
}

/// Whether the probes saw what they had to, and what they changed, in order.
fn check<S: Structure>(
    structure: &S,
    probes: &[S::Operation],
    saw: &[Vec<Saw>],
    contents: &Contents,
) -> Result<Vec<(u64, Option<u64>)>, String> {
    let mut changed: Vec<(u64, Option<u64>)> = Vec::new();
    for (probe, saw) in probes.iter().zip(saw) {
        let steps = structure.steps(probe).steps;
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
    Ok(changed)
}
