//! The header, and the code in the README, compile as C and as C++ without a warning.
//!
//! Without a compiler the test says so and passes.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// The oldest standards that the header is for, and those of today.
const STANDARDS: [(&str, &str, &[&str]); 2] = [
    ("CC", "cc", &["c99", "c11", "c17"]),
    ("CXX", "c++", &["c++11", "c++17", "c++20"]),
];

/// The blocks of C in a text of Markdown.
fn blocks(text: &str) -> Vec<&str> {
    let blocks = text.split("```c\n").skip(1);
    blocks.filter_map(|rest| rest.split("```").next()).collect()
}

/// One file: the program as it stands, and the other blocks in a function that has what they do not declare.
fn source(readme: &str) -> String {
    let blocks = blocks(readme);
    let (program, rest) = blocks.split_first().expect("the README has a program");
    let mut source = format!(
        "{program}\nint rest(indelible_pool *pool, FILE *file, uint64_t film_length);\n\
         int rest(indelible_pool *pool, FILE *file, uint64_t film_length)\n{{\nuint8_t part[4096];\n"
    );
    // Blocks about one map go on where the one before has ended; the spatial index has names of its own.
    let at = rest.iter().position(|block| block.contains("_spatial"));
    let (maps, spatial) = rest.split_at(at.expect("the README has a spatial index"));
    for block in maps {
        source += block;
    }
    writeln!(source, "{{\n{}}}\nreturn 0;\n}}", spatial.concat()).unwrap();
    source
}

#[test]
fn the_header_and_the_readme_compile_without_warnings() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(home.join("README.md")).unwrap();
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = scratch.path().join("readme.c");
    std::fs::write(&file, source(&readme)).unwrap();
    for (variable, default, standards) in STANDARDS {
        let compiler = std::env::var_os(variable).unwrap_or_else(|| OsString::from(default));
        if Command::new(&compiler).arg("--version").output().is_err() {
            eprintln!(
                "skipped: {} is not to be had, so the header was not compiled",
                compiler.display()
            );
            continue;
        }
        let language = if variable == "CC" { "c" } else { "c++" };
        for standard in standards {
            let output = Command::new(&compiler)
                .args(["-x", language, &format!("-std={standard}")])
                .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"])
                .arg("-I")
                .arg(home.join("include"))
                .arg(&file)
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{standard}: {said}");
        }
    }
}
