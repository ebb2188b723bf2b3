//! Tests of opening files.

use crate::pool::system::{Call, faults};
use crate::{Error, Pool, PoolOptions, Result};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whoever has a pool's file locked may remove it, or give its name to another one, before it is locked here.
#[test]
fn a_file_that_is_replaced_while_it_is_opened_is_not_the_one_that_is_used() {
    let directory = tempfile::tempdir().unwrap();
    let [path, other] = ["a.pool", "b.pool"].map(|name| directory.path().join(name));
    let opens: [fn(&PoolOptions, &Path) -> Result<Pool>; 2] = [
        |options, path| options.open(path),
        |options, path| options.open_or_create(path),
    ];
    for open in opens {
        for is_replaced in [true, false] {
            for (path, records) in [(&path, 1), (&other, 2)] {
                let pool = PoolOptions::new().create(path).unwrap();
                let kept = pool.map::<u64, u64>("kept").unwrap();
                kept.extend((0..records).map(|i| (i, i))).unwrap();
            }
            let (from, to) = (other.clone(), path.clone());
            let mut is_first = true;
            let told = move |call| {
                if call != Call::Lock || !std::mem::take(&mut is_first) {
                } else if is_replaced {
                    std::fs::rename(&from, &to).unwrap();
                } else {
                    std::fs::remove_file(&to).unwrap();
                }
            };
            let opened = faults::telling(told, || open(&PoolOptions::new(), &path));
            match opened {
                Ok(pool) => {
                    let kept = pool.map::<u64, u64>("kept").unwrap();
                    assert_eq!(kept.len().unwrap(), if is_replaced { 2 } else { 0 });
                    kept.insert(1 << 40, 7).unwrap();
                    drop(kept);
                    pool.close().unwrap();
                    let pool = PoolOptions::new().open(&path).unwrap();
                    let kept = pool.map::<u64, u64>("kept").unwrap();
                    assert_eq!(kept.get(1 << 40).unwrap(), Some(7));
                }
                Err(Error::Io { source, .. }) => {
                    assert!(!is_replaced);
                    assert_eq!(source.kind(), std::io::ErrorKind::NotFound);
                }
                Err(error) => panic!("{error}"),
            }
            let _ = std::fs::remove_file(&path);
            let _ = std::fs::remove_file(&other);
        }
    }
}

/// Where there are no files without a name, a new pool has a hidden one at first, which is longer than its own.
#[test]
fn a_pool_may_have_the_longest_name_also_where_it_has_a_hidden_one_first() {
    let directory = tempfile::tempdir().unwrap();
    // No text in any encoding.
    let long = [0xff; 255];
    let mut without = 0;
    for failing in 1.. {
        let create = |name: &[u8]| {
            let path = directory.path().join(OsStr::from_bytes(name));
            let create = || PoolOptions::new().create(&path).map(drop);
            let created = faults::at(failing, Errno::OPNOTSUPP, create);
            let _ = std::fs::remove_file(&path);
            created
        };
        let [(short, was_reached), (long, _)] = [create(b"short"), create(&long)];
        assert_eq!(short.is_ok(), long.is_ok(), "call {failing}: {long:?}");
        if !was_reached {
            break;
        }
        without += u32::from(short.is_ok());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
    assert!(without > 0);
}
