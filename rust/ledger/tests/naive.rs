//! `snapshot()` against a plain reckoning from what was told to the claims.

use super::*;
use crate::ledger::{BeClaim, HpClaim, LaneId};
use crate::sched::Snapshot;

#[derive(Default)]
struct Hp {
    claim: Option<HpClaim>,
    t_iso_ns: u64,
    calibrating: bool,
    lanes: Vec<Lane>,
}

struct Lane {
    id: LaneId,
    begin_ns: u64,
    last_launch_ns: u64,
    gpu_idle: bool,
}

#[derive(Default)]
struct Be {
    claim: Option<BeClaim>,
    in_flight: u32,
    drained_at_ns: u64,
    unknown: bool,
}

fn oracle(hp: &[Hp], be: &[Be], now_ns: u64, stall_ns: u64) -> Snapshot {
    let hp: Vec<&Hp> = hp.iter().filter(|h| h.claim.is_some()).collect();
    let lanes: Vec<(&Hp, &Lane)> = hp.iter().flat_map(|h| h.lanes.iter().map(|l| (*h, l))).collect();
    let stalled = |(h, l): &(&Hp, &Lane)| {
        l.gpu_idle && now_ns.saturating_sub(l.begin_ns.max(l.last_launch_ns)) > stall_ns.max(h.t_iso_ns)
    };
    let busy: Vec<&Be> = be.iter().filter(|b| b.claim.is_some() && (b.in_flight > 0 || b.unknown)).collect();
    let all_known = !lanes.is_empty() && lanes.iter().all(|(h, _)| h.t_iso_ns > 0);
    Snapshot {
        hp_jobs: hp.len() as u32,
        hp_active: lanes.len() as u32,
        hp_calibrating: hp.iter().any(|h| h.calibrating),
        hp_stalled: !lanes.is_empty() && lanes.iter().all(stalled),
        hp_expected_end_ns: all_known.then(|| lanes.iter().map(|(h, l)| l.begin_ns + h.t_iso_ns).max().unwrap()),
        hp_last_active_ns: None,
        min_t_iso_ns: hp.iter().filter(|h| h.t_iso_ns > 0).map(|h| h.t_iso_ns).min(),
        be_in_flight: busy.iter().map(|b| b.in_flight).sum(),
        be_in_flight_ns: busy.iter().map(|b| b.drained_at_ns.saturating_sub(now_ns)).sum(),
        be_in_flight_unknown: busy.iter().any(|b| b.unknown),
    }
}

/// Few distinct values, so that equal times, limits met exactly and all-stalled states are common.
#[test]
fn snapshot_agrees_with_a_plain_reckoning_on_random_histories() {
    let mut seen = [0; 4];
    for seed in 0..8 {
        let dir = TempDir::new();
        let (ledger, reader) = (dir.ledger(), dir.ledger());
        let mut random = Random::new(seed);
        let mut hp: Vec<Hp> = (0..4).map(|_| Hp::default()).collect();
        let mut be: Vec<Be> = (0..4).map(|_| Be::default()).collect();
        for step in 0..600 {
            let h = random.below(4) as usize;
            change_hp(&ledger, &mut hp[h], &mut random);
            let b = random.below(4) as usize;
            change_be(&ledger, &mut be[b], &mut random);
            let (now_ns, stall_ns) = (random.below(12), random.below(4));
            let expected = oracle(&hp, &be, now_ns, stall_ns);
            assert_eq!(reader.snapshot(now_ns, stall_ns), expected, "seed {seed}, step {step}");
            seen[0] += u32::from(expected.hp_stalled);
            seen[1] += u32::from(expected.hp_expected_end_ns.is_some());
            seen[2] += u32::from(expected.be_in_flight_ns > 0);
            seen[3] += u32::from(expected.hp_active == 0);
        }
    }
    assert!(seen.iter().all(|n| *n > 50), "the histories miss a case: {seen:?}");
}

