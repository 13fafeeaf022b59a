//! Why nothing was predicted.

use crate::gbdt::GbdtError;
use crate::profile::ProfileError;
use std::fmt;
use std::path::PathBuf;

/// No prediction. Each says what was found, what was expected and what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum PredictError {
    /// A profile without the counters that predictions rest on.
    Counters {
        /// The kernel.
        key: String,
        /// Nsight Compute's names of what it lacks.
        missing: Vec<&'static str>,
    },
    /// No kernel of that name in the data set, or several.
    Kernel {
        /// What was asked for.
        found: String,
        /// Keys that hold it.
        candidates: Vec<String>,
    },
    /// A GPU that is not known.
    Gpu {
        /// Its name.
        found: String,
    },
    /// A folder without models for the GPU.
    Models {
        /// The folder.
        folder: PathBuf,
        /// Which GPU.
        gpu: String,
    },
    /// A file of models could not be read.
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file of models is not what it should be.
    Json {
        /// Which.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// Models of another GPU than the data's.
    Foreign {
        /// The folder.
        folder: PathBuf,
        /// GPU of the models.
        found: String,
        /// GPU of the data.
        expected: String,
    },
    /// A number that its field cannot have.
    Field {
        /// Which file.
        path: PathBuf,
        /// Which field.
        field: &'static str,
        /// Its value.
        found: String,
        /// What it must be.
        expected: &'static str,
    },
    /// Trees were refused.
    Trees {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: GbdtError,
    },
    /// A profile was refused.
    Profile(ProfileError),
}

impl fmt::Display for PredictError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Counters { key, missing } => {
                let (n, first) = (missing.len(), missing.first().unwrap_or(&""));
                write!(f, "{key} lacks {n} counters, {first} among them: profile it with Nsight Compute's permission")
            }
            Self::Kernel { found, candidates } if candidates.is_empty() => {
                write!(
                    f,
                    "found no kernel {found:?}, expected a key of kernels.jsonl or of a workload, or a part of one"
                )
            }
            Self::Kernel { found, candidates } => {
                let (n, first) = (candidates.len(), candidates.iter().take(5).cloned().collect::<Vec<_>>().join(", "));
                write!(f, "{n} kernels have {found:?} in their key, expected one: {first}")
            }
            Self::Gpu { found } => {
                let known: Vec<_> = crate::gpu::ALL.iter().map(|spec| spec.name).collect();
                write!(f, "found {found:?}, expected one of {}", known.join(", "))
            }
            Self::Models { folder, gpu } => write!(
                f,
                "found no models for the {gpu} in {}: measure pairs on it with `python -m mosaic_torch.profiling.dataset`, \
                 then run `python -m mosaic_torch.train`",
                folder.display()
            ),
            Self::Io { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Json { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Foreign { folder, found, expected } => {
                write!(f, "models in {} are of the {found}, expected those of the {expected}", folder.display())
            }
            Self::Field { path, field, found, expected } => {
                write!(f, "{}: {field} is {found}, expected {expected}", path.display())
            }
            Self::Trees { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Profile(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for PredictError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Json { source, .. } => Some(source),
            Self::Trees { source, .. } => Some(source),
            Self::Profile(e) => Some(e),
            _ => None,
        }
    }
}

impl From<ProfileError> for PredictError {
    fn from(e: ProfileError) -> Self {
        Self::Profile(e)
    }
}
