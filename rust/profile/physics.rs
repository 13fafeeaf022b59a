//! `mosaic-physics`: experiments on pairs whose outcome has a reason.

use super::reader::{self, Reader};
use super::{Format, ProfileError, Provenance};
use std::io::BufRead;
use std::path::Path;

/// A file of [`Format::Physics`].
#[derive(Clone, Debug, PartialEq)]
pub struct PhysicsProfile {
    /// Where it comes from.
    pub provenance: Provenance,
    /// Its points, in the file's order: objects, whose fields the experiment chooses.
    pub points: Vec<serde_json::Map<String, serde_json::Value>>,
}

impl PhysicsProfile {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        reader::open(path, Self::parse)
    }

    /// Reads its text.
    pub fn parse(text: impl BufRead) -> Result<Self, ProfileError> {
        Self::from_reader(Reader::new(text, &[Format::Physics])?)
    }

    pub(super) fn from_reader(mut reader: Reader<impl BufRead>) -> Result<Self, ProfileError> {
        let provenance = reader.provenance.clone();
        let mut points = Vec::new();
        while let Some(record) = reader.next()? {
            points.push(record.parse()?);
        }
        Ok(PhysicsProfile { provenance, points })
    }
}
