//! mosaic_torch: a latency-critical (HP) model and best-effort (BE) work share one GPU.
//!
//! Map of the house, from the bottom up; a module uses only what stands above it in this list:
//!
//! - [`gpu`]: what a GPU holds.
//! - [`kernel`]: what a kernel is.
//! - [`gbdt`]: regression trees of XGBoost, evaluated in place.
//! - [`profile`]: what every kernel does alone: counters in, profiles out.
//! - [`predict`]: how long two kernels take beside each other.
//! - [`sched`]: `decide()`, the pure admission policy, and its rivals.
//! - [`ledger`]: who runs what on a GPU now, in shared memory, for all processes; and the one [`clock`].
//! - [`sim`]: recorded kernel traces replayed in virtual time through the same `decide()`.
//! - `hook`: the launch path: the detour of libcuda's entry points, stream roles, the gate.
//! - `streams`: the streams of each role, made through the driver; `hook`'s alone, and built on its driver table.
//! - `bridge`: the one cxx bridge to the C++ extension (feature `torch`).

pub mod gbdt;
pub mod gpu;
pub mod kernel;
pub mod ledger;
pub mod predict;
pub mod profile;
pub mod sched;
pub mod sim;

pub use ledger::clock;

#[cfg(feature = "cuda")]
pub mod hook;
#[cfg(feature = "cuda")]
pub mod streams;

#[cfg(feature = "torch")]
pub mod bridge;
