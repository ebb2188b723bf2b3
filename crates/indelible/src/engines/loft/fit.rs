//! How the records of a data node would lie in a block, before the node is built.

use super::layout::{GROUP_LINES, LINE_SLOTS, PIECES, slot_lines};
use super::model::{Model, Pieces, line_of};
use super::plan::{Growth, Plan, Record};

/// How many of the records of a node would not find room in their windows, in hundredths, before the node is divided.
const MOST_OVERFLOW_PERCENT: usize = 2;

/// What a record weighs where lines are shared out among the pieces of a model.
const WEIGHT: u32 = 64;

/// A data node to be.
pub(super) struct Layout {
    pub(super) bytes: u64,
    pub(super) window: u64,
    /// Lines that the model chooses from.
    pub(super) lines: u64,
    pub(super) model: Model,
    pub(super) pieces: Option<Pieces>,
}

impl Layout {
    /// A node of so many bytes, whose model is one line.
    pub(super) fn new(
        bytes: u64,
        (low, high): (u64, u64),
        records: &[Record],
        plan: &Plan<'_>,
    ) -> Self {
        let (mut first, mut last) = match records {
            [] => (low, high),
            _ => (records[0].0, records[records.len() - 1].0),
        };
        let span = (last - first).max(1);
        match plan.growth {
            Growth::Inside => {}
            Growth::Upwards => last = last.saturating_add(span).min(high),
            Growth::Downwards => first = first.saturating_sub(span).max(low),
        }
        let (lines, window) = lines_and_window(slot_lines(bytes, false), plan);
        Self {
            bytes,
            window,
            lines,
            model: Model::new(first, last, lines),
            pieces: None,
        }
    }

    /// The node with a model of pieces, each as long as the records in it need.
    pub(super) fn with_pieces(&self, records: &[Record], plan: &Plan<'_>) -> Self {
        let (lines, window) = lines_and_window(slot_lines(self.bytes, true), plan);
        let (first, span) = (self.model.first, self.model.span);
        let model = Model::new(first, first.saturating_add(span), PIECES as u64);
        // Where no record is, one may come.
        let usual = records.len() as u32 * WEIGHT / PIECES as u32;
        let mut weights = [usual / 16 + 1; PIECES];
        for record in records {
            weights[model.line(record.0) as usize] += WEIGHT;
        }
        Self {
            bytes: self.bytes,
            window,
            lines,
            model,
            pieces: Some(Pieces::new(&weights, lines as u16)),
        }
    }

    pub(super) fn line(&self, key: u64) -> u64 {
        line_of(key, &self.model, self.pieces.as_ref())
    }

    pub(super) fn groups(&self) -> usize {
        self.lines.div_ceil(GROUP_LINES) as usize
    }

    /// Whether nearly all of the records find room in their windows.
    pub(super) fn fits(&self, records: &[Record]) -> bool {
        self.overflow(records) * 100 <= records.len() * MOST_OVERFLOW_PERCENT + 400
    }

    /// How many of the records find no room in their windows.
    fn overflow(&self, records: &[Record]) -> usize {
        let mut places = Places::of(self);
        let is_without = |record: &&Record| places.next(self.line(record.0)).is_none();
        records.iter().filter(is_without).count()
    }
}

/// The slots that the records of a new node get, whose keys ascend: each the first one in its window that is free.
///
/// The predicted lines ascend too. So the slots from a record's predicted line up to the last one that was given away are all taken, and the next
/// one is the first that is free: it need not be searched for.
pub(super) struct Places {
    window: u64,
    /// The slot behind the last one that was given away.
    free: u64,
}

impl Places {
    pub(super) fn of(layout: &Layout) -> Self {
        Self {
            window: layout.window,
            free: 0,
        }
    }

    /// The slot of the next record, which is predicted in `line`; `None` if its window is full.
    #[inline(always)]
    pub(super) fn next(&mut self, line: u64) -> Option<u64> {
        let slot = self.free.max(line * LINE_SLOTS as u64);
        let has_room = slot < (line + self.window) * LINE_SLOTS as u64;
        self.free = slot + u64::from(has_room);
        has_room.then_some(slot)
    }
}

/// How many lines of a data node the model chooses from, and those of a window.
fn lines_and_window(all: u64, plan: &Plan<'_>) -> (u64, u64) {
    let window = plan.window.min(all / 2 + 1).max(1);
    (all - window + 1, window)
}
