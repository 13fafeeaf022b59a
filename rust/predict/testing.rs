//! A made-up kernel, as a starting point.

use super::Kernel;
use crate::gpu;
use crate::profile::{Isolated, KernelMetrics, KernelProfile, NCU_METRICS, Spread};

/// All counters, each 1, and a profile that fills the H200 once: 132 blocks of 1,024 threads and 32 registers.
pub fn profile() -> KernelProfile {
    let mut profile = crate::profile::testing::zoo("made-up");
    let time = |median_ns: f64| Spread { median_ns, p10_ns: median_ns, p90_ns: median_ns, n: 7 };
    profile.grid = [264, 1, 1];
    profile.block = [1024, 1, 1];
    profile.dynamic_smem_bytes = 0;
    profile.isolated = vec![Isolated { sms: 132, time: time(1e4) }];
    profile.metrics = counters();
    profile
}

/// As a predictor sees it.
pub fn kernel() -> Kernel {
    Kernel::new(&gpu::H200, &profile()).unwrap()
}

fn counters() -> KernelMetrics {
    let names = serde_json::to_value(KernelMetrics::default()).unwrap();
    assert!(names.as_object().unwrap().is_empty());
    let mut m = KernelMetrics::default();
    for (_, column) in NCU_METRICS.iter().zip(crate::profile::columns_for_tests()) {
        (column)(&mut m, 1.0);
    }
    m.carveout_bytes = Some(32_768.0);
    m
}
