//! The command line. Each subcommand is a module with its options and `run`.

mod demo;
mod doctor;
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
    Demo(demo::Demo),
    Doctor(doctor::Doctor),
    Profile(profile::Profile),
    Run(run::Run),
    Trace(trace::Trace),
}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Cmd::Demo(c) => c.run(),
        Cmd::Doctor(c) => c.run(),
        Cmd::Profile(c) => c.run(),
        Cmd::Run(c) => c.run(),
        Cmd::Trace(c) => c.run(),
    }
}

/// Says what went wrong.
fn fail(code: u8, error: impl std::fmt::Display) -> ExitCode {
    eprintln!("mosaic: {error}");
    ExitCode::from(code)
}

/// Prints; a reader that has gone away (`mosaic demo | head`) is no error.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
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

    #[test]
    fn the_command_line_is_consistent() {
        // Guards against options that clash, which clap notices only when they are used.
        Cli::command().debug_assert();
    }
}
