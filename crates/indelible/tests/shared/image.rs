//! Images of pools that are in use: what a `kill -9` would leave.

use std::path::Path;

/// Copies the file of a pool that is in use.
///
/// A process that is killed leaves the stores of one moment. A copy takes longer, and after an open a thread of the library is still at work in
/// the file. So the file is copied until two copies in turn have the same content: that was the content at the moment between them.
pub fn copy_of_one_moment(path: &Path, image: &Path) {
    const MOST_COPIES: usize = 1_000;
    let mut before = std::fs::read(path).unwrap();
    for _ in 0..MOST_COPIES {
        std::fs::copy(path, image).unwrap();
        let copied = std::fs::read(image).unwrap();
        if copied == before {
            return;
        }
        before = copied;
    }
    panic!("{path:?} changes all the time");
}

/// Makes the file what it was at one moment while the pool was in use, and nothing that `close` would add. `close` drops what uses it.
pub fn crash(path: &Path, close: impl FnOnce()) {
    let image = path.with_extension("image");
    copy_of_one_moment(path, &image);
    close();
    std::fs::rename(&image, path).unwrap();
}
