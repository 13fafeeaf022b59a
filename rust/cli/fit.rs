//! `mosaic fit`: the Rust half of `python -m mosaic_torch.train`.

use std::{fs, path::Path, path::PathBuf, process::ExitCode};

use clap::{Args, ValueEnum};
use mosaic::predict::features::{inter_names, intra_names};
use mosaic::predict::fit::{self, Row};
use mosaic::predict::rivals::{gpupool_names, gpupool_row, kace_names, kace_row};
use mosaic::predict::samples::Samples;
use mosaic::predict::{Models, PredictError, Predictor};
use mosaic::profile::DataSet;

/// Fit the formulas' coefficients, or write the rows that trees are trained on.
#[derive(Debug, Args)]
pub struct Fit {
    /// What to write.
    step: Step,
    /// Folder of profiles.
    #[arg(long)]
    data: PathBuf,
    /// Folder of models as far as they are fitted.
    #[arg(long, required_if_eq_any([("step", "intra"), ("step", "residuals")]))]
    models: Option<PathBuf>,
    /// Families and workloads that take no part, with commas between them; of `residuals`: the only ones.
    #[arg(long, value_delimiter = ',')]
    families: Vec<String>,
    /// File to write.
    #[arg(long)]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Step {
    /// JSON of the coefficients.
    Coefficients,
    /// Rows of the model of contention between SMs.
    Inter,
    /// Rows of the model of contention on an SM.
    Intra,
    /// Errors, with their classes.
    Residuals,
    /// Rows of the rivals.
    Rivals,
}

impl Fit {
    pub fn run(self) -> ExitCode {
        match self.text() {
            Ok(text) => match fs::write(&self.out, text) {
                Ok(()) => ExitCode::SUCCESS,
                Err(e) => super::fail(1, format_args!("{}: {e}", self.out.display())),
            },
            Err(e) => super::fail(1, e),
        }
    }

    fn text(&self) -> Result<String, PredictError> {
        let samples = Samples::new(&DataSet::open(&self.data)?)?;
        let predictor = || -> Result<Predictor, PredictError> {
            Ok(Predictor::new(
                samples.spec,
                Models::open(self.models.as_deref().unwrap_or(Path::new("")), samples.spec, false)?,
            ))
        };
        Ok(match self.step {
            Step::Coefficients => {
                let fitted = fit::coefficients(&samples, &self.families);
                serde_json::to_string_pretty(&fitted).expect("numbers and strings") + "\n"
            }
            Step::Inter => csv(&inter_names(), &fit::inter_rows(&samples, &self.families)),
            Step::Intra => csv(&intra_names(), &fit::intra_rows(&samples, &predictor()?, &self.families)),
            Step::Residuals => {
                let rows = fit::residuals(&samples, &predictor()?, &self.families);
                let lines = rows.iter().map(|(class, log)| format!("{class},{log}\n"));
                String::from("class,log\n") + &lines.collect::<String>()
            }
            Step::Rivals => rivals(&samples),
        })
    }
}

fn csv<const N: usize>(names: &[String], rows: &[Row<N>]) -> String {
    let mut text = names.join(",") + ",target,weight\n";
    for row in rows {
        let features = row.features.iter().map(|x| format!("{x},")).collect::<String>();
        text += &format!("{features}{},{}\n", row.target, row.weight);
    }
    text
}

/// Everything that a rival of any sharing is trained on.
fn rivals(samples: &Samples) -> String {
    let named = |prefix: &str, names: Vec<String>| names.iter().map(|n| format!("{prefix}.{n}")).collect::<Vec<_>>();
    let names = [named("kace", kace_names()), named("gpupool", gpupool_names())].concat();
    let mut text = format!("sharing,{},slowdown\n", names.join(","));
    for s in fit::seen(samples, &[]) {
        let m = samples.meeting(s);
        for (own, other, taken_ns) in [(m.a, m.b, s.taken_ns[0]), (m.b, m.a, s.taken_ns[1])] {
            let kace = kace_row(samples.spec, &own, &other).iter().map(|x| format!("{x},")).collect::<String>();
            let gpupool = gpupool_row(&own, &other).iter().map(|x| format!("{x},")).collect::<String>();
            text += &format!("{},{kace}{gpupool}{}\n", s.sharing.name(), taken_ns / own.alone_ns);
        }
    }
    text
}

/// Where the models of a data set lie: `models/` beside `profiles/`, under the same name.
pub fn models_beside(data: &Path) -> PathBuf {
    let name = data.file_name().unwrap_or_default();
    data.parent().and_then(Path::parent).unwrap_or(Path::new("")).join("models").join(name)
}
