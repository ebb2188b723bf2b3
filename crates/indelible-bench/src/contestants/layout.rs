//! Ours laid out otherwise: what follows the `@` in the name of a contestant.

use anyhow::{Context, Result, bail};
use indelible::MapOptions;

/// What `512` or `data=4K+stash=20` asks for: bytes of an LB+-tree's leaves, or for APEX any of `data` and `inner`, the bytes of the
/// largest nodes, `stash` and `fill`, in percent.
///
/// # Errors
///
/// If it says something else. That a map can be laid out so is not checked.
pub(crate) fn parse(text: &str) -> Result<MapOptions> {
    let mut options = MapOptions::default();
    for setting in text.split('+') {
        let (what, value) = setting.split_once('=').unwrap_or(("leaf", setting));
        let percent = || {
            let percent = value.parse::<u8>();
            percent.with_context(|| format!("no percentage: {value:?}"))
        };
        match what {
            "leaf" => options.leaf_bytes = bytes(value)?,
            "data" => options.apex.max_data_bytes = bytes(value)?,
            "inner" => options.apex.max_inner_bytes = bytes(value)?,
            "stash" => options.apex.stash_percent = Some(percent()?),
            "fill" => options.apex.fill_percent = percent()?,
            other => bail!("nothing is called {other:?}; there are leaf, data, inner, stash, fill"),
        }
    }
    Ok(options)
}

/// `4096` or `4K`.
fn bytes(text: &str) -> Result<u32> {
    let (digits, unit) = match text.strip_suffix(['K', 'M']) {
        Some(digits) if text.ends_with('K') => (digits, 1 << 10),
        Some(digits) => (digits, 1 << 20),
        None => (text, 1),
    };
    let number = digits.parse::<u32>().ok();
    let bytes = number.and_then(|number| number.checked_mul(unit));
    bytes.with_context(|| format!("no number of bytes: {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::parse;
    use indelible::{ApexTuning, MapOptions};

    #[test]
    fn settings_are_read() {
        let leaves = MapOptions {
            leaf_bytes: 512,
            ..MapOptions::default()
        };
        assert_eq!(parse("512").unwrap(), leaves);
        let apex = ApexTuning {
            max_data_bytes: 4096,
            max_inner_bytes: 2 << 20,
            stash_percent: Some(20),
            fill_percent: 80,
        };
        let read = parse("data=4K+inner=2M+stash=20+fill=80").unwrap();
        assert_eq!(read.apex, apex);
        for wrong in [
            "",
            "x",
            "leaf=",
            "data=4G",
            "data=5000M",
            "stash=300",
            "size=4",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