fn change_hp(ledger: &Arc<Ledger>, hp: &mut Hp, random: &mut Random) {
    let Some(claim) = &hp.claim else {
        *hp = Hp { claim: Some(ledger.claim_hp(&info("a")).unwrap()), ..Hp::default() };
        return;
    };
    let pick = random.below(hp.lanes.len().max(1) as u64) as usize;
    match random.below(8) {
        0 => {
            hp.t_iso_ns = random.below(4);
            claim.set_t_iso(hp.t_iso_ns, hp.t_iso_ns + 1);
        }
        1 => {
            hp.calibrating = random.below(4) == 0;
            claim.set_calibrating(hp.calibrating);
        }
        2 if hp.lanes.len() < 3 => {
            let begin_ns = random.below(8);
            let id = claim.open_lane(begin_ns).unwrap();
            hp.lanes.push(Lane { id, begin_ns, last_launch_ns: 0, gpu_idle: true });
        }
        3 if !hp.lanes.is_empty() => {
            let lane = &mut hp.lanes[pick];
            (lane.last_launch_ns, lane.gpu_idle) = (random.below(10), false);
            claim.note_launch(lane.id);
            claim.stamp_launches(lane.id, lane.last_launch_ns);
        }
        4 if !hp.lanes.is_empty() => {
            hp.lanes[pick].gpu_idle = true;
            claim.set_gpu_idle(hp.lanes[pick].id, true);
        }
        5 | 6 if !hp.lanes.is_empty() => {
            let lane = hp.lanes.remove(pick);
            claim.close_lane(lane.id);
            claim.free_lane(lane.id);
        }
        7 if hp.lanes.is_empty() => *hp = Hp::default(),
        _ => {}
    }
}

fn change_be(ledger: &Arc<Ledger>, be: &mut Be, random: &mut Random) {
    let Some(claim) = &be.claim else {
        *be = Be { claim: Some(ledger.claim_be("b").unwrap()), ..Be::default() };
        return;
    };
    if random.below(10) == 0 {
        *be = Be::default();
        return;
    }
    (be.in_flight, be.drained_at_ns) = (random.below(3) as u32, random.below(16));
    be.unknown = be.in_flight > 0 && random.below(3) == 0;
    claim.set_in_flight(be.in_flight, be.drained_at_ns, be.unknown);
}

/// What a launch that waits pays for each look, and what HP pays. Run with `--ignored --nocapture`, in a
/// release build for figures that mean something.
#[test]
#[ignore = "prints a measurement"]
fn snapshot_cost() {
    let dir = TempDir::new_in(Path::new("/dev/shm"));
    let ledger = dir.ledger();
    let (hp, be) = (ledger.claim_hp(&info("a")).unwrap(), ledger.claim_be("b").unwrap());
    hp.set_t_iso(8 * MS, 9 * MS);
    be.set_in_flight(1, u64::MAX, false);
    let measure = |what: &str, f: &dyn Fn(u64)| {
        let rounds: Vec<f64> = (0..21)
            .map(|_| {
                let start = Instant::now();
                (0..100_000).for_each(f);
                start.elapsed().as_nanos() as f64 / 1e5
            })
            .collect();
        let mut sorted = rounds;
        sorted.sort_by(f64::total_cmp);
        println!("{what}: median {:.1} ns, best {:.1} ns", sorted[10], sorted[0]);
        sorted[10]
    };
    let snapshot = |now_ns: u64| {
        std::hint::black_box(ledger.snapshot(std::hint::black_box(now_ns), MS));
    };
    let idle_ns = measure("snapshot, 1 HP and 1 BE slot, no request", &snapshot);
    let lane = hp.open_lane(1).unwrap();
    let active_ns = measure("snapshot, one request", &snapshot);
    measure("note_launch", &|_| hp.note_launch(lane));
    measure("set_in_flight", &|now_ns| be.set_in_flight(1, now_ns, false));
    measure("open, close, free a lane", &|now_ns| {
        if let Some(lane) = hp.open_lane(now_ns) {
            hp.close_lane(lane);
            hp.free_lane(lane);
        }
    });
    hp.set_gpu_idle(lane, true);
    for _ in 0..15 {
        hp.open_lane(2).unwrap();
    }
    measure("snapshot, 16 requests, GPU idle", &snapshot);
    assert!(cfg!(debug_assertions) || (idle_ns < 100.0 && active_ns < 100.0), "too slow for a spinning gate");
}
