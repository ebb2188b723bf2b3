//! A batch through the bytes of a record, for the crash checker.

use crate::pmem::journal::Word;
use crate::pool::log::record::{self, Encoded, HEADER_WORDS, Identity, Record, runs};
use std::sync::atomic::AtomicU64;

/// Writes a batch to the bytes of a record, reads it from them, and returns what the applier would write: for the crash checker.
#[must_use]
pub fn through_the_log(batch: &[Word]) -> Option<Vec<Word>> {
    let identity = Identity {
        uuid: [1, 2],
        generation: 3,
    };
    let mut encoded = Encoded::default();
    encoded.set(batch);
    encoded.seal(&identity, HEADER_WORDS as u64 * 8);
    let record = encoded.words().iter().map(|&word| AtomicU64::new(word));
    let segment: Vec<AtomicU64> = (0..HEADER_WORDS)
        .map(|_| AtomicU64::new(0))
        .chain(record)
        .collect();
    let mut payload = Vec::new();
    match record::read(&identity, &segment, 0, HEADER_WORDS, &mut payload)? {
        (Record::Batch, _) => {
            let runs = runs(&payload);
            Some(
                runs.flat_map(|(at, words)| (at..).zip(words.iter().copied()))
                    .collect(),
            )
        }
        (Record::Padding, _) => None,
    }
}
