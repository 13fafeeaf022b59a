//! What `stats()` shows, as JSON.

use super::calibration::Isolated;
use super::driver::Entry;
use super::job::{self, Job, Role};
use super::{device, gate, histogram::Histogram, settings, stalls};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Calls that are seen and passed on.
pub static SEEN: [AtomicU64; Entry::ALL.len()] = [const { AtomicU64::new(0) }; Entry::ALL.len()];

/// CPU time of this thread.
pub fn thread_cpu_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Times in nanoseconds; `None` while there are none.
#[derive(Debug, Serialize)]
pub struct Quantiles {
    count: u64,
    p50_ns: Option<u64>,
    p90_ns: Option<u64>,
    p99_ns: Option<u64>,
    max_ns: Option<u64>,
}

impl Quantiles {
    fn of(h: &Histogram) -> Self {
        let [p50_ns, p90_ns, p99_ns, max_ns] = [0.5, 0.9, 0.99, 1.0].map(|q| h.quantile_ns(q));
        Quantiles { count: h.count(), p50_ns, p90_ns, p99_ns, max_ns }
    }
}

#[derive(Debug, Serialize)]
struct HpStats {
    slo: f64,
    calibrating: bool,
    isolated: Option<Isolated>,
    requests: u64,
    failed_requests: u64,
    service: Quantiles,
}

#[derive(Debug, Serialize)]
struct BeStats {
    held: u64,
    admitted: u64,
    admitted_hp_stalled: u64,
    admitted_wait_bound: u64,
    escaped: u64,
    unknown: u64,
    known_kernels: usize,
    waits: Quantiles,
}

#[derive(Debug, Serialize)]
struct JobStats {
    job: i64,
    name: String,
    role: &'static str,
    device: i32,
    kernels: u64,
    launches: u64,
    graphs: u64,
    copies: u64,
    captured: u64,
    streams: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    hp: Option<HpStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    be: Option<BeStats>,
}

#[derive(Debug, Serialize)]
struct Stats {
    hook: Option<super::Mechanism>,
    settings: settings::Settings,
    jobs: Vec<JobStats>,
    gpu_writes_request_end: BTreeMap<i32, Option<bool>>,
    seen: BTreeMap<&'static str, u64>,
    stall_totals: Vec<stalls::Total>,
    stalls: Vec<stalls::Stall>,
    gate_wait_cpu_ns: u64,
    problems: Vec<String>,
}

fn job_stats(job: &Job) -> JobStats {
    let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
    let c = &job.counts;
    let hp = job.hp.as_ref().map(|hp| HpStats {
        slo: hp.slo_ratio,
        calibrating: hp.calibration.is_running(),
        isolated: hp.calibration.result(),
        requests: get(&hp.requests),
        failed_requests: get(&hp.failed_requests),
        service: Quantiles::of(&hp.service),
    });
    let be = (job.role == Role::Be).then(|| BeStats {
        held: get(&c.held),
        admitted: get(&c.admitted),
        admitted_hp_stalled: get(&c.admitted_hp_stalled),
        admitted_wait_bound: get(&c.admitted_wait_bound),
        escaped: get(&c.escaped),
        unknown: get(&c.unknown),
        known_kernels: job.device.best_effort_if_claimed().map_or(0, |b| b.tracker.lock().known_kernels()),
        waits: Quantiles::of(&c.waits),
    });
    JobStats {
        job: job.id,
        name: job.name.clone(),
        role: match job.role {
            Role::Hp => "hp",
            Role::Be => "be",
            Role::Observed => "observed",
        },
        device: job.device.ordinal,
        kernels: get(&c.kernels),
        launches: (get(&c.kernels) + get(&c.graphs)).saturating_sub(get(&c.graph_kernels)),
        graphs: get(&c.graphs),
        copies: get(&c.copies),
        captured: get(&c.captured),
        streams: job.streams().len(),
        hp,
        be,
    }
}

/// Everything, as one JSON object.
pub fn json() -> String {
    for job in job::all() {
        super::watch::collect(job);
    }
    let (stall_totals, stalls) = stalls::report();
    let seen = Entry::ALL
        .iter()
        .map(|e| (e.symbol(), SEEN[*e as usize].load(Ordering::Relaxed)))
        .filter(|(_, n)| *n > 0)
        .collect();
    let stats = Stats {
        hook: super::mechanism(),
        settings: super::settings(),
        jobs: job::all().map(job_stats).collect(),
        gpu_writes_request_end: device::all().map(|d| (d.ordinal, d.gpu_writes())).collect(),
        seen,
        stall_totals,
        stalls,
        gate_wait_cpu_ns: gate::wait_cpu_ns(),
        problems: super::problems::all(),
    };
    serde_json::to_string(&stats).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"))
}
