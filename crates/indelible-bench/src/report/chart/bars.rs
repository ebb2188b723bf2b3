//! A bar per contestant, longest first.

use super::{Anchor, Canvas, Ink, PANEL, Style, fit, text_width};

const ROW: f64 = 18.0;
/// Room for the figure behind a bar.
const FIGURE: f64 = 74.0;
/// Room for what is at the right edge.
const SIDE: f64 = 44.0;

/// A contestant, or another line.
#[derive(Clone, Debug)]
pub struct Bar {
    /// At the left.
    pub label: String,
    /// Whether it stands out.
    pub bold: bool,
    /// Its colour.
    pub ink: Ink,
    /// The lengths of its parts; the second is fainter.
    pub parts: Vec<f64>,
    /// The lowest and highest round.
    pub range: Option<(f64, f64)>,
    /// Behind the bar.
    pub figure: String,
    /// At the right edge.
    pub side: String,
}

/// Bars from 0 to the right.
#[derive(Clone, Debug, Default)]
pub struct Bars {
    /// From top to bottom.
    pub bars: Vec<Bar>,
    /// A length to compare with, and what it is.
    pub mark: Option<(f64, String)>,
}

impl Bars {
    pub(super) fn height(&self) -> f64 {
        let mark = if self.mark.is_some() { 14.0 } else { 0.0 };
        self.bars.len() as f64 * ROW + 4.0 + mark
    }

    pub(super) fn draw(&self, canvas: &Canvas) {
        let widths = self.bars.iter().map(|b| text_width(&b.label, 12.5));
        let left = widths.fold(40.0, f64::max).min(150.0) + 8.0;
        let longest = self.bars.iter().map(Bar::end).fold(1e-12, f64::max);
        let side = if self.bars.iter().any(|b| !b.side.is_empty()) {
            SIDE
        } else {
            0.0
        };
        let scale = (PANEL - left - FIGURE - side) / longest;
        for (row, bar) in self.bars.iter().enumerate() {
            bar.draw(canvas, left, scale, row as f64 * ROW);
        }
        let bottom = self.bars.len() as f64 * ROW;
        canvas.path(&[(left, 0.0), (left, bottom)], Ink::Muted, 1.0);
        if let Some((at, label)) = self.mark.as_ref().filter(|(at, _)| *at < longest) {
            let x = left + at * scale;
            canvas.path(&[(x, 0.0), (x, bottom + 3.0)], Ink::Muted, 1.0);
            canvas.text(
                (x, bottom + 10.0),
                label,
                Style::new(10.0, Ink::Muted, Anchor::Middle),
            );
        }
    }
}

impl Bar {
    fn end(&self) -> f64 {
        let sum: f64 = self.parts.iter().sum();
        self.range.map_or(sum, |(_, high)| high.max(sum))
    }

    fn draw(&self, canvas: &Canvas, left: f64, scale: f64, top: f64) {
        let middle = top + ROW / 2.0;
        let ink = if self.bold { Ink::Text } else { Ink::Muted };
        let label = Style::new(
            12.0,
            if self.bold { Ink::Ours } else { Ink::Text },
            Anchor::Right,
        );
        canvas.text(
            (left - 8.0, middle),
            &fit(&self.label, 12.5, left - 8.0),
            label.bold(self.bold),
        );
        let mut x = left;
        for (part, &length) in self.parts.iter().enumerate() {
            let opacity = if part == 0 { 1.0 } else { 0.45 };
            let to = x + length * scale;
            if to > x {
                let to = to.max(x + 1.0);
                canvas.rectangle((x, top + 3.0), (to, top + ROW - 3.0), self.ink, opacity);
            }
            x = to;
        }
        if let Some((low, high)) = self.range {
            let (low, high) = (left + low * scale, left + high * scale);
            if high - low > 1.5 {
                canvas.path(&[(low, middle), (high, middle)], Ink::Text, 1.0);
                for end in [low, high] {
                    canvas.path(&[(end, middle - 3.0), (end, middle + 3.0)], Ink::Text, 1.0);
                }
            }
        }
        let x = left + self.end() * scale + 6.0;
        canvas.text(
            (x, middle),
            &self.figure,
            Style::new(11.5, Ink::Text, Anchor::Left).bold(self.bold),
        );
        canvas.text(
            (PANEL, middle),
            &self.side,
            Style::new(11.0, ink, Anchor::Right),
        );
    }
}
