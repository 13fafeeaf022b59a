//! The same arrivals under each policy, side by side.

use std::fmt;

use serde::Serialize;

use super::{Job, Model, Outcome, Scenario, Sharing, poisson_arrivals_ns, quantile_ns, trace::Trace};
use crate::sched::{IdleOnly, Policy, Uncontrolled};

/// An HP job that is busy for a larger part of the run is overloaded: its p99 grows with the length of the run.
const OVERLOAD_FRACTION: f64 = 0.9;

/// What to compare.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// HP requests.
    pub requests: usize,
    /// Isolated load: the fraction of time that HP is active when alone. Arrivals are Poisson.
    pub load: f64,
    /// Of the arrivals.
    pub seed: u64,
    /// The bound on HP's p99 over its isolated p99.
    pub slo_ratio: f64,
    /// What kernels side by side do to each other; `None`: what the BE trace's provenance holds for this HP workload,
    /// and equal processor sharing if it holds nothing.
    pub sharing: Option<Sharing>,
}

impl Default for Options {
    fn default() -> Self {
        Options { requests: 2000, load: 0.5, seed: 1, slo_ratio: 1.1, sharing: None }
    }
}

/// One policy's figures.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The policy's word in records; `isolated` is HP without BE.
    pub variant: &'static str,
    /// From arrival to completion.
    pub hp_p50_ms: f64,
    /// The same.
    pub hp_p99_ms: f64,
    /// Over the isolated p99 under the same arrivals.
    pub hp_p99_ratio: f64,
    /// HP requests that took longer than the bound times the isolated p99.
    pub hp_late_requests: usize,
    /// The bound holds: p99 is within it.
    pub bound_holds: bool,
    /// HP is busy nearly all the time, so that its p99 grows with the length of the run.
    pub overloaded: bool,
    /// BE requests done per second.
    pub be_per_s: f64,
    /// Over what the same BE job does under the same policy while HP is idle.
    pub be_fraction: f64,
    /// BE kernels admitted.
    pub be_admitted: u64,
    /// Of these, how many waited at the gate.
    pub be_held: u64,
    /// Of these, how many were launched while an HP request was active.
    pub be_beside_hp: u64,
}

/// The whole comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// One a variant: isolated, uncontrolled, idle-only.
    pub rows: Vec<Row>,
    /// HP's isolated service time.
    pub t_iso_ms: f64,
    /// Launches of one HP request, on average.
    pub hp_launches: f64,
    /// BE's service time alone on the GPU, ungated.
    pub be_alone_ms: f64,
    /// Launches of one BE request, on average.
    pub be_launches: f64,
    /// HP's slowdown while a BE kernel runs beside its own.
    pub hp_slowdown_ratio: f64,
    /// BE's.
    pub be_slowdown_ratio: f64,
    /// Where the two slowdowns come from.
    pub sharing_source: String,
}

/// Replays HP alone and beside BE under each policy.
pub fn compare(hp: &Trace, be: &Trace, options: &Options) -> Result<Comparison, OptionsError> {
    check(options)?;
    let (sharing, sharing_source) = sharing(hp, be, options);
    let model = Model { sharing, ..Model::default() };
    let (hp, be) = (Job::new(hp, &model), Job::new(be, &model));
    let arrivals_ns = poisson_arrivals_ns(options.requests, hp.mean_service_ns() / options.load, options.seed);

    let replay = |policy: &dyn Policy, arrivals_ns: &[u64], be: Option<&Job>, until_ns: u64| {
        Scenario { hp: &hp, arrivals_ns, be, until_ns, policy, model }.run()
    };
    let isolated = replay(&Uncontrolled, &arrivals_ns, None, 0);
    let isolated_p99_ns = quantile_ns(&isolated.hp_latency_ns, 0.99);
    let row = |variant, outcome: &Outcome, be_idle_per_s: f64| {
        summarise(variant, outcome, be_idle_per_s, isolated_p99_ns, options.slo_ratio)
    };

    // Long enough for a hundred BE requests, so that the one cut off at the end does not count.
    let be_idle_ns = (be.mean_service_ns() * 100.0) as u64;
    let policies: [&dyn Policy; 2] = [&Uncontrolled, &IdleOnly::default()];
    let mut rows = vec![row("isolated", &isolated, 0.0)];
    for policy in policies {
        let idle = replay(policy, &[], Some(&be), be_idle_ns);
        let loaded = replay(policy, &arrivals_ns, Some(&be), 0);
        rows.push(row(policy.name(), &loaded, per_s(&idle)));
    }
    Ok(Comparison {
        rows,
        t_iso_ms: ms(hp.t_iso_ns()),
        hp_launches: hp.mean_launches(),
        be_alone_ms: ms(be.t_iso_ns()),
        be_launches: be.mean_launches(),
        hp_slowdown_ratio: sharing.hp_slowdown_ratio,
        be_slowdown_ratio: sharing.be_slowdown_ratio,
        sharing_source,
    })
}

