//! Numbers as readers want them: three digits, a unit, never a column wider than it needs to be.

/// Million operations per second. The unit is the same from a map in memory to one that waits for a disk, so that
/// columns can be read down: `61.2`, `3.07`, `0.00051`.
#[must_use]
pub fn rate(millions: f64) -> String {
    match millions {
        m if !m.is_finite() => "-".into(),
        m if m >= 99.95 => format!("{m:.0}"),
        m if m >= 9.995 => format!("{m:.1}"),
        m if m >= 0.9995 => format!("{m:.2}"),
        m if m >= 0.09995 => format!("{m:.3}"),
        m if m >= 0.009_995 => format!("{m:.4}"),
        m => format!("{m:.5}"),
    }
}

/// Half the range of the rounds, relative to their median: `±3%`. Empty if there was one round only.
#[must_use]
pub fn noise(share: Option<f64>) -> String {
    share.map_or(String::new(), |n| format!("±{:.0}%", (n * 100.0).ceil()))
}

/// How many times as much: `0.43x`, `12x`.
#[must_use]
pub fn ratio(times: f64) -> String {
    match times {
        t if !t.is_finite() => "-".into(),
        t if t >= 9.995 => format!("{t:.0}x"),
        t if t >= 0.00995 => format!("{t:.2}x"),
        _ => "<.01x".into(),
    }
}

/// A change in percent: `-10.2 %`, of a logarithm.
#[must_use]
pub fn change(logarithm: f64) -> String {
    let percent = logarithm.exp_m1() * 100.0;
    if percent.abs() >= 99.95 {
        format!("{percent:+.0} %")
    } else {
        format!("{percent:+.1} %")
    }
}

/// Three digits, without an exponent.
#[must_use]
pub fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 || v == 0.0 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.009_995 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// A time with the unit that suits it: `85 ns`, `1.2 ms`.
#[must_use]
pub fn nanoseconds(ns: f64) -> String {
    let (value, unit) = match ns {
        n if n < 999.5 => return format!("{n:.0} ns"),
        n if n < 999.5e3 => (n / 1e3, "µs"),
        n if n < 999.5e6 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    if value >= 9.95 {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

/// A time that is a power of ten, for an axis: `1 ms`, never `1.0 ms`.
#[must_use]
pub fn decade(ns: f64) -> String {
    nanoseconds(ns).replace(".0 ", " ")
}

/// A round number, for an axis, with as many decimals as the step between the numbers needs.
#[must_use]
pub fn step(value: f64, step: f64) -> String {
    let decimals = (-step.log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{value:.decimals$}")
}

/// How many: `20 M`, `1.25 M`, `300 k`, `144,563`.
#[must_use]
pub fn count(n: u64) -> String {
    match n {
        n if n >= 1_000_000 && n % 10_000 == 0 => format!("{} M", n as f64 / 1e6),
        n if n >= 10_000 && n % 1_000 == 0 => format!("{} k", n / 1_000),
        n => grouped(n),
    }
}

/// Digits in groups of three.
#[must_use]
pub fn grouped(n: u64) -> String {
    let text = n.to_string();
    let mut out = String::new();
    for (at, digit) in text.chars().enumerate() {
        if at > 0 && (text.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Cut to a number of characters.
#[must_use]
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.into();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// Broken into lines of at most `width` characters, at spaces where there are any.
#[must_use]
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let letters: Vec<char> = word.chars().collect();
        for piece in letters.chunks(width) {
            let line = lines.last_mut().expect("never empty");
            let gap = usize::from(!line.is_empty());
            let piece: String = piece.iter().collect();
            if line.chars().count() + gap + piece.chars().count() <= width {
                line.push_str(&" ".repeat(gap));
                line.push_str(&piece);
            } else {
                lines.push(piece);
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_keep_three_digits_from_a_disk_to_a_cache() {
        let shown = [61.23, 9.999, 3.066, 0.5, 0.0345, 0.00051, 240.0].map(rate);
        assert_eq!(
            shown,
            ["61.2", "10.0", "3.07", "0.500", "0.0345", "0.00051", "240"]
        );
    }

    #[test]
    fn times_and_counts_have_units() {
        assert_eq!(nanoseconds(85.0), "85 ns");
        assert_eq!(nanoseconds(1_234.0), "1.2 µs");
        assert_eq!(nanoseconds(33_000_000.0), "33 ms");
        assert_eq!(count(20_000_000), "20 M");
        assert_eq!(count(144_563), "144,563");
        assert_eq!(ratio(0.431), "0.43x");
        assert_eq!(change(0.9f64.ln()), "-10.0 %");
    }

    #[test]
    fn lines_are_never_longer_than_asked() {
        let text = format!("a few words {} and more", "x".repeat(250));
        assert!(
            wrap(&text, 100)
                .iter()
                .all(|line| line.chars().count() <= 100)
        );
        assert_eq!(
            wrap(&text, 100).concat().replace(' ', "").len(),
            text.replace(' ', "").len()
        );
    }
}
