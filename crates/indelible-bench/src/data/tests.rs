//! What holds for every source.

use super::hardness::{GRE_ERRORS, segments};
use super::{KNOWN, Source, generate};
use std::time::Instant;

/// One of each that needs no file.
fn made() -> impl Iterator<Item = Source> {
    KNOWN
        .into_iter()
        .map(|(usage, _)| usage.split(['[', ':']).next().unwrap())
        .filter(|name| !["sosd", "csv"].contains(name))
        .map(|name| name.parse().unwrap())
}

#[test]
fn keys_are_distinct_ascending_and_as_many_as_asked() {
    for source in made() {
        for count in [0, 1, 10, 3000, 200_000] {
            let Ok(keys) = generate(&source, count, 1) else {
                // A thousand pieces need as many keys.
                assert!(count <= 10, "{source} {count}");
                continue;
            };
            assert_eq!(keys.len(), count, "{source}");
            assert!(keys.is_sorted_by(|a, b| a < b), "{source} {count}");
        }
    }
}

#[test]
fn more_keys_than_memory_holds_are_refused() {
    for count in [usize::MAX, 1 << 50] {
        let error = generate(&Source::Uniform, count, 1).unwrap_err();
        assert!(error.to_string().contains("the machine has"), "{error}");
    }
}

#[test]
fn the_same_seed_gives_the_same_keys_and_another_one_others() {
    for source in made() {
        let keys = generate(&source, 5000, 1).unwrap();
        assert_eq!(keys, generate(&source, 5000, 1).unwrap(), "{source}");
        let others = generate(&source, 5000, 2).unwrap();
        assert_eq!(keys == others, source == Source::Dense, "{source}");
    }
}

/// Keys of older reports must not change unnoticed, nor differ between platforms.
#[test]
fn keys_are_those_that_they_have_always_been() {
    let sums: Vec<(String, u64)> = made()
        .map(|source| {
            let keys = generate(&source, 5000, 1).unwrap();
            let sum = keys.iter().fold(0_u64, |sum, key| {
                (sum ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            });
            (source.to_string(), sum)
        })
        .collect();
    let pinned = PINNED.map(|(source, sum)| (source.to_owned(), sum));
    assert_eq!(sums, pinned);
}

const PINNED: [(&str, u64); 14] = [
    ("dense", 0xed72_38e5_7f94_cf98),
    ("uniform", 0x4c86_4029_d4d4_d7ef),
    ("normal", 0x4db0_1307_55f8_e800),
    ("lognormal:2", 0x92d1_fb34_b1f9_0985),
    ("piecewise:1000", 0xbecc_457b_6213_7646),
    ("clustered:1000", 0x92f7_4421_a32a_83f4),
    ("sawtooth:100", 0xde52_eb96_0b47_30cd),
    ("exponential", 0x9468_7fcd_93b1_0237),
    ("low-bits:32", 0x9999_6c92_7854_e562),
    ("cascade:0.3", 0xcd4b_4924_29e4_d933),
    ("longitudes", 0x3e5f_e319_fc99_c642),
    ("lon-lat", 0x1117_ac44_06da_d1fa),
    ("hilbert", 0x39fb_86a0_94c5_43fb),
    ("points:cities", 0xf179_1960_f5d7_7684),
];

#[test]
fn too_few_keys_are_counted() {
    let error = generate(&Source::LowBits { bits: 4 }, 17, 1).unwrap_err();
    assert!(error.to_string().ends_with("only 16"), "{error}");
    let all = generate(&Source::LowBits { bits: 4 }, 16, 1).unwrap();
    assert!(all.windows(2).all(|pair| pair[1] - pair[0] == 1));
    let narrow = Source::Lognormal { sigma: 1e-9 };
    let error = generate(&narrow, 1000, 1).unwrap_err().to_string();
    assert!(error.contains("there are only"), "{error}");
}

#[test]
fn a_file_with_more_keys_gives_a_choice_that_the_seed_decides() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let rows: String = (0..1000).map(|key| format!("{}\n", 999 - key)).collect();
    std::fs::write(file.path(), "key\n".to_owned() + &rows + &rows).unwrap();
    let source = Source::Csv {
        path: file.path().into(),
        column: "key".to_owned(),
    };
    let keys = generate(&source, 1000, 1).unwrap();
    assert_eq!(keys, (0..1000).collect::<Vec<u64>>());
    let some = generate(&source, 100, 1).unwrap();
    assert!(some.len() == 100 && some.is_sorted_by(|a, b| a < b));
    assert_ne!(some, generate(&source, 100, 2).unwrap());
    let error = generate(&source, 1001, 1).unwrap_err().to_string();
    assert!(error.ends_with("only 1000"), "{error}");
}

#[test]
fn sources_are_as_hard_as_they_say() {
    let from_easy_to_hard = [
        "dense",
        "uniform",
        "lognormal",
        "longitudes",
        "lon-lat",
        "hilbert",
        "cascade:0.2",
    ];
    let hardness = from_easy_to_hard.map(|name| {
        let keys = generate(&name.parse().unwrap(), 1_000_000, 1).unwrap();
        segments(&keys, GRE_ERRORS[0])
    });
    assert!(hardness.is_sorted_by(|a, b| a < b), "{hardness:?}");
}

/// `COUNT=20000000 cargo test --release -p indelible-bench --no-default-features table -- --ignored --nocapture`
#[test]
#[ignore = "prints how hard the sources are"]
fn table() {
    let count = std::env::var("COUNT").map_or(1_000_000, |count| count.parse().unwrap());
    println!(
        "{:16} {:>9} {:>9} {:>8} {:>8}",
        "source", "at 32", "at 4096", "made s", "fitted s"
    );
    for source in made().chain(["lognormal:1", "cascade:0.2"].map(|text| text.parse().unwrap())) {
        let start = Instant::now();
        let keys = generate(&source, count, 42).unwrap();
        let made = start.elapsed().as_secs_f64();
        let [fine, coarse] = GRE_ERRORS.map(|error| segments(&keys, error));
        let fitted = start.elapsed().as_secs_f64() - made;
        println!(
            "{:16} {fine:9} {coarse:9} {made:8.2} {fitted:8.2}",
            source.to_string()
        );
    }
}
