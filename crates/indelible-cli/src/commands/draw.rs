//! `draw`: a picture of a spatial index.

use super::open_to_read;
use super::spatial::everything;
use crate::output::{Output, grouped};
use crate::shapes::{self, with_geometry};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use indelible::{Error, Geometry, PoolOptions, Spatial};
use serde_json::json;
use std::fmt::Write;
use std::io::Read;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// Width of the picture, in pixels of SVG; the height follows from the bounds.
const WIDTH: f64 = 1200.0;
/// Least and greatest height.
const HEIGHTS: [f64; 2] = [200.0, 2400.0];
/// Empty space around the picture, for strokes at its edge, and above it for the title.
const MARGIN: f64 = 12.0;
const TITLE: f64 = 28.0;
/// Least side of a rectangle, so that a leaf of records in one place is seen.
const LEAST_SIDE: f64 = 0.5;
/// Dots in a picture whose dots are one pixel wide, and the width of the largest dots.
const DOTS_OF_ONE_PIXEL: f64 = 18_000.0;
const LARGEST_DOT: f64 = 3.5;

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
    /// The picture. A file that is there is replaced, unless it is a pool.
    #[arg(short, long, value_name = "FILE.svg")]
    output: PathBuf,
    /// Draw only this part: W,S,E,N, the lower corner and then the upper one.
    #[arg(long, value_name = "W,S,E,N", allow_hyphen_values = true)]
    window: Option<String>,
    /// Records to draw at most; of more, every second or third and so on is drawn.
    #[arg(long, default_value_t = NonZeroUsize::new(20_000).expect("it is not 0"))]
    dots: NonZeroUsize,
}

impl Draw {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let pool = open_to_read(&self.pool)?;
        expect_no_pool(&self.output)?;
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
        let window = match &self.window {
            Some(window) => shapes::parse::<G::Window>(window)?,
            None => everything::<G>(),
        };
        let seen = shapes::flat(&window);
        ensure!(
            seen[0] <= seen[2],
            "a picture cannot cross the antimeridian: draw two"
        );
        let leaves = index.leaves()?.into_iter();
        let leaves: Vec<[f64; 4]> = leaves
            .filter(|(_, records)| *records > 0)
            .map(|(rect, _)| shapes::flat(&rect))
            .filter(|leaf| meet(leaf, &seen))
            .collect();
        let records: Vec<[f64; 4]> = index
            .intersecting(window)?
            .map(|record| shapes::flat(&record.shape))
            .collect();
        let every = records.len().div_ceil(self.dots.get()).max(1);
        let sample: Vec<[f64; 4]> = records.iter().step_by(every).copied().collect();
        let frame = if is_finite(&seen) {
            Frame::around(&[seen])
        } else {
            Frame::around(&records)
        };
        let frame = frame.with_context(|| {
            let name = &self.name;
            format!("there is nothing to draw: {name} has no record with finite coordinates there")
        })?;
        let mut title = format!(
            "{} ({}), records: {}, leaves: {}",
            self.name,
            G::NAME,
            grouped(records.len() as u64),
            grouped(leaves.len() as u64),
        );
        if every > 1 {
            title += &format!(", records drawn: {}", grouped(sample.len() as u64));
        }
        Ok(Picture {
            svg: frame.svg(&title, &leaves, &sample, G::COORDINATES == G::AXES)?,
            records: records.len(),
            drawn: sample.len(),
            leaves: leaves.len(),
        })
    }
}

/// What the file of a log begins with.
const LOG: &[u8] = b"INDELLOG";

/// An error if a picture would be written over a pool, above all the one that is drawn, by whatever path, or over the log of one.
fn expect_no_pool(path: &Path) -> Result<()> {
    // What is no file, such as a pipe, must not be read.
    let is_file = std::fs::metadata(path).is_ok_and(|target| target.is_file());
    if is_file {
        let mut begin = Vec::new();
        let file = std::fs::File::open(path);
        let read = file.and_then(|file| file.take(LOG.len() as u64).read_to_end(&mut begin));
        ensure!(
            read.is_err() || begin != LOG,
            "{} is the log of a pool, and is not overwritten",
            path.display()
        );
    }
    let is_other = |error: &Error| matches!(error, Error::NotAPool(_) | Error::Io { .. });
    let opened = is_file.then(|| PoolOptions::new().open_read_only(path));
    match opened {
        None => Ok(()),
        Some(Err(error)) if is_other(&error) => Ok(()),
        Some(_) => bail!("{} is a pool, and is not overwritten", path.display()),
    }
}

fn is_finite(of: &[f64; 4]) -> bool {
    of.iter().all(|edge| edge.is_finite())
}

/// Whether two boxes have a point in common.
fn meet(a: &[f64; 4], b: &[f64; 4]) -> bool {
    (0..2).all(|axis| a[axis] <= b[axis + 2] && b[axis] <= a[axis + 2])
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
    /// Height in pixels.
    height: f64,
}

impl Frame {
    /// The frame of all boxes with finite coordinates, if there are any.
    fn around(boxes: &[[f64; 4]]) -> Option<Self> {
        let finite = boxes.iter().filter(|of| is_finite(of));
        let (mut low, mut high) = ([f64::INFINITY; 2], [f64::NEG_INFINITY; 2]);
        for of in finite {
            for axis in 0..2 {
                low[axis] = low[axis].min(of[axis]);
                high[axis] = high[axis].max(of[axis + 2]);
            }
        }
        if low[0] > high[0] {
            return None;
        }
        // One scale for both axes, unless the picture would be a strip. Halves, since a difference may be too large for a number.
        let [across, upwards] = [0, 1].map(|axis| high[axis] / 2.0 - low[axis] / 2.0);
        let ratio = upwards / across;
        let height = if ratio.is_finite() {
            (ratio * WIDTH).clamp(HEIGHTS[0], HEIGHTS[1])
        } else {
            HEIGHTS[0]
        };
        Some(Self { low, high, height })
    }

    /// Where a coordinate lies between the edges of the frame, from 0 to 1; what lies outside is at an edge.
    fn share(&self, axis: usize, coordinate: f64) -> f64 {
        let (low, high) = (self.low[axis], self.high[axis]);
        let span = high / 2.0 - low / 2.0;
        if span > 0.0 {
            (coordinate.clamp(low, high) / 2.0 - low / 2.0) / span
        } else {
            0.5
        }
    }

    /// Left, top, right and bottom in pixels: north is up.
    fn place(&self, of: &[f64; 4]) -> [f64; 4] {
        let x = |x: f64| MARGIN + self.share(0, x) * WIDTH;
        let y = |y: f64| TITLE + MARGIN + (1.0 - self.share(1, y)) * self.height;
        [x(of[0]), y(of[3]), x(of[2]), y(of[1])]
    }

    fn svg(
        &self,
        title: &str,
        leaves: &[[f64; 4]],
        records: &[[f64; 4]],
        are_points: bool,
    ) -> Result<String> {
        let (width, height) = (WIDTH + 2.0 * MARGIN, self.height + TITLE + 2.0 * MARGIN);
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
            // The fewer the larger, so that few are seen and many do not cover the leaves.
            let dot = (DOTS_OF_ONE_PIXEL / records.len().max(1) as f64).sqrt();
            let dot = dot.clamp(1.0, LARGEST_DOT);
            write!(
                svg,
                "</g>\n<path fill=\"none\" stroke=\"#111\" stroke-width=\"{dot:.1}\" stroke-linecap=\"round\" d=\"",
            )?;
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
