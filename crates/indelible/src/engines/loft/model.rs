//! The model of a data node: from a key to a line. It is linear, or consists of linear pieces of the same length.

use super::layout::PIECES;
use crate::pmem::Cell;

/// Line = `(min(key - first, span) << shift) * multiplier >> 96`: a multiplication, and no division.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Model {
    /// Keys at or below this one have line 0.
    pub(super) first: u64,
    /// Keys at or above `first + span` have the last line.
    pub(super) span: u64,
    /// So that `span << shift` has its highest bit set.
    pub(super) shift: u32,
    /// Lines times 2^96, divided by `(span << shift) + 1`: at most 33 bits more than lines has.
    pub(super) multiplier: u64,
}

/// Bits of the line's fraction.
const FRACTION: u32 = 32;

impl Model {
    /// Spreads the keys from `first` to `last` evenly over `lines`, below 2^30.
    pub(super) fn new(first: u64, last: u64, lines: u64) -> Self {
        let span = (last - first).max(1);
        let mut model = Self::from_parts(first, span, 0);
        let divisor = u128::from(span << model.shift) + 1;
        model.multiplier = ((u128::from(lines) << (64 + FRACTION)) / divisor) as u64;
        model
    }

    pub(super) fn from_parts(first: u64, span: u64, multiplier: u64) -> Self {
        Self {
            first,
            span,
            shift: span.leading_zeros(),
            multiplier,
        }
    }

    #[inline(always)]
    pub(super) fn line(&self, key: u64) -> u64 {
        self.place(key) >> PLACE_FRACTION
    }

    /// The line with its fraction; in a model of pieces, the piece and how far into it the key lies.
    #[inline(always)]
    fn place(&self, key: u64) -> u64 {
        let distance = key.saturating_sub(self.first).min(self.span) << (self.shift & 63);
        let place = u128::from(distance) * u128::from(self.multiplier);
        (place >> (64 + FRACTION - PLACE_FRACTION)) as u64
    }
}

/// The line of a key in a model that has pieces, or is one line.
#[inline(always)]
pub(super) fn line_of(key: u64, model: &Model, pieces: Option<&Pieces>) -> u64 {
    match pieces {
        None => model.line(key),
        Some(pieces) => pieces.line(model.place(key)),
    }
}

/// Bits of the fraction of a [place](Model::place).
const PLACE_FRACTION: u32 = 16;

/// The lines at which the pieces of a model begin, which ascend, and the line behind the last piece.
///
/// A node of keys that no line fits has one, so that it need not be divided into many small nodes: a key's piece is computed as its line would
/// be in a linear model, and its line from the piece's first line and that of the next one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pieces([u16; PIECES + 1]);

impl Pieces {
    /// Pieces of lengths in proportion to these weights, of which one is above zero.
    pub(super) fn new(weights: &[u32; PIECES], lines: u16) -> Self {
        let all: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
        let (mut before, mut starts) = (0, [lines; PIECES + 1]);
        for (start, &weight) in starts.iter_mut().zip(weights) {
            // A piece of no line at the end has the last one.
            *start = ((before * u64::from(lines) / all) as u16).min(lines - 1);
            before += u64::from(weight);
        }
        Self(starts)
    }

    /// The pieces that a node has in the pool, if they lead to `lines` lines.
    pub(super) fn load(cells: &[Cell], lines: u64) -> Option<Self> {
        let mut starts = [u16::try_from(lines).ok()?; PIECES + 1];
        let stored = cells.iter().flat_map(|cell| cell.load().to_le_bytes());
        let stored = stored.collect::<Vec<u8>>();
        for (start, bytes) in starts.iter_mut().zip(stored.as_chunks().0).take(PIECES) {
            *start = u16::from_le_bytes(*bytes).checked_sub(1)?;
        }
        let ascend = starts[..PIECES].is_sorted() && starts[0] == 0;
        (ascend && u64::from(starts[PIECES - 1]) < lines).then_some(Self(starts))
    }

