//! Where keys come from, as text.

use anyhow::{Context, Error, Result, bail, ensure};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Where keys come from. As text: a name of [`KNOWN`], and what it takes after a colon, such as `lognormal:2`,
/// `sosd:books_200M_uint64` or `csv:places.csv:lon`. What is printed is read back as the same source.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// 0, 1, 2, ...; the only one that is the same for every seed.
    Dense,
    /// Uniform over all of `u64`.
    Uniform,
    /// Normal around 2^63, with a standard deviation of 2^59.
    Normal,
    /// `exp(N(0, sigma)) * 10^9`, rounded down. One of the sets of APEX section 6.1, with the parameters of ALEX
    /// section 6.1, whose sigma is 2.
    Lognormal {
        /// The standard deviation of the logarithm, above 0.
        sigma: f64,
    },
    /// A distribution function of straight pieces with as many keys each. Their slopes are lognormal with sigma 2, and the
    /// keys of a piece nearly evenly spaced: about as many lines as pieces fit at any error that is small for a piece.
    Piecewise {
        /// How many pieces.
        segments: u64,
    },
    /// Dense clusters, interleaved with scattered keys: half of the keys are in runs of consecutive numbers, the others
    /// uniform between them.
    Clustered {
        /// How many runs.
        clusters: u64,
    },
    /// Gaps grow from 1 to 2^30, each by the same factor, fall back to 1, and grow again.
    Sawtooth {
        /// How many times.
        teeth: u64,
    },
    /// Exponentially spaced: as many keys between 2^k and 2^(k+1) for each k, as far as there are any.
    Exponential,
    /// All keys are equal but for the low bits, which are uniform.
    LowBits {
        /// How many bits differ, from 0 to 64.
        bits: u32,
    },
    /// Every bit of every key is 1 with the same probability, independently. The half with a 0 on top holds a share
    /// `1 - p` of the keys, and so within each half, down to the last bit: as skewed at every scale as at every other,
    /// like the hardest real sets. 0.5 is [`Source::Uniform`].
    Cascade {
        /// The probability, from 0.2 (below which distinct keys become rare) to 0.5; rounded to a 256th.
        share: f64,
    },
    /// Real longitudes, as `f64` (ALEX and APEX section 6.1): places of the carried file, grown by jitter.
    Longitudes,
    /// The same places as `180 * floor(longitude) + latitude`, as `f64` (ALEX section 6.1; APEX's Longlat).
    LonLat,
    /// The same places as distances along a Hilbert curve.
    Hilbert,
    /// A file of binary keys in the format of SOSD: a count and as many little-endian numbers of 8 or 4 bytes.
    Sosd(PathBuf),
    /// A column of a CSV file: all `u64`, or all `i64`, or else `f64`.
    Csv {
        /// The file.
        path: PathBuf,
        /// The column's name, without a colon, or its number from 1.
        column: String,
    },
    /// Points on the globe, for spatial indexes.
    Points(PointSet),
}

/// A set of points on the globe. As text: `cities`, `uniform`, `clustered`, or the path of a file.
#[derive(Clone, Debug, PartialEq)]
pub enum PointSet {
    /// The carried places, grown by jitter.
    Cities,
    /// Uniform in longitude and in latitude.
    Uniform,
    /// Normally distributed around [`super::points::CLUSTERS`] centres, each with a width of its own.
    Clustered,
    /// The positions of a CSV, GeoJSON or TopoJSON file, grown by jitter.
    File(PathBuf),
}

