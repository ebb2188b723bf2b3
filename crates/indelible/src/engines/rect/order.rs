//! Records in the order of the places of their centres on a Hilbert curve, for bulk loads.

use super::Record;
use crate::concurrency::parallel::in_parallel;
use crate::concurrency::sync::lock;
use crate::spatial::{Geometry, Grid};
use crate::{Error, Result};
use std::sync::Mutex;

/// Bits of a code by which records are divided before each part is sorted, by all threads.
const DIVIDING_BITS: u32 = 11;

/// Codes that are computed at a time.
const CODES_TOGETHER: usize = 256;

/// A record to sort: its code, and its number among the records.
pub(in crate::engines) type Coded = (u64, u32);

/// An error if there are more records than [`order_by_curve`] can number.
pub(in crate::engines) fn expect_numbers(records: usize) -> Result<()> {
    if u32::try_from(records).is_err() {
        return Err(Error::BadOption(format!(
            "a bulk load takes at most {} records, not {records}",
            u32::MAX
        )));
    }
    Ok(())
}

/// The records' codes and numbers, in the order of keys.
pub(in crate::engines) fn order_by_curve<G: Geometry>(
    grid: &Grid,
    records: &[(G, u64)],
    helpers: usize,
) -> Vec<Coded> {
    let mut coded: Vec<Coded> = vec![(0, 0); records.len()];
    let part = records.len().div_ceil((helpers + 1) * 8).max(1);
    {
        let work = Mutex::new(coded.chunks_mut(part).enumerate());
        let next = || lock(&work).next();
        in_parallel(helpers, || {
            while let Some((number, coded)) = next() {
                let mut codes = [0; CODES_TOGETHER];
                for (some, coded) in coded.chunks_mut(CODES_TOGETHER).enumerate() {
                    let first = number * part + some * CODES_TOGETHER;
                    let codes = &mut codes[..coded.len()];
                    grid.codes_of(|i| records[first + i].0, codes);
                    for (i, (coded, code)) in coded.iter_mut().zip(codes).enumerate() {
                        *coded = (*code, (first + i) as u32);
                    }
                }
            }
        });
    }
    let coded = divide(grid, &coded);
    sort_parts(coded, records, helpers)
}

/// The number of the part that a code belongs to.
fn part_of(grid: &Grid, code: u64) -> usize {
    let bits = 64 - grid.last_code().leading_zeros();
    (code >> (bits - DIVIDING_BITS)) as usize
}

/// The records divided into parts by the first bits of their codes, and where the parts end.
fn divide(grid: &Grid, coded: &[Coded]) -> (Vec<Coded>, Vec<usize>) {
    let mut ends = vec![0; 1 << DIVIDING_BITS];
    for &(code, _) in coded {
        ends[part_of(grid, code)] += 1;
    }
    let mut begin = 0;
    for end in &mut ends {
        begin += std::mem::replace(end, begin);
    }
    let mut divided = vec![(0, 0); coded.len()];
    for record in coded {
        // What is the begin of a part becomes its end, record by record.
        let at = &mut ends[part_of(grid, record.0)];
        divided[*at] = *record;
        *at += 1;
    }
    (divided, ends)
}

fn sort_parts<G: Geometry>(
    (mut divided, ends): (Vec<Coded>, Vec<usize>),
    records: &[(G, u64)],
    helpers: usize,
) -> Vec<Coded> {
    let tie = |&(_, at): &Coded| {
        let (shape, payload) = &records[at as usize];
        Record::new(shape, *payload).tie::<G>()
    };
    let mut parts = Vec::new();
    let (mut rest, mut begin) = (&mut divided[..], 0);
    for end in ends {
        let (part, more) = rest.split_at_mut(end - begin);
        if part.len() > 1 {
            parts.push(part);
        }
        (rest, begin) = (more, end);
    }
    // Large parts first, so that all threads end at about the same time.
    parts.sort_unstable_by_key(|part| part.len());
    let parts = Mutex::new(parts);
    let next = || lock(&parts).pop();
    in_parallel(helpers, || {
        while let Some(part) = next() {
            // By codes alone first: a comparison that may look further has branches, which cannot be predicted.
            part.sort_unstable_by_key(|coded| coded.0);
            for equal in part.chunk_by_mut(|a, b| a.0 == b.0) {
                if equal.len() > 1 {
                    equal.sort_unstable_by_key(tie);
                }
            }
        }
    });
    divided
}
