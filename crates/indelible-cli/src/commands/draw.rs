//! `draw`: a picture of a spatial index.

use super::open_to_read;
use super::spatial::everything;
use crate::output::{Output, grouped};
use crate::shapes::{self, with_geometry};
use anyhow::{Context, Result, ensure};
use clap::Args;
use indelible::{Geometry, Spatial};
use serde_json::json;
use std::fmt::Write;
use std::path::PathBuf;

/// Width of the picture, in pixels of SVG; the height follows from the bounds.
const WIDTH: f64 = 1200.0;
/// Least and greatest height.
const HEIGHTS: [f64; 2] = [200.0, 2400.0];
/// Empty space around the picture, for strokes at its edge, and above it for the title.
const MARGIN: f64 = 12.0;
const TITLE: f64 = 28.0;
/// Least side of a rectangle, so that a leaf of records in one place is seen.
const LEAST_SIDE: f64 = 0.5;

/// Draw a spatial index.
///
/// Records are dots, boxes thin rectangles, and the bounds of the leaves coloured rectangles, whose colour goes around the colour wheel along
/// the order of the leaves. Of three axes the first two are drawn.
#[derive(Args)]
pub struct Draw {
    /// The pool file.
    pool: PathBuf,
    /// Name of the spatial index.
    name: String,
    /// The picture.
    #[arg(short, long, value_name = "FILE.svg")]
    output: PathBuf,
    /// Records to draw at most; of more, every second or third and so on is drawn.
    #[arg(long, default_value_t = 20_000)]
    dots: usize,
}

impl Draw {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let pool = open_to_read(&self.pool)?;
        let info = shapes::expect(&pool, &self.name)?;
        let picture =
            with_geometry!(info.geometry, G => self.picture(&pool.open_spatial::<G>(&self.name)?))?;
        std::fs::write(&self.output, picture.svg)
            .with_context(|| format!("write {}", self.output.display()))?;
        output.done("the picture was written");
        let facts = [
            ("records", json!(picture.records)),
            ("records drawn", json!(picture.drawn)),
            ("leaves", json!(picture.leaves)),
        ];
        output.facts(&format!("drew {}", self.output.display()), &facts)?;
        Ok(true)
    }

    fn picture<G: Geometry>(&self, index: &Spatial<G>) -> Result<Picture> {
        let leaves: Vec<[f64; 4]> = index
            .leaves()?
            .iter()
            .filter(|(_, records)| *records > 0)
            .map(|(rect, _)| shapes::flat(rect))
            .collect();
        let records: Vec<[f64; 4]> = index
            .intersecting(everything::<G>())?
            .map(|record| shapes::flat(&record.shape))
            .collect();
        let every = records.len().div_ceil(self.dots.max(1)).max(1);
        let sample: Vec<[f64; 4]> = records.iter().step_by(every).copied().collect();
        let frame = Frame::around(&records)
            .with_context(|| format!("{} has no record with finite coordinates", self.name))?;
        let title = format!(
            "{}: {} {} records in {} leaves{}",
            self.name,
            grouped(records.len() as u64),
            G::NAME,
            grouped(leaves.len() as u64),
            if every > 1 {
                format!(", {} of the records drawn", grouped(sample.len() as u64))
            } else {
                String::new()
            }
        );
        Ok(Picture {
            svg: frame.svg(&title, &leaves, &sample, G::COORDINATES == G::AXES)?,
            records: records.len(),
            drawn: sample.len(),
            leaves: leaves.len(),
        })
    }
}

/// What was drawn.
struct Picture {
    svg: String,
    records: usize,
    drawn: usize,
    leaves: usize,
}

/// How coordinates become pixels.
struct Frame {
    low: [f64; 2],
    high: [f64; 2],
    /// Pixels for each unit of the coordinates.
    scale: [f64; 2],
}

