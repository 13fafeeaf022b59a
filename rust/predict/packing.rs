//! §4.2: what it costs a kernel to have other numbers of blocks on an SM, and in all, than alone.

use super::Kernel;
use serde::{Deserialize, Serialize};

/// Eq. 1 and 2, fitted for each GPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Packing {
    /// β of a kernel that uses neither memory nor a pipe much.
    pub a: f64,
    /// By how much use of the memory's bandwidth lowers β.
    pub b: f64,
    /// By how much use of the busiest pipe raises it.
    pub c: f64,
    /// γ of a kernel that has all of the memory's bandwidth; in proportion to it below.
    pub gamma: f64,
}

impl Packing {
    /// Sensitivity to blocks on an SM, eq. 2.
    pub fn beta(&self, kernel: &Kernel) -> f64 {
        (self.a - self.b * kernel.memory + self.c * kernel.compute).clamp(0.0, 1.0)
    }

    /// Sensitivity to blocks in all: near 1, the memory is the limit, and fewer blocks are each faster.
    pub fn gamma(&self, kernel: &Kernel) -> f64 {
        (self.gamma * kernel.memory).clamp(0.0, 1.0)
    }

    /// A wave's time over that alone, eq. 1 without γ, where an SM holds `density` times as many blocks.
    pub fn denser(&self, kernel: &Kernel, density: f64) -> f64 {
        density.max(1.0).powf(self.beta(kernel))
    }

    /// Time on fewer SMs over the time on `of` SMs, where it was not measured.
    pub fn on_fewer(&self, kernel: &Kernel, sms: u32, of: u32) -> f64 {
        let at = |sms: u32| {
            let (blocks, room) = (f64::from(kernel.blocks), f64::from(kernel.per_sm * sms));
            let active = blocks.min(room);
            let density = (active / f64::from(sms)).max(1.0);
            ((blocks / room).ceil(), density, active)
        };
        let (waves, density, active) = at(sms);
        let (waves_all, density_all, active_all) = at(of);
        let wave = (density / density_all).powf(self.beta(kernel)) * (active / active_all).powf(self.gamma(kernel));
        waves / waves_all * wave
    }
}
