//! Tests that have a process to themselves.

use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

/// Says to a process that it is the one that a test has started, and where to work.
pub const CHILD: &str = "INDELIBLE_TEST_CHILD";

/// The file that such a process leaves behind when it has done its work.
const RAN: &str = "ran";

/// The test of a module (`module_path!()`) in a process of its own, whose limits or death concern nobody else.
pub fn child(module: &str, test: &str, directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    // The path of a module begins with the name of the program, the names of tests do not.
    let (_, module) = module.split_once("::").unwrap();
    command
        .args(["--exact", &format!("{module}::{test}"), "--nocapture"])
        .env(CHILD, directory)
        .stdout(Stdio::null());
    command
}

/// Runs the rest of a test, with the directory, in a process of its own.
pub fn in_child(module: &str, test: &str, work: impl FnOnce(&Path)) {
    if let Some(directory) = std::env::var_os(CHILD) {
        let directory = Path::new(&directory);
        work(directory);
        // A process that finds no test of the name succeeds as well.
        std::fs::write(directory.join(RAN), "").unwrap();
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let status: ExitStatus = child(module, test, directory.path()).status().unwrap();
    assert!(status.success(), "{status}");
    assert!(directory.path().join(RAN).exists(), "{test} did not run");
}
