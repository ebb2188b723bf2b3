//! Reading CSV files, and the numbers of their lines.

use std::fs::File;
use std::io::{BufRead, BufReader};

pub(super) type Reader = csv::Reader<BufReader<File>>;

/// Says in which line a row begins.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    /// Whether lines end with a carriage return and a line feed.
    have_returns: bool,
}

/// A reader of a CSV file.
pub(super) fn reader(
    file: File,
    has_header: bool,
    delimiter: u8,
) -> std::io::Result<(Reader, Lines)> {
    let mut input = BufReader::new(file);
    let begin = input.fill_buf()?;
    let end_of_line = begin.iter().position(|&byte| byte == b'\n');
    let have_returns = end_of_line.is_some_and(|end| begin[..end].ends_with(b"\r"));
    let reader = csv::ReaderBuilder::new()
        .has_headers(has_header)
        .delimiter(delimiter)
        .from_reader(input);
    Ok((reader, Lines { have_returns }))
}

impl Lines {
    /// The number of the line that begins at `position`; 0 if that is not known.
    pub(super) fn at(self, position: Option<&csv::Position>) -> u64 {
        // The reader takes the line feed behind a carriage return for a part of the next row.
        position.map_or(0, |at| {
            at.line() + u64::from(self.have_returns && at.byte() > 0)
        })
    }
}
