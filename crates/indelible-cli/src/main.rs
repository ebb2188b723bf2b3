//! The command line of indelible: pools and maps without writing a program.

mod commands;
mod output;
mod text;
mod torture;
mod typed;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Persistent ordered maps that you can kill.
#[derive(Parser)]
#[command(name = "indelible", version, about)]
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
    /// Load a CSV or SOSD file into a map.
    Load(commands::load::Load),
    /// Create an empty map.
    Create(commands::create::Create),
    /// Print the values of keys; exit code 1 if one is missing.
    Get(commands::records::Get),
    /// Set the value of a key.
    Put(commands::records::Put),
    /// Remove keys; exit code 1 if one is missing.
    Del(commands::records::Del),
    /// Print records in key order.
    Scan(commands::records::Scan),
    /// What a pool and its maps consist of.
    Stat(commands::inspect::Stat),
    /// Check every invariant of a pool; exit code 1 if one does not hold.
    Check(commands::inspect::Check),
    /// Remove a map and free its space.
    Rm(commands::inspect::Rm),
    /// Cut free space off the end of a pool.
    Shrink(commands::inspect::Shrink),
    /// Kill writers over and over, and compare what is there with what was acknowledged.
    Torture(commands::torture::Torture),
    /// Search what crashes could leave, image by image, and prove that nothing is lost.
    Crash(commands::crash::Crash),
    /// Measure indelible and what people use instead, side by side.
    Bench(Box<indelible_bench::command::Bench>),
    /// The child that gets killed.
    #[command(name = "__writer", hide = true)]
    Writer(torture::Writer),
}

fn main() -> ExitCode {
    let Arguments { json, command } = Arguments::parse();
    let output = output::Output { json };
    let result = match command {
        Command::Demo(demo) => demo.run(&output),
        Command::Load(load) => load.run(&output),
        Command::Create(create) => create.run(),
        Command::Get(get) => get.run(&output),
        Command::Put(put) => put.run(),
        Command::Del(del) => del.run(),
        Command::Scan(scan) => scan.run(&output),
        Command::Stat(stat) => stat.run(&output),
        Command::Check(check) => check.run(&output),
        Command::Rm(rm) => rm.run(),
        Command::Shrink(shrink) => shrink.run(&output),
        Command::Torture(torture) => torture.run(&output),
        Command::Crash(crash) => crash.run(&output),
        Command::Bench(bench) => bench.run(&["bench"]),
        Command::Writer(writer) => writer.run(),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("indelible: {error:#}");
            ExitCode::FAILURE
        }
    }
}
