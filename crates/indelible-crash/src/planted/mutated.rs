//! What a recording would be with a bug in it, and where crashes could tell.

use super::{Mutation, Site};
use crate::coverage::commit_points;
use indelible::checker::{AnyKind, common};
use indelible::pmem::LINE;
use indelible::pmem::trace::{Action, Event};
use std::collections::BTreeSet;
use std::ops::Range;

impl Mutation {
    /// What the recording would be with this bug in it; `None` if it is not changed. Operations begin at event `from`: before that commits
    /// of several are not told apart, and stay where they are.
    pub(crate) fn of_events(self, events: &[Event], from: usize) -> Option<Mutated> {
        let mut mutated = Mutated {
            events: Vec::with_capacity(events.len()),
            changes: Vec::new(),
        };
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
                        let at = mutated.events.len();
                        mutated.changes.push(Change::new(at..at, event));
                    } else {
                        mutated.events.push(*event);
                    }
                }
            }
            Self::EarlyCommit(site) => {
                mutated.events.extend_from_slice(&events[..from]);
                for event in &events[from..] {
                    let is_of_site = is_store(event) && site.is(event);
                    let to = is_of_site.then(|| boundary(&mutated.events, event).max(from));
                    match to {
                        Some(to) if mutated.events[to..].iter().any(is_store) => {
                            mutated.insert(to, event);
                        }
                        _ => mutated.events.push(*event),
                    }
                }
            }
            Self::Swapped(a, b) => {
                mutated.events.extend_from_slice(events);
                let mut at = from;
                while at < mutated.events.len() {
                    if let Some(moved) = swap(&mut mutated.events, at, a, b) {
                        let event = mutated.events[moved.end];
                        at = moved.end;
                        mutated.changes.push(Change::new(moved, &event));
                    }
                    at += 1;
                }
            }
            Self::Code(..) => {}
        }
        (!mutated.changes.is_empty()).then_some(mutated)
    }
}

/// A recording with a bug planted in it.
pub(crate) struct Mutated {
    pub(crate) events: Vec<Event>,
    changes: Vec<Change>,
}

/// One place where a recording was changed.
struct Change {
    /// The event that moved was at one end of these, and is at the other one; or was taken out here, if there are none.
    moved: Range<usize>,
    action: Action,
    thread: usize,
}

impl Change {
    fn new(moved: Range<usize>, event: &Event) -> Self {
        Self {
            moved,
            action: event.action,
            thread: event.thread,
        }
    }

    /// The lines that the event wrote or flushed, as addresses.
    fn lines(&self) -> Range<usize> {
        match self.action {
            Action::Store { address, .. } => address..address + 1,
            Action::Flush { address, bytes } => address..address + bytes,
            _ => 0..0,
        }
    }

    /// The first event after which the memory is for certain what it would be without the change.
    fn end(&self, events: &[Event]) -> usize {
        let fence = |from: usize, thread: usize| {
            let mut rest = from..events.len();
            rest.find(|&i| events[i].thread == thread && matches!(events[i].action, Action::Fence))
        };
        let lines = self.lines();
        let after = self.moved.end;
        if lines.is_empty() {
            // What the fence would have made durable, the thread's next one does.
            return fence(after, self.thread).map_or(events.len(), |at| at + 1);
        }
        let mut lines = (lines.start / LINE..lines.end.div_ceil(LINE)).map(|line| {
            let flushes = |event: &Event| match event.action {
                Action::Flush { address, bytes } => {
                    (address / LINE..(address + bytes) / LINE).contains(&line)
                }
                _ => false,
            };
            let flushed = (after..events.len()).find(|&i| flushes(&events[i]))?;
            fence(flushed, events[flushed].thread)
        });
        let last = lines.try_fold(0, |last, line| Some(last.max(line?)));
        last.map_or(events.len(), |at| at + 1)
    }
}

impl Mutated {
    /// Puts an event that comes next in front of the event `to`.
    fn insert(&mut self, to: usize, event: &Event) {
        let was = self.events.len();
        self.events.insert(to, *event);
        for Change { moved, .. } in &mut self.changes {
            moved.start += usize::from(moved.start >= to);
            moved.end += usize::from(moved.end >= to);
        }
        self.changes.push(Change::new(to..was, event));
    }

    /// Where events of the recording were taken out, as places in the one with the bug.
    pub(crate) fn taken_out(&self) -> Vec<usize> {
        let moved = self.changes.iter().map(|change| &change.moved);
        let taken_out = moved.filter(|moved| moved.is_empty());
        taken_out.map(|moved| moved.start).collect()
    }

    /// For each event, and for the end: whether a crash before it can leave what no crash leaves without the bug.
    pub(crate) fn differs(&self) -> Vec<bool> {
        let mut differs = vec![false; self.events.len() + 1];
        for change in &self.changes {
            let end = change.end(&self.events).min(self.events.len());
            differs[change.moved.start..=end].fill(true);
        }
        differs
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
fn swap(events: &mut Vec<Event>, at: usize, a: Site, b: Site) -> Option<Range<usize>> {
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
    Some(at..fence + 1 - count)
}

/// Whether the event is a store that commits something, by itself. (A superblock commits by its checksum.)
pub(crate) fn is_commit(event: &Event) -> bool {
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
