//! The connections to one database: one for each thread, because a connection serves one thread at a time.

use anyhow::Result;
use rusqlite::{Connection, OpenFlags};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How much of the file a connection may map: all that SQLite allows as it is built here. Pages that are mapped are read where they lie.
/// Without this a connection would copy them, and would do so again whenever another connection has written.
const MAPPED_BYTES: u32 = 0x7fff_0000;

/// Pages that a connection may keep in memory, in KiB: 1 GiB. Only pages that are not mapped, or are written, take any of it.
const CACHE_KIB: i32 = 1 << 20;

/// Pages of the write-ahead log from which on a commit also copies them into the database. SQLite's default is 1000; ten times as many
/// let several changes of a page share one copy.
const CHECKPOINT_PAGES: u32 = 10_000;

/// Statements that a connection keeps compiled: more than any contestant has.
const STATEMENTS: usize = 32;

/// Threads that have a connection of their own; further ones share the last.
const SLOTS: usize = 256;

/// What a commit waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Synchronous {
    /// `NORMAL`: a commit is handed to the system. Only a checkpoint syncs.
    Normal,
    /// `FULL`: a commit waits until the log is on the medium.
    Full,
}

/// Alone in its lines, so that one thread does not slow its neighbour down.
#[repr(align(128))]
#[derive(Default)]
struct Slot(Mutex<Option<Connection>>);

/// A database, and the connections that its threads have opened so far.
pub(crate) struct Connections {
    path: PathBuf,
    synchronous: Synchronous,
    slots: Vec<Slot>,
    /// SQLite has one writer at a time. Threads that wait here are woken when it is their turn; those that SQLite lets wait sleep for
    /// some milliseconds and then look again.
    writer: Mutex<()>,
}

/// A thread's connection, for one operation.
pub(crate) struct Borrowed<'a>(MutexGuard<'a, Option<Connection>>);

impl Connections {
    /// A new database, in which `schema` is executed.
    pub(crate) fn create(path: &Path, synchronous: Synchronous, schema: &str) -> Result<Self> {
        let connections = Self::new(path, synchronous);
        let first = connect(path, synchronous, OpenFlags::SQLITE_OPEN_CREATE)?;
        first.execute_batch(schema)?;
        connections.keep(first);
        Ok(connections)
    }

    /// The database that is there.
    pub(crate) fn open(path: &Path, synchronous: Synchronous) -> Result<Self> {
        let connections = Self::new(path, synchronous);
        connections.keep(connect(path, synchronous, OpenFlags::empty())?);
        Ok(connections)
    }

    fn new(path: &Path, synchronous: Synchronous) -> Self {
        Self {
            path: path.into(),
            synchronous,
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            writer: Mutex::new(()),
        }
    }

    /// What the database was opened with is this thread's connection from now on.
    fn keep(&self, connection: Connection) {
        *self.slot() = Some(connection);
    }

    fn slot(&self) -> MutexGuard<'_, Option<Connection>> {
        let number = NUMBER.with(|number| number.0);
        let slot = self.slots[number.min(SLOTS - 1)].0.lock();
        slot.unwrap_or_else(PoisonError::into_inner)
    }

    /// This thread's connection.
    pub(crate) fn get(&self) -> Borrowed<'_> {
        let mut slot = self.slot();
        if slot.is_none() {
            let connection = connect(&self.path, self.synchronous, OpenFlags::empty());
            *slot = Some(connection.expect("another connection"));
        }
        Borrowed(slot)
    }

    /// One write transaction of one statement or more, on this thread's connection.
    pub(crate) fn write<R>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<R>) -> R {
        let _turn = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        work(&self.get()).expect("write")
    }

    /// One write transaction of many statements.
    pub(crate) fn write_many<R>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<R>) -> R {
        self.write(|connection| in_transaction(connection, "BEGIN IMMEDIATE", work))
    }

    /// Applies the log and makes it empty, after a load: SQLite would leave the file as long as the load has made it.
    pub(crate) fn shorten_log(&self) {
        self.write(|connection| {
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |_| Ok(()))
        });
    }

    /// One read transaction of many statements.
    pub(crate) fn read_many<R>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<R>,
    ) -> rusqlite::Result<R> {
        in_transaction(&self.get(), "BEGIN", work)
    }
}

/// A failure panics and ends the process (as [`Index`](crate::index::Index) says), so that nothing is left to be rolled back.
fn in_transaction<R>(
    connection: &Connection,
    begin: &str,
    work: impl FnOnce(&Connection) -> rusqlite::Result<R>,
) -> rusqlite::Result<R> {
    connection.prepare_cached(begin)?.execute(())?;
    let result = work(connection)?;
    connection.prepare_cached("COMMIT")?.execute(())?;
    Ok(result)
}

impl Deref for Borrowed<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.0.as_ref().expect("a connection that was opened")
    }
}

fn connect(path: &Path, synchronous: Synchronous, more: OpenFlags) -> Result<Connection> {
    // A connection is behind a lock of ours, so it does not need SQLite's own.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | more;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    let synchronous = match synchronous {
        Synchronous::Normal => "NORMAL",
        Synchronous::Full => "FULL",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    connection.pragma_update(None, "mmap_size", MAPPED_BYTES)?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(connection)
}

/// The number of a thread, which is free again when the thread has ended: the threads of the next phase find the connections of this one.
struct Number(usize);

thread_local! {
    static NUMBER: Number = Number::take();
}

/// Which numbers are taken.
static TAKEN: Mutex<Vec<bool>> = Mutex::new(Vec::new());

impl Number {
    fn take() -> Self {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let number = taken.iter().position(|taken| !taken);
        let number = number.unwrap_or(taken.len());
        if number == taken.len() {
            taken.push(true);
        }
        taken[number] = true;
        Self(number)
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        taken[self.0] = false;
    }
}
