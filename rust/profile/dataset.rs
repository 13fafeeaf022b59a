//! All profiles of one GPU, checked against each other.

use super::kernels::is_zoo;
use super::{KernelProfiles, PairMode, PairProfiles, ProfileError, Provenance, WorkloadProfile};
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// A folder of `profiles/`, without its traces and experiments.
#[derive(Clone, Debug, PartialEq)]
pub struct DataSet {
    /// `kernels.jsonl`.
    pub kernels: KernelProfiles,
    /// `pairs-*.jsonl` by name; every kernel of theirs is one of [`DataSet::kernels`] or of a workload's.
    pub pairs: Vec<PairProfiles>,
    /// `workloads/*.jsonl`, compressed or not, by name.
    pub workloads: Vec<WorkloadProfile>,
}

/// How large a data set is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct Counts {
    pub zoo_kernels: usize,
    pub workload_kernels: usize,
    pub pairs_full_equal: usize,
    pub pairs_full_hp_high_running: usize,
    pub pairs_full_hp_high_arriving: usize,
    pub pairs_separate: usize,
    pub pairs_confined: usize,
}

impl DataSet {
    /// Reads and checks all of a folder.
    pub fn open(folder: &Path) -> Result<Self, ProfileError> {
        let kernels_path = folder.join("kernels.jsonl");
        let kernels = KernelProfiles::read(&kernels_path)?;

        let workload_folder = folder.join("workloads");
        let workload_paths = if workload_folder.is_dir() { files(&workload_folder, "")? } else { Vec::new() };
        let workloads = read_all(&workload_paths, &kernels.provenance, WorkloadProfile::read, |file| &file.provenance)?;
        let mut path_of = HashMap::new();
        for (path, file) in workload_paths.iter().zip(&workloads) {
            if let Some(first) = path_of.insert(file.name(), path) {
                let (what, first) = (format!("the workload {:?}", file.name()), first.display().to_string());
                return Err(ProfileError::Repeated { line: 1, what, first }.in_file(path));
            }
        }

        let keys = keys(&kernels, &workloads);
        let pair_paths = files(folder, "pairs-")?;
        let pairs = read_all(&pair_paths, &kernels.provenance, PairProfiles::read, |file| &file.provenance)?;
        let mut places = HashMap::new();
        for (path, file) in pair_paths.iter().zip(&pairs) {
            for (line, pair) in file.with_lines() {
                for (field, key) in [("a", &pair.a), ("b", &pair.b)] {
                    if !keys.contains(key.as_str()) {
                        let (found, expected) = (format_args!("{key:?}"), "a key of kernels.jsonl or of a workload");
                        return Err(ProfileError::field(line, field, found, expected).in_file(path));
                    }
                }
                if let Some((first, at)) = places.insert(pair.key(), (path, line)) {
                    return Err(pair.repeated(line, format!("{} line {at}", first.display())).in_file(path));
                }
            }
        }
        Ok(DataSet { kernels, pairs, workloads })
    }

    /// How large it is.
    pub fn counts(&self) -> Counts {
        let keys = keys(&self.kernels, &self.workloads);
        let zoo_kernels = keys.iter().filter(|key| is_zoo(key)).count();
        let mut counts = Counts { zoo_kernels, workload_kernels: keys.len() - zoo_kernels, ..Counts::default() };
        for pair in self.pairs.iter().flat_map(|file| &file.pairs) {
            *match pair.mode {
                PairMode::FullEqual => &mut counts.pairs_full_equal,
                PairMode::FullHpRunning => &mut counts.pairs_full_hp_high_running,
                PairMode::FullHpArriving => &mut counts.pairs_full_hp_high_arriving,
                PairMode::Separate => &mut counts.pairs_separate,
                PairMode::Confined => &mut counts.pairs_confined,
            } += 1;
        }
        counts
    }
}

/// The unique kernels of a folder: those of a workload may stand in `kernels.jsonl` too.
fn keys<'a>(kernels: &'a KernelProfiles, workloads: &'a [WorkloadProfile]) -> HashSet<&'a str> {
    let lists = std::iter::once(&kernels.kernels).chain(workloads.iter().map(|file| &file.kernels));
    lists.flatten().map(|kernel| kernel.key.as_str()).collect()
}

/// Reads files that must be of the same GPU as `kernels.jsonl`.
fn read_all<T>(
    paths: &[PathBuf],
    kernels: &Provenance,
    read: fn(&Path) -> Result<T, ProfileError>,
    provenance: fn(&T) -> &Provenance,
) -> Result<Vec<T>, ProfileError> {
    let read_one = |path: &PathBuf| {
        let file = read(path)?;
        let Provenance { gpu, sms, .. } = provenance(&file);
        if (gpu, sms) != (&kernels.gpu, &kernels.sms) {
            let expected = format!("{} with {} SMs as in kernels.jsonl", kernels.gpu, kernels.sms);
            return Err(ProfileError::field(1, "gpu", format_args!("{gpu} with {sms} SMs"), expected).in_file(path));
        }
        Ok(file)
    };
    paths.iter().map(read_one).collect()
}

/// The folder's profiles whose names begin so, sorted.
fn files(folder: &Path, prefix: &str) -> Result<Vec<PathBuf>, ProfileError> {
    let named = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(prefix) && name.trim_end_matches(".gz").ends_with(".jsonl")
    };
    let entries = std::fs::read_dir(folder).and_then(|dir| dir.map(|e| Ok(e?.path())).collect::<Result<Vec<_>, _>>());
    let entries = entries.map_err(|e| ProfileError::Io(e).in_file(folder))?;
    let mut paths: Vec<PathBuf> = entries.into_iter().filter(named).collect();
    paths.sort();
    Ok(paths)
}
