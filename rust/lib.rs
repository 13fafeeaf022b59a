//! mosaic_torch: a latency-critical (HP) model and best-effort (BE) work share one GPU.
//!
//! Map of the house, from the bottom up; a module uses only what stands above it in this list:
//!
//! - [`clock`], [`kernel`]: the one clock, and what a kernel is.
//! - [`ledger`]: who runs what on a GPU now, in shared memory, for all processes.
//! - [`sched`]: `decide()`, the pure admission policy, and its rivals.
//! - [`sim`]: recorded kernel traces replayed in virtual time through the same `decide()`.
//! - `hook`: the launch path: the detour of libcuda's entry points, stream roles, the gate.
//! - `streams`: stream pools of each role, made through the driver.
//! - `bridge`: the one cxx bridge to the C++ extension (feature `torch`).

pub mod clock;
pub mod kernel;
pub mod ledger;
pub mod sched;
pub mod sim;

#[cfg(feature = "cuda")]
pub mod hook;
#[cfg(feature = "cuda")]
pub mod streams;

#[cfg(feature = "torch")]
pub mod bridge;
