//! Traces for tests, made up from a seed.

use super::{
    Rng,
    trace::{Beside, Kind, Provenance, Trace, TraceKernel},
};
use crate::kernel::{KernelId, LaunchConfig};

pub(super) fn provenance(workload: &str) -> Provenance {
    let text = |s: &str| s.to_owned();
    Provenance {
        format: text("mosaic-trace"),
        version: 1,
        gpu: text("made up"),
        driver: text("none"),
        cuda: text("none"),
        torch: text("none"),
        command: text("a test"),
        date: text("2026-01-01"),
        workload: text(workload),
        kernels: None,
        gpu_gap_ns: 0,
        beside: Vec::<Beside>::new(),
    }
}

/// (start offset, duration, after_sync) of each kernel; kernels of equal duration share an identity.
pub(super) fn trace(workload: &str, requests: &[&[(u64, u64, bool)]]) -> Trace {
    let kernel = |&(start_offset_ns, duration_ns, after_sync): &(u64, u64, bool)| TraceKernel {
        id: KernelId(duration_ns),
        kind: Kind::Kernel,
        start_offset_ns,
        duration_ns,
        config: LaunchConfig { grid: [132, 1, 1], block: [256, 1, 1], ..Default::default() },
        after_sync,
    };
    let requests: Vec<Vec<TraceKernel>> = requests.iter().map(|r| r.iter().map(kernel).collect()).collect();
    let names = requests.iter().flatten().map(|k| (k.id, format!("kernel_{}", k.id.0))).collect();
    Trace { provenance: provenance(workload), names, requests }
}

/// Random requests: some host gaps, some waits for the GPU, some kernels as short as a nanosecond.
pub(super) fn random_trace(workload: &str, rng: &mut Rng) -> Trace {
    let mut below = |n: u64| rng.next_u64() % n;
    let mut requests = Vec::new();
    for _ in 0..1 + below(3) {
        let mut at_ns = 0;
        let mut request = Vec::new();
        for _ in 0..1 + below(30) {
            at_ns += below(20_000);
            let duration_ns = if below(5) == 0 { 1 + below(3) } else { 1 + below(100_000) };
            request.push((at_ns, duration_ns, below(6) == 0));
        }
        requests.push(request);
    }
    let mut trace = trace(workload, &requests.iter().map(Vec::as_slice).collect::<Vec<_>>());
    trace.provenance.gpu_gap_ns = below(2_000);
    trace
}
