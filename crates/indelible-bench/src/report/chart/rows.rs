//! Charts with a row per contestant that are no bars.

use super::{Anchor, Canvas, Ink, PANEL, Style, fit, text_width};

const ROW: f64 = 21.0;

/// How a contestant's rate went.
#[derive(Clone, Debug)]
pub struct Spark {
    /// At the left.
    pub label: String,
    /// Whether it stands out.
    pub bold: bool,
    /// Its colour.
    pub ink: Ink,
    /// Time from 0 to 1, and the rate then relative to the mean.
    pub points: Vec<(f64, f64)>,
    /// At the right edge.
    pub figures: (String, String),
}

/// A small line per contestant.
#[derive(Clone, Debug, Default)]
pub struct Sparks {
    /// From top to bottom.
    pub sparks: Vec<Spark>,
}

/// The name at the left of a row.
fn name(canvas: &Canvas, label: &str, bold: bool, left: f64, y: f64) {
    let ink = if bold { Ink::Ours } else { Ink::Text };
    let style = Style::new(12.0, ink, Anchor::Right).bold(bold);
    canvas.text((left - 8.0, y), &fit(label, 12.5, left - 8.0), style);
}

/// Where rows begin, right of all names.
fn left_of<'a>(names: impl Iterator<Item = &'a String>) -> f64 {
    names
        .map(|n| text_width(n, 12.5))
        .fold(40.0, f64::max)
        .min(150.0)
        + 8.0
}

impl Sparks {
    pub(super) fn height(&self) -> f64 {
        self.sparks.len() as f64 * ROW + 18.0
    }

    pub(super) fn draw(&self, canvas: &Canvas) {
        let left = left_of(self.sparks.iter().map(|s| &s.label));
        let right = PANEL - 112.0;
        for (row, spark) in self.sparks.iter().enumerate() {
            spark.draw(canvas, (left, right), (row + 1) as f64 * ROW);
        }
        let y = self.sparks.len() as f64 * ROW + 11.0;
        let small = |anchor| Style::new(10.5, Ink::Muted, anchor);
        canvas.text((left, y), "start", small(Anchor::Left));
        canvas.text((right, y), "end", small(Anchor::Right));
        canvas.text((PANEL - 46.0, y), "took", small(Anchor::Right));
        canvas.text((PANEL, y), "slowest", small(Anchor::Right));
    }
}

impl Spark {
    fn draw(&self, canvas: &Canvas, (left, right): (f64, f64), base: f64) {
        let middle = base - ROW / 2.0 + 2.0;
        name(canvas, &self.label, self.bold, left, middle);
        // The mean is at two thirds of the height.
        let tall = (ROW - 3.0) / 1.5;
        let place = |(x, y): (f64, f64)| (left + x * (right - left), base - y.min(1.5) * tall);
        let mut line: Vec<(f64, f64)> = Vec::new();
        let mut since = 0.0;
        for &(time, rate) in &self.points {
            line.push(place((since, rate)));
            line.push(place((time, rate)));
            since = time;
        }
        let mut area = vec![(left, base)];
        area.extend(&line);
        area.push((line.last().map_or(left, |p| p.0), base));
        canvas.polygon(&area, self.ink, 0.3);
        canvas.path(&line, self.ink, 1.3);
        canvas.path(&[(left, base), (right, base)], Ink::Grid, 1.0);
        let figure = Style::new(11.0, Ink::Text, Anchor::Right).bold(self.bold);
        canvas.text((PANEL - 46.0, middle), &self.figures.0, figure);
        canvas.text((PANEL, middle), &self.figures.1, figure);
    }
}

/// From one time to another.
#[derive(Clone, Debug)]
pub struct Dumbbell {
    /// At the left.
    pub label: String,
    /// Whether it stands out.
    pub bold: bool,
    /// Its colour.
    pub ink: Ink,
    /// In nanoseconds.
    pub from: f64,
    /// In nanoseconds.
    pub to: f64,
    /// At the right edge.
    pub figure: String,
}

/// Times over a logarithmic axis.
#[derive(Clone, Debug, Default)]
pub struct Dumbbells {
    /// From top to bottom.
    pub rows: Vec<Dumbbell>,
}

impl Dumbbells {
    pub(super) fn height(&self) -> f64 {
        self.rows.len() as f64 * ROW + 20.0
    }

    pub(super) fn draw(&self, canvas: &Canvas) {
        let left = left_of(self.rows.iter().map(|r| &r.label));
        let right = PANEL - 96.0;
        let low = self
            .rows
            .iter()
            .map(|r| r.from.max(1.0))
            .fold(f64::INFINITY, f64::min)
            .log10();
        let high = self
            .rows
            .iter()
            .map(|r| r.to.max(1.0))
            .fold(1.0, f64::max)
            .log10();
        let (low, high) = (low.floor(), high.ceil().max(low.floor() + 1.0));
        let x = |ns: f64| left + (ns.max(1.0).log10() - low) / (high - low) * (right - left);
        let bottom = self.rows.len() as f64 * ROW;
        for decade in low as i32..=high as i32 {
            let ns = 10f64.powi(decade);
            canvas.path(&[(x(ns), 0.0), (x(ns), bottom)], Ink::Grid, 1.0);
            let say = super::super::format::decade(ns);
            canvas.text(
                (x(ns), bottom + 10.0),
                &say,
                Style::new(10.5, Ink::Muted, Anchor::Middle),
            );
        }
        for (row, it) in self.rows.iter().enumerate() {
            let y = row as f64 * ROW + ROW / 2.0;
            name(canvas, &it.label, it.bold, left, y);
            canvas.path(&[(left, y), (x(it.from), y)], it.ink, 1.0);
            canvas.path(&[(x(it.from), y), (x(it.to), y)], it.ink, 3.0);
            canvas.dot((x(it.from), y), 4.5, it.ink);
            canvas.dot((x(it.from), y), 2.6, Ink::Paper);
            canvas.dot((x(it.to), y), 4.5, it.ink);
            let figure = Style::new(11.0, Ink::Text, Anchor::Right).bold(it.bold);
            canvas.text((PANEL, y), &it.figure, figure);
        }
    }
}
