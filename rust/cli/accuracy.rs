//! `mosaic accuracy`: how far off predictions are, from committed data.

use std::{fmt::Write, fs, path::PathBuf, process::ExitCode};

use clap::Args;
use mosaic::predict::PredictError;
use mosaic::predict::accuracy::{Accuracy, Errors, accuracy};
use mosaic::predict::samples::Samples;
use mosaic::profile::DataSet;

/// How far off predictions are on pairs with unseen kernels, beside rivals and without single mechanisms.
#[derive(Debug, Args)]
pub struct Command {
    /// Folder of profiles.
    #[arg(long, default_value = "profiles/h200")]
    data: PathBuf,
    /// Folder of models; default: the folder in models/ of the same name.
    #[arg(long)]
    models: Option<PathBuf>,
    /// Write the figures as a record, too.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

impl Command {
    pub fn run(self) -> ExitCode {
        let models = self.models.clone().unwrap_or_else(|| super::fit::models_beside(&self.data));
        let found = DataSet::open(&self.data)
            .map_err(PredictError::from)
            .and_then(|set| Samples::new(&set))
            .and_then(|samples| Ok((accuracy(&samples, &models)?, samples)));
        let (found, samples) = match found {
            Ok(found) => found,
            Err(e) => return super::fail(1, e),
        };
        if let Some(path) = &self.csv
            && let Err(e) = fs::write(path, csv(&found))
        {
            return super::fail(1, format_args!("{}: {e}", path.display()));
        }
        super::print(&text(&found, &samples));
        ExitCode::SUCCESS
    }
}

fn csv(found: &Accuracy) -> String {
    let mut text = String::from("topic,case,variant,metric,value,unit,n\n");
    let pairs = |e: &Errors| if e.case.ends_with("hp") { e.n } else { e.n / 2 };
    for e in &found.errors {
        let metrics =
            [("p50_abs_err_pct", e.p50_pct), ("p95_abs_err_pct", e.p95_pct), ("p95_under_pct", e.p95_under_pct)];
        for (metric, value) in metrics {
            let _ = writeln!(text, "accuracy,{},{},{metric},{value:.3},%,{}", e.case, e.variant, e.n);
        }
        let _ = writeln!(text, "accuracy,{},{},pairs,{},count,{}", e.case, e.variant, pairs(e), e.n);
    }
    for (case, within, n) in &found.coverage {
        let _ = writeln!(text, "accuracy,{case},mosaic,interval_90_coverage,{within:.4},fraction,{n}");
    }
    text
}

fn text(found: &Accuracy, samples: &Samples) -> String {
    let mut text = format!(
        "{}, pairs of {}. Durations from release to end, of pairs with an unseen kernel that are not noisy.\n\
         |error| is |predicted - measured| / measured; under: (measured - predicted) / measured where that is above 0.\n\
         meets: both ran at once for a fifth or more of the shorter time; hp: the high-priority kernel's time alone.\n",
        samples.spec.name, samples.data
    );
    table(&mut text, "Accuracy", &found.errors);
    text += "\nOf the 90 % interval\n";
    for (case, within, n) in &found.coverage {
        let _ = writeln!(text, "  {case:<28} {:5.1} % of {n} within", 100.0 * within);
    }
    for (name, errors) in &found.groups {
        table(&mut text, &format!("By {name}"), errors);
    }
    text += "\nThe ten that are furthest off\n";
    for line in &found.worst {
        let _ = writeln!(text, "  {line}");
    }
    text
}

fn table(text: &mut String, title: &str, errors: &[Errors]) {
    let width = errors.iter().map(|e| e.case.len()).max().unwrap_or(0);
    let _ = writeln!(
        text,
        "\n{title}\n  {:<width$}  {:<18} {:>6} {:>9} {:>9} {:>9}",
        "", "", "n", "p50 %", "p95 %", "under %"
    );
    for e in errors {
        let Errors { case, variant, n, p50_pct, p95_pct, p95_under_pct } = e;
        let _ =
            writeln!(text, "  {case:<width$}  {variant:<18} {n:>6} {p50_pct:>9.2} {p95_pct:>9.1} {p95_under_pct:>9.1}");
    }
}
