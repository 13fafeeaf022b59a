//! `mosaic-kernels`: what every unique kernel does alone.

use super::reader::{self, Reader};
use super::times::check_sms;
use super::{Format, Isolated, KernelMetrics, ProfileError, Provenance};
use crate::kernel::{KernelId, LaunchConfig};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io::BufRead;
use std::path::Path;

/// What keys of the zoo's kernels begin with.
const ZOO: &str = "zoo:";

/// A file of [`Format::Kernels`].
#[derive(Clone, Debug, PartialEq)]
pub struct KernelProfiles {
    /// Where it comes from.
    pub provenance: Provenance,
    /// In the file's order; keys are distinct.
    pub kernels: Vec<KernelProfile>,
}

/// One kernel alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelProfile {
    /// `zoo:` and the configuration's name, or the workload, a colon, the KernelId, a dot and the number of its class:
    /// launches of one KernelId that take clearly different times are kernels of their own.
    pub key: String,
    /// Identity; classes share it.
    pub kernel_id: KernelId,
    /// Mangled name; empty where the driver has none.
    pub symbol: String,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub dynamic_smem_bytes: u32,
    /// Blocks of a cluster in x, y, z; `[0, 0, 0]` where the launch names none.
    pub cluster: [u32; 3],
    /// Registers of a thread.
    pub registers: u32,
    /// Static shared memory of a block.
    pub static_smem_bytes: u32,
    /// The zoo's family in lower case, or the workloads that launch it.
    pub families: Vec<String>,
    /// Nothing is ever fitted on it.
    pub unseen: bool,
    /// Times alone, one for each number of SMs that was measured, at least one.
    pub isolated: Vec<Isolated>,
    /// Counters of one launch alone on the whole GPU.
    #[serde(default, skip_serializing_if = "is_default")]
    pub metrics: KernelMetrics,
    /// Distinct bytes that the launch touches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grid_working_set_bytes: Option<f64>,
    /// Distinct bytes that one block touches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_working_set_bytes: Option<f64>,
    /// How the working sets were found; there with either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_set_from: Option<WorkingSetFrom>,
}

/// How a working set was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkingSetFrom {
    /// Counted from the shapes of the inputs.
    Arguments,
    /// Read from DRAM after the caches were flushed.
    DramReads,
}

/// Whether a key is of the zoo.
pub(super) fn is_zoo(key: &str) -> bool {
    key.starts_with(ZOO)
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl KernelProfiles {
    /// Reads and checks a file.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        reader::open(path, Self::parse)
    }

    /// Reads and checks its text.
    pub fn parse(text: impl BufRead) -> Result<Self, ProfileError> {
        Self::from_reader(Reader::new(text, &[Format::Kernels])?)
    }

    pub(super) fn from_reader(mut reader: Reader<impl BufRead>) -> Result<Self, ProfileError> {
        let provenance = reader.provenance.clone();
        let mut kernels = Checked::new(provenance.sms);
        while let Some(record) = reader.next()? {
            kernels.push(record.line, record.parse()?)?;
        }
        Ok(KernelProfiles { provenance, kernels: kernels.list })
    }
}

/// Unique kernels, each checked by itself and against those before it.
pub(super) struct Checked {
    gpu_sms: u32,
    pub list: Vec<KernelProfile>,
    line_of_key: HashMap<String, usize>,
    /// Of the zoo's families.
    unseen: HashMap<String, bool>,
}

impl Checked {
    pub fn new(gpu_sms: u32) -> Self {
        Checked { gpu_sms, list: Vec::new(), line_of_key: HashMap::new(), unseen: HashMap::new() }
    }

    pub fn push(&mut self, line: usize, kernel: KernelProfile) -> Result<(), ProfileError> {
        kernel.check(line, self.gpu_sms)?;
        if let Some(first) = self.line_of_key.insert(kernel.key.clone(), line) {
            let (what, first) = (format!("the key {:?}", kernel.key), format!("line {first}"));
            return Err(ProfileError::Repeated { line, what, first });
        }
        if let Some(family) = kernel.families.first().filter(|_| kernel.is_zoo()) {
            let expected = *self.unseen.entry(family.clone()).or_insert(kernel.unseen);
            if kernel.unseen != expected {
                let expected = format!("{expected} as in the lines above of the family {family}");
                return Err(ProfileError::field(line, "unseen", kernel.unseen, expected));
            }
        }
        self.list.push(kernel);
        Ok(())
    }
}

