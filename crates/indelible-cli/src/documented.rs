//! Every command line that the documents, the help texts and the comments of the sources show is one that works: those of
//! `indelible` are parsed, those of cargo name packages, features, tests and profiles that there are.

use crate::{Arguments, Command};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All files below a directory whose names have this ending; nothing that is built or not ours.
fn files(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().into_string().unwrap_or_default();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&path, ending));
        } else if name.ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The text of comments that documents are made of.
fn comments(source: &str) -> String {
    let lines = source.lines().map(|line| {
        let line = line.trim_start();
        let text = ["//! ", "/// ", "// ", "//!", "///", "//"];
        text.iter()
            .find_map(|start| line.strip_prefix(start))
            .unwrap_or("")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The command lines of a text in Markdown: lines of fenced blocks, and inline code.
fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut prose = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if !line.trim_start().starts_with("```") {
            // Inline code may go on in the next line, but not in the next paragraph.
            prose += if line.is_empty() { "\n" } else { line };
            prose.push(' ');
            continue;
        }
        prose.push('\n');
        let mut open = String::new();
        for line in lines.by_ref() {
            if line.trim_start().starts_with("```") {
                break;
            }
            match line.strip_suffix('\\') {
                Some(line) => open += line,
                None => found.push(std::mem::take(&mut open) + line),
            }
        }
    }
    for paragraph in prose.lines() {
        found.extend(paragraph.split('`').skip(1).step_by(2).map(str::to_owned));
    }
    found.retain(|line| words(line).is_some());
    found
}

/// The words of a command line that begins with `indelible` or `cargo`, without variables of the environment, and up to a comment
/// or the next command.
fn words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    for word in line.split_whitespace() {
        let is_variable = words.is_empty()
            && word
                .split_once('=')
                .is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'));
        if word == "$" || is_variable {
            continue;
        }
        if word.starts_with('#') || ["|", ">", "&&", ";", "||", "2>&1"].contains(&word) {
            break;
        }
        words.push(word.trim_matches(['\'', '"']).to_owned());
    }
    let is_command = words
        .first()
        .is_some_and(|program| program == "indelible" || program == "cargo");
    (is_command && words.len() > 1).then_some(words)
}

/// Why a command line of `indelible` is refused.
fn refused(words: &[String]) -> Option<String> {
    // A word for "any command".
    let words = words.iter().map(|word| match word.as_str() {
        "COMMAND" => "demo",
        word => word,
    });
    match Arguments::try_parse_from(words) {
        // Without the peers, contestants are unknown that are in the tables.
        Ok(Arguments {
            command: Command::Bench(bench),
            ..
        }) if cfg!(feature = "peers") => bench.check().err().map(|error| format!("{error:#}")),
        Ok(_) => None,
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => None,
            _ => Some(error.to_string()),
        },
    }
}

/// What a package of the workspace offers.
struct Package {
    directory: PathBuf,
    manifest: String,
}

impl Package {
    /// Whether a section of the manifest has this key.
    fn has(&self, section: &str, key: &str) -> bool {
        let section = format!("[{section}]");
        let mut lines = self
            .manifest
            .lines()
            .skip_while(|line| line.trim() != section);
        lines.next();
        lines
            .take_while(|line| !line.starts_with('['))
            .filter_map(|line| line.split_once('='))
            .any(|(name, _)| name.trim() == key)
    }

    fn has_target(&self, directory: &str, name: &str) -> bool {
        let file = self.directory.join(directory).join(format!("{name}.rs"));
        let folder = self.directory.join(directory).join(name).join("main.rs");
        file.exists() || folder.exists() || self.manifest.contains(&format!("name = \"{name}\""))
    }

    /// Whether there is a test whose path has this in it, as far as files and functions tell.
    fn has_test(&self, filter: &str) -> bool {
        files(&self.directory, ".rs").iter().any(|path| {
            let parts = filter.split("::").filter(|part| !part.is_empty());
            let source = read(path);
            let place = path.display().to_string();
            let is_in = |part: &str| {
                let is_function = |line: &str| {
                    let name = line.trim_start().strip_prefix("fn ");
                    name.is_some_and(|name| {
                        name.split('(').next().is_some_and(|n| n.contains(part))
                    })
                };
                place.contains(part) || source.lines().any(is_function)
            };
            parts.into_iter().all(is_in)
        })
    }
}

/// The packages of the workspace, and of `/fuzz`, by name.
fn packages() -> BTreeMap<String, Package> {
    let manifests = files(&root(), "Cargo.toml");
    let named = manifests.into_iter().filter_map(|path| {
        let manifest = read(&path);
        let name = manifest.split_once("\nname = \"")?.1.split_once('"')?.0;
        let directory = path.parent()?.to_owned();
        Some((
            name.to_owned(),
            Package {
                directory,
                manifest,
            },
        ))
    });
    named.collect()
}

