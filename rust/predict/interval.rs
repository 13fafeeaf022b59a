//! How far predictions are off: mean and variance of the log of measured over predicted, by class, of pairs that the
//! models had not seen. The scheduler adds means and variances over kernels; quantiles do not add.

use super::Sharing;
use serde::{Deserialize, Serialize};

/// Classes of how much of a kernel's predicted time is beside the other.
pub const EXPOSURES: usize = 4;
const BOUNDS: [f64; EXPOSURES - 1] = [0.01, 0.3, 0.8];
const ROLES: usize = 2;
/// Classes in all.
pub const CLASSES: usize = Sharing::COUNT * ROLES * EXPOSURES;

/// One class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Residual {
    /// Mean of ln(measured / predicted).
    pub mean: f64,
    /// Its standard deviation.
    pub sd: f64,
    /// Its 5th and 95th percentile.
    pub p5: f64,
    /// See `p5`.
    pub p95: f64,
    /// Durations that it is of.
    pub n: u32,
}

/// Which class a duration belongs to.
pub fn class(sharing: Sharing, later: bool, exposure: f64) -> usize {
    let bin = BOUNDS.iter().filter(|bound| exposure > **bound).count();
    (sharing.index() * ROLES + usize::from(later)) * EXPOSURES + bin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_distinct_and_within_the_table() {
        let mut seen = std::collections::HashSet::new();
        for sharing in Sharing::ALL {
            for later in [false, true] {
                for exposure in [0.0, 0.1, 0.5, 1.0] {
                    assert!(seen.insert(class(sharing, later, exposure)));
                }
            }
        }
        assert_eq!((seen.len(), seen.into_iter().max()), (CLASSES, Some(CLASSES - 1)));
    }
}
