//! The first line of a profile: where it comes from.

use super::ProfileError;
use serde::{Deserialize, Serialize};

/// Version of the formats; raised whenever a reader of this version would misread a file.
pub const VERSION: u64 = 1;

/// More SMs than any GPU has; it bounds lists that have an entry for each number of SMs.
const MAX_SMS: u32 = 1024;

/// Which format a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    /// A unique kernel a line.
    #[serde(rename = "mosaic-kernels")]
    Kernels,
    /// An ordered pair of kernels a line.
    #[serde(rename = "mosaic-pairs")]
    Pairs,
    /// The unique kernels of one request, then its launches.
    #[serde(rename = "mosaic-workload")]
    Workload,
    /// A point of an experiment a line; each experiment has fields of its own.
    #[serde(rename = "mosaic-physics")]
    Physics,
}

impl Format {
    pub(super) const ALL: [Format; 4] = [Format::Kernels, Format::Pairs, Format::Workload, Format::Physics];

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Format::Kernels => "mosaic-kernels",
            Format::Pairs => "mosaic-pairs",
            Format::Workload => "mosaic-workload",
            Format::Physics => "mosaic-physics",
        }
    }
}

/// Where a profile comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// What the other lines are.
    pub format: Format,
    /// [`VERSION`].
    pub version: u64,
    /// Name of the GPU.
    pub gpu: String,
    /// How many SMs it has.
    pub sms: u32,
    /// Version of the driver.
    pub driver: String,
    /// Version of CUDA.
    pub cuda: String,
    /// Version of torch.
    pub torch: String,
    /// Lowest and highest clock of the SMs that was seen while measuring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_clock_mhz: Option<[u32; 2]>,
    /// Of the memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_clock_mhz: Option<[u32; 2]>,
    /// What made the file.
    pub command: String,
    /// When.
    pub date: String,
    /// At which commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// How many lines follow.
    pub records: u64,
    /// The model's name; in [`Format::Workload`] alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
}

/// What is asked before all else: a file of another version may have other fields.
#[derive(Deserialize)]
struct Kind {
    format: String,
    version: u64,
}

impl Provenance {
    pub(super) fn parse(line: &[u8], formats: &[Format]) -> Result<Self, ProfileError> {
        let json = |source| ProfileError::Json { line: 1, source };
        let Kind { format, version } = serde_json::from_slice(line).map_err(json)?;
        if !formats.iter().any(|f| f.name() == format) {
            let expected = formats.iter().map(|f| f.name()).collect::<Vec<_>>().join(" or ");
            return Err(ProfileError::Format { found: format, expected });
        }
        if version != VERSION {
            return Err(ProfileError::Version { found: version, expected: VERSION });
        }
        let provenance: Provenance = serde_json::from_slice(line).map_err(json)?;
        provenance.check()?;
        Ok(provenance)
    }

    fn check(&self) -> Result<(), ProfileError> {
        let texts = [
            ("gpu", &self.gpu),
            ("driver", &self.driver),
            ("cuda", &self.cuda),
            ("torch", &self.torch),
            ("command", &self.command),
            ("date", &self.date),
        ];
        let source = self.source.as_ref().map(|text| ("source", text));
        let workload = self.workload.as_ref().map(|text| ("workload", text));
        let mut texts = texts.into_iter().chain(source).chain(workload);
        if let Some((field, text)) = texts.find(|(_, text)| text.trim().is_empty()) {
            return Err(ProfileError::field(1, field, format_args!("{text:?}"), "a text that is not blank"));
        }
        if !(1..=MAX_SMS).contains(&self.sms) {
            return Err(ProfileError::field(1, "sms", self.sms, format!("1 to {MAX_SMS}")));
        }
        for (field, clock) in [("sm_clock_mhz", self.sm_clock_mhz), ("memory_clock_mhz", self.memory_clock_mhz)] {
            if let Some([low, high]) = clock.filter(|[low, high]| *low == 0 || low > high) {
                let found = format_args!("[{low}, {high}]");
                return Err(ProfileError::field(1, field, found, "the lowest clock, above 0, and the highest"));
            }
        }
        let named = if self.workload.is_some() { "given" } else { "missing" };
        match (self.format, named) {
            (Format::Workload, "missing") => Err(ProfileError::field(1, "workload", named, "the model's name")),
            (Format::Kernels | Format::Pairs | Format::Physics, "given") => {
                Err(ProfileError::field(1, "workload", named, format!("none in {}", self.format.name())))
            }
            _ => Ok(()),
        }
    }
}
