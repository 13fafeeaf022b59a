//! Why a model was refused.

use std::fmt;

/// A model was refused. Trees, nodes and features count from 0.
#[derive(Debug)]
#[non_exhaustive]
pub enum GbdtError {
    /// The file is longer than any model that is of use here.
    LongFile {
        /// Its length.
        found_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// The file is not JSON, or lacks a field, or a field is of another type.
    Json(serde_json::Error),
    /// A field of the model as a whole.
    Field {
        /// Which field.
        field: String,
        /// Its value.
        found: String,
        /// What it must be.
        expected: String,
    },
    /// A tree as a whole.
    Tree {
        /// Which tree.
        tree: usize,
        /// What is there.
        found: String,
        /// What must be.
        expected: String,
    },
    /// A node of a tree.
    Node {
        /// Which tree.
        tree: usize,
        /// Which node of it.
        node: usize,
        /// What is there.
        found: String,
        /// What must be.
        expected: String,
    },
}

impl GbdtError {
    pub(super) fn field(field: impl Into<String>, found: impl fmt::Display, expected: impl Into<String>) -> Self {
        Self::Field { field: field.into(), found: short(found), expected: expected.into() }
    }

    pub(super) fn tree(tree: usize, found: impl fmt::Display, expected: impl Into<String>) -> Self {
        Self::Tree { tree, found: short(found), expected: expected.into() }
    }

    pub(super) fn node(tree: usize, node: usize, found: impl fmt::Display, expected: impl Into<String>) -> Self {
        Self::Node { tree, node, found: short(found), expected: expected.into() }
    }
}

/// What stands in a file may be of any length; a message may not.
fn short(found: impl fmt::Display) -> String {
    const LIMIT: usize = 100;
    let found = found.to_string();
    match found.char_indices().nth(LIMIT) {
        Some((end, _)) => format!("{}...", &found[..end]),
        None => found,
    }
}

impl fmt::Display for GbdtError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LongFile { found_bytes, limit_bytes } => {
                write!(f, "found {found_bytes} bytes, expected a model of at most {limit_bytes}")
            }
            Self::Json(source) => write!(f, "not a model of XGBoost: {source}"),
            Self::Field { field, found, expected } => write!(f, "{field} is {found}, expected {expected}"),
            Self::Tree { tree, found, expected } => write!(f, "tree {tree}: found {found}, expected {expected}"),
            Self::Node { tree, node, found, expected } => {
                write!(f, "tree {tree}, node {node}: found {found}, expected {expected}")
            }
        }
    }
}

impl std::error::Error for GbdtError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Json(source) => Some(source),
            _ => None,
        }
    }
}

impl From<serde_json::Error> for GbdtError {
    fn from(source: serde_json::Error) -> Self {
        Self::Json(source)
    }
}
