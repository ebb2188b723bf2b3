//! Plots as SVG: as pieces of a page, or standing alone.

use super::chart::{Anchor, Canvas, Ink, Panel, Style, fit, grid, paint, text_width};
use super::format;
use super::palette::Palette;
use super::plots::{self, Plot};
use super::summary::{ExperimentSummary, Summary};
use crate::outcome::Run;
use anyhow::{Context, Result};

const FONT: &str =
    "font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif";

/// A panel for a page that has the palette's classes.
#[must_use]
pub(super) fn inline(panel: &Panel, palette: &Palette) -> String {
    let (svg, _, _) = grid(std::slice::from_ref(panel), 1, 2.0, 0.0, 0.0, |_, _, _| {});
    let label = format!(
        "<svg role=\"img\" aria-label=\"{}\"",
        super::html::escape(&panel.title)
    );
    let svg = without_size(&paint(&svg, |ink| palette.day(ink)));
    svg.replacen("<svg", &label, 1)
}

/// One plot of one experiment, the first if none is named, as a file of its own that is readable by day and by night.
///
/// # Errors
///
/// If there is no such experiment, or nothing to show.
pub fn standalone(run: &Run, plot: Plot, experiment: Option<&str>) -> Result<String> {
    let summary = Summary::of(run);
    let mut experiments = summary.experiments.iter();
    let experiment = experiments
        .find(|e| experiment.is_none_or(|name| e.plan.name == name))
        .context("the run has no such experiment")?;
    let panels = plots::panels(plot, experiment);
    anyhow::ensure!(!panels.is_empty(), "the run has no figures for this plot");
    let palette = Palette::of(run);
    let head = |canvas: &Canvas, width: f64, height: f64| {
        canvas.rectangle((0.0, 0.0), (width, height), Ink::Paper, 1.0);
        heading(canvas, run, experiment, plot, width);
        if plot != Plot::Counts && !plot.colours_contestants(&panels) {
            legend(canvas, experiment, height - 20.0);
        }
    };
    let (svg, width, height) = grid(&panels, 2, 20.0, 50.0, 26.0, head);
    let svg = without_size(&paint(&svg, |ink| palette.day(ink)));
    let (day, night) = palette.properties();
    let classes = palette.classes();
    let style = format!(
        "<svg width=\"{width:.0}\" height=\"{height:.0}\"><style>svg{{{day}}}text{{{FONT}}}{classes}\
         @media(prefers-color-scheme:dark){{svg{{{night}}}}}</style>"
    );
    let (open, style) = style.split_once('>').context("it begins with a tag")?;
    let svg = svg.replacen("<svg", open, 1);
    let end = svg.find('>').context("it begins with a tag")? + 1;
    Ok(format!("{}{style}{}", &svg[..end], &svg[end..]))
}

/// What, how much and where.
fn heading(canvas: &Canvas, run: &Run, experiment: &ExperimentSummary, plot: Plot, width: f64) {
    let room = width - 40.0;
    let records = format::count(experiment.plan.records);
    let title = format!(
        "{}: {records} records, {}",
        plot.title(),
        experiment.plan.data
    );
    let style = Style::new(17.0, Ink::Text, Anchor::Left).bold(true);
    canvas.text((20.0, 24.0), &fit(&title, 17.5, room), style);
    let machine = &run.machine;
    let rounds = run.plan.rounds;
    let where_ = format!(
        "median of {rounds} rounds · {}, {} cores · {} · {}",
        machine.cpu,
        machine.cores,
        machine.build_and_kernel(),
        run.date
    );
    let style = Style::new(11.5, Ink::Muted, Anchor::Left);
    canvas.text((20.0, 46.0), &fit(&where_, 11.5, room), style);
}

/// What the colours say, if there are contestants of them.
pub(super) fn meanings(experiment: &ExperimentSummary) -> Vec<(Ink, &'static str)> {
    let peers = |survives: &str| {
        let mut rows = experiment.rows.iter();
        rows.any(|row| !row.is_ours && row.survives == survives)
    };
    let all = [
        (
            Ink::Ours,
            "indelible",
            experiment.rows.iter().any(|row| row.is_ours),
        ),
        (Ink::Nothing, "survives nothing", peers("nothing")),
        (Ink::Kill, "survives kill -9", peers("kill -9")),
        (Ink::Power, "survives a power cut", peers("power cut")),
    ];
    let there = all.into_iter().filter(|(_, _, there)| *there);
    there.map(|(ink, name, _)| (ink, name)).collect()
}

fn legend(canvas: &Canvas, experiment: &ExperimentSummary, y: f64) {
    let mut x = 20.0;
    for (ink, name) in meanings(experiment) {
        canvas.rectangle((x, y - 5.0), (x + 10.0, y + 5.0), ink, 1.0);
        canvas.text(
            (x + 16.0, y),
            name,
            Style::new(12.0, Ink::Text, Anchor::Left),
        );
        x += 16.0 + text_width(name, 12.0) + 26.0;
    }
}

/// The opening tag without its size, so that the page decides on it.
fn without_size(svg: &str) -> String {
    let end = svg.find(" viewBox").unwrap_or(0);
    format!("<svg{}", &svg[end..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn every_plot_stands_alone_by_day_and_by_night() {
        let run = sample::run(1, 3);
        for plot in Plot::KINDS.into_iter().chain([Plot::Main]) {
            let svg = standalone(&run, plot, None).unwrap();
            assert!(svg.starts_with("<svg width=") && svg.trim_end().ends_with("</svg>"));
            assert!(svg.contains("prefers-color-scheme:dark"));
            assert!(!svg.contains("#0B"), "a sentinel is left in {plot:?}");
        }
        assert!(standalone(&run, Plot::Main, Some("no such")).is_err());
    }
}
