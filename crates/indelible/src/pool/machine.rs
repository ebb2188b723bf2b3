//! What the machine and its system offer to a pool.

use super::files::io_error;
use super::mapping::{RAMFS, TMPFS};
use super::superblock::Promise;
use super::system;
use crate::pmem::{FlushInstruction, Medium};
use crate::{Error, Result};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::File;
use std::path::Path;

/// The medium that keeps a promise on this machine.
pub(super) fn medium_of(promise: Promise) -> Result<Medium> {
    if promise == Promise::Process {
        return Ok(Medium::Process);
    }
    if promise.is_logged() {
        return Ok(Medium::Disk);
    }
    if FlushInstruction::detect() == FlushInstruction::None {
        return Err(Error::NoPowerLossSafety(
            "this CPU has no instruction to write a cache line back",
        ));
    }
    Ok(if promise == Promise::PowerLoss && has_eadr() {
        Medium::PmemEadr
    } else {
        Medium::Pmem
    })
}

/// An error of a question about a file, which says nothing of the file.
fn not_told(errno: Errno) -> Error {
    Error::Io {
        action: "find out what memory is behind",
        path: "the pool".into(),
        source: errno.into(),
    }
}

/// Whether the file can be mapped so that stores reach persistent memory without the page cache.
pub(super) fn is_persistent_memory(file: &File) -> Result<bool> {
    let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
    // SAFETY: a new mapping at an address of the kernel's choice, which nobody accesses.
    let mapped =
        unsafe { system::map(std::ptr::null_mut(), 4096, ProtFlags::READ, flags, file, 0) };
    let address = match mapped {
        Ok(address) => address,
        // What file systems and kernels say that do not know this.
        Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NODEV) => return Ok(false),
        Err(errno) => return Err(not_told(errno)),
    };
    // SAFETY: the mapping just made.
    let _ = unsafe { system::unmap(address, 4096) };
    Ok(true)
}

/// Whether the file is on a file system whose files are memory.
pub(super) fn is_in_memory(file: &File) -> Result<bool> {
    let system = system::file_system(file).map_err(not_told)?;
    Ok([TMPFS, RAMFS].contains(&system))
}

/// Whether the platform says that its caches survive power loss, for every region of persistent memory.
fn has_eadr() -> bool {
    let Ok(devices) = std::fs::read_dir("/sys/bus/nd/devices") else {
        return false;
    };
    let domains: Vec<String> = devices
        .flatten()
        .filter_map(|device| std::fs::read_to_string(device.path().join("persistence_domain")).ok())
        .collect();
    !domains.is_empty() && domains.iter().all(|domain| domain.trim() == "cpu_cache")
}

/// Identifies this boot of this machine; all zero where the system does not tell.
pub(super) fn boot_identity() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes()
}

/// A number that no other pool has.
pub(super) fn random_uuid() -> Result<[u64; 2]> {
    let mut bytes = [0; 16];
    let source = Path::new("/dev/urandom");
    system::open(source, OFlags::RDONLY, 0)
        .and_then(|random| system::read_at(&random, &mut bytes, 0))
        .map_err(|errno| io_error("read", source, errno))?;
    let number = u128::from_ne_bytes(bytes);
    Ok([number as u64, (number >> 64) as u64])
}
