//! What predictions need of one kernel, made of its profile once.

use super::PredictError;
use crate::gpu::GpuSpec;
use crate::profile::{Isolated, KernelMetrics, KernelProfile};

/// Bytes of an L2 sector.
const SECTOR_BYTES: f64 = 32.0;
/// Threads of a warp.
const WARP: u32 = 32;

/// A kernel as the predictor sees it.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its name in profiles.
    pub key: String,
    /// Blocks of the launch.
    pub blocks: u32,
    /// Blocks that an SM of the GPU holds of this kernel alone.
    pub per_sm: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Warps of a block.
    pub warps: u32,
    /// Registers that a block takes of an SM.
    pub registers: u32,
    /// Shared memory that a block takes of an SM.
    pub shared_bytes: u32,
    /// The SM's carveout that it runs with.
    pub carveout_bytes: u32,
    /// By how much the first SM is done before the last one, as a part of the time (§4.1).
    pub release: f64,
    /// Of the DRAM's peak bandwidth, or of what L2 gives, whichever it uses more; 0 to 1 (§4.2).
    pub memory: f64,
    /// Utilisation of its busiest pipe, 0 to 1 (§4.2).
    pub compute: f64,
    /// Bytes of one launch: L2 to L1TEX, L1TEX to L2, DRAM to L2, L2 to DRAM (Table 2, times the duration).
    pub bytes: [f64; 4],
    /// Pipe utilisation, 0 to 1: ALU, FMA, FP64, XU, LSU, tensor (§4.4).
    pub pipes: [f64; 6],
    /// Distinct bytes that the launch touches; 0 where that is not known.
    pub working_set_bytes: f64,
    /// The counters that are features as they are: see [`KERNEL_FEATURES`].
    pub counters: [f32; KERNEL_FEATURES.len()],
    isolated: Vec<Isolated>,
}

/// Features of a kernel that depend on nothing else.
pub const KERNEL_FEATURES: [&str; 14] = [
    "eligible_warps",
    "long_scoreboard_stalls",
    "stall_ratio",
    "compute_to_lsu",
    "sectors_per_request",
    "l1_hit_pct",
    "l2_hit_pct",
    "ipc",
    "warps_active",
    "mio_throttle_stalls",
    "short_scoreboard_stalls",
    "bank_conflicts_per_load",
    "log2_working_set",
    "waves",
];

/// Upper end of ratios whose denominator may be next to nothing.
const MAX_RATIO: f64 = 1e4;

impl Kernel {
    /// Of a profile with all counters.
    pub fn new(spec: &GpuSpec, profile: &KernelProfile) -> Result<Kernel, PredictError> {
        let missing = profile.metrics.missing();
        if !missing.is_empty() {
            return Err(PredictError::Counters { key: profile.key.clone(), missing });
        }
        let m = &profile.metrics;
        let get = |value: Option<f64>| value.unwrap_or(0.0);
        let count = |size: [u32; 3]| size.iter().fold(1_u32, |n, x| n.saturating_mul(*x)).max(1);
        let (blocks, threads) = (count(profile.grid), count(profile.block));
        let carveout_bytes = get(m.carveout_bytes) as u32;
        let (static_bytes, dynamic_bytes) = (profile.static_smem_bytes, profile.dynamic_smem_bytes);
        let per_sm = spec.block_limit(threads, profile.registers, static_bytes, dynamic_bytes, carveout_bytes).max(1);
        let warps = threads.div_ceil(WARP);
        let round_up = |n: u32, unit: u32| n.div_ceil(unit).saturating_mul(unit);
        let registers = round_up(profile.registers.saturating_mul(WARP), spec.register_unit_per_warp) * warps;
        let shared = static_bytes.saturating_add(dynamic_bytes).saturating_add(spec.shared_reserved_per_block);
        let full_ns = whole_gpu_ns(&profile.isolated);
        // Nsight Compute's bandwidths are of its own run, with its own clock: bytes of the launch carry over.
        let profiled_s = get(m.duration_ns) * 1e-9;
        let sectors = |per_s: Option<f64>| get(per_s) * SECTOR_BYTES * profiled_s;
        let bytes = [
            sectors(m.l1_l2_read_sectors_per_s),
            sectors(m.l1_l2_write_sectors_per_s),
            get(m.dram_read_bytes),
            get(m.dram_write_bytes),
        ];
        let per_s = |bytes: f64| bytes / (full_ns * 1e-9);
        let dram = per_s(bytes[2] + bytes[3]) / spec.dram_bytes_per_s;
        let l2 = per_s(bytes[0] + bytes[1]) / l2_bytes_per_s(spec);
        let pipes = [m.alu_pct, m.fma_pct, m.fp64_pct, m.xu_pct, m.lsu_pct, m.tensor_pct].map(|p| get(p) / 100.0);
        let working_set_bytes = profile.grid_working_set_bytes.unwrap_or(0.0);
        Ok(Kernel {
            key: profile.key.clone(),
            blocks,
            per_sm,
            threads,
            warps,
            registers,
            shared_bytes: round_up(shared, spec.shared_unit_bytes),
            carveout_bytes,
            release: 1.0 - get(m.sm_active_cycles_min) / get(m.sm_active_cycles_max).max(1.0),
            memory: dram.max(l2).min(1.0),
            compute: pipes.iter().copied().fold(0.0, f64::max),
            bytes,
            pipes,
            working_set_bytes,
            counters: counters(m, working_set_bytes, f64::from(blocks) / f64::from(per_sm * spec.sms)),
            isolated: profile.isolated.clone(),
        })
    }

