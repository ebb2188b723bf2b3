//! What readers see of a run: a summary for the terminal, a page for the browser, a picture for a README.
//!
//! All read their figures from [`summary`], and terminal and page show the same [`tables`]. Plots are made in two steps: [`plots`]
//! says what is in which panel, [`chart`] draws panels in inks instead of colours; [`palette`] has the colours by day and
//! by night.

pub mod chart;
pub mod format;
pub mod html;
pub mod markdown;
pub mod palette;
pub mod plots;
#[cfg(test)]
pub(crate) mod sample;
pub mod structure;
pub mod summary;
pub mod svg;
pub mod table;
pub mod tables;
pub mod terminal;

/// Puts a sample where one can look at it: `INDELIBLE_SAMPLE=/tmp/r cargo test -p indelible-bench write_the_sample`.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_the_sample() {
        let Ok(path) = std::env::var("INDELIBLE_SAMPLE") else {
            return;
        };
        let run = sample::run(1, 5);
        let write =
            |ending: &str, text: String| std::fs::write(format!("{path}.{ending}"), text).unwrap();
        write("txt", terminal::print(&run));
        write("json", serde_json::to_string(&run).unwrap());
        write("html", html::page(&run));
        for plot in plots::Plot::KINDS.into_iter().chain([plots::Plot::Main]) {
            write(
                &format!("{plot:?}.svg"),
                svg::standalone(&run, plot, None).unwrap(),
            );
        }
    }
}