/// All sources: how each is written, and a line about it.
pub const KNOWN: [(&str, &str); 16] = [
    ("dense", "0, 1, 2, ..."),
    ("uniform", "uniform over 64 bits"),
    ("normal", "normal, 16 standard deviations to either end"),
    ("lognormal[:SIGMA]", "exp(N(0, 2)) * 10^9"),
    (
        "piecewise[:N]",
        "N straight pieces of random slopes (1000): N is the hardness",
    ),
    (
        "clustered[:N]",
        "N dense runs (1000), interleaved with scattered keys",
    ),
    (
        "sawtooth[:N]",
        "gaps that grow from 1 to 2^30, N times (100)",
    ),
    ("exponential", "as many keys below 2^k as up to 2^(k+1)"),
    ("low-bits[:N]", "equal but for the low N bits (32)"),
    (
        "cascade[:P]",
        "each bit is 1 with probability P (0.3): skewed at every scale",
    ),
    (
        "longitudes",
        "144,563 real places, grown by jitter: longitudes",
    ),
    ("lon-lat", "the same: 180 * floor(longitude) + latitude"),
    ("hilbert", "the same: distances along a Hilbert curve"),
    ("sosd:FILE", "keys in SOSD's binary format"),
    (
        "csv:FILE:COLUMN",
        "a column by its name or its number from 1",
    ),
    (
        "points[:SET]",
        "points for spatial indexes: cities, uniform, clustered, or a FILE of CSV, GeoJSON or TopoJSON",
    ),
];

impl FromStr for Source {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse(text).with_context(|| format!("{text:?} is no source of keys"))
    }
}

fn parse(text: &str) -> Result<Source> {
    let (name, argument) = match text.split_once(':') {
        Some((name, argument)) => (name, Some(argument)),
        None => (text, None),
    };
    let source = match name {
        "lognormal" => Source::Lognormal {
            sigma: number(argument, 2.0)?,
        },
        "piecewise" => Source::Piecewise {
            segments: number(argument, 1000)?,
        },
        "clustered" => Source::Clustered {
            clusters: number(argument, 1000)?,
        },
        "sawtooth" => Source::Sawtooth {
            teeth: number(argument, 100)?,
        },
        "low-bits" => Source::LowBits {
            bits: number(argument, 32)?,
        },
        "cascade" => Source::Cascade {
            share: number(argument, 0.3)?,
        },
        "points" => Source::Points(match argument.unwrap_or("cities") {
            "cities" => PointSet::Cities,
            "uniform" => PointSet::Uniform,
            "clustered" => PointSet::Clustered,
            "" => bail!("it needs a set or a file: points:FILE"),
            path => PointSet::File(path.into()),
        }),
        "sosd" => Source::Sosd(argument.context("it needs a file: sosd:FILE")?.into()),
        "csv" => {
            // The column follows the last colon: a path may have some.
            let (path, column) = argument
                .and_then(|rest| rest.rsplit_once(':'))
                .context("it needs a file and a column: csv:FILE:COLUMN")?;
            Source::Csv {
                path: path.into(),
                column: column.to_owned(),
            }
        }
        _ => {
            let source = without_argument(name)?;
            ensure!(argument.is_none(), "{name} takes nothing after it");
            source
        }
    };
    check(&source)?;
    Ok(source)
}

fn without_argument(name: &str) -> Result<Source> {
    Ok(match name {
        "dense" => Source::Dense,
        "uniform" => Source::Uniform,
        "normal" => Source::Normal,
        "exponential" => Source::Exponential,
        "longitudes" => Source::Longitudes,
        "lon-lat" => Source::LonLat,
        "hilbert" => Source::Hilbert,
        _ => bail!("known are {}", KNOWN.map(|(name, _)| name).join(", ")),
    })
}

fn number<T: FromStr>(argument: Option<&str>, default: T) -> Result<T> {
    let Some(text) = argument else {
        return Ok(default);
    };
    text.parse()
        .map_err(|_| Error::msg(format!("{text:?} is not a number that it takes")))
}

