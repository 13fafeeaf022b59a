//! Profiles: what every kernel does alone. In: Nsight Compute's tables; out: one record for each unique kernel.

mod metrics;
pub mod ncu;
mod unit;

pub use metrics::{KernelMetrics, NCU_METRICS};
