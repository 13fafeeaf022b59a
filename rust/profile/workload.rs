//! `mosaic-workload`: the launches of one request.

use super::kernels::Checked;
use super::reader::{self, Reader};
use super::times::check_sms;
use super::{Format, KernelProfile, LaunchTime, ProfileError, Provenance};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use std::io::BufRead;
use std::path::Path;

/// A file of [`Format::Workload`].
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadProfile {
    /// Where it comes from; it names the workload.
    pub provenance: Provenance,
    /// Unique kernels.
    pub kernels: Vec<KernelProfile>,
    /// Launches in their order.
    pub launches: Vec<LaunchProfile>,
}

/// One launch of the request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchProfile {
    /// Index into [`WorkloadProfile::kernels`].
    pub kernel: usize,
    /// Median start on the GPU, from the start of the request's first kernel, on the whole GPU.
    pub start_offset_ns: f64,
    /// Times, one for each number of SMs; the whole GPU's is among them.
    pub durations: Vec<LaunchTime>,
}

/// What tells a launch's line from a kernel's.
#[derive(Deserialize)]
struct Tag {
    kernel: Option<IgnoredAny>,
}

impl WorkloadProfile {
    /// Reads and checks a file.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        reader::open(path, Self::parse)
    }

    /// Reads and checks its text.
    pub fn parse(text: impl BufRead) -> Result<Self, ProfileError> {
        Self::from_reader(Reader::new(text, &[Format::Workload])?)
    }

    pub(super) fn from_reader(mut reader: Reader<impl BufRead>) -> Result<Self, ProfileError> {
        let provenance = reader.provenance.clone();
        let mut kernels = Checked::new(provenance.sms);
        let mut launches: Vec<LaunchProfile> = Vec::new();
        while let Some(record) = reader.next()? {
            let line = record.line;
            if record.parse::<Tag>()?.kernel.is_some() {
                let launch: LaunchProfile = record.parse()?;
                launch.check(line, provenance.sms, kernels.list.len())?;
                launches.push(launch);
            } else if launches.is_empty() {
                kernels.push(line, record.parse()?)?;
            } else {
                return Err(ProfileError::field(
                    line,
                    "kernel",
                    "missing",
                    "a launch: kernels stand above all launches",
                ));
            }
        }
        Ok(WorkloadProfile { provenance, kernels: kernels.list, launches })
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        self.provenance.workload.as_deref().unwrap_or_default()
    }
}

impl LaunchProfile {
    fn check(&self, line: usize, gpu_sms: u32, kernels: usize) -> Result<(), ProfileError> {
        if self.kernel >= kernels {
            let expected = format!("an index below {kernels}, the number of kernels above");
            return Err(ProfileError::field(line, "kernel", self.kernel, expected));
        }
        if !self.start_offset_ns.is_finite() || self.start_offset_ns < 0.0 {
            return Err(ProfileError::field(
                line,
                "start_offset_ns",
                self.start_offset_ns,
                "a finite time, 0 or above",
            ));
        }
        let counts = self.durations.iter().map(|d| d.sms);
        check_sms(line, "durations", counts.clone(), gpu_sms)?;
        if !counts.clone().any(|sms| sms == gpu_sms) {
            let found = format!("{:?}", counts.collect::<Vec<_>>());
            return Err(ProfileError::field(line, "sms of durations", found, format!("the whole GPU's {gpu_sms} too")));
        }
        self.durations.iter().try_for_each(|time| time.check(line, "durations"))
    }
}
