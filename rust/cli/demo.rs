//! `mosaic demo`: two recorded jobs share a GPU, replayed in virtual time.

use std::{
    fmt::Write,
    io::IsTerminal,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use clap::Args;
use mosaic::sim::{
    Comparison, Options, Row, Sharing, compare,
    trace::{Trace, TraceError},
};
use serde_json::json;

use super::{host, python};

/// Recorded by this project's own hook; their first lines say with what.
const SHIPPED_HP: &str = include_str!("../../profiles/h200/traces/resnet50.jsonl");
const SHIPPED_BE: &str = include_str!("../../profiles/h200/traces/bert-large.jsonl");

/// The live run: the same pair measured on the GPU.
const LIVE: [&str; 15] = [
    "-m",
    "mosaic_torch.bench",
    "bound",
    "--placements",
    "threads",
    "--be",
    "bert-large",
    "--loads",
    "poisson0.5",
    "--variants",
    "isolated,streams,idle-only",
    "--seeds",
    "1",
    "--requests",
    "1000",
];

/// Replay two recorded jobs that share a GPU, without one: what the bound costs, and what its absence costs.
#[derive(Debug, Args)]
pub struct Demo {
    /// The HP job's kernel trace [default: ResNet50's, recorded on an H200].
    #[arg(long, value_name = "FILE")]
    hp: Option<PathBuf>,
    /// The BE job's kernel trace [default: BERT-large's, recorded on an H200].
    #[arg(long, value_name = "FILE")]
    be: Option<PathBuf>,
    /// HP requests.
    #[arg(long, default_value_t = Options::default().requests)]
    requests: usize,
    /// Fraction of the time that HP is active when alone.
    #[arg(long, default_value_t = Options::default().load)]
    load: f64,
    /// Of the arrivals.
    #[arg(long, default_value_t = Options::default().seed)]
    seed: u64,
    /// HP's bound on p99 over isolated p99.
    #[arg(long, value_name = "RATIO", default_value_t = Options::default().slo_ratio)]
    slo: f64,
    /// Slowdown of HP's and BE's kernels that run side by side [default: as measured for the pair, else 2 and 2].
    #[arg(long, num_args = 2, value_names = ["HP", "BE"])]
    slowdown: Option<Vec<f64>>,
    /// One JSON object.
    #[arg(long)]
    json: bool,
    /// Measure the pair on this machine's GPU instead of replaying it.
    #[arg(long, conflicts_with_all = ["hp", "be", "json", "slowdown", "load", "seed", "slo", "requests"])]
    live: bool,
}

impl Demo {
    pub fn run(self) -> ExitCode {
        if self.live {
            return live();
        }
        let (hp, be) = match (read(self.hp.as_deref(), SHIPPED_HP), read(self.be.as_deref(), SHIPPED_BE)) {
            (Ok(hp), Ok(be)) => (hp, be),
            (Err(e), _) => return super::fail(1, format_args!("--hp: {e}")),
            (_, Err(e)) => return super::fail(1, format_args!("--be: {e}")),
        };
        let sharing = match self.slowdown.as_deref() {
            Some(&[hp_slowdown_ratio, be_slowdown_ratio]) => Some(Sharing { hp_slowdown_ratio, be_slowdown_ratio }),
            _ => None,
        };
        let options =
            Options { requests: self.requests, load: self.load, seed: self.seed, slo_ratio: self.slo, sharing };
        let comparison = match compare(&hp, &be, &options) {
            Ok(comparison) => comparison,
            Err(e) => return super::fail(2, e),
        };
        if self.json {
            let object = json!({
                "replay": true,
                "hp": hp.provenance,
                "be": be.provenance,
                "load": options.load,
                "requests": options.requests,
                "seed": options.seed,
                "slo_ratio": options.slo_ratio,
                "result": comparison,
            });
            super::print(&format!("{object:#}\n"));
            return ExitCode::SUCCESS;
        }
        super::print(&text(&hp, &be, &options, &comparison));
        if std::io::stdout().is_terminal() && host::has_gpu() && python::with_torch(python::candidates()).is_ok() {
            super::print("\nThis machine has a GPU and torch: `mosaic demo --live` measures the pair on it.\n");
        }
        ExitCode::SUCCESS
    }
}

fn read(file: Option<&Path>, shipped: &str) -> Result<Trace, TraceError> {
    file.map_or_else(|| Trace::parse(shipped.as_bytes()), Trace::read)
}

fn live() -> ExitCode {
    if !host::has_gpu() {
        return super::fail(1, "no GPU here (no /dev/nvidia0): leave --live out for the replay");
    }
    match python::with_torch(python::candidates()) {
        Ok(python) => super::become_command(Command::new(python).args(LIVE)),
        Err(missing) => {
            super::fail(1, format_args!("{missing}: activate the environment that has both, or leave --live out"))
        }
    }
}

fn text(hp: &Trace, be: &Trace, options: &Options, c: &Comparison) -> String {
    let mut out = String::new();
    let (h, b) = (&hp.provenance, &be.provenance);
    let _ = writeln!(
        out,
        "A replay: no GPU is used. Kernels recorded on {} (driver {}, torch {}, {}) run in virtual time,\n\
         and every BE launch asks the admission code that the launch path uses.\n",
        h.gpu, h.driver, h.torch, h.date
    );
    let job = |role, workload, launches, ms| format!("{role}  {workload}: {launches:.0} launches, {ms:.2} ms alone\n");
    out += &job("HP", &h.workload, c.hp_launches, c.t_iso_ms);
    out += &job("BE", &b.workload, c.be_launches, c.be_alone_ms);
    let _ = writeln!(
        out,
        "{} HP requests, Poisson, {:.0} % load, seed {}; BE in a closed loop. Bound: HP p99 within {:.2} x isolated.\n",
        options.requests,
        options.load * 100.0,
        options.seed,
        options.slo_ratio
    );
    let _ = writeln!(
        out,
        "{:<13}{:>12}{:>12}{:>8}{:>8}{:>8}{:>10}{:>13}",
        "", "HP p50, ms", "HP p99, ms", "ratio", "bound", "misses", "BE/s", "BE fraction"
    );
    for row in &c.rows {
        let _ = writeln!(out, "{}", table_row(row));
    }
    let _ = writeln!(
        out,
        "\nratio: HP p99 over isolated. misses: HP requests beyond the bound. BE fraction: of its own rate while HP is idle.\n\
         Kernels that run side by side are taken to be slowed {:.2} x (HP) and {:.2} x (BE): {}.",
        c.hp_slowdown_ratio, c.be_slowdown_ratio, c.sharing_source
    );
    for row in c.rows.iter().filter(|r| r.overloaded) {
        let _ = writeln!(
            out,
            "{}: HP is overloaded. It falls behind its arrivals, and the longer the run, the larger its p99.",
            row.variant
        );
    }
    out
}

fn table_row(r: &Row) -> String {
    let be = if r.be_per_s > 0.0 {
        format!("{:>10.1}{:>13.2}", r.be_per_s, r.be_fraction)
    } else {
        format!("{:>10}{:>13}", "-", "-")
    };
    let bound = if r.bound_holds { "held" } else { "broken" };
    let (p50, p99, ratio) = (r.hp_p50_ms, r.hp_p99_ms, r.hp_p99_ratio);
    format!("{:<13}{p50:>12.2}{p99:>12.2}{ratio:>8.2}{bound:>8}{:>8}{be}", r.variant, r.hp_late_requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_traces_are_recordings_of_one_request_that_show_what_the_demo_claims() {
        // Guards against a made-up or truncated trace, and against a demo whose output contradicts README.
        let (hp, be) = (read(None, SHIPPED_HP).unwrap(), read(None, SHIPPED_BE).unwrap());
        for (trace, text) in [(&hp, SHIPPED_HP), (&be, SHIPPED_BE)] {
            assert!(trace.provenance.gpu.contains("H200"), "{:?}", trace.provenance);
            assert_eq!((trace.requests.len(), trace.provenance.kernels), (1, Some(trace.requests[0].len() as u64)));
            assert!(text.len() < 200_000, "{} bytes: the binary holds it", text.len());
        }
        let options = Options::default();
        let c = compare(&hp, &be, &options).unwrap();
        assert!(c.rows[1].hp_p99_ratio > options.slo_ratio && !c.rows[1].bound_holds, "{c:#?}");
        assert!(c.rows[2].hp_p99_ratio < 1.05 && c.rows[2].be_fraction > 0.3, "{c:#?}");
        assert_eq!(c.rows[2].be_beside_hp, 0, "{c:#?}");
    }
}
