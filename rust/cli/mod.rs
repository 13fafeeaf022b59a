//! The command line. Each subcommand is a module with its options and `run`.

mod accuracy;
mod demo;
mod doctor;
mod fit;
mod host;
mod profile;
mod python;
mod run;
mod trace;

use std::{
    io::Write,
    process::{Command, ExitCode},
};

use clap::{Parser, Subcommand};

/// A latency-critical model and best-effort work share one GPU.
#[derive(Debug, Parser)]
#[command(name = "mosaic", version)]
struct Cli {
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Debug, Subcommand)]
enum Cmd {
    Accuracy(accuracy::Command),
    Demo(demo::Demo),
    Doctor(doctor::Doctor),
    #[command(hide = true)]
    Fit(fit::Fit),
    Profile(profile::Profile),
    Run(run::Run),
    Trace(trace::Trace),
}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Cmd::Accuracy(c) => c.run(),
        Cmd::Demo(c) => c.run(),
        Cmd::Doctor(c) => c.run(),
        Cmd::Fit(c) => c.run(),
        Cmd::Profile(c) => c.run(),
        Cmd::Run(c) => c.run(),
        Cmd::Trace(c) => c.run(),
    }
}

/// Says what went wrong.
fn fail(code: u8, error: impl std::fmt::Display) -> ExitCode {
    eprintln!("mosaic: {}", printable(&error.to_string()));
    ExitCode::from(code)
}

/// Prints; a reader that has gone away (`mosaic demo | head`) is no error.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(printable(text).as_bytes()).and_then(|()| out.flush());
}

/// Names come from files and from other processes: none of them steers the terminal.
fn printable(text: &str) -> String {
    let steers = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    text.chars().map(|c| if steers(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Becomes the command; returns only if that fails, with env(1)'s codes: 127 not found, 126 not to be run.
fn become_command(command: &mut Command) -> ExitCode {
    use std::os::unix::process::CommandExt;
    let error = command.exec();
    let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
    fail(code, format_args!("cannot run {}: {error}", command.get_program().to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// Fault: a profile whose model's name clears the screen.
    #[test]
    fn what_is_printed_steers_no_terminal() {
        assert_eq!(printable("a\u{1b}[2J\r\u{9b}b\n\tü"), "a\u{fffd}[2J\u{fffd}\u{fffd}b\n\tü");
    }

    #[test]
    fn the_command_line_is_consistent() {
        // Guards against options that clash, which clap notices only when they are used.
        Cli::command().debug_assert();
    }
}
