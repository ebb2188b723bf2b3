//! What plots are drawn with: a canvas in CSS pixels, inks with a name instead of a colour, and four kinds of charts.
//!
//! Plotters writes SVG with fixed colours, and pages have two sets of them. So a chart is drawn in inks that stand for their
//! names (sentinels), and [`paint`] turns each into a class with the light colour as what is seen without a style sheet.

mod bars;
mod lines;
mod rows;

pub use bars::{Bar, Bars};
pub use lines::{Lines, Series, Tick};
pub use rows::{Dumbbell, Dumbbells, Spark, Sparks};

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Units of the SVG per CSS pixel: plotters draws at whole numbers.
const FINE: f64 = 8.0;

/// The width of every panel, in CSS pixels.
pub const PANEL: f64 = 440.0;

/// Where the chart begins below a panel's head.
const HEAD: f64 = 44.0;

/// A colour by its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// What is read first.
    Text,
    /// What is read if one looks for it.
    Muted,
    /// Lines behind the data.
    Grid,
    /// The background.
    Paper,
    /// Indelible, whichever.
    Ours,
    /// Peers that survive nothing.
    Nothing,
    /// Peers that survive a kill.
    Kill,
    /// Peers that survive a power cut.
    Power,
    /// A contestant's own.
    Contestant(usize),
}

impl Ink {
    const FIXED: [(Self, &'static str); 8] = [
        (Self::Text, "text"),
        (Self::Muted, "muted"),
        (Self::Grid, "grid"),
        (Self::Paper, "paper"),
        (Self::Ours, "ours"),
        (Self::Nothing, "nothing"),
        (Self::Kill, "kill"),
        (Self::Power, "power"),
    ];

    /// The name in classes and custom properties.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Contestant(place) => format!("k{place}"),
            _ => {
                let fixed = Self::FIXED.iter().find(|(ink, _)| *ink == self);
                fixed.expect("all are listed").1.into()
            }
        }
    }

    fn sentinel(self) -> RGBColor {
        let number = match self {
            Self::Contestant(place) => 16 + place % 240,
            _ => Self::FIXED
                .iter()
                .position(|(ink, _)| *ink == self)
                .unwrap_or(0),
        };
        RGBColor(0x0B, number as u8, 0xB1)
    }

    fn of_sentinel(number: usize) -> Self {
        match number {
            n if n >= 16 => Self::Contestant(n - 16),
            n => Self::FIXED[n % Self::FIXED.len()].0,
        }
    }
}

/// Replaces sentinel colours by classes `f-NAME` and `s-NAME`, for fill and stroke, and the light colour.
#[must_use]
pub fn paint(svg: &str, light: impl Fn(Ink) -> String) -> String {
    let mut out = String::with_capacity(svg.len());
    let mut rest = svg;
    while let Some(at) = rest.find("\"#0B") {
        let (before, after) = rest.split_at(at);
        let number = after
            .get(4..6)
            .and_then(|hex| usize::from_str_radix(hex, 16).ok());
        let ink = Ink::of_sentinel(number.unwrap_or(0));
        let kind = if before.ends_with("stroke=") {
            's'
        } else {
            'f'
        };
        out += &format!("{before}\"{}\" class=\"{kind}-{}\"", light(ink), ink.name());
        rest = after.get(9..).unwrap_or("");
    }
    out + rest
}

/// How wide text is, about: fonts are the reader's.
#[must_use]
pub fn text_width(text: &str, size: f64) -> f64 {
    let em = |c: char| match c {
        'i' | 'l' | 'j' | 'I' | '.' | ',' | ':' | '\'' | '|' | ' ' | 't' | 'f' | 'r' => 0.33,
        'm' | 'w' | 'M' | 'W' | '@' | '%' => 0.88,
        'A'..='Z' => 0.68,
        _ => 0.57,
    };
    text.chars().map(em).sum::<f64>() * size
}

