//! Times as quantiles of their repetitions, nanoseconds.

use super::ProfileError;
use serde::{Deserialize, Serialize};

/// A time that was measured several times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// Median.
    pub median_ns: f64,
    /// 10th percentile.
    pub p10_ns: f64,
    /// 90th percentile.
    pub p90_ns: f64,
    /// How often it was measured.
    pub n: u32,
}

impl Spread {
    /// The middle 80 % spread by more than 10 % of the median and more than 2,000 ns.
    pub fn is_noisy(&self) -> bool {
        let width_ns = self.p90_ns - self.p10_ns;
        width_ns > 0.1 * self.median_ns && width_ns > 2_000.0
    }

    pub(super) fn check(&self, line: usize, field: &str) -> Result<(), ProfileError> {
        check_quantiles(line, field, self.p10_ns, self.median_ns, self.p90_ns)?;
        if self.n == 0 {
            return Err(ProfileError::field(line, format!("n of {field}"), 0, "at least 1"));
        }
        Ok(())
    }
}

/// A kernel's time alone on some of the SMs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "FlatIsolated", into = "FlatIsolated")]
pub struct Isolated {
    /// SMs that it had.
    pub sms: u32,
    /// Its time on them.
    pub time: Spread,
}

/// [`Isolated`] as files have it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FlatIsolated {
    sms: u32,
    median_ns: f64,
    p10_ns: f64,
    p90_ns: f64,
    n: u32,
}

impl From<FlatIsolated> for Isolated {
    fn from(FlatIsolated { sms, median_ns, p10_ns, p90_ns, n }: FlatIsolated) -> Self {
        Isolated { sms, time: Spread { median_ns, p10_ns, p90_ns, n } }
    }
}

impl From<Isolated> for FlatIsolated {
    fn from(Isolated { sms, time: Spread { median_ns, p10_ns, p90_ns, n } }: Isolated) -> Self {
        FlatIsolated { sms, median_ns, p10_ns, p90_ns, n }
    }
}

/// A launch's time on some of the SMs; in files `[sms, median_ns, p10_ns, p90_ns]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "(u32, f64, f64, f64)", into = "(u32, f64, f64, f64)")]
pub struct LaunchTime {
    /// SMs that the workload had.
    pub sms: u32,
    /// Median.
    pub median_ns: f64,
    /// 10th percentile.
    pub p10_ns: f64,
    /// 90th percentile.
    pub p90_ns: f64,
}

impl LaunchTime {
    pub(super) fn check(&self, line: usize, field: &str) -> Result<(), ProfileError> {
        check_quantiles(line, field, self.p10_ns, self.median_ns, self.p90_ns)
    }
}

impl From<(u32, f64, f64, f64)> for LaunchTime {
    fn from((sms, median_ns, p10_ns, p90_ns): (u32, f64, f64, f64)) -> Self {
        LaunchTime { sms, median_ns, p10_ns, p90_ns }
    }
}

impl From<LaunchTime> for (u32, f64, f64, f64) {
    fn from(t: LaunchTime) -> Self {
        (t.sms, t.median_ns, t.p10_ns, t.p90_ns)
    }
}

fn check_quantiles(line: usize, field: &str, p10: f64, median: f64, p90: f64) -> Result<(), ProfileError> {
    if p10 > 0.0 && p10 <= median && median <= p90 && p90.is_finite() {
        return Ok(());
    }
    let found = format_args!("p10 {p10}, median {median}, p90 {p90}");
    Err(ProfileError::field(line, field, found, "finite times above 0 with p10 <= median <= p90"))
}

/// Counts of SMs that a list has: each at most once, and no more than the GPU has.
pub(super) fn check_sms(
    line: usize,
    field: &str,
    counts: impl Iterator<Item = u32> + Clone,
    gpu_sms: u32,
) -> Result<(), ProfileError> {
    for (index, sms) in counts.clone().enumerate() {
        if !(1..=gpu_sms).contains(&sms) {
            return Err(ProfileError::field(line, format!("sms of {field}"), sms, format!("1 to {gpu_sms}")));
        }
        if counts.clone().take(index).any(|before| before == sms) {
            return Err(ProfileError::field(line, format!("sms of {field}"), format!("{sms} twice"), "each once"));
        }
    }
    Ok(())
}
