//! `__disk`: a disk with a volatile write cache, for virtual machines (`.ci/virtual-machine`).
//!
//! QEMU reaches the disk by the NBD protocol through a socket. The disk keeps what it has on the medium and what it has only in its cache.
//! A flush, and a write with the flag for forced unit access, bring sectors from the cache to the medium; nothing else does. On the command
//! `cut FILE SEED` on the standard input it writes to a file what a power cut at this moment may leave: of each sector in the cache, what
//! the medium has or what the cache has, at random. Sectors are not torn: file systems rely on whole ones.

use crate::output::Output;
use crate::torture::Random;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::ops::Range;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Moments that a cut looks for one at which enough is in the cache.
const MOMENTS: usize = 10_000;
/// Bytes that are on the medium as a whole or not at all.
const SECTOR: usize = 512;

/// A disk with a volatile write cache, over NBD.
#[derive(Args)]
pub struct VolatileDisk {
    /// What the disk has at first. The file is read and stays as it is.
    image: PathBuf,
    /// Where QEMU connects.
    socket: PathBuf,
    /// Ignore flushes. For tests of the tests.
    #[arg(long)]
    lying: bool,
}

impl VolatileDisk {
    /// Serves one connection, and cuts until the standard input ends.
    pub fn run(self, output: &Output) -> Result<bool> {
        let bytes = std::fs::read(&self.image).context("read the image")?;
        let disk = Mutex::new(Disk {
            cached: bytes.clone(),
            medium: bytes,
            dirty: BTreeSet::new(),
            is_honest: !self.lying,
        });
        let listener = UnixListener::bind(&self.socket)?;
        output.line("ready")?;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // QEMU is killed in the middle of anything, so an error here is no news.
                if let Ok((mut stream, _)) = listener.accept() {
                    let _ = serve(&mut stream, &disk);
                }
            });
            for line in std::io::stdin().lines() {
                let line = line?;
                let words: Vec<&str> = line.split_whitespace().collect();
                let ["cut", file, seed] = words[..] else {
                    bail!("{line:?} is no command");
                };
                let mut random = Random(seed.parse().context("the seed is no number")?);
                let (left, lost, kept) = wait_for_cached(&disk, &mut random).cut(&mut random);
                std::fs::write(file, left)?;
                output.line(format_args!(
                    "cut: of the sectors in the cache {lost} lost, {kept} kept"
                ))?;
            }
            // Threads that wait for QEMU are not waited for.
            std::process::exit(0)
        })
    }
}

fn lock(disk: &Mutex<Disk>) -> MutexGuard<'_, Disk> {
    disk.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits a little for a moment at which something is in the cache: as little as one sync of the log brings, or more, as when the pool's
/// file is written.
fn wait_for_cached<'a>(disk: &'a Mutex<Disk>, random: &mut Random) -> MutexGuard<'a, Disk> {
    let least = [1, 9, 65][random.below(3) as usize];
    for _ in 0..MOMENTS {
        let disk = lock(disk);
        if disk.dirty.len() >= least {
            return disk;
        }
        drop(disk);
        std::thread::sleep(Duration::from_micros(100));
    }
    lock(disk)
}

/// What the disk has.
struct Disk {
    medium: Vec<u8>,
    /// What is read: the cache where there is something in it, and else the medium.
    cached: Vec<u8>,
    /// Sectors in the cache.
    dirty: BTreeSet<usize>,
    is_honest: bool,
}

impl Disk {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.cached[at..at + bytes.len()].copy_from_slice(bytes);
        self.dirty
            .extend(at / SECTOR..(at + bytes.len()).div_ceil(SECTOR));
    }

    /// Brings these sectors to the medium.
    fn flush(&mut self, sectors: Range<usize>) {
        if !self.is_honest {
            return;
        }
        let flushed: Vec<usize> = self.dirty.range(sectors).copied().collect();
        for sector in flushed {
            self.dirty.remove(&sector);
            let bytes = sector * SECTOR..(sector + 1) * SECTOR;
            self.medium[bytes.clone()].copy_from_slice(&self.cached[bytes]);
        }
    }

    /// What a power cut may leave, and how many sectors of the cache it has lost and kept.
    fn cut(&self, random: &mut Random) -> (Vec<u8>, u64, u64) {
        let mut left = self.medium.clone();
        let (mut lost, mut kept) = (0, 0);
        // From nearly nothing that was in the cache to nearly everything.
        let share = random.below(5);
        for &sector in &self.dirty {
            if random.below(4) < share {
                let bytes = sector * SECTOR..(sector + 1) * SECTOR;
                left[bytes.clone()].copy_from_slice(&self.cached[bytes]);
                kept += 1;
            } else {
                lost += 1;
            }
        }
        (left, lost, kept)
    }
}

// The protocol: https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY_MAGIC: u64 = 0x3_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const OPTION_EXPORT_NAME: u32 = 1;
const OPTION_ABORT: u32 = 2;
const OPTION_INFO: u32 = 6;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const REPLY_UNSUPPORTED: u32 = 0x8000_0001;
/// The disk has flags, and knows flushes and forced unit access.
const DISK_FLAGS: u16 = 1 | 4 | 8;
/// Requests of more bytes are refused.
const LONGEST: usize = 32 << 20;