fn sharing(hp: &Trace, be: &Trace, options: &Options) -> (Sharing, String) {
    let measured = be.provenance.beside.iter().find(|b| b.hp_workload == hp.provenance.workload);
    match (options.sharing, measured) {
        (Some(given), _) => (given, "as given".into()),
        (None, Some(b)) => {
            let (hp_slowdown_ratio, be_slowdown_ratio) = (b.hp_slowdown_ratio, b.be_slowdown_ratio);
            (Sharing { hp_slowdown_ratio, be_slowdown_ratio }, format!("measured: {}", b.source))
        }
        (None, None) => (Sharing::EQUAL, "equal processor sharing, an assumption".into()),
    }
}

fn summarise(variant: &'static str, o: &Outcome, be_idle_per_s: f64, isolated_p99_ns: u64, slo_ratio: f64) -> Row {
    let p99_ns = quantile_ns(&o.hp_latency_ns, 0.99);
    let limit_ns = isolated_p99_ns as f64 * slo_ratio;
    Row {
        variant,
        hp_p50_ms: ms(quantile_ns(&o.hp_latency_ns, 0.5)),
        hp_p99_ms: ms(p99_ns),
        hp_p99_ratio: p99_ns as f64 / isolated_p99_ns.max(1) as f64,
        hp_late_requests: o.hp_latency_ns.iter().filter(|ns| **ns as f64 > limit_ns).count(),
        bound_holds: p99_ns as f64 <= limit_ns,
        overloaded: o.hp_busy_ns as f64 > OVERLOAD_FRACTION * o.end_ns as f64,
        be_per_s: per_s(o),
        be_fraction: if be_idle_per_s > 0.0 { per_s(o) / be_idle_per_s } else { 0.0 },
        be_admitted: o.be_admitted,
        be_held: o.be_held,
        be_beside_hp: o.be_beside_hp,
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn per_s(o: &Outcome) -> f64 {
    o.be_requests / (o.end_ns.max(1) as f64 / 1e9)
}

fn check(o: &Options) -> Result<(), OptionsError> {
    if !(100..=100_000).contains(&o.requests) {
        return Err(OptionsError::Requests { found: o.requests });
    }
    if !(0.01..=0.94).contains(&o.load) {
        return Err(OptionsError::Load { found: o.load });
    }
    if !(1.0..=100.0).contains(&o.slo_ratio) {
        return Err(OptionsError::Slo { found: o.slo_ratio });
    }
    if let Some(s) = o.sharing {
        for found in [s.hp_slowdown_ratio, s.be_slowdown_ratio] {
            if !(1.0..=super::trace::MAX_SLOWDOWN_RATIO).contains(&found) {
                return Err(OptionsError::Slowdown { found });
            }
        }
    }
    Ok(())
}

/// Why a comparison was refused.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum OptionsError {
    /// Too few requests for a p99, or too many.
    Requests {
        /// The number given.
        found: usize,
    },
    /// The load is no fraction, or overloads HP even alone.
    Load {
        /// The load given.
        found: f64,
    },
    /// The bound is no bound.
    Slo {
        /// The ratio given.
        found: f64,
    },
    /// A slowdown is out of range.
    Slowdown {
        /// The ratio given.
        found: f64,
    },
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requests { found } => write!(f, "requests are {found}, expected 100 to 100000 (a p99 needs 100)"),
            Self::Load { found } => {
                write!(f, "load is {found}, expected 0.01 to 0.94 (above, HP is overloaded even alone)")
            }
            Self::Slo { found } => write!(f, "slo is {found}, expected a ratio from 1 to 100, such as 1.1"),
            Self::Slowdown { found } => write!(f, "slowdown is {found}, expected a ratio from 1 to 100"),
        }
    }
}

impl std::error::Error for OptionsError {}

#[cfg(test)]
mod tests;
