//! Claims and lanes within one process.

use super::*;
use crate::ledger::hp::REST_NS;
use crate::ledger::{Entry, HpClaim, LaneId, LedgerError};
use crate::sched::Snapshot;
use std::sync::atomic::Ordering::Relaxed;

#[test]
fn a_claim_counts_from_claim_to_drop_and_a_request_from_open_to_close() {
    let dir = TempDir::new();
    let (writer, reader) = (dir.ledger(), dir.ledger());
    assert_eq!(reader.snapshot(0, 0), Default::default());
    let claim = writer.claim_hp(&info("resnet")).unwrap();
    assert_eq!(reader.describe().len(), 1);
    assert_eq!(reader.snapshot(0, 0).hp_active, 0);
    let lane = claim.open_lane(5).unwrap();
    assert!(claim.lane_open(lane));
    assert_eq!(reader.snapshot(0, 0).hp_active, 1);
    claim.close_lane(lane);
    assert!(!claim.lane_open(lane));
    assert_eq!(reader.snapshot(0, 0).hp_active, 0);
    drop(claim);
    assert!(reader.describe().is_empty());
}

/// A lane whose GPU store is still to come must not be handed out: that store would end the next request early.
#[test]
fn a_lane_is_used_again_only_when_it_is_both_zero_and_freed() {
    let dir = TempDir::new();
    let claim = dir.ledger().claim_hp(&info("a")).unwrap();
    let lanes: Vec<LaneId> = (0..16).map(|_| claim.open_lane(1).unwrap()).collect();
    assert_eq!(claim.open_lane(1), None, "a 17th request was opened");
    let (zero_only, freed_only, both) = (lanes[3], lanes[4], lanes[9]);
    claim.close_lane(zero_only);
    claim.free_lane(freed_only);
    assert_eq!(claim.open_lane(1), None, "a lane in use was handed out");
    // As the GPU does it.
    claim.lane_word(both).store(0, Relaxed);
    claim.free_lane(both);
    assert_eq!(claim.open_lane(1), Some(both));
    claim.close_lane(freed_only);
    claim.free_lane(zero_only);
    assert_eq!(claim.open_lane(1), Some(zero_only));
    assert_eq!(claim.open_lane(1), Some(freed_only));
}

