//! Pool files by name: what is refused, what a creation that is cut short leaves behind, and limits of the process.

use crate::child::{CHILD, child, in_child};
use crate::death::log_of;
use indelible::{Durability, Error, Pool, PoolOptions};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXTENT: u64 = 2 << 20;

fn limit(resource: Resource, bytes: u64) {
    let (current, maximum) = (Some(bytes), Some(bytes));
    setrlimit(resource, Rlimit { current, maximum }).unwrap();
}

#[test]
fn a_limit_on_the_length_of_files_is_an_error_and_not_a_signal() {
    in_child(
        module_path!(),
        "a_limit_on_the_length_of_files_is_an_error_and_not_a_signal",
        |directory| {
            let path = directory.join("limited.pool");
            limit(Resource::Fsize, 5 * EXTENT + 100);
            let pool = Pool::create(&path).unwrap();
            let map = pool.map::<u64, u64>("m").unwrap();
            let refused = (0..).find_map(|i| map.insert(i, i).err()).unwrap();
            assert!(matches!(refused, Error::NoSpace(_)), "{refused}");
            let text = refused.to_string();
            assert!(
                text.contains("RLIMIT_FSIZE") && text.contains("10485860"),
                "{text}"
            );
            assert_eq!(pool.stat().file_bytes, 5 * EXTENT);
            assert_eq!(map.check().unwrap(), [""; 0]);
            drop(map);
            pool.close().unwrap();
            limit(Resource::Fsize, EXTENT / 2);
            // A pool that is longer than that is used all the same.
            let map = Pool::open(&path).unwrap().map::<u64, u64>("m").unwrap();
            assert_eq!(map.insert(0, 1).unwrap(), Some(0));
            let refused = Pool::create(directory.join("other.pool")).unwrap_err();
            assert!(matches!(refused, Error::NoSpace(_)), "{refused}");
            assert_eq!(std::fs::read_dir(directory).unwrap().count(), 1);
        },
    );
}

/// Unlike the kernel, which writes the pages of a mapped file whatever the limit is, a log and its applier write by calls.
#[test]
fn a_limit_on_the_length_of_files_is_no_signal_in_a_pool_with_a_log_either() {
    in_child(
        module_path!(),
        "a_limit_on_the_length_of_files_is_no_signal_in_a_pool_with_a_log_either",
        |directory| {
            let [path, dead] = ["limited.pool", "dead.pool"].map(|name| directory.join(name));
            let expect_refused = |error: Error| {
                assert!(matches!(error, Error::NoSpace(_)), "{error}");
                assert!(error.to_string().contains("RLIMIT_FSIZE"), "{error}");
            };
            let options = |durability| {
                PoolOptions::new()
                    .durability(durability)
                    .log_anywhere(true)
                    .to_owned()
            };
            let interval = Durability::Interval(Duration::from_millis(10));
            // The log may have 64 MiB, and becomes longer than this unless it is refused.
            limit(Resource::Fsize, 5 * EXTENT + 100);
            let pool = options(interval).create(&path).unwrap();
            let map = pool.map::<u64, u64>("m").unwrap();
            expect_refused((0..).find_map(|i| map.insert(i, i).err()).unwrap());
            assert_eq!(pool.stat().file_bytes, 5 * EXTENT);
            assert_eq!(map.check().unwrap(), [""; 0]);
            // What a process leaves that dies now, whole or not: it is not read.
            std::fs::copy(log_of(&path), log_of(&dead)).unwrap();
            std::fs::copy(&path, &dead).unwrap();
            drop(map);
            pool.close().unwrap();
            let closed = std::fs::read(&path).unwrap();
            limit(Resource::Fsize, EXTENT / 2);
            expect_refused(options(interval).open(&path).unwrap_err());
            assert!(std::fs::read(&path).unwrap() == closed);
            for durability in [interval, Durability::Process] {
                expect_refused(options(durability).open(&dead).unwrap_err());
            }
            // The pages of a pool without a log are written by the kernel.
            Pool::open(&path).unwrap_err();
            let pool = options(Durability::Process).open(&path).unwrap();
            pool.map::<u64, u64>("m").unwrap().insert(0, 1).unwrap();
        },
    );
}

