//! `mosaic trace`: checks a recorded kernel trace.

use std::{fmt::Write, path::PathBuf, process::ExitCode};

use clap::Args;
use mosaic::sim::{Job, Model, trace};

/// Check a recorded kernel trace; with --condense, make one request of all that it holds.
#[derive(Debug, Args)]
pub struct Trace {
    /// The trace: JSON lines.
    file: PathBuf,
    /// Write the condensed trace here.
    #[arg(long, value_name = "FILE")]
    condense: Option<PathBuf>,
}

impl Trace {
    pub fn run(self) -> ExitCode {
        let read = match trace::Trace::read(&self.file) {
            Ok(read) => read,
            Err(e) => return super::fail(1, format_args!("{}: {e}", self.file.display())),
        };
        super::print(&summary(&read));
        let Some(path) = self.condense else { return ExitCode::SUCCESS };
        let condensed = match read.condense() {
            Ok(condensed) => condensed,
            Err(e) => return super::fail(1, format_args!("{}: {e}", self.file.display())),
        };
        let text = match condensed.to_jsonl() {
            Ok(text) => text,
            Err(e) => return super::fail(1, e),
        };
        if let Err(e) = std::fs::write(&path, text) {
            return super::fail(1, format_args!("cannot write {}: {e}", path.display()));
        }
        super::print(&format!("\n{}\n{}", path.display(), summary(&condensed)));
        ExitCode::SUCCESS
    }
}

fn summary(t: &trace::Trace) -> String {
    let p = &t.provenance;
    let job = Job::new(t, &Model::default());
    let gpu_ns: u64 = t.kernels().map(|k| k.duration_ns).sum();
    let requests = t.requests.len();
    let mut out = String::new();
    let _ =
        writeln!(out, "{}\n{}, driver {}, CUDA {}, torch {}, {}", p.workload, p.gpu, p.driver, p.cuda, p.torch, p.date);
    let _ = writeln!(
        out,
        "requests {requests}, launches {:.1} a request, GPU time {:.3} ms, isolated service p50 {:.3} ms",
        job.mean_launches(),
        gpu_ns as f64 / requests.max(1) as f64 / 1e6,
        job.t_iso_ns() as f64 / 1e6,
    );
    out
}