fn number<const N: usize>(stream: &mut impl Read) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Agrees with the client on what the disk is. `false` if the client wants nothing more.
fn negotiate(stream: &mut UnixStream, size: u64) -> Result<bool> {
    // Fixed newstyle, and no zeros after the reply to an export's name.
    stream.write_all(&[&b"NBDMAGICIHAVEOPT"[..], &3u16.to_be_bytes()].concat())?;
    number::<4>(stream)?;
    let export = [
        size.to_be_bytes().to_vec(),
        DISK_FLAGS.to_be_bytes().to_vec(),
    ]
    .concat();
    loop {
        ensure!(
            u64::from_be_bytes(number(stream)?) == OPTION_MAGIC,
            "no option"
        );
        let option = u32::from_be_bytes(number(stream)?);
        let length = u32::from_be_bytes(number(stream)?) as usize;
        ensure!(length <= LONGEST, "an option of {length} bytes");
        stream.read_exact(&mut vec![0; length])?;
        let mut reply = |kind: u32, data: &[u8]| {
            let head = [option, kind, data.len() as u32].map(u32::to_be_bytes);
            let head = [&OPTION_REPLY_MAGIC.to_be_bytes()[..], &head.concat()].concat();
            stream.write_all(&[&head, data].concat())
        };
        match option {
            OPTION_EXPORT_NAME => {
                stream.write_all(&export)?;
                return Ok(true);
            }
            OPTION_INFO | OPTION_GO => {
                reply(REPLY_INFO, &[&[0, 0], &export[..]].concat())?;
                reply(REPLY_ACK, &[])?;
                if option == OPTION_GO {
                    return Ok(true);
                }
            }
            OPTION_ABORT => {
                reply(REPLY_ACK, &[])?;
                return Ok(false);
            }
            _ => reply(REPLY_UNSUPPORTED, &[])?,
        }
    }
}

/// Does what the client asks for, one request after the other.
fn serve(stream: &mut UnixStream, disk: &Mutex<Disk>) -> Result<()> {
    let size = lock(disk).medium.len();
    if !negotiate(stream, size as u64)? {
        return Ok(());
    }
    let mut requests = BufReader::with_capacity(1 << 20, stream.try_clone()?);
    loop {
        if requests.fill_buf().map_err(|error| error.kind()) == Err(ErrorKind::UnexpectedEof) {
            return Ok(());
        }
        ensure!(
            u32::from_be_bytes(number(&mut requests)?) == REQUEST_MAGIC,
            "no request"
        );
        let is_forced = u16::from_be_bytes(number(&mut requests)?) & 1 != 0;
        let kind = u16::from_be_bytes(number(&mut requests)?);
        let handle: [u8; 8] = number(&mut requests)?;
        let at = u64::from_be_bytes(number(&mut requests)?) as usize;
        let length = u32::from_be_bytes(number(&mut requests)?) as usize;
        let mut data = Vec::new();
        let is_inside = length <= LONGEST && at.checked_add(length).is_some_and(|end| end <= size);
        match kind {
            0 | 1 if !is_inside => bail!("{length} bytes at {at} are not on the disk"),
            0 => data = lock(disk).cached[at..at + length].to_vec(),
            1 => {
                let mut bytes = vec![0; length];
                requests.read_exact(&mut bytes)?;
                let mut disk = lock(disk);
                disk.write(at, &bytes);
                if is_forced {
                    disk.flush(at / SECTOR..(at + length).div_ceil(SECTOR));
                }
            }
            2 => return Ok(()),
            3 => lock(disk).flush(0..size / SECTOR),
            _ => bail!("request {kind} is not known"),
        }
        let head = [REPLY_MAGIC, 0].map(u32::to_be_bytes).concat();
        stream.write_all(&[&head, &handle[..], &data].concat())?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_flushed_survives_and_what_was_not_may() {
        let mut disk = Disk {
            medium: vec![1; 8 * SECTOR],
            cached: vec![1; 8 * SECTOR],
            dirty: BTreeSet::new(),
            is_honest: true,
        };
        disk.write(0, &[2; 4 * SECTOR]);
        disk.flush(0..8);
        disk.write(2 * SECTOR, &[3; 4 * SECTOR]);
        // By forced unit access.
        disk.flush(2..3);
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            let (left, lost, kept) = disk.cut(&mut Random(seed));
            assert_eq!(lost + kept, 3);
            let firsts: Vec<u8> = left.chunks(SECTOR).map(|sector| sector[0]).collect();
            assert_eq!((&firsts[..3], &firsts[6..]), (&[2, 2, 3][..], &[1, 1][..]));
            seen.insert(firsts[3..6].to_vec());
        }
        assert_eq!(seen.len(), 8, "every mixture is met");
        assert_eq!(disk.cached[5 * SECTOR], 3);
    }
}