impl Frame {
    /// The frame of all boxes with finite coordinates, if there are any.
    fn around(boxes: &[[f64; 4]]) -> Result<Self> {
        let finite = boxes
            .iter()
            .filter(|of| of.iter().all(|edge| edge.is_finite()));
        let (mut low, mut high) = ([f64::INFINITY; 2], [f64::NEG_INFINITY; 2]);
        for of in finite {
            for axis in 0..2 {
                low[axis] = low[axis].min(of[axis]);
                high[axis] = high[axis].max(of[axis + 2]);
            }
        }
        ensure!(low[0] <= high[0], "nothing to draw");
        let span = [0, 1].map(|axis| (high[axis] - low[axis]).clamp(f64::MIN_POSITIVE, f64::MAX));
        // One scale for both axes, unless the picture would be a strip.
        let height = (span[1] / span[0] * WIDTH).clamp(HEIGHTS[0], HEIGHTS[1]);
        let scale = [WIDTH / span[0], height / span[1]];
        Ok(Self { low, high, scale })
    }

    fn height(&self) -> f64 {
        ((self.high[1] - self.low[1]) * self.scale[1]).max(HEIGHTS[0])
    }

    /// Left, top, right and bottom in pixels: north is up.
    fn place(&self, of: &[f64; 4]) -> [f64; 4] {
        let x =
            |x: f64| MARGIN + (x.clamp(self.low[0], self.high[0]) - self.low[0]) * self.scale[0];
        let y = |y: f64| {
            TITLE + MARGIN + (self.high[1] - y.clamp(self.low[1], self.high[1])) * self.scale[1]
        };
        [x(of[0]), y(of[3]), x(of[2]), y(of[1])]
    }

    fn svg(
        &self,
        title: &str,
        leaves: &[[f64; 4]],
        records: &[[f64; 4]],
        are_points: bool,
    ) -> Result<String> {
        let (width, height) = (WIDTH + 2.0 * MARGIN, self.height() + TITLE + 2.0 * MARGIN);
        let title = title.replace('&', "&amp;").replace('<', "&lt;");
        let mut svg = String::new();
        writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\">\n\
             <title>{title}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             <text x=\"{MARGIN}\" y=\"24\" font-family=\"sans-serif\" font-size=\"16\" fill=\"#222\">{title}</text>\n\
             <g stroke-width=\"0.7\" fill-opacity=\"0.14\">"
        )?;
        for (number, leaf) in leaves.iter().enumerate() {
            let hue = 300 * number / leaves.len();
            let color = format!("fill=\"hsl({hue},75%,45%)\" stroke=\"hsl({hue},75%,38%)\"");
            self.rect(&mut svg, leaf, &color)?;
        }
        if are_points {
            // One path of dots: a line of no length with a round cap is a dot.
            svg.push_str(
                "</g>\n<path fill=\"none\" stroke=\"#111\" stroke-width=\"1.1\" stroke-linecap=\"round\" d=\"",
            );
            for record in records
                .iter()
                .filter(|of| of.iter().all(|edge| edge.is_finite()))
            {
                let [x, y, ..] = self.place(record);
                write!(svg, "M{x:.1} {y:.1}h0")?;
            }
            svg.push_str("\"/>\n</svg>\n");
        } else {
            svg.push_str("</g>\n<g fill=\"none\" stroke=\"#111\" stroke-width=\"0.4\">\n");
            for record in records {
                self.rect(&mut svg, record, "")?;
            }
            svg.push_str("</g>\n</svg>\n");
        }
        Ok(svg)
    }

    fn rect(&self, svg: &mut String, of: &[f64; 4], attributes: &str) -> Result<()> {
        let [left, top, right, bottom] = self.place(of);
        let (width, height) = (right - left, bottom - top);
        writeln!(
            svg,
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" {attributes}/>",
            width.max(LEAST_SIDE),
            height.max(LEAST_SIDE)
        )?;
        Ok(())
    }
}
