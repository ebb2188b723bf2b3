//! SQLite's R*Tree: a virtual table whose nodes are rows of an ordinary table.
//!
//! It keeps the corners of boxes as `f32`, rounded outwards. The exact place is in auxiliary columns, as is the payload: a search meets each
//! record whose rounded box touches the window, and compares the exact place, so answers are right. An auxiliary column costs a lookup
//! of the row for every record that is met.
//!
//! It has no search for nearest points. What stands in is what its users write: a search in a square around the point, and in a square of twice
//! the side until there are enough points within the circle. The first radius is what the last searches needed, so that most take one or two
//! squares; a square with far too many points is given up for a smaller one. It has no bulk load either: a bulk load is one transaction.

use super::OfPoints;
use crate::contestants::sqlite::{Connections, Synchronous};
use crate::contestants::{Contestant, Place, Survives};
use crate::data::points::{Point, point};
use crate::index::Index;
use anyhow::Result;
use rusqlite::{Connection, OptionalExtension};
use std::sync::atomic::{AtomicU64, Ordering};

/// Auxiliary columns begin with a plus.
const SCHEMA: &str =
    "CREATE VIRTUAL TABLE points USING rtree(id, west, east, south, north, +x, +y, +payload)";

/// Without an identifier, which SQLite then makes.
const INSERT: &str = "INSERT INTO points (west, east, south, north, x, y, payload) VALUES (?1, ?1, ?2, ?2, ?1, ?2, ?3)";
const AT: &str = "SELECT payload FROM points WHERE east >= ?1 AND west <= ?1 AND north >= ?2 AND south <= ?2 AND x = ?1 AND y = ?2 LIMIT 1";
const FIND: &str = "SELECT id FROM points WHERE east >= ?1 AND west <= ?1 AND north >= ?2 AND south <= ?2 AND x = ?1 AND y = ?2 LIMIT 1";
const UPDATE: &str = "UPDATE points SET payload = ?2 WHERE id = ?1";
const REMOVE: &str = "DELETE FROM points WHERE id = ?1";
const WINDOW: &str = "SELECT payload FROM points WHERE east >= ?1 AND west <= ?2 AND north >= ?3 AND south <= ?4 AND x BETWEEN ?1 AND ?2 AND y BETWEEN ?3 AND ?4";
const SQUARE: &str = "SELECT x, y, payload FROM points WHERE east >= ?1 AND west <= ?2 AND north >= ?3 AND south <= ?4";

/// In degrees, more than any two places of the bench are apart.
const WORLD: f64 = 1000.0;

/// The smallest radius, in degrees, of a search for nearest points: the bench's points are not closer together.
const SMALLEST: f64 = 1e-7;

/// The radius, in degrees, of the first search for nearest points.
const FIRST_RADIUS: f64 = 0.01;

struct Rtree {
    connections: Connections,
    /// The radius in degrees with which a search for nearest points begins, as bits.
    radius: AtomicU64,
}

pub(super) fn contestant() -> Contestant {
    Contestant {
        name: "sqlite-rtree".into(),
        about: "SQLite by rusqlite 0.43.0: R*Tree with f32 boxes, exact f64 places and payloads in auxiliary columns; WAL, synchronous=NORMAL; nearest by growing squares".into(),
        survives: Survives::Kill,
        map: None,
        kernel: None,
        points: Some(OfPoints {
            options: None,
            loads_at_once: false,
            is_mutable: true,
            has_windows: true,
        }),
        has_batches: true,
        create: |place| {
            let path = place.directory.join("sqlite");
            start(Connections::create(&path, Synchronous::Normal, SCHEMA)?)
        },
        open: Some(open),
    }
}

fn open(place: &Place) -> Result<Box<dyn Index>> {
    let path = place.directory.join("sqlite");
    start(Connections::open(&path, Synchronous::Normal)?)
}

fn start(connections: Connections) -> Result<Box<dyn Index>> {
    let radius = AtomicU64::new(FIRST_RADIUS.to_bits());
    Ok(Box::new(Rtree {
        connections,
        radius,
    }))
}

