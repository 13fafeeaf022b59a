//! Why a profile was refused.

use std::{fmt, io, path::Path, path::PathBuf};

/// A profile was refused. Lines count from 1.
#[derive(Debug)]
#[non_exhaustive]
pub enum ProfileError {
    /// One file of several.
    In {
        /// Its path.
        path: PathBuf,
        /// What is wrong there.
        source: Box<ProfileError>,
    },
    /// The file or folder could not be read.
    Io(io::Error),
    /// There is no first line.
    Empty,
    /// A line is longer than any record.
    LongLine {
        /// Where.
        line: usize,
        /// The limit.
        limit_bytes: u64,
    },
    /// A line is not JSON, or lacks a field, or has an unknown one.
    Json {
        /// Where.
        line: usize,
        /// What serde found.
        source: serde_json::Error,
    },
    /// The first line names another format.
    Format {
        /// What it names.
        found: String,
        /// What it may name.
        expected: String,
    },
    /// The file is of another version.
    Version {
        /// Its version.
        found: u64,
        /// The version of this reader.
        expected: u64,
    },
    /// A value that its field cannot have.
    Field {
        /// Where.
        line: usize,
        /// Which field.
        field: String,
        /// Its value.
        found: String,
        /// What it must be.
        expected: String,
    },
    /// What may stand once stands twice.
    Repeated {
        /// Where it stands again.
        line: usize,
        /// What.
        what: String,
        /// Where it stood first.
        first: String,
    },
    /// The number of records is not the one that the first line gives.
    Records {
        /// Lines found.
        found: u64,
        /// Lines promised.
        expected: u64,
    },
}

impl ProfileError {
    pub(super) fn field(
        line: usize,
        field: impl Into<String>,
        found: impl fmt::Display,
        expected: impl Into<String>,
    ) -> Self {
        Self::Field { line, field: field.into(), found: found.to_string(), expected: expected.into() }
    }

    pub(super) fn in_file(self, path: &Path) -> Self {
        Self::In { path: path.to_owned(), source: Box::new(self) }
    }
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::In { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Io(source) => write!(f, "cannot be read: {source}"),
            Self::Empty => write!(f, "no first line, expected one that says where the profile comes from"),
            Self::LongLine { line, limit_bytes } => {
                write!(f, "line {line}: found more than {limit_bytes} bytes, expected a record of fewer")
            }
            Self::Json { line, source } => {
                // serde counts lines within this one.
                let text = source.to_string();
                let text = text.split_once(" at line ").map_or(text.as_str(), |(what, _)| what);
                write!(f, "line {line}: {text} (column {})", source.column())
            }
            Self::Format { found, expected } => write!(f, "found the format {found:?}, expected {expected}"),
            Self::Version { found, expected } => {
                write!(
                    f,
                    "found version {found}, expected version {expected}: measure again, or use the build that fits"
                )
            }
            Self::Field { line, field, found, expected } => {
                write!(f, "line {line}: {field} is {found}, expected {expected}")
            }
            Self::Repeated { line, what, first } => {
                write!(f, "line {line}: found {what} again, expected it once (first: {first})")
            }
            Self::Records { found, expected } => {
                write!(f, "found {found} records, expected {expected} by the first line")
            }
        }
    }
}

impl std::error::Error for ProfileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::In { source, .. } => Some(source),
            Self::Io(source) => Some(source),
            Self::Json { source, .. } => Some(source),
            _ => None,
        }
    }
}
