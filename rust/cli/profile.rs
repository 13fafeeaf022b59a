//! `mosaic profile`: what is in profiles; measuring them is Python's.

use std::{ffi::OsString, path::PathBuf, process::Command, process::ExitCode};

use clap::Args;
use mosaic::profile::{DataSet, ProfileFile};

use super::python;

mod show;

/// Measure kernels and pairs of kernels, or say what is in a profile.
///
/// With --show a file or folder of profiles is read, checked whole and summed up; it needs neither Python nor a GPU.
/// Anything else becomes `python -m mosaic_torch profile ARGS...` of the environment.
#[derive(Debug, Args)]
#[command(override_usage = "mosaic profile --show FILE_OR_FOLDER\n       mosaic profile ARGS...")]
pub struct Profile {
    /// Check a profile, or a folder with kernels.jsonl, pairs-*.jsonl and workloads/, and say what it holds.
    #[arg(long, value_name = "FILE_OR_FOLDER", conflicts_with = "arguments")]
    show: Option<PathBuf>,
    /// Passed on unchanged.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    arguments: Vec<OsString>,
}

impl Profile {
    pub fn run(self) -> ExitCode {
        let Some(path) = self.show else { return measure(&self.arguments) };
        let text = match path.is_dir() {
            true => DataSet::open(&path).map(|set| show::data_set(&set)),
            false => ProfileFile::read(&path).map(|file| show::file(&file)),
        };
        match text {
            Ok(text) => super::print(&text),
            Err(e) => return super::fail(1, e),
        }
        ExitCode::SUCCESS
    }
}

fn measure(arguments: &[OsString]) -> ExitCode {
    match python::with_torch(python::candidates()) {
        Ok(python) => {
            super::become_command(Command::new(python).args(["-m", "mosaic_torch", "profile"]).args(arguments))
        }
        Err(missing) => super::fail(1, format_args!("{missing}: activate the environment that has both")),
    }
}
