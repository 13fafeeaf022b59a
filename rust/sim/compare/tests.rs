use super::*;
use crate::sim::{testing::trace, trace::Beside};

/// HP: 40 kernels of 200 us; BE: 100 of 100 us, launched 5 us apart.
fn jobs() -> (Trace, Trace) {
    let kernels = |n: u64, ns| (0..n).map(|i| (i * 5_000, ns, false)).collect::<Vec<_>>();
    (trace("hp", &[&kernels(40, 200_000)]), trace("be", &[&kernels(100, 100_000)]))
}

#[test]
fn idle_only_keeps_the_bound_where_sharing_breaks_it() {
    // The demo's claim. Guards against a replay in which the policy has no effect.
    let (hp, be) = jobs();
    let c = compare(&hp, &be, &Options::default()).unwrap();
    let [isolated, uncontrolled, idle_only] = &c.rows[..] else { panic!("{c:?}") };
    assert_eq!((isolated.variant, isolated.hp_p99_ratio, isolated.be_per_s), ("isolated", 1.0, 0.0));
    assert!(uncontrolled.hp_p99_ratio > 2.0 && !uncontrolled.bound_holds && uncontrolled.overloaded, "{c:#?}");
    assert!(uncontrolled.hp_late_requests > 100, "{c:#?}");
    assert!(idle_only.hp_p99_ratio < 1.05 && idle_only.bound_holds && !idle_only.overloaded, "{c:#?}");
    assert!(idle_only.hp_late_requests < 20, "{c:#?}");
    // Half of the time HP is away; BE can have no more than that, and loses little of it.
    assert!((0.40..0.55).contains(&idle_only.be_fraction), "{c:#?}");
    assert_eq!(idle_only.be_beside_hp, 0);
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    let (hp, be) = jobs();
    let json = |seed| {
        let options = Options { seed, requests: 200, ..Options::default() };
        serde_json::to_string(&compare(&hp, &be, &options).unwrap()).unwrap()
    };
    assert_eq!(json(7), json(7));
    assert_ne!(json(7), json(8));
}

#[test]
fn a_measured_slowdown_is_used_for_its_own_pair_only() {
    // Guards against a demo that quotes one pair's measurement for another.
    let (hp, mut be) = jobs();
    let beside = |hp_workload: &str| Beside {
        hp_workload: hp_workload.into(),
        hp_slowdown_ratio: 1.6,
        be_slowdown_ratio: 1.9,
        source: "a record".into(),
    };
    let options = Options { requests: 100, ..Options::default() };
    be.provenance.beside = vec![beside("another")];
    assert_eq!(compare(&hp, &be, &options).unwrap().hp_slowdown_ratio, 2.0);
    be.provenance.beside.push(beside("hp"));
    let c = compare(&hp, &be, &options).unwrap();
    assert_eq!((c.hp_slowdown_ratio, c.be_slowdown_ratio), (1.6, 1.9));
    assert!(c.sharing_source.contains("a record"), "{c:?}");
    let given = Options { sharing: Some(Sharing::NONE), ..options };
    assert_eq!(compare(&hp, &be, &given).unwrap().hp_slowdown_ratio, 1.0);
}

#[test]
fn options_out_of_range_are_refused_with_what_was_found() {
    let (hp, be) = jobs();
    let base = Options::default();
    let half = Sharing { hp_slowdown_ratio: 0.5, be_slowdown_ratio: 1.0 };
    let cases = [
        (Options { requests: 99, ..base }, "requests are 99"),
        (Options { requests: 100_001, ..base }, "requests are 100001"),
        (Options { load: 0.0, ..base }, "load is 0"),
        (Options { load: f64::NAN, ..base }, "load is NaN"),
        (Options { load: 0.95, ..base }, "load is 0.95"),
        (Options { slo_ratio: 0.9, ..base }, "slo is 0.9"),
        (Options { sharing: Some(half), ..base }, "slowdown is 0.5"),
    ];
    for (options, text) in cases {
        let error = compare(&hp, &be, &options).unwrap_err().to_string();
        assert!(error.starts_with(text), "{error}");
    }
}