/// Why a command line of cargo cannot work.
fn refused_by_cargo(words: &[String], packages: &BTreeMap<String, Package>) -> Option<String> {
    let mut words = words[1..].iter().map(String::as_str).peekable();
    words.next_if(|word| word.starts_with('+'));
    let command = words.next()?;
    let (mut package, mut problems, mut asked) = (None, Vec::new(), Vec::new());
    let mut rest = Vec::new();
    while let Some(word) = words.next() {
        match word {
            "--" => {
                rest = words.by_ref().map(str::to_owned).collect();
            }
            "-p" | "--package" => package = words.next(),
            "--features" => {
                let features = words.next().unwrap_or_default();
                asked.extend(features.split(',').map(|name| ("features", name)));
            }
            "--test" | "--example" | "--profile" | "--path" => {
                asked.push((&word[2..], words.next().unwrap_or_default()));
            }
            "--target" | "-j" => _ = words.next(),
            _ if word.starts_with('-') => {}
            word => asked.push(("filter", word)),
        }
    }
    if command == "fuzz" {
        let known = &packages["indelible-fuzz"];
        let target = asked
            .iter()
            .map(|(_, name)| *name)
            .find(|name| *name != "run")?;
        let is_known = known.has_target("fuzz_targets", target);
        return (!is_known).then(|| format!("there is no target {target}"));
    }
    if let Some(name) = package.filter(|name| !packages.contains_key(*name)) {
        return Some(format!("there is no package {name}"));
    }
    if command == "run" && package == Some("indelible-cli") {
        let features = asked.iter().filter(|(what, _)| *what == "features");
        let features: Vec<&str> = features.map(|(_, name)| *name).collect();
        if let Some(name) = features
            .iter()
            .find(|name| !packages["indelible-cli"].has("features", name))
        {
            return Some(format!("there is no feature {name}"));
        }
        rest.insert(0, "indelible".into());
        // Contestants of a feature are called as the feature is, and this build may not have them.
        let is_optional = |name: &&str| features.iter().any(|feature| name.starts_with(feature));
        for word in &mut rest {
            let names: Vec<&str> = word.split(',').filter(|name| !is_optional(name)).collect();
            *word = names.join(",");
        }
        return refused(&rest);
    }
    let chosen: Vec<&Package> = match package {
        Some(name) => vec![&packages[name]],
        None => packages.values().collect(),
    };
    for (what, name) in asked {
        let is_there = match what {
            "profile" => {
                let manifest = read(&root().join("Cargo.toml"));
                name == "release" || manifest.contains(&format!("[profile.{name}]"))
            }
            "path" => root().join(name).exists(),
            "features" => chosen.iter().any(|package| package.has("features", name)),
            "test" => chosen
                .iter()
                .any(|package| package.has_target("tests", name)),
            "example" => chosen
                .iter()
                .any(|package| package.has_target("examples", name)),
            _ => chosen.iter().any(|package| package.has_test(name)),
        };
        if !is_there {
            problems.push(format!("there is no {what} {name}"));
        }
    }
    // What follows `--` can be filters, too; options of the test program are none.
    for filter in rest
        .iter()
        .filter(|word| command == "test" && !word.starts_with('-'))
    {
        if !chosen.iter().any(|package| package.has_test(filter)) {
            problems.push(format!("there is no test {filter}"));
        }
    }
    (!problems.is_empty()).then(|| problems.join("; "))
}

/// The help of a command and of those below it.
fn help(command: &mut clap::Command, texts: &mut Vec<(String, String)>) {
    let name = format!("the help of {}", command.get_name());
    texts.push((name, command.render_long_help().to_string()));
    for below in command.get_subcommands_mut() {
        help(below, texts);
    }
}

/// Where a text is, and the text.
fn texts() -> Vec<(String, String)> {
    let mut texts = Vec::new();
    // What changed long ago may name options that are gone.
    let documents = files(&root(), ".md").into_iter();
    for path in documents.filter(|path| !path.ends_with("CHANGELOG.md")) {
        texts.push((path.display().to_string(), read(&path)));
    }
    for path in files(&root(), ".rs") {
        texts.push((path.display().to_string(), comments(&read(&path))));
    }
    help(&mut Arguments::command(), &mut texts);
    texts
}

#[test]
fn every_command_line_that_is_shown_works() {
    let packages = packages();
    let (mut seen, mut wrong) = (0, Vec::new());
    for (place, text) in texts() {
        for line in commands(&text) {
            let Some(words) = words(&line) else { continue };
            seen += 1;
            let problem = if words[0] == "indelible" {
                refused(&words)
            } else {
                refused_by_cargo(&words, &packages)
            };
            if let Some(problem) = problem {
                wrong.push(format!("{place}\n    {line}\n    {problem}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 50, "only {seen} command lines were found");
}

#[test]
fn command_lines_that_do_not_work_are_refused() {
    let packages = packages();
    let refused = |line: &str| {
        let words = words(line).unwrap();
        if words[0] == "indelible" {
            refused(&words)
        } else {
            refused_by_cargo(&words, &packages)
        }
    };
    for line in [
        "indelible crash --index lbtree",
        "indelible create p m --kind btree",
        #[cfg(feature = "peers")]
        "indelible bench --contestants nobody",
        "indelible nothing",
        "cargo run --release -p indelible-cli -- demo --sideways",
        "cargo test -p indelible-nowhere",
        "cargo test -p indelible --features never",
        "cargo test -p indelible --test never",
        "cargo test -p indelible no_such_test_anywhere",
        "cargo test --profile never",
        "cargo +nightly fuzz run never",
    ] {
        assert!(refused(line).is_some(), "{line}");
    }
    let fenced = "x\n```sh\nA=1 indelible crash \\\n  --deep # yes\n```\n`indelible bench\nlist` and `indelible`";
    let found = commands(fenced);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(words(&found[0]).unwrap(), ["indelible", "crash", "--deep"]);
    assert_eq!(words(&found[1]).unwrap(), ["indelible", "bench", "list"]);
}
