//! The paper's closed forms (§4.5), block placement with known answers, and what no prediction may break.

use super::features::Placed;
use super::model::Coefficients;
use super::placement::{Waves, room};
use super::testing::{kernel, profile};
use super::timeline::{Side, apart, shared};
use super::*;
use crate::gpu::H200;

fn side(kernel: &Kernel, alone_ns: f64, slowdown: f64) -> Side<'_> {
    Side { kernel, alone_ns, sms: 132, slowdown }
}

fn sized(blocks: u32, threads: u32) -> Kernel {
    let mut p = profile();
    (p.grid, p.block) = ([blocks, 1, 1], [threads, 1, 1]);
    let mut k = Kernel::new(&H200, &p).unwrap();
    k.release = 0.0;
    k
}

fn coefficients() -> Coefficients {
    let mut c = Coefficients::start("NVIDIA H200", String::new());
    (c.release.spread, c.release.drift) = (0.0, 0.0);
    (c.packing.a, c.packing.b, c.packing.c, c.packing.gamma) = (0.0, 0.0, 0.0, 0.0);
    c
}

fn on_all([first, later]: [Side; 2], offset_ns: f64, preempts: bool) -> Timeline {
    let c = coefficients();
    shared(&H200, &c.packing, &c.release, [first, later], offset_ns, preempts)
}

/// §4.5, separate SMs: d'A = max(sA dA, dA + (1 - 1/sA) t), t = min(sA dA, sB dB).
#[test]
fn apart_is_the_closed_form() {
    let k = kernel();
    for (da, sa, db, sb) in [(10.0, 1.5, 40.0, 2.0), (40.0, 1.2, 10.0, 3.0), (5.0, 1.0, 5.0, 1.0)] {
        let t = apart(side(&k, da, sa), side(&k, db, sb), 0.0);
        let both = f64::min(sa * da, sb * db);
        let form = |d: f64, s: f64| f64::min(s * d, d + (1.0 - 1.0 / s) * both);
        assert!((t.first_end_ns - form(da, sa)).abs() < 1e-9, "{t:?}");
        assert!((t.later_end_ns - form(db, sb)).abs() < 1e-9, "{t:?}");
    }
}

/// Fault: two kernels that do not meet change each other.
#[test]
fn one_that_comes_after_the_other_meets_nothing() {
    let k = kernel();
    for t in [
        apart(side(&k, 10.0, 2.0), side(&k, 5.0, 2.0), 10.0),
        on_all([side(&k, 10.0, 2.0), side(&k, 5.0, 2.0)], 12.0, true),
    ] {
        assert_eq!((t.first_end_ns, t.overlap_ns()), (10.0, 0.0));
        assert_eq!(t.later_end_ns - t.later_start_ns, 5.0);
    }
}

/// Observation 1: all blocks of A before any of B; B starts in the last wave's place.
#[test]
fn blocks_of_the_first_go_first() {
    let (a, b) = (sized(4 * 264, 1024), sized(264, 1024));
    let t = on_all([side(&a, 400.0, 1.0), side(&b, 50.0, 1.0)], 0.0, false);
    assert_eq!(t.first_end_ns, 400.0);
    assert!((t.later_start_ns - 400.0).abs() < 1e-6 && (t.later_end_ns - 450.0).abs() < 1e-6, "{t:?}");
    // A's last wave is half empty: B begins beside it, with the rest in the place of A.
    let a = sized(3 * 264 + 132, 1024);
    let t = on_all([side(&a, 400.0, 1.0), side(&b, 50.0, 1.0)], 0.0, false);
    assert_eq!((t.later_start_ns, t.room_at_start), (300.0, 0.5));
    assert!((t.later_end_ns - 400.0).abs() < 1e-6, "two waves of B beside A's last: {t:?}");
}

/// Fault: a high-priority kernel waits for blocks of the other that have not started.
#[test]
fn blocks_with_priority_go_before_those_that_wait() {
    let (be, hp) = (sized(4 * 264, 1024), sized(264, 1024));
    let t = on_all([side(&be, 400.0, 1.0), side(&hp, 50.0, 1.0)], 30.0, true);
    assert!((t.later_start_ns - 100.0).abs() < 1e-6, "at the end of the wave that runs: {t:?}");
    assert!((t.later_end_ns - 150.0).abs() < 1e-6, "{t:?}");
    assert!((t.first_end_ns - 450.0).abs() < 1e-6, "it gets its turn back: {t:?}");
}