/// Text cut to a width.
#[must_use]
pub fn fit(text: &str, size: f64, width: f64) -> String {
    let mut short = text.to_owned();
    while text_width(&short, size) > width && short.chars().count() > 1 {
        short = super::format::cut(&short, short.chars().count() - 1);
    }
    short
}

/// Where text is relative to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// The point is at its left.
    Left,
    /// The point is in its middle.
    Middle,
    /// The point is at its right.
    Right,
}

/// How text looks.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// In CSS pixels.
    pub size: f64,
    /// Its colour.
    pub ink: Ink,
    /// Where its point is.
    pub anchor: Anchor,
    /// Whether it is bold.
    pub bold: bool,
}

impl Style {
    /// Plain text of a size and colour.
    #[must_use]
    pub fn new(size: f64, ink: Ink, anchor: Anchor) -> Self {
        Self {
            size,
            ink,
            anchor,
            bold: false,
        }
    }

    /// The same in bold, if so.
    #[must_use]
    pub fn bold(self, bold: bool) -> Self {
        Self { bold, ..self }
    }
}

/// A place on an SVG. All measures are CSS pixels from its upper left corner.
pub struct Canvas<'a, 'b> {
    area: &'a DrawingArea<SVGBackend<'b>, Shift>,
    at: (f64, f64),
}

/// Drawing into a string cannot fail.
const STRING: &str = "a string takes everything";

impl Canvas<'_, '_> {
    fn point(&self, (x, y): (f64, f64)) -> (i32, i32) {
        let fine = |v: f64| (v * FINE).round() as i32;
        (fine(self.at.0 + x), fine(self.at.1 + y))
    }

    /// Text; its point is in the middle of its height.
    pub fn text(&self, at: (f64, f64), text: &str, style: Style) {
        let anchor = match style.anchor {
            Anchor::Left => HPos::Left,
            Anchor::Middle => HPos::Center,
            Anchor::Right => HPos::Right,
        };
        // The backend divides sizes by 1.24.
        let font = ("sans-serif", style.size * FINE * 1.24).into_font();
        let weight = if style.bold {
            FontStyle::Bold
        } else {
            FontStyle::Normal
        };
        let ink = style.ink.sentinel();
        let text_style = TextStyle::from(font.style(weight))
            .color(&ink)
            .pos(Pos::new(anchor, VPos::Center));
        self.area
            .draw(&Text::new(text, self.point(at), text_style))
            .expect(STRING);
    }

    /// A line through points.
    pub fn path(&self, points: &[(f64, f64)], ink: Ink, width: f64) {
        let points: Vec<_> = points.iter().map(|&p| self.point(p)).collect();
        let style = ink.sentinel().stroke_width((width * FINE) as u32);
        self.area
            .draw(&PathElement::new(points, style))
            .expect(STRING);
    }

    /// An area between points, of some opacity.
    pub fn polygon(&self, points: &[(f64, f64)], ink: Ink, opacity: f64) {
        let points: Vec<_> = points.iter().map(|&p| self.point(p)).collect();
        self.area
            .draw(&Polygon::new(points, ink.sentinel().mix(opacity)))
            .expect(STRING);
    }

    /// A box from its upper left to its lower right corner, of some opacity.
    pub fn rectangle(&self, from: (f64, f64), to: (f64, f64), ink: Ink, opacity: f64) {
        let style = ink.sentinel().mix(opacity).filled();
        self.area
            .draw(&Rectangle::new([self.point(from), self.point(to)], style))
            .expect(STRING);
    }

    /// A dot.
    pub fn dot(&self, at: (f64, f64), radius: f64, ink: Ink) {
        let style = ink.sentinel().filled();
        self.area
            .draw(&Circle::new(self.point(at), (radius * FINE) as i32, style))
            .expect(STRING);
    }
}

