//! The command line of indelible: pools, maps and spatial indexes without writing a program.

// `println!` and `eprintln!` panic when their stream is closed or full: everything goes through `output`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod commands;
#[cfg(test)]
mod documented;
mod encoded;
mod geojson;
mod output;
mod shapes;
mod strings;
mod text;
mod torture;
mod typed;
mod unfinished;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};
use output::Output;
use std::io::IsTerminal;
use std::process::ExitCode;

/// The end of `--help`.
const EXIT_CODES: &str = "\
Exit codes: 0 done; 1 it failed, or a key is missing, or something is not sound; 2 the command line is wrong; 141 the program that reads \
the standard output has gone away, as in `indelible scan POOL MAP | head -1` (what was changed before stays changed); 130 or 143 \
a bench was stopped by Ctrl-C or SIGTERM.";

/// Persistent ordered maps and spatial indexes that you can kill.
#[derive(Parser)]
#[command(name = "indelible", version, about, after_help = EXIT_CODES)]
struct Arguments {
    /// Print JSON instead of tables.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Index 144,563 cities, kill the writers in mid-flight again and again, and prove that nothing was lost.
    Demo(commands::demo::Demo),
    // Its help, of several paragraphs, stands at the command itself.
    Load(Box<commands::load::Load>),
    /// Create an empty map, or an empty spatial index.
    Create(commands::create::Create),
    /// List the kinds of index, and the options of each, that `--kind` takes.
    Kinds(commands::kinds::Kinds),
    /// Print the values of keys; exit code 1 if one is missing.
    Get(commands::records::Get),
    /// Set the value of a key.
    Put(commands::records::Put),
    /// Remove keys; exit code 1 if one is missing.
    Del(commands::records::Del),
    /// Print records in key order.
    Scan(commands::records::Scan),
    /// Add a point or a box to a spatial index.
    Insert(commands::spatial::Insert),
    /// Remove a point or a box from a spatial index; exit code 1 if it is not there.
    Remove(commands::spatial::Remove),
    /// Move a point or a box of a spatial index, in one atomic step; exit code 1 if it is not there.
    Relocate(commands::spatial::Relocate),
    /// Search a spatial index: in a window, at a point, or the nearest.
    Query(commands::spatial::Query),
    /// Draw a spatial index as an SVG picture: its records, and the rectangles of its leaves.
    Draw(commands::draw::Draw),
    /// The maps and the spatial indexes of a pool.
    List(commands::inspect::List),
    /// What a pool, its maps and its spatial indexes consist of; exit code 1 if one of them cannot be opened.
    Stat(commands::inspect::Stat),
    /// Check every invariant of a pool; exit code 1 if one does not hold.
    Check(commands::inspect::Check),
    /// Give a map or a spatial index another name.
    Rename(commands::inspect::Rename),
    /// Remove a map or a spatial index and free its space.
    #[command(visible_alias = "drop")]
    Rm(commands::inspect::Rm),
    /// Cut free space off the end of a pool.
    Shrink(commands::inspect::Shrink),
    /// Copy a pool that has a log to a new file, by itself.
    Backup(commands::inspect::Backup),
    /// Read the log of a pool that was not closed, and change nothing.
    Verify(commands::inspect::Verify),
    /// Kill writers over and over, and compare what is there with what was acknowledged.
    Torture(commands::torture::Torture),
    /// Search what crashes could leave, image by image, and prove that nothing is lost.
    Crash(commands::crash::Crash),
    /// Measure indelible and what people use instead, side by side.
    Bench(Box<indelible_bench::command::Bench>),
    /// The child that gets killed.
    #[command(name = "__writer", hide = true)]
    Writer(torture::Writer),
    /// Compares a pool with what writers acknowledged that wrote to it.
    #[command(name = "__verify", hide = true)]
    VerifyWriters(torture::Verify),
    /// A disk with a volatile write cache, for virtual machines.
    #[command(name = "__disk", hide = true)]
    VolatileDisk(commands::volatile_disk::VolatileDisk),
    /// The child of the demo that indexes places and gets killed.
    #[command(name = "__places", hide = true)]
    Places(commands::places::Places),
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return ExitCode::from(print_help_or_error(&error)),
    };
    let output = output::Output::new(arguments.json);
    let result = run(arguments.command, &output);
    ExitCode::from(output.exit_code(result))
}

/// Prints what is not a command to run: help, the version, or what is wrong with the command line.
fn print_help_or_error(error: &clap::Error) -> u8 {
    if error.use_stderr() {
        let _ = error.print();
        return error.exit_code() as u8;
    }
    // Not printed by clap, which prints to a standard output of its own.
    let output = output::Output::new(false);
    let is_terminal = std::io::stdout().is_terminal();
    let text = error.render();
    let text = if is_terminal {
        text.ansi().to_string()
    } else {
        text.to_string()
    };
    let printed = output.line(text.trim_end());
    output.exit_code(printed.map(|()| 0))
}

/// Runs a command and returns its exit code.
fn run(command: Command, output: &Output) -> Result<u8> {
    let is_well = match command {
        Command::Demo(demo) => demo.run(output),
        Command::Load(load) => load.run(output),
        Command::Create(create) => create.run(),
        Command::Kinds(kinds) => kinds.run(output),
        Command::Get(get) => get.run(output),
        Command::Put(put) => put.run(output),
        Command::Del(del) => del.run(output),
        Command::Scan(scan) => scan.run(output),
        Command::Insert(insert) => insert.run(output),
        Command::Remove(remove) => remove.run(output),
        Command::Relocate(relocate) => relocate.run(output),
        Command::Query(query) => query.run(output),
        Command::Draw(draw) => draw.run(output),
        Command::List(list) => list.run(output),
        Command::Rename(rename) => rename.run(),
        Command::Stat(stat) => stat.run(output),
        Command::Check(check) => check.run(output),
        Command::Rm(rm) => rm.run(),
        Command::Shrink(shrink) => shrink.run(output),
        Command::Backup(backup) => backup.run(),
        Command::Verify(verify) => verify.run(output),
        Command::Torture(torture) => torture.run(output),
        Command::Crash(crash) => crash.run(output),
        Command::Bench(_) if output.json => {
            bail!(
                "a run of the bench is JSON in the file that --output names; what it prints is for people"
            )
        }
        Command::Bench(bench) => return bench.run(&["bench"], &mut *output.writer()),
        Command::Writer(writer) => writer.run(),
        Command::VerifyWriters(verify) => verify.run(output),
        Command::VolatileDisk(disk) => disk.run(output),
        Command::Places(places) => places.run(output),
    };
    Ok(u8::from(!is_well?))
}
