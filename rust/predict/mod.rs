//! The predictor: how long two kernels take beside each other, from what each does alone (paper §4).
//!
//! [`placement`] says where blocks find room (§4.1), [`packing`] what it costs to be packed there (§4.2), [`features`]
//! and two models of trees what contention for memory (§4.3) and for an SM (§4.4) cost, [`intra_sm`] the part of the
//! latter that is a formula, and [`timeline`] when each kernel ends (§4.5). [`interval`] says how far off that may be.
//!
//! Beyond the paper: priorities (blocks of the later kernel that go first), confinement (a kernel held to some of the
//! other one's SMs), a kernel that comes at any moment of the other, working sets, intervals.

mod error;
pub mod features;
pub mod fit;
pub mod interval;
pub mod intra_sm;
mod kernel;
mod model;
mod packing;
pub mod placement;
mod predictor;
pub mod samples;
mod sharing;
pub mod timeline;

pub mod accuracy;
pub mod rivals;

pub use error::PredictError;
pub use kernel::{Alone, KERNEL_FEATURES, Kernel};
pub use model::{Coefficients, Models};
pub use packing::Packing;
pub use predictor::{Estimate, Meeting, Parts, Prediction, Predictor};
pub use sharing::Sharing;
pub use timeline::{Release, Timeline};

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