/// A chart with what it shows.
#[derive(Clone, Debug)]
pub struct Panel {
    /// What is shown.
    pub title: String,
    /// How to read it.
    pub note: String,
    /// The data.
    pub chart: Chart,
}

/// The kinds of charts.
#[derive(Clone, Debug)]
pub enum Chart {
    /// A bar per contestant.
    Bars(Bars),
    /// A line per contestant.
    Lines(Lines),
    /// A small line of its own per contestant.
    Sparks(Sparks),
    /// From one moment to another per contestant.
    Dumbbells(Dumbbells),
}

impl Panel {
    /// In CSS pixels.
    #[must_use]
    pub fn height(&self) -> f64 {
        HEAD + match &self.chart {
            Chart::Bars(bars) => bars.height(),
            Chart::Lines(lines) => lines.height(),
            Chart::Sparks(sparks) => sparks.height(),
            Chart::Dumbbells(dumbbells) => dumbbells.height(),
        }
    }

    fn draw(&self, area: &DrawingArea<SVGBackend, Shift>, at: (f64, f64)) {
        let canvas = Canvas { area, at };
        let title = Style::new(14.0, Ink::Text, Anchor::Left).bold(true);
        canvas.text((0.0, 12.0), &fit(&self.title, 14.5, PANEL), title);
        let note = Style::new(11.0, Ink::Muted, Anchor::Left);
        canvas.text((0.0, 29.0), &fit(&self.note, 11.0, PANEL), note);
        let canvas = Canvas {
            area,
            at: (at.0, at.1 + HEAD),
        };
        match &self.chart {
            Chart::Bars(bars) => bars.draw(&canvas),
            Chart::Lines(lines) => lines.draw(&canvas),
            Chart::Sparks(sparks) => sparks.draw(&canvas),
            Chart::Dumbbells(dumbbells) => dumbbells.draw(&canvas),
        }
    }
}

/// Panels beside and below each other, in one SVG with sentinel colours: its text, width and height in CSS pixels. What
/// `decorate` draws is in the margins.
pub fn grid(
    panels: &[Panel],
    columns: usize,
    margin: f64,
    top: f64,
    bottom: f64,
    decorate: impl Fn(&Canvas, f64, f64),
) -> (String, f64, f64) {
    let gap = 36.0;
    let rows: Vec<&[Panel]> = panels.chunks(columns.max(1)).collect();
    let heights: Vec<f64> = rows
        .iter()
        .map(|row| row.iter().map(Panel::height).fold(0.0, f64::max))
        .collect();
    let across = panels.len().min(columns.max(1)) as f64;
    let width = across * (PANEL + gap) - gap + 2.0 * margin;
    let between = gap * 0.7 * heights.len().saturating_sub(1) as f64;
    let height = heights.iter().sum::<f64>() + between + 2.0 * margin + top + bottom;
    let mut svg = String::new();
    {
        let size = ((width * FINE) as u32, (height * FINE) as u32);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        decorate(
            &Canvas {
                area: &area,
                at: (0.0, 0.0),
            },
            width,
            height,
        );
        let mut y = margin + top;
        for (row, height) in rows.iter().zip(&heights) {
            for (column, panel) in row.iter().enumerate() {
                panel.draw(&area, (margin + column as f64 * (PANEL + gap), y));
            }
            y += height + gap * 0.7;
        }
        area.present().expect(STRING);
    }
    (svg, width, height)
}

/// Round numbers from 0 to something: at most `most` steps.
#[must_use]
pub fn nice_steps(most_value: f64, most: usize) -> Vec<f64> {
    let raw = most_value / most.max(1) as f64;
    if raw.is_nan() || raw <= 0.0 || raw.is_infinite() {
        return vec![0.0];
    }
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|s| s * power)
        .into_iter()
        .find(|s| *s >= raw * 0.999);
    let step = step.unwrap_or(10.0 * power);
    let count = (most_value / step).floor() as usize;
    (0..=count).map(|n| n as f64 * step).collect()
}