#[test]
fn a_pool_leaves_address_space_to_the_rest_of_the_process() {
    in_child(
        module_path!(),
        "a_pool_leaves_address_space_to_the_rest_of_the_process",
        |directory| {
            let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
            let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
            let used = pages * rustix::param::page_size() as u64;
            // So little more than a power of two that nothing would be left if that much were taken.
            limit(Resource::As, used + (1 << 30) + 4 * EXTENT);
            let path = directory.join("small.pool");
            let pool = Pool::create(&path).unwrap();
            let map = pool.map::<u64, u64>("m").unwrap();
            let heap = vec![1_u8; 300 << 20];
            std::thread::spawn(move || map.insert(1, heap[7].into()).unwrap())
                .join()
                .unwrap();
            let other = Pool::create(directory.join("other.pool")).unwrap();
            other.map::<u64, u64>("m").unwrap().insert(1, 1).unwrap();
            pool.close().unwrap();
        },
    );
}

#[test]
fn what_is_not_a_file_is_refused_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let socket = directory.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let not_files = [
        fifo,
        socket,
        directory.path().to_owned(),
        PathBuf::from("/dev/zero"),
        PathBuf::from("/dev/tty"),
    ];
    for path in not_files {
        if !path.exists() {
            continue;
        }
        let (done, answer) = std::sync::mpsc::channel();
        let opened = path.clone();
        std::thread::spawn(move || {
            let options = PoolOptions::new();
            let results = [
                options.open_read_only(&opened),
                options.open(&opened),
                options.open_or_create(&opened),
            ];
            done.send(results.map(|result| matches!(result, Err(Error::NotAPool(_)))))
        });
        let answer = answer.recv_timeout(Duration::from_secs(20));
        assert_eq!(answer, Ok([true; 3]), "{}", path.display());
    }
}

#[test]
fn a_new_pool_is_for_its_owner_alone_unless_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let mode_of = |options: &PoolOptions, name: &str| {
        let path = directory.path().join(name);
        options.create(&path).unwrap();
        path.metadata().unwrap().permissions().mode() & 0o777
    };
    assert_eq!(mode_of(&PoolOptions::new(), "mine"), 0o600);
    assert_eq!(mode_of(PoolOptions::new().mode(0o400), "fixed"), 0o400);
    // What the umask of this process leaves of it.
    let plain = directory.path().join("plain");
    std::fs::write(&plain, "").unwrap();
    let plain = plain.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode_of(PoolOptions::new().mode(0o666), "ours"), plain);
}

#[test]
fn what_a_creation_left_that_was_cut_short_is_removed_by_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let write = |name: &str| std::fs::write(path(name), [0; 5000]).unwrap();
    let (left, locked) = (
        ".test.pool.0123456789abcdef0123456789abcdef",
        ".test.pool.00000000000000000000000000000000",
    );
    let others = [
        ".test.pool.0123456789abcdef0123456789abcde",
        ".test.pool.0123456789abcdef0123456789abcdeg",
        ".other.pool.0123456789abcdef0123456789abcdef",
        "test.pool.0123456789abcdef0123456789abcdef",
    ];
    [left, locked].into_iter().chain(others).for_each(write);
    let being_created = std::fs::File::open(path(locked)).unwrap();
    being_created.try_lock().unwrap();
    Pool::create(path("test.pool")).unwrap().close().unwrap();
    assert!(!path(left).exists(), "nobody has it locked");
    assert!(path(locked).exists(), "somebody is creating a pool");
    assert!(others.iter().all(|name| path(name).exists()));
}

#[test]
fn a_process_that_dies_while_it_creates_pools_leaves_no_hidden_files() {
    const TEST: &str = "a_process_that_dies_while_it_creates_pools_leaves_no_hidden_files";
    if let Some(directory) = std::env::var_os(CHILD) {
        loop {
            let path = Path::new(&directory).join("killed.pool");
            drop(Pool::create(&path).unwrap());
            std::fs::remove_file(&path).unwrap();
        }
    }
    let directory = tempfile::tempdir().unwrap();
    for round in 0..10 {
        let mut child = child(module_path!(), TEST, directory.path())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(40 + 7 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let names = std::fs::read_dir(directory.path()).unwrap();
        let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        let is_hidden = |name: &std::ffi::OsString| name.to_string_lossy().starts_with('.');
        assert!(!names.iter().any(is_hidden), "{names:?}");
        let path = directory.path().join("killed.pool");
        if path.exists() {
            drop(Pool::open(&path).unwrap());
            std::fs::remove_file(path).unwrap();
        }
    }
}

#[test]
fn an_error_names_the_path_that_was_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("missing").join("new.pool");
    let error = Pool::create(&path).unwrap_err().to_string();
    assert!(error.contains("missing/new.pool:"), "{error}");
    let error = Pool::create(directory.path()).unwrap_err().to_string();
    assert!(error.contains("exists"), "{error}");
}

