//! The committed header is what cbindgen makes of the sources.

use std::path::Path;

/// Set this to have the header written instead of compared.
const WRITE: &str = "INDELIBLE_WRITE_HEADER";

#[test]
fn header_is_up_to_date() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(home.join("cbindgen.toml")).unwrap();
    let mut made = Vec::new();
    let builder = [
        "status", "pool", "map", "bytes", "many", "parts", "spatial", "upkeep", "facts",
    ]
    .iter()
    .map(|module| home.join(format!("src/{module}.rs")))
    .fold(
        cbindgen::Builder::new().with_config(config),
        |builder, source| builder.with_src(source),
    );
    builder.generate().unwrap().write(&mut made);
    let header = home.join("include/indelible.h");
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&header, &made).unwrap();
    }
    let committed = std::fs::read(&header).unwrap_or_default();
    assert!(
        committed == made,
        "{} is out of date; {WRITE}=1 cargo test -p indelible-c header writes it",
        header.display()
    );
}
