//! A line per contestant, each with its name at its end.

use super::{Anchor, Canvas, Ink, PANEL, Style, fit, nice_steps, text_width};

const HEIGHT: f64 = 230.0;
const LEFT: f64 = 46.0;
/// Between names.
const STEP: f64 = 12.5;

/// A contestant.
#[derive(Clone, Debug)]
pub struct Series {
    /// At its end.
    pub label: String,
    /// Its colour.
    pub ink: Ink,
    /// Whether it is in front, and thicker.
    pub bold: bool,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

/// A place on an axis and what is said of it.
pub type Tick = (f64, String);

/// Lines over a horizontal axis.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    /// Ours are drawn last, so that they are in front.
    pub series: Vec<Series>,
    /// On the horizontal axis; the first and the last point of any line are its ends.
    pub ticks: Vec<Tick>,
    /// What the horizontal axis is.
    pub axis: String,
    /// Whether the vertical axis is logarithmic, and how its values are said.
    pub logarithmic: Option<fn(f64) -> String>,
    /// Whether points are marked.
    pub dots: bool,
}

/// From values to pixels.
struct Scale {
    x: (f64, f64),
    y: (f64, f64),
    right: f64,
    logarithmic: bool,
}

impl Scale {
    fn x(&self, x: f64) -> f64 {
        let span = (self.x.1 - self.x.0).max(1e-12);
        LEFT + (x - self.x.0) / span * (self.right - LEFT)
    }

    fn y(&self, y: f64) -> f64 {
        let y = if self.logarithmic {
            y.max(1e-9).log10()
        } else {
            y
        };
        let share = (y - self.y.0) / (self.y.1 - self.y.0).max(1e-12);
        HEIGHT - share.clamp(0.0, 1.0) * HEIGHT
    }
}

impl Lines {
    pub(super) fn height(&self) -> f64 {
        self.bottom() + 38.0
    }

    /// Names need their room even if they are many.
    fn bottom(&self) -> f64 {
        HEIGHT.max(self.series.len() as f64 * STEP)
    }

    fn scale(&self) -> Scale {
        let all = || self.series.iter().flat_map(|s| &s.points);
        let lowest = |get: fn(&(f64, f64)) -> f64| all().map(get).fold(f64::INFINITY, f64::min);
        let highest =
            |get: fn(&(f64, f64)) -> f64| all().map(get).fold(f64::NEG_INFINITY, f64::max);
        let names = self.series.iter().map(|s| text_width(&s.label, 11.5));
        let y = if self.logarithmic.is_some() {
            let (low, high) = (
                lowest(|p| p.1).max(1e-9).log10(),
                highest(|p| p.1).max(1e-9).log10(),
            );
            (low - 0.08, high + 0.08)
        } else {
            (0.0, highest(|p| p.1) * 1.05)
        };
        Scale {
            x: (lowest(|p| p.0), highest(|p| p.0)),
            y,
            right: PANEL - names.fold(0.0, f64::max).min(132.0) - 22.0,
            logarithmic: self.logarithmic.is_some(),
        }
    }

    pub(super) fn draw(&self, canvas: &Canvas) {
        let scale = self.scale();
        self.axes(canvas, &scale);
        for front in [false, true] {
            for series in self.series.iter().filter(|s| s.bold == front) {
                let points: Vec<_> = series
                    .points
                    .iter()
                    .map(|&(x, y)| (scale.x(x), scale.y(y)))
                    .collect();
                canvas.path(&points, series.ink, if front { 2.6 } else { 1.5 });
                if self.dots {
                    let radius = if front { 3.4 } else { 2.3 };
                    points
                        .iter()
                        .for_each(|&p| canvas.dot(p, radius, series.ink));
                }
            }
        }
        self.names(canvas, &scale);
    }

    fn axes(&self, canvas: &Canvas, scale: &Scale) {
        let small = |anchor| Style::new(10.5, Ink::Muted, anchor);
        for (value, label) in self.levels(scale) {
            let y = scale.y(value);
            canvas.path(&[(LEFT, y), (scale.right, y)], Ink::Grid, 1.0);
            canvas.text((LEFT - 6.0, y), &label, small(Anchor::Right));
        }
        for (x, label) in &self.ticks {
            let x = scale.x(*x);
            if (LEFT - 0.5..=scale.right + 0.5).contains(&x) {
                canvas.path(&[(x, 0.0), (x, HEIGHT)], Ink::Grid, 1.0);
                canvas.text((x, HEIGHT + 11.0), label, small(Anchor::Middle));
            }
        }
        let middle = (LEFT + scale.right) / 2.0;
        canvas.text((middle, HEIGHT + 27.0), &self.axis, small(Anchor::Middle));
    }

    /// Places on the vertical axis.
    fn levels(&self, scale: &Scale) -> Vec<Tick> {
        let Some(say) = self.logarithmic else {
            let steps = nice_steps(scale.y.1, 5);
            let step = steps.get(1).copied().unwrap_or(1.0);
            let say = |v: f64| (v, super::super::format::step(v, step));
            return steps.into_iter().map(say).collect();
        };
        let decades = scale.y.0.ceil() as i32..=scale.y.1.floor() as i32;
        decades
            .map(|d| 10f64.powi(d))
            .map(|v| (v, say(v)))
            .collect()
    }

    /// Names beside the ends of the lines, pushed apart where they are too close.
    fn names(&self, canvas: &Canvas, scale: &Scale) {
        let mut ends: Vec<(f64, (f64, f64), &Series)> = Vec::new();
        for series in &self.series {
            if let Some(&(x, y)) = series.points.last() {
                ends.push((scale.y(y), (scale.x(x), scale.y(y)), series));
            }
        }
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut places: Vec<f64> = ends.iter().map(|e| e.0).collect();
        push_apart(&mut places, STEP, self.bottom() - 2.0);
        for (y, (_, end, series)) in places.into_iter().zip(ends) {
            let from = (end.0 + 4.0, end.1);
            let to = (scale.right + 16.0, y);
            canvas.path(&[from, (scale.right + 6.0, end.1), to], series.ink, 0.6);
            let style = Style::new(11.0, series.ink, Anchor::Left).bold(series.bold);
            let room = PANEL - scale.right - 20.0;
            canvas.text(
                (scale.right + 20.0, y),
                &fit(&series.label, 11.5, room),
                style,
            );
        }
    }
}

/// Moves sorted places as little as needed to be `step` apart, from 0 to `most`.
fn push_apart(places: &mut [f64], step: f64, most: f64) {
    for _ in 0..60 {
        let mut moved = false;
        for at in 1..places.len() {
            let missing = step - (places[at] - places[at - 1]);
            if missing > 0.01 {
                places[at - 1] -= missing / 2.0;
                places[at] += missing / 2.0;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let mut least = 0.0;
    for place in places.iter_mut() {
        *place = place.max(least);
        least = *place + step;
    }
    let mut limit = most;
    for place in places.iter_mut().rev() {
        *place = place.min(limit);
        limit = *place - step;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_do_not_overlap() {
        let mut places = [3.0, 3.1, 3.2, 90.0, 100.0, 100.0];
        super::push_apart(&mut places, 10.0, 105.0);
        assert!(places.windows(2).all(|w| w[1] - w[0] >= 9.9), "{places:?}");
        assert!(places[0] >= -0.1 && places[5] <= 105.0);
    }
}