    /// Time alone on so many SMs, measured or between two that were; else the nearest number of SMs and its time.
    pub fn alone(&self, sms: u32) -> Alone {
        let nearest = |side: fn(&Isolated, u32) -> bool| {
            self.isolated.iter().filter(|i| side(i, sms)).min_by_key(|i| i.sms.abs_diff(sms))
        };
        let time = |i: &Isolated| i.time.median_ns;
        match (nearest(|i, sms| i.sms <= sms), nearest(|i, sms| i.sms >= sms)) {
            (Some(b), Some(a)) if a.sms > b.sms => {
                let part = f64::from(sms - b.sms) / f64::from(a.sms - b.sms);
                Alone::Measured(time(b) + part * (time(a) - time(b)))
            }
            (Some(b), Some(_)) => Alone::Measured(time(b)),
            (Some(near), None) | (None, Some(near)) => Alone::Nearest(near.sms, time(near)),
            (None, None) => Alone::Nearest(sms, 1.0),
        }
    }
}

/// A kernel's time alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Alone {
    /// On the SMs that were asked for.
    Measured(f64),
    /// On the nearest number of SMs: that number, and the time.
    Nearest(u32, f64),
}

fn whole_gpu_ns(isolated: &[Isolated]) -> f64 {
    isolated.iter().max_by_key(|i| i.sms).map_or(1.0, |i| i.time.median_ns)
}

/// What L2 gives the SMs, bytes a second: 64 bytes a clock for each SM.
fn l2_bytes_per_s(spec: &GpuSpec) -> f64 {
    64.0 * f64::from(spec.sms) * spec.sm_clock_hz
}

fn counters(m: &KernelMetrics, working_set_bytes: f64, waves: f64) -> [f32; KERNEL_FEATURES.len()] {
    let get = |value: Option<f64>| value.unwrap_or(0.0);
    let ratio = |value: Option<f64>| value.unwrap_or(MAX_RATIO).min(MAX_RATIO);
    let loads = get(m.shared_loads).max(1.0);
    [
        get(m.eligible_warps),
        get(m.long_scoreboard_stalls),
        ratio(m.stall_ratio()),
        ratio(m.compute_to_lsu()),
        get(m.sectors_per_request()),
        get(m.l1_hit_pct),
        get(m.l2_hit_pct),
        get(m.ipc),
        get(m.warps_active),
        get(m.mio_throttle_stalls),
        get(m.short_scoreboard_stalls),
        get(m.bank_conflicts) / loads,
        (working_set_bytes + 1.0).log2(),
        waves,
    ]
    .map(|x| x as f32)
}
