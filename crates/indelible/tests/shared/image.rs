//! Images of pools that are in use: what a `kill -9` would leave.

use std::cell::RefCell;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes that are written to an image together, unless all of them are zero.
const CHUNK: usize = 16 << 10;

thread_local! {
    /// Two copies of a file. Kept for their memory, which takes longer to get than to fill.
    static COPIES: RefCell<[Vec<u8>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// Reads the whole file.
fn read(path: &Path, copy: &mut Vec<u8>) {
    copy.clear();
    File::open(path).unwrap().read_to_end(copy).unwrap();
}

/// Writes a file that is read as these bytes.
fn write(path: &Path, bytes: &[u8]) {
    let file = File::create(path).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    for (at, chunk) in (0..).step_by(CHUNK).zip(bytes.chunks(CHUNK)) {
        if *chunk != [0; CHUNK][..chunk.len()] {
            file.write_all_at(chunk, at).unwrap();
        }
    }
}

/// Copies the file of a pool that is in use.
///
/// A process that is killed leaves the stores of one moment. A copy takes longer, and after an open a thread of the library is still at work in
/// the file. So the file is read until it has the same content twice in turn: that was the content at the moment between them.
pub fn copy_of_one_moment(path: &Path, image: &Path) {
    const MOST_COPIES: usize = 1_000;
    COPIES.with_borrow_mut(|[before, copy]| {
        read(path, before);
        for _ in 0..MOST_COPIES {
            read(path, copy);
            if copy == before {
                return write(image, copy);
            }
            std::mem::swap(before, copy);
        }
        panic!("{path:?} changes all the time");
    });
}

/// Makes the file what it was at one moment while the pool was in use, and nothing that `close` would add. `close` drops what uses it.
pub fn crash(path: &Path, close: impl FnOnce()) {
    let image = path.with_extension("image");
    copy_of_one_moment(path, &image);
    close();
    std::fs::rename(&image, path).unwrap();
}
