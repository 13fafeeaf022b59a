use super::*;
use crate::{
    sched::{IdleOnly, Limits, Uncontrolled, Wait},
    sim::{
        Rng, poisson_arrivals_ns,
        testing::{random_trace, trace},
    },
};

const MODEL: Model = Model { launch_latency_ns: 6_000, poll_ns: 1_000, sharing: Sharing::EQUAL };

fn run(
    hp: &Job,
    be: Option<&Job>,
    arrivals_ns: &[u64],
    until_ns: u64,
    policy: &dyn Policy,
    sharing: Sharing,
) -> Outcome {
    Scenario { hp, arrivals_ns, be, until_ns, policy, model: Model { sharing, ..MODEL } }.run()
}

#[test]
fn isolated_latencies_are_those_of_a_single_server_queue() {
    // Oracle: begin = max(arrival, end of the one before). Guards against lost queueing and against service times that
    // differ from what `Job::new` says they are.
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let hp = Job::new(&random_trace("hp", &mut rng), &MODEL);
        let arrivals_ns = poisson_arrivals_ns(50, hp.mean_service_ns() * 1.5, seed);
        let got = run(&hp, None, &arrivals_ns, 0, &Uncontrolled, Sharing::EQUAL);
        let mut end_ns = 0;
        let want: Vec<u64> = arrivals_ns
            .iter()
            .zip(hp.service_ns().iter().cycle())
            .map(|(at_ns, service_ns)| {
                end_ns = end_ns.max(*at_ns) + service_ns;
                end_ns - at_ns
            })
            .collect();
        assert_eq!(got.hp_latency_ns, want, "seed {seed}");
    }
}

#[test]
fn without_interference_control_changes_nothing_for_hp() {
    // Guards against a BE side that disturbs HP's timing by anything but the shared GPU.
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let hp = Job::new(&random_trace("hp", &mut rng), &MODEL);
        let be = Job::new(&random_trace("be", &mut rng), &MODEL);
        let arrivals_ns = poisson_arrivals_ns(30, hp.mean_service_ns() * 2.0, seed);
        let alone = run(&hp, None, &arrivals_ns, 0, &Uncontrolled, Sharing::NONE);
        for policy in [&Uncontrolled as &dyn Policy, &IdleOnly::default()] {
            let both = run(&hp, Some(&be), &arrivals_ns, 0, policy, Sharing::NONE);
            assert_eq!(both.hp_latency_ns, alone.hp_latency_ns, "seed {seed}, {}", policy.name());
        }
    }
}

#[test]
fn idle_only_launches_nothing_beside_hp_and_keeps_its_cap() {
    // Guards against a gate that is asked with a stale snapshot: one launch beside HP is one too many.
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let hp = Job::new(&random_trace("hp", &mut rng), &MODEL);
        let be = Job::new(&random_trace("be", &mut rng), &MODEL);
        let arrivals_ns = poisson_arrivals_ns(30, hp.mean_service_ns() * 2.0, seed);
        let policy = IdleOnly { limits: Limits { max_wait_ns: u64::MAX, ..Limits::default() } };
        let alone = run(&hp, None, &arrivals_ns, 0, &policy, Sharing::EQUAL);
        let both = run(&hp, Some(&be), &arrivals_ns, 0, &policy, Sharing::EQUAL);
        assert_eq!((both.be_beside_hp, both.be_wait_bound), (0, 0), "seed {seed}");
        assert!(both.be_admitted > 0, "seed {seed}: BE never ran in HP's idle time");

        // What HP can meet is one kernel beyond the cap, slowed with it: that much a request, and its queue.
        let longest_ns = be.requests.iter().flatten().map(|s| s.alone_ns).max().unwrap_or(0);
        let meets_ns = longest_ns + (0.02 * hp.t_iso_ns() as f64) as u64 + policy.limits.launch_lead_ns;
        let mut behind_ns = 0;
        for (i, (with, without)) in both.hp_latency_ns.iter().zip(&alone.hp_latency_ns).enumerate() {
            let gap_ns = i.checked_sub(1).map_or(u64::MAX, |p| arrivals_ns[i] - arrivals_ns[p]);
            let queued = i > 0 && both.hp_latency_ns[i - 1] > gap_ns;
            behind_ns = if queued { behind_ns + meets_ns } else { meets_ns };
            assert!(with >= without && with - without <= behind_ns, "seed {seed}, request {i}: {with} {without}");
        }
    }
}

