//! A profile's lines, one at a time.

use super::{Format, ProfileError, Provenance};
use flate2::bufread::MultiGzDecoder;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// Longest line that is read: a file without line ends must not fill the memory.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// A profile whose first line was read.
pub(super) struct Reader<R> {
    pub provenance: Provenance,
    lines: Lines<R>,
}

/// One record's text.
pub(super) struct Record<'a> {
    /// Its line, from 1.
    pub line: usize,
    text: &'a [u8],
}

impl Record<'_> {
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ProfileError> {
        serde_json::from_slice(self.text).map_err(|source| ProfileError::Json { line: self.line, source })
    }
}

impl<R: BufRead> Reader<R> {
    /// Reads the first line, which must name one of `formats`.
    pub fn new(source: R, formats: &[Format]) -> Result<Self, ProfileError> {
        let mut lines = Lines { source, number: 0, text: Vec::new() };
        let first = lines.next()?.ok_or(ProfileError::Empty)?;
        let provenance = Provenance::parse(first.text, formats)?;
        Ok(Reader { provenance, lines })
    }

    /// The next record; at the end, whether there were as many as the first line says.
    pub fn next(&mut self) -> Result<Option<Record<'_>>, ProfileError> {
        let (found, expected) = (self.lines.number as u64 - 1, self.provenance.records);
        if found < expected {
            let record = self.lines.next()?;
            return record.map(Some).ok_or(ProfileError::Records { found, expected });
        }
        while self.lines.next()?.is_some() {}
        let found = self.lines.number as u64 - 1;
        if found == expected { Ok(None) } else { Err(ProfileError::Records { found, expected }) }
    }
}

struct Lines<R> {
    source: R,
    /// Lines so far.
    number: usize,
    text: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    fn next(&mut self) -> Result<Option<Record<'_>>, ProfileError> {
        self.text.clear();
        let mut limited = (&mut self.source).take(MAX_LINE_BYTES);
        if limited.read_until(b'\n', &mut self.text).map_err(ProfileError::Io)? == 0 {
            return Ok(None);
        }
        self.number += 1;
        if self.text.len() as u64 == MAX_LINE_BYTES {
            return Err(ProfileError::LongLine { line: self.number, limit_bytes: MAX_LINE_BYTES });
        }
        Ok(Some(Record { line: self.number, text: &self.text }))
    }
}

/// Reads a file, compressed if its name says so; errors name it.
pub(super) fn open<T>(
    path: &Path,
    read: impl FnOnce(Box<dyn BufRead>) -> Result<T, ProfileError>,
) -> Result<T, ProfileError> {
    let text = File::open(path).map_err(ProfileError::Io).map(BufReader::new).map(|file| -> Box<dyn BufRead> {
        match path.extension() {
            Some(extension) if extension == "gz" => Box::new(BufReader::new(MultiGzDecoder::new(file))),
            _ => Box::new(file),
        }
    });
    text.and_then(read).map_err(|e| e.in_file(path))
}
