//! All mechanisms together: one pair, one way to share.

use super::features::{self, Place, Placed};
use super::interval::{self, Residual};
use super::timeline::{Side, apart, shared};
use super::{Alone, Kernel, Models, Sharing, Timeline};
use crate::gpu::GpuSpec;

/// Rates beyond these are not believed: nothing stands still, and little gets faster beside another.
const RATES: std::ops::RangeInclusive<f64> = 0.05..=1.05;

/// Which mechanisms take part; all but for ablations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// §4.2; else a wave takes what it takes alone.
    pub packing: bool,
    /// §4.3.
    pub inter: bool,
    /// §4.4, pipes and issue slots.
    pub contention: bool,
    /// §4.4, the learned residual.
    pub residual: bool,
}

impl Parts {
    /// Everything.
    pub const ALL: Parts = Parts { packing: true, inter: true, contention: true, residual: true };
    /// §4.1 alone.
    pub const PLACEMENT: Parts = Parts { packing: false, inter: false, contention: false, residual: false };
}

/// Two kernels that meet.
#[derive(Clone, Copy, Debug)]
pub struct Meeting<'a> {
    /// A, where it runs.
    pub a: Placed<'a>,
    /// B, where it runs.
    pub b: Placed<'a>,
    /// How.
    pub sharing: Sharing,
    /// From the first one's start to the other's release.
    pub offset_ns: f64,
}

/// What one of them takes, from its release to its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Its time.
    pub ns: f64,
    /// Over that alone.
    pub slowdown: f64,
    /// How much slower it runs while both do.
    pub beside: f64,
    /// How far such predictions are off.
    pub residual: Residual,
}

impl Estimate {
    /// 5th and 95th percentile of the time, by the residuals of its class.
    pub fn interval_ns(&self) -> (f64, f64) {
        (self.ns * self.residual.p5.exp(), self.ns * self.residual.p95.exp())
    }
}

/// Both, and how it came about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Of A.
    pub a: Estimate,
    /// Of B.
    pub b: Estimate,
    /// The one of the two that comes first, and the other.
    pub timeline: Timeline,
}

/// Of one GPU.
#[derive(Clone, Debug)]
pub struct Predictor {
    /// What the GPU holds.
    pub spec: &'static GpuSpec,
    /// What was fitted for it.
    pub models: Models,
    /// Which mechanisms take part.
    pub parts: Parts,
}

impl Predictor {
    /// With all mechanisms.
    pub fn new(spec: &'static GpuSpec, models: Models) -> Predictor {
        Predictor { spec, models, parts: Parts::ALL }
    }

    /// A kernel on some SMs: its time there was measured, or follows from the packing model.
    pub fn place<'a>(&self, kernel: &'a Kernel, sms: u32) -> Placed<'a> {
        let alone_ns = match kernel.alone(sms) {
            Alone::Measured(ns) => ns,
            Alone::Nearest(of, ns) => ns * self.models.coefficients.packing.on_fewer(kernel, sms, of),
        };
        Placed { kernel, sms, alone_ns }
    }

    /// §4.3: how much slower `own` runs while `other` does, on other SMs.
    pub fn inter_sm(&self, own: &Placed, other: &Placed) -> f64 {
        1.0 / self.inter_rate(&features::inter(own, other))
    }

    /// Both times.
    pub fn predict(&self, m: &Meeting) -> Prediction {
        let (first, later) = if m.sharing.b_first() { (m.b, m.a) } else { (m.a, m.b) };
        let slowdowns = self.slowdowns(m, [&first, &later]);
        let t = self.timeline(m, [first, later], slowdowns);
        let first_ns = t.first_end_ns;
        let later_ns = t.later_end_ns - m.offset_ns.max(0.0);
        let estimate = |p: &Placed, ns: f64, beside: f64, is_later: bool| Estimate {
            ns,
            slowdown: ns / p.alone_ns,
            beside,
            residual: self.models.residuals[interval::class(m.sharing, is_later, t.overlap_ns() / ns)],
        };
        let first = estimate(&first, first_ns, slowdowns[0], false);
        let later = estimate(&later, later_ns, slowdowns[1], true);
        let (a, b) = if m.sharing.b_first() { (later, first) } else { (first, later) };
        Prediction { a, b, timeline: t }
    }

    /// When each ends, if they run so much slower beside each other.
    pub fn timeline(&self, m: &Meeting, kernels: [Placed; 2], slowdowns: [f64; 2]) -> Timeline {
        let [first, later] = std::array::from_fn(|i| Side::new(kernels[i], slowdowns[i]));
        if m.sharing == Sharing::Separate {
            return apart(first, later, m.offset_ns);
        }
        let c = &self.models.coefficients;
        let mut packing = c.packing;
        if !self.parts.packing {
            (packing.a, packing.b, packing.c, packing.gamma) = (0.0, 0.0, 0.0, 0.0);
        }
        shared(self.spec, &packing, &c.release, [first, later], m.offset_ns, m.sharing.preempts())
    }

    /// Rates by the formulas and the inter-SM model, and rows of the residual's, of the first one and of the later.
    pub fn rows(&self, m: &Meeting, kernels: [&Placed; 2]) -> [([f32; features::INTRA], f64); 2] {
        let t = self.timeline(m, [*kernels[0], *kernels[1]], [1.0, 1.0]);
        std::array::from_fn(|i| {
            let (own, other) = (kernels[i], kernels[1 - i]);
            let inter = features::inter(own, other);
            let rate = self.analytic_rate(&inter, own, other);
            let place = Place { later: i == 1, preempts: m.sharing.preempts(), analytic_rate: rate };
            (features::intra(&inter, own, other, place, &t), rate)
        })
    }

    fn slowdowns(&self, m: &Meeting, kernels: [&Placed; 2]) -> [f64; 2] {
        if m.sharing == Sharing::Separate {
            let rate = |own, other| if self.parts.inter { self.inter_sm(own, other) } else { 1.0 };
            return [rate(kernels[0], kernels[1]), rate(kernels[1], kernels[0])];
        }
        match &self.models.intra {
            Some(trees) if self.parts.residual => self
                .rows(m, kernels)
                .map(|(row, rate)| 1.0 / (rate + f64::from(trees.predict(&row))).clamp(*RATES.start(), *RATES.end())),
            _ => [(0, 1), (1, 0)].map(|(i, j)| {
                let inter = features::inter(kernels[i], kernels[j]);
                1.0 / self.analytic_rate(&inter, kernels[i], kernels[j])
            }),
        }
    }

    /// §4.5: the worse of inter- and intra-SM contention, the latter by its formulas.
    fn analytic_rate(&self, inter: &[f32; features::INTER], own: &Placed, other: &Placed) -> f64 {
        let mut rate: f64 = 1.0;
        if self.parts.inter {
            rate = rate.min(self.inter_rate(inter));
        }
        if self.parts.contention {
            rate = rate.min(1.0 / self.models.coefficients.contention.slowdown(own, other));
        }
        rate.max(*RATES.start())
    }

    fn inter_rate(&self, row: &[f32; features::INTER]) -> f64 {
        let trees = self.models.inter.as_ref();
        trees.map_or(1.0, |trees| f64::from(trees.predict(row)).clamp(*RATES.start(), *RATES.end()))
    }
}
