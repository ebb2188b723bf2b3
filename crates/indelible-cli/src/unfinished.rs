//! Loads that fail when they have added a part of their records.

use anyhow::{Error, Result};

/// What another load of the same file does with the records that are there already: in a map it sets them again.
pub const SETS_THEM_AGAIN: &str = "another load of the same file goes on";

/// In a spatial index, which may have equal records.
pub const ADDS_THEM_AGAIN: &str = "another load of the same file adds them again";

/// Runs `add`, which adds `count` records to the object `name` in several steps. If it fails between them, the error says how many of the
/// records stay, and what that means for another load.
pub fn add_in_steps(
    name: &str,
    count: usize,
    again: &str,
    len: impl Fn() -> indelible::Result<u64>,
    add: impl FnOnce() -> indelible::Result<()>,
) -> Result<()> {
    let before = len()?;
    let Err(error) = add() else {
        return Ok(());
    };
    let error = Error::from(error);
    Err(match len() {
        Ok(now) if now > before => error.context(format!(
            "{} of {count} records were added to {name:?} and stay; {again}",
            now - before
        )),
        _ => error,
    })
}