impl KernelProfile {
    /// Of the zoo, not of a workload.
    pub fn is_zoo(&self) -> bool {
        is_zoo(&self.key)
    }

    /// The launch.
    pub fn config(&self) -> LaunchConfig {
        let KernelProfile { grid, block, dynamic_smem_bytes, cluster, .. } = *self;
        LaunchConfig { grid, block, dynamic_smem_bytes, cluster }
    }

    fn check(&self, line: usize, gpu_sms: u32) -> Result<(), ProfileError> {
        self.check_names(line)?;
        for (field, size) in [("grid", self.grid), ("block", self.block)] {
            if size.contains(&0) {
                return Err(ProfileError::field(line, field, format_args!("{size:?}"), "three integers of at least 1"));
            }
        }
        if self.cluster.contains(&0) && self.cluster != [0; 3] {
            let found = format_args!("{:?}", self.cluster);
            return Err(ProfileError::field(line, "cluster", found, "three integers of at least 1, or three zeros"));
        }
        if self.isolated.is_empty() {
            return Err(ProfileError::field(line, "isolated", "[]", "a time alone on at least one number of SMs"));
        }
        check_sms(line, "isolated", self.isolated.iter().map(|i| i.sms), gpu_sms)?;
        for isolated in &self.isolated {
            isolated.time.check(line, "isolated")?;
        }
        if let Some((name, value)) = self.metrics.measured().into_iter().find(|(_, v)| !v.is_finite() || *v < 0.0) {
            return Err(ProfileError::field(line, format!("{name} of metrics"), value, "a finite number, 0 or above"));
        }
        self.check_working_sets(line)
    }

    fn check_names(&self, line: usize) -> Result<(), ProfileError> {
        let blank = |text: &str| text.trim().is_empty();
        let fits = match self.key.strip_prefix(ZOO) {
            Some(configuration) => !blank(configuration),
            None => self.key.rsplit_once(':').is_some_and(|(workload, kernel)| {
                let (id, class) = kernel.split_once('.').unwrap_or_default();
                let numbered = !class.is_empty() && class.bytes().all(|b| b.is_ascii_digit());
                !blank(workload) && KernelId::try_from(id.to_owned()) == Ok(self.kernel_id) && numbered
            }),
        };
        if !fits {
            let id = String::from(self.kernel_id);
            let expected = format!("zoo:CONFIGURATION, or WORKLOAD:{id}.CLASS");
            return Err(ProfileError::field(line, "key", format_args!("{:?}", self.key), expected));
        }
        let families = &self.families;
        let (fits, expected) = if self.is_zoo() {
            let one = families.len() == 1 && families.iter().all(|f| !blank(f) && *f == f.to_lowercase());
            (one, "one family in lower case")
        } else {
            (!families.is_empty() && !families.iter().any(|f| blank(f)), "at least one workload")
        };
        if !fits {
            return Err(ProfileError::field(line, "families", format_args!("{families:?}"), expected));
        }
        Ok(())
    }

    fn check_working_sets(&self, line: usize) -> Result<(), ProfileError> {
        let (grid, block) = (self.grid_working_set_bytes, self.block_working_set_bytes);
        for (field, bytes) in [("grid_working_set_bytes", grid), ("block_working_set_bytes", block)] {
            if let Some(bytes) = bytes.filter(|b| !b.is_finite() || *b < 0.0) {
                return Err(ProfileError::field(line, field, bytes, "a finite number, 0 or above"));
            }
        }
        if self.working_set_from.is_some() != (grid.is_some() || block.is_some()) {
            let found = if self.working_set_from.is_some() { "given" } else { "missing" };
            return Err(ProfileError::field(
                line,
                "working_set_from",
                found,
                "it where a working set is, and there alone",
            ));
        }
        // Two measurements may differ by their noise; two counts may not.
        if self.working_set_from == Some(WorkingSetFrom::Arguments)
            && let (Some(grid), Some(block)) = (grid, block)
            && block > grid
        {
            return Err(ProfileError::field(
                line,
                "block_working_set_bytes",
                block,
                format!("at most the grid's {grid}"),
            ));
        }
        Ok(())
    }
}
