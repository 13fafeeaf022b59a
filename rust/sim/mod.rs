//! Recorded kernel traces replayed in virtual time through the admission policies of [`crate::sched`].
//!
//! [`trace`] reads what was recorded, `replay` runs an HP job with given arrivals and a closed-loop BE job on one GPU
//! (`gpu`), and [`compare()`] does so under each policy and sums up. No CUDA, no threads, no clock: the same seed gives
//! the same figures.
//!
//! What is modelled: each job's host time between launches and the waits for its GPU work, launch latency, one stream
//! a job, the gate's polling. What is not: caches, the GIL, stream priorities, and which kernels share an SM well:
//! kernels that run side by side are slowed by one constant ratio ([`Sharing`]).

mod compare;
mod gpu;
mod replay;
mod rng;
pub mod trace;

pub use compare::{Comparison, Options, OptionsError, Row, compare};
pub use gpu::Sharing;
pub use replay::{Job, Model, Outcome, Scenario};
pub use rng::{Rng, poisson_arrivals_ns};

/// The sorted sample's element ⌊q n⌋, as in the project's records (its maximum where q is 1); 0 for no sample.
pub fn quantile_ns(samples_ns: &[u64], q: f64) -> u64 {
    let mut sorted = samples_ns.to_vec();
    sorted.sort_unstable();
    let index = (q * sorted.len() as f64) as usize;
    sorted.get(index).or(sorted.last()).copied().unwrap_or(0)
}

#[cfg(test)]
mod testing;