#[test]
fn lanes_opened_from_many_threads_are_distinct() {
    let dir = TempDir::new();
    let claim = dir.ledger().claim_hp(&info("a")).unwrap();
    for _ in 0..50 {
        let mut lanes: Vec<LaneId> = std::thread::scope(|scope| {
            let open = || (0..4).map(|_| claim.open_lane(1).unwrap()).collect::<Vec<_>>();
            let running: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
            running.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        lanes.sort_by_key(|lane| lane.index());
        assert_eq!(lanes.iter().map(|l| l.index()).collect::<Vec<_>>(), (0..16).collect::<Vec<_>>());
        for lane in lanes {
            claim.close_lane(lane);
            claim.free_lane(lane);
        }
    }
}

/// A reopened lane must not show the position and the times of the request before.
#[test]
fn a_reopened_lane_starts_afresh() {
    let dir = TempDir::new();
    let ledger = dir.ledger();
    let claim = ledger.claim_hp(&info("a")).unwrap();
    let lane = claim.open_lane(10).unwrap();
    claim.set_arrived(lane, 7);
    claim.note_launch(lane);
    claim.stamp_launches(lane, 20);
    claim.note_launch(lane);
    claim.stamp_launches(lane, 30);
    claim.stamp_launches(lane, 40);
    let entry = |n: usize| match ledger.describe().remove(n) {
        Entry::Hp(hp) => hp,
        Entry::Be(_) => panic!("a BE entry"),
    };
    let seen = entry(0).lanes.remove(0);
    assert_eq!((seen.begin_ns, seen.last_launch_ns, seen.kernels, seen.gpu_idle), (Some(10), Some(30), 2, false));
    assert_eq!(seen.arrived_ns, Some(7));
    claim.close_lane(lane);
    claim.free_lane(lane);
    assert_eq!(claim.open_lane(40), Some(lane));
    let seen = entry(0).lanes.remove(0);
    assert_eq!((seen.begin_ns, seen.last_launch_ns, seen.kernels, seen.gpu_idle), (Some(40), None, 0, true));
    assert_eq!(seen.arrived_ns, Some(40), "the arrival of the last request stays");
}

#[test]
fn what_a_job_tells_about_itself_is_read_back() {
    let dir = TempDir::new();
    let ledger = dir.ledger();
    // 62 bytes, then a character of two that no longer fits whole.
    let long = format!("{}äö", "x".repeat(61));
    let hp = ledger.claim_hp(&HpInfo { name: long, fingerprint: u64::MAX - 1, slo_ratio: 1.25 }).unwrap();
    hp.set_t_iso(8 * MS, 9 * MS);
    hp.set_calibrating(true);
    let be = ledger.claim_be("trainer").unwrap();
    be.set_in_flight(2, 77, true);
    be.add_launched(5);
    be.add_held(3);
    let text = serde_json::to_value(ledger.describe()).unwrap();
    let expected = serde_json::json!([
        {"role": "hp", "slot": 0, "pid": std::process::id(), "name": format!("{}ä", "x".repeat(61)),
         "fingerprint": u64::MAX - 1, "slo_ratio": 1.25, "t_iso_ns": 8 * MS, "t_iso_p99_ns": 9 * MS,
         "calibrating": true, "lanes": []},
        {"role": "be", "slot": 0, "pid": std::process::id(), "name": "trainer", "in_flight": 2,
         "in_flight_unknown": true, "drained_at_ns": 77, "launched": 5, "held": 3},
    ]);
    assert_eq!(text, expected);
}

#[test]
fn nothing_of_the_last_owner_reaches_the_next() {
    let dir = TempDir::new();
    let ledger = dir.ledger();
    let first = ledger.claim_hp(&info("first")).unwrap();
    first.set_t_iso(8 * MS, 9 * MS);
    first.set_calibrating(true);
    let slot = first.slot();
    drop(first);
    let be = ledger.claim_be("first").unwrap();
    be.set_in_flight(3, u64::MAX, true);
    be.add_held(1);
    drop(be);
    let second = ledger.claim_hp(&info("2")).unwrap();
    let be = ledger.claim_be("2").unwrap();
    assert_eq!((second.slot(), be.slot()), (slot, 0));
    assert_eq!(ledger.snapshot(0, 0), Snapshot { hp_jobs: 1, ..Default::default() });
    let text = serde_json::to_string(&ledger.describe()).unwrap();
    assert!(!text.contains("first") && text.contains(r#""held":0"#), "{text}");
}

#[test]
fn a_bound_that_bounds_nothing_is_refused() {
    let dir = TempDir::new();
    for slo_ratio in [0.99, 0.0, -1.0, f64::NAN, f64::INFINITY] {
        let refused = dir.ledger().claim_hp(&HpInfo { slo_ratio, ..info("a") });
        assert!(matches!(refused, Err(LedgerError::SloRatio { .. })), "{slo_ratio} was taken");
    }
}

#[test]
fn the_65th_claim_is_refused_by_name_and_a_freed_slot_taken_again() {
    let dir = TempDir::new();
    let ledger = dir.ledger();
    let mut hp: Vec<HpClaim> = (0..64).map(|_| ledger.claim_hp(&info("a")).unwrap()).collect();
    let be: Vec<_> = (0..64).map(|_| ledger.claim_be("b").unwrap()).collect();
    assert!(matches!(ledger.claim_hp(&info("a")), Err(LedgerError::Full { role: "HP", live: 64, resting: 0 })));
    assert!(matches!(ledger.claim_be("b"), Err(LedgerError::Full { role: "BE", live: 64, .. })));
    for claim in &hp {
        claim.open_lane(1).unwrap();
    }
    assert_eq!(ledger.snapshot(0, 0).hp_active, 64);
    let gone = hp.remove(17);
    gone.close_lane(LaneId::from_index(0).unwrap());
    drop(gone);
    assert_eq!(ledger.claim_hp(&info("a")).unwrap().slot(), 17);
    // In an order that unlinks at the head, in the middle and at the end.
    while !hp.is_empty() {
        drop(hp.swap_remove(hp.len() / 2));
    }
    drop(be);
    assert!(ledger.describe().is_empty());
}

/// A GPU store of 0 that is still queued when a job goes would end a request of the slot's next owner.
#[test]
fn a_slot_that_was_left_with_an_open_request_rests_for_a_second() {
    let dir = TempDir::new();
    let ledger = dir.ledger();
    let left_open = ledger.claim_hp(&info("a")).unwrap();
    left_open.open_lane(1).unwrap();
    let start_ns = crate::clock::now_ns();
    drop(left_open);
    assert_eq!(ledger.snapshot(0, 0).hp_active, 0);
    assert_eq!(ledger.claim_hp(&info("b")).unwrap().slot(), 1);
    assert!(eventually(|| ledger.claim_hp(&info("b")).unwrap().slot() == 0), "it rests for ever");
    assert!(crate::clock::now_ns() - start_ns >= REST_NS);
}

#[test]
fn the_gpu_page_holds_every_lane_word_and_is_whole_pages() {
    let dir = TempDir::new();
    let ledger = dir.ledger();
    let claims: Vec<HpClaim> = (0..64).map(|_| ledger.claim_hp(&info("a")).unwrap()).collect();
    let (start, bytes) = ledger.gpu_page();
    let start = start as usize;
    assert_eq!((start % 4096, bytes % 4096), (0, 0));
    for claim in &claims {
        for lane in (0..16).filter_map(LaneId::from_index) {
            let word = std::ptr::from_ref(claim.lane_word(lane)) as usize;
            assert!(word >= start && word + 4 <= start + bytes);
        }
    }
    // Written as the GPU does it: a plain store through the page.
    let lane = claims[5].open_lane(1).unwrap();
    let word = std::ptr::from_ref(claims[5].lane_word(lane)) as usize - start;
    let again = dir.ledger();
    // SAFETY: the offset lies within the page, as asserted above.
    let store = unsafe { &*again.gpu_page().0.add(word).cast::<AtomicU32>() };
    store.store(0, SeqCst);
    assert!(!claims[5].lane_open(lane));
}

/// While a dead slot is being taken over, the open request that its last owner left must not come to life again.
#[test]
fn a_dead_owners_request_never_counts_during_a_takeover() {
    let dir = TempDir::new();
    let ledger = dir.ledger();
    // As a kill in mid-request leaves it.
    let prefix = ledger.prefix();
    prefix.slots[0].owner.die_for_test();
    prefix.slots[0].lanes[7].store(1, SeqCst);
    prefix.hp_mask.fetch_or(1, SeqCst);
    *WATCHED.lock().unwrap() = Some((dir.ledger(), Vec::new()));
    drop(ledger.claim_hp(&info("a")).unwrap());
    let (_, seen) = WATCHED.lock().unwrap().take().unwrap();
    assert!(seen.len() > 10 && seen.iter().all(|hp_active| *hp_active == 0), "{seen:?}");
}

/// The hook shares claims between launching threads.
#[test]
fn claims_and_ledgers_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() -> usize {
        size_of::<T>()
    }
    assert!(shared::<HpClaim>() > 0 && shared::<crate::ledger::BeClaim>() > 0 && shared::<Ledger>() > 0);
}
