//! Memory whose pages a thread of this process provides when they are touched first (`userfaultfd`, Linux 5.11).

use super::fault;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, Result};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::UserfaultfdFlags;
use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// `UFFDIO`.
const GROUP: u8 = 0xaa;
/// `UFFD_API`.
const API: u64 = 0xaa;
/// `UFFDIO_REGISTER_MODE_MISSING`.
const MISSING: u64 = 1;
/// `UFFD_EVENT_PAGEFAULT`.
const FAULT: u8 = 0x12;
/// `UFFD_USER_MODE_ONLY`.
const USER_MODE_ONLY: u32 = 1;

/// `struct uffdio_api`.
#[repr(C)]
struct Interface {
    version: u64,
    features: u64,
    operations: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
struct Bytes {
    begin: u64,
    length: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    bytes: Bytes,
    mode: u64,
    operations: u64,
}

/// `struct uffdio_copy`.
#[repr(C)]
struct Copy {
    to: u64,
    from: u64,
    length: u64,
    mode: u64,
    copied: i64,
}

/// `struct uffd_msg`, of a page fault.
#[repr(C)]
#[derive(Clone, Copy)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u64,
}

const _: () = assert!(size_of::<Interface>() == 24 && size_of::<Register>() == 32);
const _: () = assert!(size_of::<Copy>() == 40 && size_of::<Message>() == 32);

const SET_UP: Opcode = opcode::read_write::<Interface>(GROUP, 0x3f);
const REGISTER: Opcode = opcode::read_write::<Register>(GROUP, 0);
const WAKE: Opcode = opcode::read::<Bytes>(GROUP, 2);
const COPY: Opcode = opcode::read_write::<Copy>(GROUP, 3);

/// Pages that are absent, and the threads that wait for them.
pub(in crate::pool) struct Absent(OwnedFd);

impl Absent {
    pub(in crate::pool) fn new() -> Result<Self> {
        fault()?;
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        // Without a privilege, only pages that the program itself touches: a system call that is given such a page fails.
        let all = [
            flags,
            flags | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY),
        ];
        // SAFETY: a new descriptor, which says nothing of any memory yet.
        let opened = all.map(|flags| unsafe { rustix::mm::userfaultfd(flags) });
        let [with_privilege, without] = opened;
        let file = with_privilege.or(without)?;
        let mut interface = Interface {
            version: API,
            features: 0,
            operations: 0,
        };
        // SAFETY: the operation takes this structure.
        unsafe { ioctl(&file, Updater::<SET_UP, _>::new(&mut interface)) }?;
        Ok(Self(file))
    }

    /// From now on a thread that touches an absent page there waits for [`provide`](Self::provide).
    ///
    /// # Safety
    ///
    /// The bytes are memory of no file, mapped by the caller, and nothing refers to them yet.
    pub(in crate::pool) unsafe fn register(&self, bytes: Range<*mut c_void>) -> Result<()> {
        fault()?;
        let mut register = Register {
            bytes: of(bytes),
            mode: MISSING,
            operations: 0,
        };
        // SAFETY: the operation takes this structure. What it does to the memory the caller allows.
        unsafe { ioctl(&self.0, Updater::<REGISTER, _>::new(&mut register)) }
    }

    /// Where a thread waits for a page, if one does. Each is told once.
    pub(in crate::pool) fn next(&self) -> Option<*mut c_void> {
        let mut message = [0_u8; size_of::<Message>()];
        loop {
            // An error means that nobody waits now.
            let read = rustix::io::read(&self.0, &mut message).ok()?;
            if read == message.len() && message[0] == FAULT {
                let address = u64::from_ne_bytes(std::array::from_fn(|i| message[16 + i]));
                return Some(std::ptr::without_provenance_mut(address as usize));
            }
        }
    }

    /// Sleeps until a thread waits for a page, or for so long.
    pub(in crate::pool) fn wait(&self, long: Duration) {
        let long = Timespec::try_from(long).ok();
        // An error is a reason to look again.
        let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], long.as_ref());
    }

    /// Makes absent pages present, with these contents, and lets go on who waits for them. Pages that are present stay as they are.
    ///
    /// # Safety
    ///
    /// The whole of it lies in memory that has been registered.
    pub(in crate::pool) unsafe fn provide(&self, at: *mut c_void, contents: &[u8]) -> Result<()> {
        fault()?;
        let page = rustix::param::page_size();
        let mut done = 0;
        while done < contents.len() {
            let mut copy = Copy {
                to: (at.addr() + done) as u64,
                from: contents[done..].as_ptr().addr() as u64,
                length: (contents.len() - done) as u64,
                mode: 0,
                copied: 0,
            };
            // SAFETY: the operation takes this structure; it writes to absent pages alone, in memory that is registered, says the caller.
            let result = unsafe { ioctl(&self.0, Updater::<COPY, _>::new(&mut copy)) };
            done += copy.copied.max(0) as usize;
            match result {
                // In part, since the process maps something.
                Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::EXIST) => done += page,
                Err(errno) => return Err(errno),
            }
        }
        self.wake(at..at.wrapping_byte_add(contents.len()));
        Ok(())
    }

    /// Lets go on who waits there. They touch their page again.
    pub(in crate::pool) fn wake(&self, bytes: Range<*mut c_void>) {
        // SAFETY: the operation takes this structure, and changes no memory. There is no error but wrong arguments.
        let _ = unsafe { ioctl(&self.0, Updater::<WAKE, _>::new(&mut of(bytes))) };
    }
}

fn of(bytes: Range<*mut c_void>) -> Bytes {
    Bytes {
        begin: bytes.start.addr() as u64,
        length: (bytes.end.addr() - bytes.start.addr()) as u64,
    }
}
