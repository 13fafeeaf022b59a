//! Profiles: what every kernel does alone, and what pairs of kernels do to each other.
//!
//! In: Nsight Compute's tables ([`ncu`]), and the files of `profiles/`, whose README says what each field means. A file
//! is read whole and checked whole, or refused with the line, what was found there and what was expected.

mod dataset;
mod error;
mod file;
mod kernels;
mod metrics;
pub mod ncu;
mod pairs;
mod physics;
mod provenance;
mod reader;
mod times;
mod unit;
mod workload;

pub use dataset::{Counts, DataSet};
pub use error::ProfileError;
pub use file::{ProfileFile, Summary};
pub use kernels::{KernelProfile, KernelProfiles, WorkingSetFrom};
pub use metrics::{KernelMetrics, NCU_METRICS};
pub use pairs::{Pair, PairMode, PairProfiles};
pub use physics::PhysicsProfile;
pub use provenance::{Format, Provenance, VERSION};
pub use times::{Isolated, LaunchTime, Spread};
pub use workload::{LaunchProfile, WorkloadProfile};

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

/// Sets each counter, in the order of [`NCU_METRICS`].
#[cfg(test)]
pub(crate) fn columns_for_tests() -> impl Iterator<Item = fn(&mut KernelMetrics, f64)> {
    metrics::COLUMNS.iter().map(|column| column.set)
}
