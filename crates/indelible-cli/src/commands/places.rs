//! The spatial act of `demo`: cities by longitude and latitude, a kill, and the nearest ones before and after it.

use crate::output::{Output, grouped};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use indelible::{HilbertOptions, Point2, Pool, Spatial};
use indelible_bench::data::cities::{self, City};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Where the nearest cities are looked for: places that are no cities themselves.
const QUESTIONS: [(&str, f64, f64); 3] = [
    ("the summit of Mount Fuji", 138.7274, 35.3606),
    ("the Matterhorn", 7.6586, 45.9766),
    ("a ship on the antimeridian off Fiji", -179.9, -17.5),
];

/// Cities in each answer.
const NEAREST: usize = 4;

/// How long the child may take before it answers.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long the child goes on writing before it is killed.
const BEFORE_THE_KILL: Duration = Duration::from_millis(50);

/// What the spatial act showed.
pub struct Act {
    pub narration: Vec<String>,
    pub facts: Vec<(&'static str, Value)>,
}

/// Indexes the cities in a child process, kills it while it writes, opens the pool again and asks the same questions.
pub fn act(directory: &Path) -> Result<Act> {
    let path = directory.join("places.pool");
    let mut child = Command::new(std::env::current_exe()?)
        .arg("__places")
        .arg(&path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("start the indexer of places")?;
    let before = answers_of(&mut child);
    std::thread::sleep(BEFORE_THE_KILL);
    child.kill().context("kill the indexer of places")?;
    let status = child.wait()?;
    let before = before?;
    ensure!(
        status.code().is_none(),
        "the indexer of places ended by itself: {status}"
    );

    let cities = cities::all()?;
    let start = Instant::now();
    let pool = Pool::open(&path)?;
    let index = pool.open_spatial::<Point2>("places")?;
    let mut after = vec![answer(&index, &cities, QUESTIONS[0])?];
    let first_answer = start.elapsed();
    for question in &QUESTIONS[1..] {
        after.push(answer(&index, &cities, *question)?);
    }
    ensure!(
        before == after,
        "the nearest cities before the kill were {before:#?}, and after it {after:#?}"
    );
    let problems = index.check()?;
    ensure!(problems.is_empty(), "the index is damaged: {problems:#?}");
    // The ship that moves is one more.
    ensure!(
        index.len()? == cities.len() as u64 + 1,
        "{} places are there",
        index.len()?
    );
    let milliseconds = first_answer.as_secs_f64() * 1e3;
    let mut narration = vec![format!(
        "Another process put the same {} places into a spatial index by longitude and latitude, and was killed (SIGKILL) while it moved\n\
         a ship to and fro. The pool was opened again, and the first answer was there after {milliseconds:.2} ms. Before the kill and after it:",
        grouped(cities.len() as u64)
    )];
    narration.extend(after.into_iter().map(|answer| format!("  {answer}")));
    let facts = vec![
        ("places found again after a kill", json!(cities.len())),
        (
            "first nearest cities after a kill, ms",
            json!((milliseconds * 100.0).round() / 100.0),
        ),
    ];
    Ok(Act { narration, facts })
}

/// The answers of the child, which it prints once all cities are indexed.
fn answers_of(child: &mut Child) -> Result<Vec<String>> {
    let out = child.stdout.take().context("no output of the child")?;
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(out).lines().take(QUESTIONS.len());
        // Nobody listens any more if this fails.
        let _ = send.send(lines.collect::<std::io::Result<Vec<String>>>());
    });
    let Ok(answers) = receive.recv_timeout(PATIENCE) else {
        bail!("the indexer of places did not answer within {PATIENCE:?}");
    };
    let answers = answers?;
    ensure!(
        answers.len() == QUESTIONS.len(),
        "the indexer of places ended after {} of {} answers",
        answers.len(),
        QUESTIONS.len()
    );
    Ok(answers)
}

/// The nearest cities, in words.
fn answer(
    index: &Spatial<Point2>,
    cities: &[City],
    (place, longitude, latitude): (&str, f64, f64),
) -> Result<String> {
    let nearest = index
        .nearest(Point2::new(longitude, latitude))?
        .matching(|record| record.payload < cities.len() as u64);
    let mut found = Vec::new();
    for record in nearest.take(NEAREST) {
        let (metres, record) = record?;
        let city = &cities[record.payload as usize];
        found.push(format!(
            "{} ({}) {:.1} km",
            city.name,
            city.country,
            metres / 1000.0
        ));
    }
    Ok(format!("nearest to {place}: {}", found.join(", ")))
}

/// Indexes the cities, answers, and moves a ship until it is killed.
#[derive(Args)]
pub struct Places {
    /// The pool file, which is created.
    pool: PathBuf,
}

impl Places {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let cities = cities::all()?;
        let pool = Pool::create(&self.pool)?;
        let options = HilbertOptions::default().lonlat();
        let index = pool.spatial_with::<Point2>("places", options)?;
        for (row, city) in cities.iter().enumerate() {
            index.insert(Point2::new(city.longitude, city.latitude), row as u64)?;
        }
        let ship = cities.len() as u64;
        let (home, away) = (Point2::new(-123.39, -48.88), Point2::new(139.77, 35.62));
        index.insert(home, ship)?;
        for question in QUESTIONS {
            output.line(answer(&index, &cities, question)?)?;
        }
        // Bounded, so that a child whose parent has died ends some day.
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            ensure!(
                index.relocate(ship, home, away)?,
                "the ship has left its home"
            );
            ensure!(index.relocate(ship, away, home)?, "the ship is lost");
        }
        Ok(true)
    }
}
