//! A profile of whichever format its first line names.

use super::reader::{self, Reader};
use super::{
    Format, KernelProfiles, PairMode, PairProfiles, PhysicsProfile, ProfileError, Provenance, WorkloadProfile,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::Path;

/// One file.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum ProfileFile {
    Kernels(KernelProfiles),
    Pairs(PairProfiles),
    Workload(WorkloadProfile),
    Physics(PhysicsProfile),
}

/// What a file holds, in numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Its format.
    pub format: Format,
    /// Lines after the first.
    pub records: u64,
    /// Name of the GPU.
    pub gpu: String,
    /// How many SMs it has.
    pub sms: u32,
    /// The model's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Unique kernels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernels: Option<usize>,
    /// Of them, those that nothing is fitted on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unseen: Option<usize>,
    /// Launches of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launches: Option<usize>,
    /// Pairs by mode.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pairs: BTreeMap<PairMode, usize>,
    /// Of them, noisy ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noisy: Option<usize>,
}

impl ProfileFile {
    /// Reads and checks a file.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        reader::open(path, Self::parse)
    }

    /// Reads and checks its text.
    pub fn parse(text: impl BufRead) -> Result<Self, ProfileError> {
        let reader = Reader::new(text, &Format::ALL)?;
        match reader.provenance.format {
            Format::Kernels => KernelProfiles::from_reader(reader).map(Self::Kernels),
            Format::Pairs => PairProfiles::from_reader(reader).map(Self::Pairs),
            Format::Workload => WorkloadProfile::from_reader(reader).map(Self::Workload),
            Format::Physics => PhysicsProfile::from_reader(reader).map(Self::Physics),
        }
    }

    /// Where it comes from.
    pub fn provenance(&self) -> &Provenance {
        match self {
            Self::Kernels(file) => &file.provenance,
            Self::Pairs(file) => &file.provenance,
            Self::Workload(file) => &file.provenance,
            Self::Physics(file) => &file.provenance,
        }
    }

    /// What it holds.
    pub fn summary(&self) -> Summary {
        let Provenance { format, records, gpu, sms, workload, .. } = self.provenance().clone();
        let (kernels, launches, pairs) = match self {
            Self::Kernels(file) => (Some(&file.kernels), None, None),
            Self::Pairs(file) => (None, None, Some(&file.pairs)),
            Self::Workload(file) => (Some(&file.kernels), Some(file.launches.len()), None),
            Self::Physics(_) => (None, None, None),
        };
        let mut modes = BTreeMap::new();
        for pair in pairs.into_iter().flatten() {
            *modes.entry(pair.mode).or_default() += 1;
        }
        Summary {
            format,
            records,
            gpu,
            sms,
            workload,
            kernels: kernels.map(Vec::len),
            unseen: kernels.map(|list| list.iter().filter(|k| k.unseen).count()),
            launches,
            pairs: modes,
            noisy: pairs.map(|list| list.iter().filter(|p| p.noisy).count()),
        }
    }
}
