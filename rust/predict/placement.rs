//! §4.1: where blocks go. A kernel's waves on an SM set, and the room that one kernel leaves for another.

use super::Kernel;
use crate::gpu::GpuSpec;

/// Fewer blocks than this part of a wave are no wave of their own: SMs do not end together.
const WAVE_SLACK: f64 = 0.02;

/// A kernel on some SMs, alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Waves {
    /// SMs.
    pub sms: f64,
    /// Blocks over those that run at once.
    pub exact: f64,
    /// The same, rounded up: waves that follow one another.
    pub whole: f64,
    /// Most blocks of the last wave on one SM: each goes where the most room is.
    pub last_per_sm: u32,
    /// SMs that have so many; each of the others has one block less.
    pub last_full_sms: f64,
}

impl Waves {
    /// Of a kernel that may use `sms` SMs.
    pub fn new(kernel: &Kernel, sms: u32) -> Waves {
        let at_once = f64::from(kernel.per_sm) * f64::from(sms);
        let exact = f64::from(kernel.blocks) / at_once;
        let whole = (exact - WAVE_SLACK).ceil().max(1.0);
        let last = (f64::from(kernel.blocks) - (whole - 1.0) * at_once).max(1.0);
        let sms = f64::from(sms);
        let last_per_sm = ((last / sms).ceil() as u32).clamp(1, kernel.per_sm);
        let last_full_sms = (last - f64::from(last_per_sm - 1) * sms).min(sms);
        Waves { sms, exact, whole, last_per_sm, last_full_sms }
    }

    /// SMs that have blocks of the last wave.
    pub fn last_sms(&self) -> f64 {
        if self.last_per_sm > 1 { self.sms } else { self.last_full_sms }
    }
}

/// Blocks of `new` that fit on an SM beside `count` blocks of `old`: limits of threads, registers, shared memory and
/// blocks. The SM's carveout is that of `old` as long as one block of it is there.
pub fn room(spec: &GpuSpec, new: &Kernel, old: &Kernel, count: u32) -> u32 {
    if count == 0 {
        return new.per_sm;
    }
    let left = |all: u32, each: u32| all.saturating_sub(each.saturating_mul(count));
    let fits = |left: u32, each: u32| left.checked_div(each).unwrap_or(u32::MAX);
    let blocks = spec.blocks_per_sm.saturating_sub(count);
    let warps = fits(left(spec.warps_per_sm, old.warps), new.warps);
    let registers = fits(left(spec.registers_per_sm, old.registers), new.registers);
    let shared = fits(left(old.carveout_bytes, old.shared_bytes), new.shared_bytes);
    blocks.min(warps).min(registers).min(shared)
}
