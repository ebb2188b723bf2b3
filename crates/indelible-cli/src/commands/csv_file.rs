//! Reading CSV files, and the numbers of their lines.

use anyhow::{Result, ensure};
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};

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

/// An error if the last row of a file, which begins at the byte `begin`, ends inside quotes: then all lines behind the opening quote have become one cell.
///
/// A quote in the middle of a cell is a character like any other, so one that is not closed counts only if the row has several lines. What is no file cannot be
/// read twice, and is not looked at.
pub(super) fn expect_closed_quotes(mut file: File, begin: u64) -> Result<()> {
    if !file.metadata()?.is_file() {
        return Ok(());
    }
    file.seek(SeekFrom::Start(begin))?;
    let (mut quotes, mut lines) = (0_u64, 0_u64);
    for line in BufReader::new(file).split(b'\n') {
        let line = line?;
        quotes += line.iter().filter(|&&byte| byte == b'"').count() as u64;
        lines += 1;
    }
    ensure!(
        lines < 2 || quotes.is_multiple_of(2),
        "a quote in the last row is not closed, and the row has all {lines} lines to the end of the file"
    );
    Ok(())
}
