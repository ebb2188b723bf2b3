//! What a call returns, and the words for it.

use indelible::Error;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What became of a call. Below zero: it failed.
///
/// After a failure other than INDELIBLE_STATUS_PANIC a call that changes one record has changed nothing. One that changes
/// many, such as indelible_insert_batch, indelible_remove_range or indelible_pool_shrink, may have done a part; its
/// description says so. After INDELIBLE_STATUS_IO of a pool with a log the change may be there when the pool is opened
/// again.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// The key or the record is not there; nothing was changed.
    Absent = 1,
    /// The key is there already; nothing was changed.
    Present = 2,
    /// A pointer is null, a name is not UTF-8 or too long, a key or a value is too long, a number is outside its range, or
    /// corners make no box.
    Invalid = -1,
    /// The operating system refused a file operation. A pool whose log could not be written takes no more changes: close
    /// it and open it again.
    Io = -2,
    /// The disk is full, or the pool has reached its size limit, or it holds as many objects as a pool can.
    NoSpace = -3,
    /// The pool is open elsewhere, in this process or in another.
    Locked = -4,
    /// The file cannot be used as wished: not a pool, of a newer format or another machine, open when the machine itself
    /// went down (the command `indelible check --salvage POOL` makes a pool usable again if it finds it whole), or in memory
    /// (tmpfs) where it is to survive power loss; or the map or the spatial index has another type, another kind or other
    /// options.
    Refused = -5,
    /// A checksum or an invariant of the file does not hold.
    Damaged = -6,
    /// Other handles are still open.
    InUse = -7,
    /// A bulk load needs an empty map.
    NotEmpty = -8,
    /// A bulk load needs strictly ascending keys.
    NotAscending = -9,
    /// Something else; see `indelible_last_error`.
    Other = -10,
    /// A defect of this library. What the call was about to do may be half done in memory; end the process, open the pool
    /// again, and please report it.
    Panic = -11,
}

impl Status {
    /// Done, if what was to be changed was there.
    pub(crate) fn ok_if(was_there: bool) -> Self {
        if was_there { Self::Ok } else { Self::Absent }
    }
}

/// A status below zero and its message.
pub(crate) struct Failure {
    status: Status,
    message: String,
}

impl Failure {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self {
            status: Status::Invalid,
            message: message.into(),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error {
            Error::Io { .. } | Error::LogFailed(_) => Status::Io,
            Error::NoSpace(_) | Error::TooManyMaps(_) => Status::NoSpace,
            Error::Locked(_) => Status::Locked,
            Error::NotAPool(_)
            | Error::NewerFormat { .. }
            | Error::IncompatibleMachine(_)
            | Error::MachineWentDown
            | Error::NoPowerLossSafety(_)
            | Error::OtherOptions { .. }
            | Error::WrongType { .. } => Status::Refused,
            Error::Damaged(_) | Error::Truncated { .. } | Error::NoLog(_) => Status::Damaged,
            Error::InUse(_) => Status::InUse,
            Error::NotEmpty => Status::NotEmpty,
            Error::NotAscending(_) => Status::NotAscending,
            Error::BadName(_)
            | Error::TooLong { .. }
            | Error::WrongLength { .. }
            | Error::BadOption(_)
            | Error::BadGeometry(_)
            | Error::BadDistance(_) => Status::Invalid,
            _ => Status::Other,
        };
        Self {
            status,
            message: error.to_string(),
        }
    }
}

thread_local! {
    /// Why the latest call of this thread that failed did so.
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Why the latest call of this thread that failed did so, in English: a string of UTF-8, empty if none has failed yet.
///
/// It is never null, and valid until the thread's next call that fails, or its end. Calls made from a destructor that runs at the end
/// of the thread (see pthread_key_create) may leave no message.
#[unsafe(no_mangle)]
pub extern "C" fn indelible_last_error() -> *const c_char {
    // Only a destructor that runs at the end of a thread can come too late.
    LAST_ERROR
        .try_with(|message| message.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// Runs the body of a function of the interface, so that neither an error nor a panic leaves it as such.
pub(crate) fn guarded(body: impl FnOnce() -> Result<Status, Failure>) -> Status {
    // What a panic leaves behind is for nobody to see: the header asks the caller to end the process.
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => return status,
        Ok(Err(failure)) => failure,
        Err(payload) => {
            let words = payload.downcast_ref::<String>().map(String::as_str);
            let words = words.or_else(|| payload.downcast_ref::<&str>().copied());
            Failure {
                status: Status::Panic,
                message: format!("a defect of indelible: {}", words.unwrap_or("panic")),
            }
        }
    };
    let message = CString::new(failure.message.replace('\0', "")).unwrap_or_default();
    let _ = LAST_ERROR.try_with(|last| *last.borrow_mut() = message);
    failure.status
}