    /// As they lie in the pool: no word is zero, so that a page that never reached the disk is told.
    pub(super) fn words(&self) -> impl Iterator<Item = u64> {
        let words = self.0[..PIECES].as_chunks::<4>().0.iter();
        words.map(|starts| {
            let starts = starts.iter().rev();
            starts.fold(0, |word, &start| word << 16 | u64::from(start + 1))
        })
    }

    /// The line of a [place](Model::place).
    #[inline(always)]
    fn line(&self, place: u64) -> u64 {
        let piece = (place >> PLACE_FRACTION) as usize;
        let (start, end) = (u64::from(self.0[piece]), u64::from(self.0[piece + 1]));
        let fraction = place & ((1 << PLACE_FRACTION) - 1);
        start + (((end - start) * fraction) >> PLACE_FRACTION)
    }

    /// How far from the first key a line begins, as a share of the model's span, in 2^-32.
    pub(super) fn share_before(&self, line: u64) -> u64 {
        let piece = self.0[1..PIECES].partition_point(|&start| u64::from(start) <= line);
        let (start, end) = (u64::from(self.0[piece]), u64::from(self.0[piece + 1]));
        let into = ((line.max(start) - start) << 32) / (end - start).max(1);
        ((piece as u64) << 32).saturating_add(into.min(1 << 32)) / PIECES as u64
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn pieces_lead_where_the_weights_say_and_are_read_as_they_were_written() {
        for lines in [1_u16, 2, 9, 400, 4_000] {
            for heavy in [0, 1, PIECES / 2, PIECES - 1] {
                let mut weights = [1; PIECES];
                weights[heavy] = 1_000;
                for at in 0..PIECES / 4 {
                    weights[(heavy + at + 1) % PIECES] = 0;
                }
                let pieces = Pieces::new(&weights, lines);
                let cells: Vec<Cell> = pieces.words().map(Cell::new).collect();
                assert!(cells.iter().all(|cell| cell.load() != 0));
                assert_eq!(Pieces::load(&cells, lines.into()).unwrap(), pieces);
                let model = Model::new(1_000, 1_000_000, PIECES as u64);
                let line = |key| pieces.line(model.place(key));
                let mut before = 0;
                for key in (0..1_100_000).step_by(97).chain([u64::MAX]) {
                    assert!((before..u64::from(lines)).contains(&line(key)));
                    before = line(key);
                    let share = pieces.share_before(before + 1);
                    let distance = (u128::from(model.span) * u128::from(share)) >> 32;
                    // Where the next line begins; places are rounded.
                    let next = model.first + distance as u64;
                    assert!(next + 4 >= key.clamp(1_000, 1_000_000), "{key} {next}");
                }
                assert_eq!(line(0), 0);
            }
        }
        let zeros: Vec<Cell> = (0..PIECES / 4).map(|_| Cell::new(0)).collect();
        assert_eq!(Pieces::load(&zeros, 9), None);
    }

    #[test]
    fn lines_ascend_and_end_before_the_last() {
        for (first, last) in [
            (0, u64::MAX),
            (5, 5),
            (7, 8),
            (0, 1 << 61),
            (1 << 63, u64::MAX),
            (100, 1000),
        ] {
            for lines in [1, 2, 7, 500, 1 << 20] {
                let model = Model::new(first, last, lines);
                assert_eq!(model.line(first), 0);
                assert_eq!(model.line(0), 0);
                let step = ((last - first) / 1000).max(1);
                let mut before = 0;
                for i in 0..=1000_u64 {
                    let line = model.line(first.saturating_add(step.saturating_mul(i)));
                    assert!(line >= before && line < lines, "{model:?} {lines}");
                    before = line;
                }
                assert_eq!(model.line(u64::MAX), model.line(last.max(first + 1)));
                if last - first >= lines {
                    assert_eq!(model.line(last), lines - 1);
                }
            }
        }
    }
}