#[test]
fn a_closed_loop_alone_takes_its_service_time() {
    // Guards against a BE rate (every BE fraction's denominator) that is off by a request or by the gate's polling.
    let be = Job::new(&trace("be", &[&[(0, 50_000, false), (10_000, 70_000, false), (200_000, 30_000, true)]]), &MODEL);
    assert_eq!(be.service_ns(), [200_000 + 6_000 + 30_000]);
    let out = run(&be, Some(&be), &[], 236_000 * 10, &Uncontrolled, Sharing::EQUAL);
    assert!((out.be_requests - 10.0).abs() < 1e-9, "{out:?}");
}

#[test]
fn a_gated_closed_loop_alone_runs_back_to_back() {
    // The next launch is admitted when little enough is in flight, between two events of the GPU. Guards against a gate
    // that is asked at such events only: each kernel would then pay the launch latency.
    let hp = Job::new(&trace("hp", &[&[(0, 1_000_000, false)]]), &MODEL);
    let be = Job::new(&trace("be", &[&[(0, 100_000, false); 10]]), &MODEL);
    let out = run(&hp, Some(&be), &[], 1_006_000 * 10, &IdleOnly::default(), Sharing::EQUAL);
    assert!((out.be_requests - 10.0).abs() < 1e-9, "{out:?}");
    assert_eq!(out.be_held, 90, "{out:?}");
}

#[test]
fn a_wait_for_the_gpu_grows_with_the_gpu_and_host_work_does_not() {
    // Guards against recorded waits that are replayed as host work: a slowed request would be too fast or too slow.
    // Kernel 1 is done at 106 us; the host works 14 us more before it launches kernel 2.
    let hp = Job::new(&trace("hp", &[&[(0, 100_000, false), (120_000, 50_000, true)]]), &MODEL);
    assert_eq!(hp.service_ns(), [176_000]);
    // A BE kernel that outlasts it: both HP kernels take twice as long, the 14 us and the latencies do not.
    let be = Job::new(&trace("be", &[&[(0, 10_000_000, false)]]), &MODEL);
    let out = run(&hp, Some(&be), &[100_000], 0, &Uncontrolled, Sharing::EQUAL);
    assert_eq!(out.hp_latency_ns, [6_000 + 200_000 + 14_000 + 6_000 + 100_000]);
}

#[test]
fn the_longest_wait_lets_one_kernel_through_at_a_time() {
    // Guards against a replay that never asks again at the bound (BE would starve under a busy HP).
    let hp = Job::new(&trace("hp", &[&[(0, 1_000_000, false)]]), &MODEL);
    let be = Job::new(&trace("be", &[&[(0, 1_000, false)]]), &MODEL);
    let arrivals_ns: Vec<u64> = vec![0; 20];
    let policy = IdleOnly { limits: Limits { max_wait_ns: 2_000_000, ..Limits::default() } };
    let out = run(&hp, Some(&be), &arrivals_ns, 0, &policy, Sharing::EQUAL);
    assert!((9..=10).contains(&out.be_wait_bound), "{out:?}");
    assert_eq!(out.be_wait_bound, out.be_beside_hp);
}

#[test]
fn a_policy_that_never_admits_ends_with_hp() {
    // Guards against a replay that waits for BE work which no one will ever admit.
    struct Never;
    impl Policy for Never {
        fn name(&self) -> &'static str {
            "never"
        }
        fn decide(&self, _: &Snapshot, _: &Candidate, now_ns: u64) -> Decision {
            Decision::Wait { why: Wait::InFlight, recheck_ns: now_ns }
        }
    }
    let hp = Job::new(&trace("hp", &[&[(0, 10_000, false)]]), &MODEL);
    let out = run(&hp, Some(&hp), &[5_000, 90_000], 0, &Never, Sharing::EQUAL);
    assert_eq!((out.hp_latency_ns.as_slice(), out.be_admitted), ([16_000, 16_000].as_slice(), 0));
    assert_eq!(out.be_requests, 0.0);
}
