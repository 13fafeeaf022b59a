//! Predictors to compare with: what KACE and GPUPool do, on our pairs, and two floors.

use super::features::Placed;
use super::model::{json, trees};
use super::{PredictError, Sharing};
use crate::gbdt;
use crate::gpu::GpuSpec;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// KACE's six counters of a kernel (threads, SM, DRAM and memory throughput, registers, static shared memory), and its
/// SMs.
const KACE: [&str; 7] = ["threads", "compute", "dram", "memory", "registers", "shared_bytes", "sms"];
/// GPUPool-like: bandwidths, pipes, issue, hit rates, requests, occupancy, waves, and its SMs.
const GPUPOOL: [&str; 13] = [
    "dram",
    "l2",
    "ipc",
    "alu",
    "fma",
    "lsu",
    "tensor",
    "l1_hit_pct",
    "l2_hit_pct",
    "sectors_per_request",
    "warps_active",
    "waves",
    "sms",
];

fn both(names: &[&str]) -> Vec<String> {
    ["own", "other"].iter().flat_map(|who| names.iter().map(move |n| format!("{who}_{n}"))).collect()
}

/// Names of [`kace_row`].
pub fn kace_names() -> Vec<String> {
    both(&KACE)
}

/// Names of [`gpupool_row`].
pub fn gpupool_names() -> Vec<String> {
    both(&GPUPOOL)
}

/// The victim's counters, then the aggressor's.
pub fn kace_row(spec: &GpuSpec, own: &Placed, other: &Placed) -> Vec<f64> {
    let of = |p: &Placed| {
        let k = p.kernel;
        let dram = (k.bytes[2] + k.bytes[3]) / p.alone_ns * 1e9 / spec.dram_bytes_per_s;
        let threads = f64::from(k.blocks) * f64::from(k.threads);
        let registers = f64::from(k.blocks) * f64::from(k.registers);
        let shared = f64::from(k.blocks) * f64::from(k.shared_bytes);
        [threads, k.compute, dram, k.memory, registers, shared, f64::from(p.sms)]
    };
    [of(own), of(other)].concat()
}

/// The same order.
pub fn gpupool_row(own: &Placed, other: &Placed) -> Vec<f32> {
    let of = |p: &Placed| {
        let (k, c) = (p.kernel, &p.kernel.counters);
        let rate = |bytes: f64| (bytes / p.alone_ns) as f32;
        let pipe = |i: usize| k.pipes[i] as f32;
        [
            rate(k.bytes[2] + k.bytes[3]),
            rate(k.bytes[0] + k.bytes[1]),
            c[7],
            pipe(0),
            pipe(1),
            pipe(4),
            pipe(5),
            c[5],
            c[6],
            c[4],
            c[8],
            c[13],
            p.sms as f32,
        ]
    };
    [of(own), of(other)].concat()
}

/// Ordinary least squares on standardised features.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Linear {
    /// Names, to be the same as [`kace_names`].
    pub features: Vec<String>,
    /// Mean of each in training.
    pub mean: Vec<f64>,
    /// Its standard deviation.
    pub scale: Vec<f64>,
    /// Its weight.
    pub weights: Vec<f64>,
    /// What is added.
    pub intercept: f64,
}

impl Linear {
    fn predict(&self, row: &[f64]) -> f64 {
        let terms = row.iter().zip(&self.mean).zip(&self.scale).zip(&self.weights);
        self.intercept + terms.map(|(((x, mean), scale), w)| w * (x - mean) / scale).sum::<f64>()
    }
}

/// One way to share, both rivals.
#[derive(Clone, Debug)]
pub struct Rivals {
    kace: Linear,
    gpupool: gbdt::Model,
}

/// Least slowdown that a rival is taken to say.
const LEAST: f64 = 0.5;

impl Rivals {
    /// Reads `kace-SHARING.json` and `gpupool-SHARING.json`.
    pub fn open(folder: &Path, sharing: Sharing) -> Result<Rivals, PredictError> {
        let kace_path = folder.join(format!("kace-{}.json", sharing.name()));
        let kace: Linear = json(&kace_path)?;
        let names = kace_names();
        let lengths = [kace.mean.len(), kace.scale.len(), kace.weights.len()];
        if kace.features != names || lengths.iter().any(|n| *n != names.len()) || kace.scale.contains(&0.0) {
            return Err(PredictError::Field {
                path: kace_path,
                field: "features",
                found: format!("{} names, {lengths:?} numbers", kace.features.len()),
                expected: "KACE's names, each with mean, scale above 0 and weight",
            });
        }
        let gpupool = trees(&folder.join(format!("gpupool-{}.json", sharing.name())), &gpupool_names())?;
        Ok(Rivals { kace, gpupool })
    }

    /// KACE's slowdown of `own`.
    pub fn kace(&self, spec: &GpuSpec, own: &Placed, other: &Placed) -> f64 {
        self.kace.predict(&kace_row(spec, own, other)).max(LEAST)
    }

    /// GPUPool's: it predicts time alone over time beside the other.
    pub fn gpupool(&self, own: &Placed, other: &Placed) -> f64 {
        1.0 / f64::from(self.gpupool.predict(&gpupool_row(own, other))).clamp(1e-2, 1.0 / LEAST)
    }
}

/// Floor: what both want is shared by demand. On the same SMs each has half of the time; else only DRAM is shared.
pub fn share(spec: &GpuSpec, sharing: Sharing, own: &Placed, other: &Placed) -> f64 {
    let dram = |p: &Placed| (p.kernel.bytes[2] + p.kernel.bytes[3]) / p.alone_ns * 1e9;
    let by_dram = ((dram(own) + dram(other)) / spec.dram_bytes_per_s).max(1.0);
    match sharing {
        Sharing::Separate | Sharing::Confined => by_dram,
        Sharing::Equal | Sharing::HpFirst | Sharing::HpLater => by_dram.max(2.0),
    }
}
