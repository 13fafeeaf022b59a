//! Small profiles of a made-up GPU.

use super::*;
use crate::kernel::KernelId;
use serde::Serialize;

pub const SMS: u32 = 8;

pub fn provenance(format: Format, records: usize) -> Provenance {
    let text = |s: &str| s.to_owned();
    Provenance {
        format,
        version: VERSION,
        gpu: text("a made-up GPU"),
        sms: SMS,
        driver: text("1"),
        cuda: text("2"),
        torch: text("3"),
        sm_clock_mhz: Some([900, 1000]),
        memory_clock_mhz: None,
        command: text("a test"),
        date: text("2026-01-01"),
        source: Some(text("abc")),
        records: records as u64,
        workload: (format == Format::Workload).then(|| text("net")),
    }
}

pub fn spread(median_ns: f64) -> Spread {
    Spread { median_ns, p10_ns: median_ns - 10.0, p90_ns: median_ns + 20.0, n: 20 }
}

/// Of the zoo, by its configuration's name.
pub fn zoo(name: &str) -> KernelProfile {
    KernelProfile {
        key: format!("zoo:{name}"),
        kernel_id: KernelId(7),
        symbol: "_Z4fillPf".into(),
        grid: [132, 1, 1],
        block: [256, 1, 1],
        dynamic_smem_bytes: 1024,
        cluster: [0; 3],
        registers: 32,
        static_smem_bytes: 0,
        families: vec!["fill".into()],
        unseen: false,
        isolated: [SMS, 2].map(|sms| Isolated { sms, time: spread(8_000.0 / f64::from(sms)) }).into(),
        metrics: KernelMetrics { waves: Some(1.5), ipc: Some(0.0), ..Default::default() },
        grid_working_set_bytes: Some(4096.0),
        block_working_set_bytes: Some(32.0),
        working_set_from: Some(WorkingSetFrom::Arguments),
    }
}

/// Of the workload `net`, by its KernelId.
pub fn launched(id: u64) -> KernelProfile {
    KernelProfile {
        key: format!("net:{id:016x}.0"),
        kernel_id: KernelId(id),
        families: vec!["net".into(), "other net".into()],
        metrics: KernelMetrics::default(),
        grid_working_set_bytes: None,
        block_working_set_bytes: None,
        working_set_from: None,
        ..zoo("")
    }
}

pub fn pair(a: &str, b: &str, mode: PairMode) -> Pair {
    let (a_sms, b_sms) = match mode {
        PairMode::Separate => (6, 2),
        PairMode::Confined => (SMS, 2),
        _ => (SMS, SMS),
    };
    Pair {
        a: a.into(),
        b: b.into(),
        mode,
        a_sms,
        b_sms,
        a_alone_ns: spread(1000.0),
        b_alone_ns: spread(3000.0),
        a_ns: spread(1500.0),
        b_ns: spread(6000.0),
        lead_ns: -100.0,
        overlap_ns: 1400.0,
        noisy: false,
    }
}

pub fn launch(kernel: usize, start_offset_ns: f64) -> LaunchProfile {
    let time = |sms: u32| LaunchTime { sms, median_ns: 1000.0, p10_ns: 990.0, p90_ns: 1000.5 };
    LaunchProfile { kernel, start_offset_ns, durations: vec![time(SMS), time(4)] }
}

fn lines<T: Serialize>(records: &[T]) -> String {
    records.iter().map(|r| serde_json::to_string(r).unwrap() + "\n").collect()
}

pub fn file<T: Serialize>(format: Format, records: &[T]) -> String {
    lines(&[provenance(format, records.len())]) + &lines(records)
}

pub fn kernels() -> String {
    file(Format::Kernels, &[zoo("fill n=1"), zoo("fill n=2"), launched(9)])
}

pub fn pairs() -> String {
    file(Format::Pairs, &PairMode::ALL.map(|mode| pair("zoo:fill n=1", "net:0000000000000009.0", mode)))
}

pub fn physics() -> String {
    let point = |x: u32| serde_json::json!({ "experiment": "waves", "x": x, "of its own": [null] });
    file(Format::Physics, &[point(1), point(2)])
}

pub fn workload() -> String {
    let (kernels, launches) = ([launched(9), launched(10)], [launch(1, 0.0), launch(0, 1200.0), launch(1, 2400.0)]);
    lines(&[provenance(Format::Workload, 5)]) + &lines(&kernels) + &lines(&launches)
}
