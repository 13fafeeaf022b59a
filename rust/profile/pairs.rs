//! `mosaic-pairs`: what kernels do to each other.

use super::reader::{self, Reader};
use super::{Format, ProfileError, Provenance, Spread};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io::BufRead;
use std::path::Path;

/// A file of [`Format::Pairs`].
#[derive(Clone, Debug, PartialEq)]
pub struct PairProfiles {
    /// Where it comes from.
    pub provenance: Provenance,
    /// In the file's order: the pair at index `i` stands on line `i + 2`.
    pub pairs: Vec<Pair>,
}

/// How the two of a pair ran beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PairMode {
    /// Whole GPU, equal priority, A first.
    FullEqual,
    /// Whole GPU, A at high priority, while B runs.
    FullHpRunning,
    /// Whole GPU, B comes while A, at high priority, runs.
    FullHpArriving,
    /// Each on its own SMs.
    Separate,
    /// A on all SMs at high priority, B held to some.
    Confined,
}

impl PairMode {
    /// All modes.
    pub const ALL: [PairMode; 5] = [
        PairMode::FullEqual,
        PairMode::FullHpRunning,
        PairMode::FullHpArriving,
        PairMode::Separate,
        PairMode::Confined,
    ];

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            PairMode::FullEqual => "full-equal",
            PairMode::FullHpRunning => "full-hp-running",
            PairMode::FullHpArriving => "full-hp-arriving",
            PairMode::Separate => "separate",
            PairMode::Confined => "confined",
        }
    }
}

/// Two kernels beside each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// Key of the first kernel.
    pub a: String,
    /// Key of the second.
    pub b: String,
    /// How they ran.
    pub mode: PairMode,
    /// SMs that A had.
    pub a_sms: u32,
    /// SMs that B had.
    pub b_sms: u32,
    /// A alone on its SMs, in the same run.
    pub a_alone_ns: Spread,
    /// B alone on its SMs, in the same run.
    pub b_alone_ns: Spread,
    /// A beside B.
    pub a_ns: Spread,
    /// B beside A.
    pub b_ns: Spread,
    /// Median of B's start minus A's.
    pub lead_ns: f64,
    /// Median time during which both ran.
    pub overlap_ns: f64,
    /// One of the four durations [is noisy](Spread::is_noisy).
    pub noisy: bool,
}

/// What a pair is known by; all of it together stands once.
pub(super) type PairKey<'a> = (&'a str, &'a str, PairMode, u32, u32);

impl PairProfiles {
    /// Reads and checks a file.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        reader::open(path, Self::parse)
    }

    /// Reads and checks its text.
    pub fn parse(text: impl BufRead) -> Result<Self, ProfileError> {
        Self::from_reader(Reader::new(text, &[Format::Pairs])?)
    }

    pub(super) fn from_reader(mut reader: Reader<impl BufRead>) -> Result<Self, ProfileError> {
        let provenance = reader.provenance.clone();
        let mut pairs = Vec::new();
        while let Some(record) = reader.next()? {
            let pair: Pair = record.parse()?;
            pair.check(record.line, provenance.sms)?;
            pairs.push(pair);
        }
        let read = PairProfiles { provenance, pairs };
        let mut line_of = HashMap::new();
        for (line, pair) in read.with_lines() {
            if let Some(first) = line_of.insert(pair.key(), line) {
                return Err(pair.repeated(line, format!("line {first}")));
            }
        }
        Ok(read)
    }

    pub(super) fn with_lines(&self) -> impl Iterator<Item = (usize, &Pair)> {
        self.pairs.iter().enumerate().map(|(index, pair)| (index + 2, pair))
    }
}

impl Pair {
    /// Time beside the other over time alone, medians, of A and of B.
    pub fn slowdowns(&self) -> (f64, f64) {
        (self.a_ns.median_ns / self.a_alone_ns.median_ns, self.b_ns.median_ns / self.b_alone_ns.median_ns)
    }

    pub(super) fn key(&self) -> PairKey<'_> {
        (&self.a, &self.b, self.mode, self.a_sms, self.b_sms)
    }

    pub(super) fn repeated(&self, line: usize, first: String) -> ProfileError {
        let Pair { a, b, mode, a_sms, b_sms, .. } = self;
        let what = format!("{a} on {a_sms} SMs beside {b} on {b_sms}, {}", mode.name());
        ProfileError::Repeated { line, what, first }
    }

    fn check(&self, line: usize, gpu_sms: u32) -> Result<(), ProfileError> {
        self.check_sms(line, gpu_sms)?;
        let times = [
            ("a_alone_ns", &self.a_alone_ns),
            ("b_alone_ns", &self.b_alone_ns),
            ("a_ns", &self.a_ns),
            ("b_ns", &self.b_ns),
        ];
        for (field, time) in times {
            time.check(line, field)?;
        }
        if !self.lead_ns.is_finite() {
            return Err(ProfileError::field(line, "lead_ns", self.lead_ns, "a finite number"));
        }
        // A median of what is never longer than either duration; their 90th percentiles leave room for rounding.
        let longest_ns = self.a_ns.p90_ns.min(self.b_ns.p90_ns);
        if !(0.0..=longest_ns).contains(&self.overlap_ns) {
            let expected = format!("0 to {longest_ns}, the shorter one's p90");
            return Err(ProfileError::field(line, "overlap_ns", self.overlap_ns, expected));
        }
        let noisy = times.iter().any(|(_, time)| time.is_noisy());
        if self.noisy != noisy {
            return Err(ProfileError::field(line, "noisy", self.noisy, format!("{noisy} by the four durations")));
        }
        Ok(())
    }

    fn check_sms(&self, line: usize, gpu_sms: u32) -> Result<(), ProfileError> {
        let (a, b) = (self.a_sms, self.b_sms);
        let (fits, expected) = match self.mode {
            PairMode::FullEqual | PairMode::FullHpRunning | PairMode::FullHpArriving => {
                (a == gpu_sms && b == gpu_sms, format!("{gpu_sms} and {gpu_sms}"))
            }
            PairMode::Separate => {
                (a > 0 && b > 0 && a.saturating_add(b) <= gpu_sms, format!("at least 1 each, {gpu_sms} together"))
            }
            PairMode::Confined => {
                (a == gpu_sms && (1..gpu_sms).contains(&b), format!("{gpu_sms} and 1 or more below it"))
            }
        };
        if fits {
            return Ok(());
        }
        let (found, expected) = (format!("{a} and {b}"), format!("{expected} in {}", self.mode.name()));
        Err(ProfileError::field(line, "a_sms and b_sms", found, expected))
    }
}
