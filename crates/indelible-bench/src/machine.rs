//! The machine: what it is, how its memory does right now, what a process takes of it.

use crate::outcome::{Machine, Probe};
use std::fs;
use std::hint::black_box;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Instant;

/// The first field of this name in a file of the system that has a field in each line.
fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?.to_owned();
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Bytes of memory of this machine; 0 if it does not say so.
#[must_use]
pub fn memory_bytes() -> u64 {
    let memory = field("/proc/meminfo", "MemTotal").unwrap_or_default();
    memory.trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024
}

/// What the system says about this machine, and about these directories.
#[must_use]
pub fn describe(directories: &[&Path]) -> Machine {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let profile = if cfg!(debug_assertions) {
        "debug build"
    } else {
        "release build"
    };
    Machine {
        cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.into()),
        cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
        memory_bytes: memory_bytes(),
        files: directories
            .iter()
            .map(|directory| format!("{} on {}", directory.display(), file_system(directory)))
            .collect::<Vec<_>>()
            .join(", "),
        system: format!("{} {}", std::env::consts::OS, kernel.trim()),
        build: format!("indelible {}, {profile}", env!("CARGO_PKG_VERSION")),
        kernel: indelible::kernel().unwrap_or_default().to_owned(),
    }
}

/// The kind of file system that a directory is on: `tmpfs`, `ext4`.
#[must_use]
pub fn file_system(directory: &Path) -> String {
    // One that is to be made will be on that of the nearest directory above it that is there.
    let path = std::path::absolute(directory).unwrap_or_else(|_| directory.into());
    let there = path.ancestors().find_map(|path| path.canonicalize().ok());
    let path = there.unwrap_or(path);
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mount = |line: &str| -> Option<(usize, String)> {
        let mut words = line.split(' ').skip(1);
        let (place, kind) = (words.next()?, words.next()?);
        path.starts_with(place)
            .then(|| (place.len(), kind.to_owned()))
    };
    // Of several mounts at one place the last one counts.
    let nearest = mounts
        .lines()
        .filter_map(mount)
        .max_by_key(|(length, _)| *length);
    nearest.map_or_else(|| "an unknown file system".into(), |(_, kind)| kind)
}

/// Now, in UTC: `2026-11-21 13:46`.
#[must_use]
pub fn date() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seconds = since.map_or(0, |since| since.as_secs());
    let (days, minutes) = ((seconds / 86_400) as i64, seconds % 86_400 / 60);
    // Days to a civil date by Howard Hinnant's algorithm: years begin in March, so that leap days come last.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}",
        minutes / 60,
        minutes % 60
    )
}

/// Reads random lines among 256 MiB, first so that reads overlap, then so that each waits for the last.
#[must_use]
pub fn probe_memory() -> Probe {
    const LINES: usize = 4 << 20;
    const READS: u64 = 200_000;
    // Kept until the process ends: memory that is freed before a measurement disturbs the measurement.
    static MEMORY: OnceLock<Vec<[u64; 8]>> = OnceLock::new();
    let lines = MEMORY.get_or_init(|| {
        // A full cycle through all lines: the multiplier and increment meet the Hull-Dobell conditions.
        let next = |i: u64| i.wrapping_mul(0x5851_f42d).wrapping_add(12345) % LINES as u64;
        let mut lines = vec![[0; 8]; LINES];
        for (i, line) in lines.iter_mut().enumerate() {
            line[0] = next(i as u64);
        }
        lines
    });
    let nanoseconds = |reads: &dyn Fn() -> u64| {
        let start = Instant::now();
        black_box(reads());
        start.elapsed().as_nanos() as f64 / READS as f64
    };
    // The high bits of a multiple of an odd number visit lines in an order that no prefetcher foresees.
    let scattered = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 42) as usize % LINES;
    Probe {
        independent_ns: nanoseconds(&|| {
            (0..READS).fold(0, |sum: u64, i| sum.wrapping_add(lines[scattered(i)][0]))
        }),
        dependent_ns: nanoseconds(&|| (0..READS).fold(0, |here: u64, _| lines[here as usize][0])),
    }
}

/// Bytes that files below `directory` take on their file system.
#[must_use]
pub fn bytes_below(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else {
        return 0;
    };
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let about = entry.metadata().ok()?;
            Some(if about.is_dir() {
                bytes_below(&entry.path())
            } else {
                about.blocks() * 512
            })
        })
        .sum()
}

/// A figure of this process from `/proc/self/status`, in bytes: `RssAnon`, `VmRSS`, `VmHWM`.
#[must_use]
pub fn of_process(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.trim_start_matches(':').split_whitespace().next());
    number
        .and_then(|number| number.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

/// Starts the kernel's record of the most memory this process ever had anew.
pub fn forget_peak() {
    // Where the kernel refuses, the peak is that of the whole process: too high, never too low.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_to_be_made_is_on_the_file_system_above_it() {
        let here = file_system(Path::new("."));
        assert_eq!(file_system(Path::new("no/such/directory")), here);
        assert_eq!(file_system(Path::new("/proc/no")), "proc");
    }
}