/// Observation 2: threads, registers, shared memory; and one carveout for an SM.
#[test]
fn room_is_what_the_tightest_limit_leaves() {
    let (big, small) = (sized(132, 1024), sized(132, 256));
    assert_eq!((room(&H200, &small, &big, 1), room(&H200, &big, &small, 5), room(&H200, &small, &big, 2)), (4, 0, 0));
    let mut needs_shared = small.clone();
    needs_shared.shared_bytes = 40_000;
    assert_eq!(room(&H200, &needs_shared, &big, 1), 0, "the carveout of the one that runs is 32 KiB");
    let mut registers = small.clone();
    registers.registers = 40_000;
    assert_eq!(room(&H200, &registers, &big, 1), 0);
}

#[test]
fn waves_follow_from_blocks_and_limits() {
    let w = Waves::new(&sized(265, 1024), 132);
    assert_eq!((w.whole, w.last_full_sms, w.last_per_sm), (1.0, 132.0, 2), "one block more is no wave: {w:?}");
    let w = Waves::new(&sized(264 + 100, 1024), 132);
    assert_eq!((w.whole, w.last_full_sms, w.last_per_sm), (2.0, 100.0, 1));
}

/// Eq. 1: a kernel whose blocks all go to the few SMs that are free first.
#[test]
fn a_packed_wave_takes_longer_by_its_beta() {
    let mut k = sized(132, 256);
    (k.memory, k.compute) = (0.0, 1.0);
    let packing = Packing { a: 0.0, b: 0.0, c: 1.0, gamma: 0.0 };
    assert_eq!(packing.denser(&k, 4.0), 4.0);
    k.compute = 0.5;
    assert_eq!(packing.denser(&k, 4.0), 2.0);
    assert_eq!(packing.denser(&k, 0.5), 1.0);
}

/// Fault: times that are no numbers, below the time alone without a reason, or an order of events that cannot be.
#[test]
fn any_two_kernels_have_a_timeline() {
    let predictor = Predictor::new(&H200, Models::formulas(Coefficients::start("NVIDIA H200", String::new())));
    let mut state = 1_u64;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for _ in 0..20_000 {
        let mut any = || {
            let mut k = sized(1 + next(5_000) as u32, 32 * (1 + next(32) as u32));
            (k.memory, k.compute, k.release) =
                (next(101) as f64 / 100.0, next(101) as f64 / 100.0, next(101) as f64 / 100.0);
            (k, 1_000.0 + next(500_000) as f64)
        };
        let ((a, a_ns), (b, b_ns)) = (any(), any());
        let sharing = Sharing::ALL[next(5) as usize];
        let b_sms = if matches!(sharing, Sharing::Separate | Sharing::Confined) { 1 + next(131) as u32 } else { 132 };
        let m = Meeting {
            a: Placed {
                kernel: &a,
                sms: if sharing == Sharing::Separate { 132 - b_sms.min(131) } else { 132 },
                alone_ns: a_ns,
            },
            b: Placed { kernel: &b, sms: b_sms, alone_ns: b_ns },
            sharing,
            offset_ns: next(600_000) as f64,
        };
        let p = predictor.predict(&m);
        for e in [p.a, p.b] {
            assert!(e.ns.is_finite() && e.slowdown > 0.2 && e.slowdown < 1e3, "{p:?} of {m:?}");
        }
        let t = p.timeline;
        assert!(t.later_start_ns >= m.offset_ns && t.later_end_ns > t.later_start_ns && t.overlap_ns() >= 0.0, "{p:?}");
    }
}

#[test]
fn a_profile_without_counters_is_refused_by_name() {
    let mut p = profile();
    p.metrics.ipc = None;
    let e = Kernel::new(&H200, &p).unwrap_err().to_string();
    assert!(e.contains("zoo:made-up lacks 1 counters, sm__inst_executed.avg.per_cycle_active"), "{e}");
}
