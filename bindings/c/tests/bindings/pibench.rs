//! The shim for PiBench, built by cmake and driven through `dlopen` as PiBench does it; see `bindings/pibench`.
//!
//! Without cmake or a C++ compiler there is nothing to build it with: the test says so and passes.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// What cargo builds for the shim: all that `cargo test --workspace` has built, with the features that the packages switch on for each other
/// there. So all but the static library itself is up to date, where the library by itself would be compiled once more with its own features.
/// Without `indelible-traced`, whose tests, which nobody runs, `--all-targets` would compile for a minute and a half.
const PACKAGES: &str = "--workspace;--all-targets;--exclude;indelible-traced";

#[test]
fn pibench_shim_passes_its_driver() {
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    for tool in [OsString::from("cmake"), "ctest".into(), compiler] {
        if Command::new(&tool).arg("--version").output().is_err() {
            eprintln!(
                "skipped: {} is not to be had, so the PiBench shim was not built",
                tool.display()
            );
            return;
        }
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pibench");
    // Within cargo's target directory, which the shim's build uses as well, so that little is compiled twice.
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let target = scratch.parent().unwrap();
    let build = tempfile::tempdir_in(scratch).unwrap();
    // Of the profile that this test was built with, likewise: the program is target/PROFILE/deps/NAME.
    let program = std::env::current_exe().unwrap();
    let directory = program
        .ancestors()
        .nth(2)
        .and_then(Path::file_name)
        .unwrap();
    let profile = match directory.to_str().unwrap() {
        "debug" => "dev",
        profile => profile,
    };
    run(Command::new("cmake")
        .arg(format!("-S{}", source.display()))
        .arg(format!("-B{}", build.path().display()))
        .arg(format!("-DINDELIBLE_PROFILE={profile}"))
        .arg(format!("-DINDELIBLE_PACKAGES={PACKAGES}"))
        .arg(format!("-DINDELIBLE_TARGET_DIR={}", target.display())));
    run(Command::new("cmake")
        .args(["--build", ".", "--parallel"])
        .current_dir(build.path()));
    run(Command::new("ctest")
        .arg("--output-on-failure")
        .current_dir(build.path()));
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