/// The squares of the distances of all points in a square around a point, and their values; false if there are more than `most`.
fn square(
    connection: &Connection,
    [x, y]: Point,
    radius: f64,
    most: usize,
    found: &mut Vec<(f64, u64)>,
) -> rusqlite::Result<bool> {
    let mut square = connection.prepare_cached(SQUARE)?;
    let mut rows = square.query((x - radius, x + radius, y - radius, y + radius))?;
    while let Some(row) = rows.next()? {
        let (east, north): (f64, f64) = (row.get(0)?, row.get(1)?);
        let payload: i64 = row.get(2)?;
        let distance = (east - x).powi(2) + (north - y).powi(2);
        found.push((distance, payload.cast_unsigned()));
        if found.len() > most {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Rtree {
    /// Finds a record and changes it, in one transaction; false if there is none. In one statement the tree would be locked by its own search.
    fn change(
        &self,
        key: u64,
        work: impl FnOnce(&Connection, i64) -> rusqlite::Result<usize>,
    ) -> bool {
        let [x, y] = point(key);
        self.connections.write_many(|connection| {
            let mut find = connection.prepare_cached(FIND)?;
            let found = find.query_row((x, y), |row| row.get(0)).optional()?;
            let Some(id) = found else {
                return Ok(false);
            };
            Ok(work(connection, id)? > 0)
        })
    }

    fn write_all<'a>(&self, records: impl Iterator<Item = &'a (u64, u64)>) {
        self.connections.write_many(|connection| {
            let mut insert = connection.prepare_cached(INSERT)?;
            for &(key, value) in records {
                let [x, y] = point(key);
                insert.execute((x, y, value.cast_signed()))?;
            }
            Ok(())
        });
    }
}

impl Index for Rtree {
    fn get(&self, key: u64) -> Option<u64> {
        let connection = self.connections.get();
        let mut at = connection.prepare_cached(AT).expect("a statement");
        let [x, y] = point(key);
        let payload = at.query_row((x, y), |row| row.get(0)).optional();
        payload.expect("get").map(i64::cast_unsigned)
    }

    fn insert(&self, key: u64, value: u64) {
        let [x, y] = point(key);
        let record = (x, y, value.cast_signed());
        self.connections
            .write(|connection| connection.prepare_cached(INSERT)?.execute(record));
    }

    /// SQLite takes the record out of the tree and inserts it again.
    fn update(&self, key: u64, value: u64) -> bool {
        self.change(key, |connection, id| {
            let mut update = connection.prepare_cached(UPDATE)?;
            update.execute((id, value.cast_signed()))
        })
    }

    fn remove(&self, key: u64) -> bool {
        self.change(key, |connection, id| {
            connection.prepare_cached(REMOVE)?.execute((id,))
        })
    }

    fn scan(&self, _from: u64, _count: usize, _page: &mut Vec<(u64, u64)>) {
        unimplemented!("points have no order")
    }

    fn window(&self, low: Point, high: Point, page: &mut Vec<u64>) {
        let connection = self.connections.get();
        let mut window = connection.prepare_cached(WINDOW).expect("a statement");
        let rows = window.query((low[0], high[0], low[1], high[1]));
        let mut rows = rows.expect("window");
        while let Some(row) = rows.next().expect("record") {
            let payload: i64 = row.get(0).expect("a payload");
            page.push(payload.cast_unsigned());
        }
    }

    fn nearest(&self, point: Point, count: usize, page: &mut Vec<u64>) {
        let connection = self.connections.get();
        let first = f64::from_bits(self.radius.load(Ordering::Relaxed));
        let (mut radius, mut found) = (first, Vec::new());
        // The largest radius that is known to be too small. Squares not much larger are not given up, so that the search ends.
        let mut too_small = SMALLEST;
        loop {
            found.clear();
            let smaller = radius / 4.0;
            let most = if smaller > too_small {
                6 * count + 32
            } else {
                usize::MAX
            };
            if !square(&connection, point, radius, most, &mut found).expect("nearest") {
                radius = smaller;
                continue;
            }
            // A point in a corner of the square may be farther away than one beside the square.
            let is_inside = |found: &&(f64, u64)| found.0 <= radius * radius;
            if radius > WORLD || found.iter().filter(is_inside).count() >= count {
                break;
            }
            too_small = too_small.max(radius);
            radius *= 2.0;
        }
        found.sort_unstable_by(|left, right| left.0.total_cmp(&right.0));
        found.truncate(count);
        if let Some((farthest, _)) = found.last().filter(|_| radius <= WORLD) {
            // Between what the last search began with and what this one needed: distances vary from place to place.
            let next = (first * 1.2 * farthest.sqrt()).sqrt().max(SMALLEST);
            self.radius.store(next.to_bits(), Ordering::Relaxed);
        }
        page.extend(found.iter().map(|&(_, value)| value));
    }

    fn insert_batch(&self, records: &[(u64, u64)]) {
        self.write_all(records.iter());
    }

    fn bulk_load(&self, records: &[(u64, u64)], _fill: f64) -> bool {
        self.write_all(records.iter());
        self.connections.shorten_log();
        true
    }
}
