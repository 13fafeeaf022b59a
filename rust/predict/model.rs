//! `models/<gpu>/`: what was fitted for one GPU.

use super::features::{inter_names, intra_names};
use super::interval::{CLASSES, Residual};
use super::intra_sm::Contention;
use super::{Packing, PredictError, Release};
use crate::gbdt;
use crate::gpu::GpuSpec;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Coefficients of the formulas; `coefficients.json` in a folder of models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coefficients {
    /// Name of the GPU, as its driver says.
    pub gpu: String,
    /// Date and commit of the pairs that they were fitted on.
    pub data: String,
    /// §4.1.
    pub release: Release,
    /// §4.2.
    pub packing: Packing,
    /// §4.4.
    pub contention: Contention,
}

/// All of a folder.
#[derive(Clone, Debug)]
pub struct Models {
    /// Formulas.
    pub coefficients: Coefficients,
    /// §4.3: the rate at which a kernel runs beside another on other SMs. `None` while it is being fitted.
    pub inter: Option<gbdt::Model>,
    /// §4.4: what is to be added to the rate by the formulas, on the same SMs. `None` while it is being fitted.
    pub intra: Option<gbdt::Model>,
    /// By [`class`](super::interval::class).
    pub residuals: Vec<Residual>,
}

/// Names of the files.
pub const COEFFICIENTS: &str = "coefficients.json";
/// §4.3's trees.
pub const INTER: &str = "inter_sm.json";
/// §4.4's trees.
pub const INTRA: &str = "intra_sm.json";
/// The intervals' table.
pub const RESIDUALS: &str = "residuals.json";

impl Coefficients {
    /// Where fitting starts.
    pub fn start(gpu: &str, data: String) -> Coefficients {
        Coefficients {
            gpu: gpu.to_owned(),
            data,
            release: Release { spread: 0.15, drift: 0.25 },
            packing: Packing { a: 0.25, b: 0.3, c: 0.8, gamma: 0.5 },
            contention: Contention { k: 0.0, k_sigma: 1.0, sigma_threshold: 4.0 },
        }
    }

    fn check(&self, path: &Path) -> Result<(), PredictError> {
        let Coefficients { release, packing, contention, .. } = self;
        let fields = [
            ("release.spread", release.spread),
            ("release.drift", release.drift),
            ("packing.a", packing.a),
            ("packing.b", packing.b),
            ("packing.c", packing.c),
            ("packing.gamma", packing.gamma),
            ("contention.k", contention.k),
            ("contention.k_sigma", contention.k_sigma),
            ("contention.sigma_threshold", contention.sigma_threshold),
        ];
        match fields.into_iter().find(|(_, value)| !value.is_finite() || !(0.0..=1e6).contains(value)) {
            None => Ok(()),
            Some((field, value)) => Err(PredictError::Field {
                path: path.to_owned(),
                field,
                found: value.to_string(),
                expected: "0 to 1e6",
            }),
        }
    }
}

impl Models {
    /// Formulas alone.
    pub fn formulas(coefficients: Coefficients) -> Models {
        Models { coefficients, inter: None, intra: None, residuals: vec![Residual::default(); CLASSES] }
    }

    /// Reads and checks a folder; `complete`: all files have to be there.
    pub fn open(folder: &Path, spec: &GpuSpec, complete: bool) -> Result<Models, PredictError> {
        let path = folder.join(COEFFICIENTS);
        if !path.exists() {
            return Err(PredictError::Models { folder: folder.to_owned(), gpu: spec.name.to_owned() });
        }
        let coefficients: Coefficients = json(&path)?;
        coefficients.check(&path)?;
        if crate::gpu::by_name(&coefficients.gpu) != Some(spec) {
            let (found, expected) = (coefficients.gpu, spec.name.to_owned());
            return Err(PredictError::Foreign { folder: folder.to_owned(), found, expected });
        }
        let mut models = Models::formulas(coefficients);
        let there = |name: &str| complete || folder.join(name).exists();
        if there(INTER) {
            models.inter = Some(trees(&folder.join(INTER), &inter_names())?);
        }
        if there(INTRA) {
            models.intra = Some(trees(&folder.join(INTRA), &intra_names())?);
        }
        if there(RESIDUALS) {
            models.residuals = residuals(&folder.join(RESIDUALS))?;
        }
        Ok(models)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, PredictError> {
    std::fs::read(path).map_err(|source| PredictError::Io { path: path.to_owned(), source })
}

pub(super) fn json<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, PredictError> {
    serde_json::from_slice(&read(path)?).map_err(|source| PredictError::Json { path: path.to_owned(), source })
}

/// Trees of a file.
pub(super) fn trees(path: &Path, names: &[String]) -> Result<gbdt::Model, PredictError> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    gbdt::Model::parse(&read(path)?, &names).map_err(|source| PredictError::Trees { path: path.to_owned(), source })
}

fn residuals(path: &Path) -> Result<Vec<Residual>, PredictError> {
    let table: Vec<Residual> = json(path)?;
    let bad = |field, found: String, expected| PredictError::Field { path: path.to_owned(), field, found, expected };
    if table.len() != CLASSES {
        return Err(bad("number of classes", table.len().to_string(), "one of each sharing, role and exposure"));
    }
    let fits =
        |r: &Residual| [r.mean, r.sd, r.p5, r.p95].iter().all(|x| x.abs() <= 10.0) && r.sd >= 0.0 && r.p5 <= r.p95;
    match table.iter().position(|r| !fits(r)) {
        None => Ok(table),
        Some(at) => {
            Err(bad("a class", format!("{:?} at {at}", table[at]), "numbers of at most 10, p5 <= p95, sd >= 0"))
        }
    }
}
