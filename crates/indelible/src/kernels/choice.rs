//! Which instruction set this process uses: the best that the CPU has, or the one that `INDELIBLE_KERNEL` names.
//!
//! The variable is for measurements and tests: it makes a machine with AVX-512 do what one without does. It is read once, before
//! the first map is opened.

use super::SimdLevel;
use crate::{Error, Result};
use std::ffi::OsStr;
use std::sync::OnceLock;

/// The variable of the environment that forces an instruction set.
const VARIABLE: &str = "INDELIBLE_KERNEL";

impl SimdLevel {
    /// What `INDELIBLE_KERNEL` calls it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            #[cfg(all(target_arch = "x86_64", not(loom)))]
            Self::Avx512 => "avx512",
            #[cfg(all(target_arch = "x86_64", not(loom)))]
            Self::Avx2 => "avx2",
            Self::Plain => "portable",
        }
    }

    /// The one that this process uses. Asked for when a map is opened, and for each range.
    ///
    /// # Panics
    ///
    /// If `INDELIBLE_KERNEL` names one that this machine has not. No map opens then: see [`expect_kernel`].
    pub(crate) fn best() -> Self {
        match chosen() {
            Ok(level) => *level,
            Err(why) => panic!("{why}"),
        }
    }
}

/// The choice, made once.
fn chosen() -> &'static std::result::Result<SimdLevel, String> {
    static CHOSEN: OnceLock<std::result::Result<SimdLevel, String>> = OnceLock::new();
    CHOSEN.get_or_init(|| choose(std::env::var_os(VARIABLE).as_deref()))
}

/// The best that this machine has, or the one that is asked for by name.
fn choose(forced: Option<&OsStr>) -> std::result::Result<SimdLevel, String> {
    let available = SimdLevel::available();
    // Empty is what a script leaves that wants none.
    let Some(forced) = forced.filter(|name| !name.is_empty()) else {
        return Ok(available[0]);
    };
    let named = available.iter().find(|level| forced == level.name());
    named.copied().ok_or_else(|| {
        let names: Vec<&str> = available.iter().map(|level| level.name()).collect();
        format!(
            "{VARIABLE}={}: this machine has no kernel of that name, but {}",
            forced.display(),
            names.join(", ")
        )
    })
}

/// Fails if `INDELIBLE_KERNEL` names a kernel that this machine has not. Every map asks this when it is opened.
pub(crate) fn expect_kernel() -> Result<()> {
    kernel().map(drop)
}

/// The kernel that this process uses: `avx512`, `avx2` or `portable`. Keys are compared with whole cache lines of keys by the best
/// instructions that the CPU has; `INDELIBLE_KERNEL=portable` in the environment, say, makes the process use others, for tests and
/// measurements.
///
/// # Errors
///
/// [`Error::BadOption`] if `INDELIBLE_KERNEL` names a kernel that this machine has not. No map can be opened then.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// println!("{} of {:?}", indelible::kernel()?, indelible::kernels());
/// # Ok(())
/// # }
/// ```
pub fn kernel() -> Result<&'static str> {
    match chosen() {
        Ok(level) => Ok(level.name()),
        Err(why) => Err(Error::BadOption(why.clone())),
    }
}

/// The kernels that this machine has, best first. The last one is `portable`, which needs no special instructions.
///
/// # Examples
///
/// ```
/// assert!(indelible::kernels().contains(&"portable"));
/// ```
#[must_use]
pub fn kernels() -> Vec<&'static str> {
    let available = SimdLevel::available();
    available.into_iter().map(SimdLevel::name).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_chosen_by_name_among_those_that_the_machine_has() {
        for level in SimdLevel::available() {
            assert_eq!(choose(Some(level.name().as_ref())), Ok(level));
        }
        assert_eq!(choose(None), Ok(SimdLevel::available()[0]));
        assert_eq!(choose(Some("".as_ref())), choose(None));
        for absent in ["avx1024", "AVX2", "plain"] {
            let why = choose(Some(absent.as_ref())).unwrap_err();
            assert!(why.contains(absent) && why.contains("portable"), "{why}");
        }
    }
}