/// Refuses numbers that no keys can be made of.
fn check(source: &Source) -> Result<()> {
    match *source {
        Source::Lognormal { sigma } => {
            ensure!(sigma > 0.0 && sigma.is_finite(), "sigma must be above 0");
        }
        Source::Piecewise { segments: parts }
        | Source::Clustered { clusters: parts }
        | Source::Sawtooth { teeth: parts } => ensure!(parts > 0, "it needs at least one"),
        Source::LowBits { bits } => ensure!(bits <= 64, "a key has 64 bits"),
        Source::Cascade { share } => {
            ensure!((0.2..=0.5).contains(&share), "it takes from 0.2 to 0.5");
        }
        _ => {}
    }
    Ok(())
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense => f.write_str("dense"),
            Self::Uniform => f.write_str("uniform"),
            Self::Normal => f.write_str("normal"),
            Self::Lognormal { sigma } => write!(f, "lognormal:{sigma}"),
            Self::Piecewise { segments } => write!(f, "piecewise:{segments}"),
            Self::Clustered { clusters } => write!(f, "clustered:{clusters}"),
            Self::Sawtooth { teeth } => write!(f, "sawtooth:{teeth}"),
            Self::Exponential => f.write_str("exponential"),
            Self::LowBits { bits } => write!(f, "low-bits:{bits}"),
            Self::Cascade { share } => write!(f, "cascade:{share}"),
            Self::Longitudes => f.write_str("longitudes"),
            Self::LonLat => f.write_str("lon-lat"),
            Self::Hilbert => f.write_str("hilbert"),
            Self::Sosd(path) => write!(f, "sosd:{}", path.display()),
            Self::Csv { path, column } => write!(f, "csv:{}:{column}", path.display()),
            Self::Points(PointSet::Cities) => f.write_str("points:cities"),
            Self::Points(PointSet::Uniform) => f.write_str("points:uniform"),
            Self::Points(PointSet::Clustered) => f.write_str("points:clustered"),
            Self::Points(PointSet::File(path)) => write!(f, "points:{}", path.display()),
        }
    }
}

impl Source {
    /// Whether its keys stand for points.
    #[must_use]
    pub fn is_spatial(&self) -> bool {
        matches!(self, Self::Points(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_source() -> impl Strategy<Value = Source> {
        prop_oneof![
            prop::sample::select(vec![
                Source::Dense,
                Source::Uniform,
                Source::Normal,
                Source::Exponential,
                Source::Longitudes,
                Source::LonLat,
                Source::Hilbert,
            ]),
            (1e-300..1e300_f64).prop_map(|sigma| Source::Lognormal { sigma }),
            (1_u64..).prop_map(|segments| Source::Piecewise { segments }),
            (1_u64..).prop_map(|clusters| Source::Clustered { clusters }),
            (1_u64..).prop_map(|teeth| Source::Sawtooth { teeth }),
            (0..=64_u32).prop_map(|bits| Source::LowBits { bits }),
            (0.2..=0.5).prop_map(|share| Source::Cascade { share }),
            ".*".prop_map(|path| Source::Sosd(path.into())),
            (".*", "[^:]*").prop_map(|(path, column)| Source::Csv {
                path: path.into(),
                column
            }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(source in any_source()) {
            let text = source.to_string();
            prop_assert_eq!(text.parse::<Source>().unwrap(), source);
        }
    }

    #[test]
    fn every_known_name_is_read() {
        for (usage, _) in KNOWN {
            let name = usage.split(['[', ':']).next().unwrap();
            let text = match name {
                "sosd" => "sosd:a:file".to_owned(),
                "csv" => "csv:C:/a file:column".to_owned(),
                _ => name.to_owned(),
            };
            let source: Source = text.parse().unwrap();
            assert!(source.to_string().starts_with(&text), "{source}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_the_known_names() {
        for text in [
            "uniform:1",
            "lognormal:0",
            "lognormal:inf",
            "lognormal:two",
            "piecewise:0",
            "low-bits:65",
            "cascade:0.1",
            "cascade:NaN",
            "sosd",
            "csv:file",
            "unifrom",
            "",
        ] {
            let error = format!("{:#}", text.parse::<Source>().unwrap_err());
            assert!(error.contains(&format!("{text:?} is no source")), "{error}");
        }
        let error = format!("{:#}", "unifrom".parse::<Source>().unwrap_err());
        assert!(
            error.contains("dense, uniform") && error.contains("csv:FILE:COLUMN"),
            "{error}"
        );
    }
}
