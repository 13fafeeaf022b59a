//! §4.4, the part in formulas: pipes and issue slots that blocks of two kernels on one SM take from each other.

use super::features::Placed;
use serde::{Deserialize, Serialize};

/// Eq. 3 and 4, fitted for each GPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contention {
    /// Slowdown for each instruction a cycle that the other one issues more.
    pub k: f64,
    /// How stalls for memory dampen that.
    pub k_sigma: f64,
    /// Stalls for memory beyond which pipes do not matter.
    pub sigma_threshold: f64,
}

/// Positions among the counters of a kernel.
const SIGMA: usize = 1;
const IPC: usize = 7;

impl Contention {
    /// Slowdown of `own` by blocks of `other` on its SMs: the larger of eq. 3's and eq. 4's.
    pub fn slowdown(&self, own: &Placed, other: &Placed) -> f64 {
        self.pipes(own, other).max(self.issue(own, other))
    }

    /// Eq. 3: of each pipe a kernel gets what the other leaves, or its share by warps, if that is more.
    pub fn pipes(&self, own: &Placed, other: &Placed) -> f64 {
        if f64::from(own.kernel.counters[SIGMA]) > self.sigma_threshold {
            return 1.0;
        }
        let warps = |p: &Placed| f64::from(p.kernel.warps) * p.blocks_per_sm();
        let share = warps(own) / (warps(own) + warps(other));
        let slowdown = |(own, other): (&f64, &f64)| {
            let served = own.min(share.max(1.0 - other));
            if *own > 0.0 { own / served } else { 1.0 }
        };
        own.kernel.pipes.iter().zip(&other.kernel.pipes).map(slowdown).fold(1.0, f64::max)
    }

    /// Eq. 4: who issues more slows down who issues less.
    pub fn issue(&self, own: &Placed, other: &Placed) -> f64 {
        let of = |p: &Placed, i: usize| f64::from(p.kernel.counters[i]);
        let more = (of(other, IPC) - of(own, IPC)).max(0.0);
        1.0 + self.k / (1.0 + self.k_sigma * of(own, SIGMA)) * more
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::testing::kernel;

    const C: Contention = Contention { k: 0.5, k_sigma: 1.0, sigma_threshold: 10.0 };

    fn placed(kernel: &crate::predict::Kernel) -> Placed<'_> {
        Placed { kernel, sms: 132, alone_ns: 1e4 }
    }

    #[test]
    fn two_that_want_all_of_a_pipe_get_half_each() {
        let mut k = kernel();
        (k.pipes, k.counters) = ([0.0, 1.0, 0.0, 0.0, 0.0, 0.0], [0.0; 14]);
        assert_eq!(C.slowdown(&placed(&k), &placed(&k)), 2.0);
        k.counters[SIGMA] = 11.0;
        assert_eq!(C.slowdown(&placed(&k), &placed(&k)), 1.0);
    }

    #[test]
    fn what_fits_beside_the_other_is_not_slowed() {
        let (mut a, mut b) = (kernel(), kernel());
        (a.counters, b.counters) = ([0.0; 14], [0.0; 14]);
        (a.pipes, b.pipes) = ([0.2, 0.0, 0.0, 0.0, 0.0, 0.0], [0.8, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(C.pipes(&placed(&a), &placed(&b)), 1.0);
        // b's 0.8 beside 0.2: all served.
        assert_eq!(C.pipes(&placed(&b), &placed(&a)), 1.0);
    }

    #[test]
    fn who_issues_more_slows_who_issues_less() {
        let (mut a, mut b) = (kernel(), kernel());
        (a.counters, b.counters) = ([0.0; 14], [0.0; 14]);
        (a.counters[IPC], b.counters[IPC]) = (1.0, 3.0);
        assert_eq!((C.issue(&placed(&a), &placed(&b)), C.issue(&placed(&b), &placed(&a))), (2.0, 1.0));
        a.counters[SIGMA] = 1.0;
        assert_eq!(C.issue(&placed(&a), &placed(&b)), 1.5);
    }
}
