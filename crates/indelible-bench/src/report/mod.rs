//! What readers see of a run: a summary for the terminal, a page for the browser.
//!
//! Both read their figures from [`summary`], and both show the tables of [`tables`]; the page has plots beside them.

pub mod format;
#[cfg(test)]
pub(crate) mod sample;
pub mod summary;
pub mod table;
pub mod tables;
pub mod terminal;

/// Shows the sample where one can look at it: `INDELIBLE_SAMPLE=/tmp/r cargo test -p indelible-bench write_the_sample`.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_the_sample() {
        let Ok(path) = std::env::var("INDELIBLE_SAMPLE") else {
            return;
        };
        let run = sample::run(1, 5);
        std::fs::write(format!("{path}.txt"), terminal::print(&run)).unwrap();
        std::fs::write(format!("{path}.json"), serde_json::to_string(&run).unwrap()).unwrap();
    }
}