#[test]
fn limits_may_be_anything() {
    let directory = tempfile::tempdir().unwrap();
    for (i, limit) in [0, 1, u64::MAX].into_iter().enumerate() {
        let path = directory.path().join(i.to_string());
        let mut options = PoolOptions::new();
        options.durability(Durability::PowerLoss).log_anywhere(true);
        let pool = options.log_bytes(limit).create(&path).unwrap();
        pool.map::<u64, u64>("m").unwrap().insert(1, 10).unwrap();
        pool.close().unwrap();
        let in_memory = PoolOptions::new().max_bytes(limit).in_memory();
        let made = in_memory.and_then(|pool| pool.map::<u64, u64>("m"));
        assert_eq!(made.is_ok(), limit == u64::MAX, "{limit}: {made:?}");
    }
}

#[test]
fn a_symbolic_link_to_nothing_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("link.pool");
    std::os::unix::fs::symlink(directory.path().join("nothing"), &path).unwrap();
    for refused in [
        Pool::create(&path),
        PoolOptions::new().open_or_create(&path),
    ] {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("a symbolic link to nothing"), "{refused}");
    }
}

/// The name of a log is longer than that of its pool. That is no log of another pool.
#[test]
fn a_name_too_long_for_that_of_a_log_is_called_so() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("n".repeat(253));
    let mut options = PoolOptions::new();
    options.durability(Durability::PowerLoss).log_anywhere(true);
    let expect_refused = |refused: indelible::Result<()>| {
        let error = refused.unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    };
    expect_refused(options.create(&path).map(drop));
    expect_refused(options.open_or_create(&path).map(drop));
    let other = tempfile::tempdir().unwrap();
    let pool = options.create(other.path().join("short.pool")).unwrap();
    expect_refused(pool.backup(&path));
    // It is no trouble where there is no log.
    Pool::create(&path).unwrap().close().unwrap();
    Pool::open(&path).unwrap();
}

/// A child has the same file and the same locks, and none of the threads. It may come to the end of its program and drop all that it has.
#[test]
fn a_pool_that_a_forked_child_drops_stays_that_of_its_parent() {
    in_child(
        module_path!(),
        "a_pool_that_a_forked_child_drops_stays_that_of_its_parent",
        |directory| {
            for (i, durability) in [
                Durability::Process,
                Durability::PowerLoss,
                Durability::Interval(Duration::from_millis(10)),
            ]
            .into_iter()
            .enumerate()
            {
                let path = directory.join(format!("{i}.pool"));
                let mut options = PoolOptions::new();
                options.durability(durability).log_anywhere(true);
                let pool = options.create(&path).unwrap();
                let map = pool.map::<u64, u64>("m").unwrap();
                map.extend((0..200_000).map(|i| (i, i))).unwrap();
                // SAFETY: the child drops what it has and ends.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    drop(map);
                    let refused = pool.close().is_err();
                    // SAFETY: it ends this process at once.
                    unsafe { libc::_exit(i32::from(!refused)) }
                }
                let mut status = -1;
                let ended = (0..2000).any(|_| {
                    std::thread::sleep(Duration::from_millis(10));
                    // SAFETY: the child is this process's, and `status` lives.
                    unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) == child }
                });
                if !ended {
                    // SAFETY: as above; nobody has waited for it yet.
                    unsafe { libc::kill(child, libc::SIGKILL) };
                }
                assert!(ended && status == 0, "{durability:?}: {ended}, {status}");
                let refused = Pool::open(&path);
                assert!(matches!(refused, Err(Error::Locked(_))), "{refused:?}");
                let copy = path.with_extension("copy");
                std::fs::copy(&path, &copy).unwrap();
                let read = PoolOptions::new().open_read_only(&copy);
                assert!(matches!(read, Err(Error::NotClean)), "{read:?}");
                map.insert(1, 2).unwrap();
                drop(map);
                pool.close().unwrap();
                let map = options.open(&path).unwrap().map::<u64, u64>("m").unwrap();
                assert_eq!(map.len().unwrap(), 200_000);
                assert_eq!(map.get(1).unwrap(), Some(2));
            }
        },
    );
}
