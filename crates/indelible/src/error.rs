//! Everything that can go wrong, by name.

use std::path::PathBuf;

/// The result of a fallible operation on a pool or a map.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong. `MachineWentDown`, `Damaged`, `Truncated` and `NoLog` may mean that records that were acknowledged cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a file operation.
    #[error("{action} {path}: {source}", path = path.display())]
    Io {
        /// What was attempted: "open", "lock", "grow", ...
        action: &'static str,
        /// The pool file.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// The file does not begin with a pool's magic number.
    #[error("{} is not an indelible pool", .0.display())]
    NotAPool(PathBuf),
    /// The pool was written by a newer version of this library.
    #[error("pool format {found} is newer than the {supported} that this version understands")]
    NewerFormat {
        /// Format version in the file.
        found: u32,
        /// Newest version understood.
        supported: u32,
    },
    /// The pool was written on a machine of the other endianness, or with another page or line size.
    #[error("the pool was written on an incompatible machine: {0}")]
    IncompatibleMachine(&'static str),
    /// A checksum or an invariant of the file does not hold.
    #[error("the pool is damaged: {0}")]
    Damaged(String),
    /// The file is shorter than its superblock says.
    #[error("the pool is truncated: it should have {expected} bytes and has {actual}")]
    Truncated {
        /// Bytes that the superblock promises.
        expected: u64,
        /// Bytes in the file.
        actual: u64,
    },
    /// Another process (or another handle in this one) has the pool open.
    #[error("{} is open elsewhere", .0.display())]
    Locked(PathBuf),
    /// The machine itself went down while the pool was open on a page-cached file, a case that
    /// [`Durability::Process`](crate::Durability::Process) never promised to survive. Opening with
    /// [`PoolOptions::salvage`](crate::PoolOptions::salvage) checks every index and accepts the pool if it is whole.
    #[error(
        "the machine went down while the pool was open; run a check with salvage before trusting it"
    )]
    MachineWentDown,
    /// A read-only open needs a pool that was closed cleanly.
    #[error("the pool was not closed cleanly; open it for writing first")]
    NotClean,
    /// Power-loss safety was asked for on a file that cannot give it.
    #[error("this file cannot survive power loss: {0}")]
    NoPowerLossSafety(&'static str),
    /// A pool that was not closed lacks its log, without which the pool's file is not whole.
    #[error("{} is missing: the pool was not closed, and its file is not whole without this log", .0.display())]
    NoLog(PathBuf),
    /// A write to the pool's log, or from the log to the pool, failed. The pool takes no more writes; what was acknowledged is safe, and
    /// is there when the pool is opened again. With [`Durability::PowerLoss`](crate::Durability::PowerLoss) some reads fail too: those that may see what did not
    /// reach the disk.
    #[error(
        "the disk has failed: {0}; the pool takes no more writes, and does not show what may not be on the disk; close it and open it again"
    )]
    LogFailed(String),
    /// The disk is full, or the pool has reached its size limit. A call that changes one record has changed nothing; one that changes many may have changed some.
    #[error("no space: {0}")]
    NoSpace(String),
    /// The pool was opened read-only.
    #[error("the pool is open for reading only")]
    ReadOnly,
    /// NaN has no place in an order.
    #[error("NaN cannot be a key")]
    NanKey,
    /// No object of that name: no map, and no spatial index.
    #[error("nothing is named {0:?}")]
    NoSuchMap(String),
    /// The map exists with other key or value types, or the spatial index with another type of geometry; or a map was asked for where a
    /// spatial index is, or the other way round.
    #[error("{name:?} holds {found}, not {wanted}")]
    WrongType {
        /// Name of the object.
        name: String,
        /// What it holds.
        found: String,
        /// What was asked for.
        wanted: String,
    },
    /// The map or the spatial index exists with another kind of index or other options than the caller asked for.
    #[error("{name:?} is there with {found}, not with {wanted}")]
    OtherOptions {
        /// Name of the object.
        name: String,
        /// What it was created with.
        found: String,
        /// What was asked for.
        wanted: String,
    },
    /// An object of that name is there already.
    #[error("the name {0:?} is taken")]
    NameTaken(String),
    /// A name must have 1 to 63 bytes.
    #[error("a name has 1 to 63 bytes, this one has {0}")]
    BadName(usize),
    /// The catalog is full.
    #[error("the pool holds its maximum of {0} maps and spatial indexes")]
    TooManyMaps(usize),
    /// The object or the pool has live handles, so it cannot be dropped, closed or shrunk.
    #[error("{0} is in use")]
    InUse(String),
    /// Bulk load needs an empty map, or an empty spatial index.
    #[error("bulk load needs an empty map or an empty spatial index")]
    NotEmpty,
    /// Bulk load needs strictly ascending keys.
    #[error(
        "bulk load needs strictly ascending keys: the key of record {0}, counted from 0, is not above the one before; sort the records by \
         key and keep one of each key, or use `extend` or `insert_batch`, which take any order"
    )]
    NotAscending(usize),
    /// A geometry has a coordinate that is NaN, or a box has its lower corner above its upper one; or a longitude or a latitude is not on
    /// the globe.
    #[error("no geometry: {0}")]
    BadGeometry(String),
    /// A distance is NaN or negative.
    #[error("a distance is zero or more, not {0}")]
    BadDistance(f64),
    /// A key or a value has more bytes than a map of byte strings takes.
    #[error("a {what} has at most {most} bytes, this one has {bytes}")]
    TooLong {
        /// `key` or `value`.
        what: &'static str,
        /// How many bytes there are.
        bytes: u64,
        /// How many there may be.
        most: u64,
    },
    /// A value that is written in parts was to be committed, and has not as many bytes as it was announced with.
    #[error("a value was announced with {announced} bytes, and {written} were written")]
    WrongLength {
        /// How many bytes the value was to have.
        announced: u64,
        /// How many were written.
        written: u64,
    },
    /// A value of a typed map cannot be encoded.
    #[error("a value has no encoding: {0}")]
    NoEncoding(String),
    /// An option is outside its range.
    #[error("{0}")]
    BadOption(String),
}
