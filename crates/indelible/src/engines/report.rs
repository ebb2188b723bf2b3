//! What a check has found.

use crate::pool::Offset;

/// Problems that a report describes, at most; it only counts the others. A lost page can break thousands of records.
const MOST_PROBLEMS: usize = 1_000;

/// What a check has found so far.
#[derive(Default)]
pub(crate) struct Report {
    problems: Vec<String>,
    /// Problems beyond [`MOST_PROBLEMS`].
    not_described: u64,
    /// Every block that can be reached, with its size, in any order.
    reachable: Vec<(Offset, u64)>,
    records: u64,
}

impl Report {
    /// Notes a problem unless `is_so`.
    pub(crate) fn expect(&mut self, is_so: bool, problem: impl FnOnce() -> String) {
        if is_so {
            return;
        }
        if self.problems.len() < MOST_PROBLEMS {
            self.problems.push(problem());
        } else {
            self.not_described += 1;
        }
    }

    /// Notes a problem.
    pub(crate) fn problem(&mut self, problem: String) {
        self.expect(false, || problem);
    }

    /// Notes that the block at `offset`, of so many bytes, can be reached.
    pub(crate) fn reach(&mut self, offset: Offset, bytes: u64) {
        self.reachable.push((offset, bytes));
    }

    /// Adds to the number of records found.
    pub(crate) fn add_records(&mut self, records: u64) {
        self.records += records;
    }

    /// The records found.
    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    /// All blocks that can be reached, in order.
    pub(crate) fn take_reachable(&mut self) -> Vec<(Offset, u64)> {
        self.reachable.sort_unstable();
        std::mem::take(&mut self.reachable)
    }

    /// The problems, in words; none if all is sound.
    pub(crate) fn into_problems(mut self) -> Vec<String> {
        if self.not_described > 0 {
            self.problems
                .push(format!("{} more problems", self.not_described));
        }
        self.problems
    }
}
