//! What went wrong, said so that it can be mended.

use crate::model::{Choice, Model};
use crate::record::NO_END;
use indelible::pmem::LINE;
use indelible::pmem::trace::{Action, Event};
use std::fmt::{Debug, Display, Formatter, Result};
use std::panic::Location;

/// Where in a recording a crash happened.
#[derive(Clone, Debug)]
pub struct Place {
    /// The operations that were in flight, by number and in words.
    pub operations: Vec<(usize, String)>,
    /// The event that the crash came before, in words; its number.
    pub event: (usize, String),
    /// The line of source of that event.
    pub source: Option<&'static Location<'static>>,
}

impl Place {
    pub(crate) fn of<O: Debug>(events: &[Event], at: usize, operations: &[O]) -> Self {
        let mut in_flight = Vec::new();
        for event in &events[..at.min(events.len())] {
            if let Action::Mark(mark) = event.action {
                let number = mark as usize / 2;
                in_flight.retain(|&other| other != number);
                if mark % 2 == 0 {
                    in_flight.push(number);
                }
            }
        }
        let name = |number: usize| {
            let text = operations
                .get(number)
                .map_or_else(String::new, |operation| format!("{operation:?}"));
            (number, shorten(text))
        };
        let what = match events.get(at).map(|event| event.action) {
            None => "the end".into(),
            Some(Action::Store { value, .. }) => format!("a store of {value:#x}"),
            Some(Action::Flush { .. }) => "a flush".into(),
            Some(Action::Fence) => "a fence".into(),
            Some(Action::Appended(number)) => format!("batch {number} is appended to the log"),
            Some(Action::Durable(number)) => format!("the log is durable up to batch {number}"),
            Some(Action::Synced) => "a sync of the file".into(),
            Some(Action::Looked) => "what is there has been read".into(),
            Some(Action::Length { from, to }) => format!("the length going from {from} to {to}"),
            Some(Action::Note { change, .. }) => change.into(),
            Some(Action::Mark(mark)) if mark % 2 == 0 => "the next operation begins".into(),
            Some(Action::Mark(_)) => "the operation returns".into(),
        };
        Self {
            operations: in_flight.into_iter().map(name).collect(),
            event: (at, what),
            source: events.get(at).map(|event| event.source),
        }
    }
}

/// A source position, by the library's own path.
fn shown(source: &Location<'_>) -> String {
    let text = source.to_string();
    text.replace("indelible-traced/../indelible/", "indelible/")
}

fn shorten(text: String) -> String {
    match text.char_indices().nth(160) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let (number, event) = &self.event;
        write!(f, "before event {number}, {event}")?;
        if let Some(source) = self.source {
            write!(f, ", at {}", shown(source))?;
        }
        for (number, operation) in &self.operations {
            write!(f, "\n  in operation {number}: {operation}")?;
        }
        if self.operations.is_empty() {
            write!(f, "\n  between operations")?;
        }
        Ok(())
    }
}

/// A line that had not arrived, or not wholly.
#[derive(Clone, Debug)]
pub struct MissingLine {
    /// Its offset in the memory.
    pub offset: usize,
    /// The first store to it that was not durable.
    pub source: &'static Location<'static>,
    /// Offset and value of that store.
    pub store: (usize, u64),
    /// Stores missing, and stores to the line since it was last durable.
    pub stores: (usize, usize),
    /// Whether that store had been flushed, and only the fence was missing.
    pub is_flushed: bool,
    /// The thread that made it.
    pub thread: usize,
}

/// The lines that had not arrived, for a choice.
pub(crate) fn lines(model: &Model, choice: &Choice) -> Vec<MissingLine> {
    let mut missing = Vec::new();
    for (line, &count) in model.pending.values().zip(choice) {
        if let Some(first) = line.stores.get(count) {
            missing.push(MissingLine {
                offset: first.word * 8 / LINE * LINE,
                source: first.source,
                store: (first.word * 8, first.value),
                stores: (line.stores.len() - count, line.stores.len()),
                is_flushed: line.flushed > count,
                thread: first.thread,
            });
        }
    }
    missing
}

/// An image that is wrong once it is recovered, or a history that no order explains.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What is wrong.
    pub problem: String,
    /// Where the (last) crash happened.
    pub place: Place,
    /// The lines that were not durable and whose arrival would have mended it.
    pub lines: Vec<MissingLine>,
    /// If the crash happened in a recovery: where the crashes before it did, the last one first.
    pub outer: Vec<Place>,
    /// The history's seed, with which it happens again, if it is one of a [`Search`](crate::Search)'s.
    pub seed: Option<u64>,
}

impl Failure {
    /// Whether threads went on for ever, and nothing was found wrong with what they did.
    #[must_use]
    pub fn is_without_end(&self) -> bool {
        self.problem.starts_with(NO_END)
    }

    /// The number of the event of the recording that the (first) crash came before.
    pub(crate) fn at(&self) -> usize {
        self.outer.last().unwrap_or(&self.place).event.0
    }

    /// A failure without a crash.
    pub(crate) fn without_crash(problem: String) -> Box<Self> {
        Box::new(Self {
            problem,
            place: Place {
                operations: Vec::new(),
                event: (0, "any crash".into()),
                source: None,
            },
            lines: Vec::new(),
            outer: Vec::new(),
            seed: None,
        })
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(f, "{}", self.problem)?;
        write!(f, "crash {}", self.place)?;
        for outer in &self.outer {
            write!(f, "\n  while recovering from a crash {outer}")?;
        }
        for line in &self.lines {
            let (missing, all) = line.stores;
            let (word, value) = line.store;
            let state = if line.is_flushed {
                "flushed, but not fenced"
            } else {
                "not flushed"
            };
            write!(
                f,
                "\n  not durable: line {:#x}, {missing} of {all} stores, from {}\n    ({value:#x} to {word:#x} by thread {}, {state})",
                line.offset,
                shown(line.source),
                line.thread
            )?;
        }
        if self.lines.is_empty() {
            write!(
                f,
                "\n  no line is at fault: it is wrong even if every store has arrived"
            )?;
        }
        if let Some(seed) = self.seed {
            write!(f, "\n  seed {seed}")?;
        }
        Ok(())
    }
}
