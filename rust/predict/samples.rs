//! Measured pairs, as the predictor sees them.

use super::features::Placed;
use super::{Kernel, Meeting, PredictError, Sharing};
use crate::gpu::{self, GpuSpec};
use crate::profile::{DataSet, KernelProfile, Pair};
use std::collections::HashMap;

/// A rig releases the later kernel this much late at most; what comes later still had to wait for room.
const JITTER_NS: f64 = 6_000.0;
/// When the later one is released, as a part of the first one's time alone, where one comes while the other runs.
const LATER: f64 = 0.4;
/// Least overlap, as a part of the shorter time, of two that meet.
const MEETS: f64 = 0.2;

/// A measured pair.
#[derive(Clone, Debug)]
pub struct Sample {
    /// A, B: index into [`Samples::kernels`], SMs, time alone on them in the same run.
    pub kernels: [(usize, u32, f64); 2],
    /// How they shared the GPU.
    pub sharing: Sharing,
    /// From the first one's start to the other's release.
    pub offset_ns: f64,
    /// A's and B's time from release to end.
    pub taken_ns: [f64; 2],
    /// Time during which both ran.
    pub overlap_ns: f64,
    /// How many of the two are unseen.
    pub unseen: usize,
    /// Not to be relied on, by the data's rule.
    pub noisy: bool,
}

/// All pairs of a data set.
#[derive(Clone, Debug)]
pub struct Samples {
    /// The GPU.
    pub spec: &'static GpuSpec,
    /// Date and commit of the pairs.
    pub data: String,
    /// Kernels that pairs have.
    pub kernels: Vec<Kernel>,
    /// Of each kernel: the zoo's family or its workload.
    pub families: Vec<String>,
    /// In the files' order.
    pub list: Vec<Sample>,
}

impl Sample {
    /// Both run at once for a good part of the shorter one's time.
    pub fn meets(&self) -> bool {
        self.overlap_ns >= MEETS * self.taken_ns[0].min(self.taken_ns[1])
    }

    /// 0 or 1: which of A and B comes later.
    pub fn later(&self) -> usize {
        usize::from(!self.sharing.b_first())
    }

    /// Which of the two are high-priority kernels: A; both, where there is no priority.
    pub fn is_hp(&self, which: usize) -> bool {
        which == 0 || matches!(self.sharing, Sharing::Equal | Sharing::Separate)
    }
}

impl Samples {
    /// Of a data set whose GPU is known.
    pub fn new(set: &DataSet) -> Result<Samples, PredictError> {
        let found = &set.kernels.provenance.gpu;
        let spec = gpu::by_name(found).ok_or_else(|| PredictError::Gpu { found: found.clone() })?;
        let profiles = set.kernels.kernels.iter().chain(set.workloads.iter().flat_map(|w| &w.kernels));
        let mut by_key: HashMap<&str, &KernelProfile> = HashMap::new();
        for profile in profiles {
            by_key.entry(&profile.key).or_insert(profile);
        }
        let mut samples = Samples { spec, data: data(set), kernels: vec![], families: vec![], list: vec![] };
        let mut indices: HashMap<&str, usize> = HashMap::new();
        for file in &set.pairs {
            let least_ns = least_offset_ns(&file.pairs);
            for pair in &file.pairs {
                let mut index = |key| -> Result<usize, PredictError> {
                    if let Some(index) = indices.get(key) {
                        return Ok(*index);
                    }
                    let profile = by_key
                        .get(key)
                        .ok_or_else(|| PredictError::Kernel { found: String::from(key), candidates: vec![] })?;
                    samples.kernels.push(Kernel::new(spec, profile)?);
                    samples.families.push(family(profile).to_owned());
                    indices.insert(&profile.key, samples.kernels.len() - 1);
                    Ok(samples.kernels.len() - 1)
                };
                let kernels = [index(pair.a.as_str())?, index(pair.b.as_str())?];
                let unseen = [&pair.a, &pair.b].iter().filter(|key| by_key[key.as_str()].unseen).count();
                samples.list.push(sample(pair, kernels, unseen, least_ns));
            }
        }
        Ok(samples)
    }

    /// The pair as it was released.
    pub fn meeting(&self, s: &Sample) -> Meeting<'_> {
        let placed = |(index, sms, alone_ns): (usize, u32, f64)| Placed { kernel: &self.kernels[index], sms, alone_ns };
        let [a, b] = s.kernels.map(placed);
        Meeting { a, b, sharing: s.sharing, offset_ns: s.offset_ns }
    }

    /// Families of A and B.
    pub fn families(&self, s: &Sample) -> [&str; 2] {
        s.kernels.map(|(index, ..)| self.families[index].as_str())
    }
}

/// Which measurement the pairs are of.
fn data(set: &DataSet) -> String {
    let of = |p: &crate::profile::Provenance| format!("{} {}", p.date, p.source.as_deref().unwrap_or("unknown"));
    set.pairs.first().map_or_else(String::new, |file| of(&file.provenance))
}

fn family(profile: &KernelProfile) -> &str {
    match profile.key.split_once(':') {
        Some((workload, _)) if !profile.is_zoo() => workload,
        _ => profile.families.first().map_or("", String::as_str),
    }
}

/// How much later the later one is released at least: seen where the first one had long ended.
fn least_offset_ns(pairs: &[Pair]) -> f64 {
    let after = |pair: &&Pair| pair.overlap_ns == 0.0 && nominal_ns(pair) < JITTER_NS / 2.0;
    let mut leads: Vec<f64> = pairs.iter().filter(after).map(|pair| pair.lead_ns.abs()).collect();
    leads.sort_by(f64::total_cmp);
    leads.get(leads.len() / 2).copied().unwrap_or(0.0)
}

/// What the rig was asked for.
fn nominal_ns(pair: &Pair) -> f64 {
    match Sharing::from(pair.mode) {
        Sharing::HpLater => LATER * pair.b_alone_ns.median_ns,
        Sharing::HpFirst => LATER * pair.a_alone_ns.median_ns,
        Sharing::Equal | Sharing::Separate | Sharing::Confined => 0.0,
    }
}

fn sample(pair: &Pair, [a, b]: [usize; 2], unseen: usize, least_ns: f64) -> Sample {
    let sharing = Sharing::from(pair.mode);
    let mut kernels = [(a, pair.a_sms, pair.a_alone_ns.median_ns), (b, pair.b_sms, pair.b_alone_ns.median_ns)];
    let mut taken_ns = [pair.a_ns.median_ns, pair.b_ns.median_ns];
    let mut lead_ns = if sharing.b_first() { -pair.lead_ns } else { pair.lead_ns };
    if sharing == Sharing::Separate && lead_ns < 0.0 {
        // Neither is A more than the other.
        kernels.reverse();
        taken_ns.reverse();
        lead_ns = -lead_ns;
    }
    let nominal_ns = nominal_ns(pair).max(least_ns);
    let waited = sharing != Sharing::Separate && lead_ns > nominal_ns + JITTER_NS;
    let offset_ns = if waited { nominal_ns } else { lead_ns };
    let later = usize::from(!sharing.b_first());
    taken_ns[later] += lead_ns - offset_ns;
    Sample { kernels, sharing, offset_ns, taken_ns, overlap_ns: pair.overlap_ns, unseen, noisy: pair.noisy }
}
