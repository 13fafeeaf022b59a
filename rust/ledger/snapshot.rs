//! The whole ledger in one look, for `decide()`.

use super::Ledger;
use super::layout::{Body, IN_FLIGHT_UNKNOWN, known_ns};
use super::prefix::{LANES, Prefix};
use crate::sched::Snapshot;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed},
};

impl Ledger {
    /// What is known of the GPU at `now_ns`. No lock, no system call, no allocation.
    ///
    /// An HP request counts as stalled when its GPU side is idle and it has been silent for longer than
    /// `stall_ns_default` and than its job's isolated time. Of a file with another layout only HP's activity and
    /// calibration are known.
    pub fn snapshot(&self, now_ns: u64, stall_ns_default: u64) -> Snapshot {
        let body = self.body();
        let mut s = Snapshot::default();
        look_at_hp(self.prefix(), body, now_ns, stall_ns_default, &mut s);
        if let Some(body) = body {
            look_at_be(body, now_ns, &mut s);
        }
        s
    }
}

fn look_at_hp(prefix: &Prefix, body: Option<&Body>, now_ns: u64, stall_ns_default: u64, s: &mut Snapshot) {
    let mut all_stalled = true;
    let mut expected_end_ns = Some(0);
    for index in bits(&prefix.hp_mask) {
        let slot = &prefix.slots[index];
        if !slot.owner.is_live() {
            continue;
        }
        s.hp_jobs += 1;
        s.hp_calibrating |= slot.exclusive.load(Acquire) != 0;
        let record = body.map(|body| &body.hp[index]);
        let t_iso_ns = record.and_then(|record| known_ns(record.t_iso_ns.load(Acquire)));
        s.min_t_iso_ns = match (s.min_t_iso_ns, t_iso_ns) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        for lane in 0..LANES {
            if slot.lanes[lane].load(Acquire) == 0 {
                continue;
            }
            s.hp_active += 1;
            let Some(record) = record else {
                (all_stalled, expected_end_ns) = (false, None);
                continue;
            };
            let begin_ns = record.lanes[lane].begin_ns.load(Relaxed);
            expected_end_ns =
                expected_end_ns.zip(t_iso_ns).map(|(end, t_iso)| u64::max(end, begin_ns.saturating_add(t_iso)));
            // The launch stamp is HP's hottest line: it is read only where it can matter.
            all_stalled = all_stalled && record.lanes[lane].gpu_idle.load(Acquire) != 0 && {
                let last_ns = record.progress[lane].last_launch_ns.load(Relaxed).max(begin_ns);
                now_ns.saturating_sub(last_ns) > stall_ns_default.max(t_iso_ns.unwrap_or(0))
            };
        }
    }
    if s.hp_active > 0 {
        s.hp_stalled = all_stalled;
        s.hp_expected_end_ns = expected_end_ns;
    }
}

fn look_at_be(body: &Body, now_ns: u64, s: &mut Snapshot) {
    for index in bits(&body.be_mask) {
        let slot = &body.be[index];
        if !slot.owner.is_live() {
            continue;
        }
        let in_flight = slot.in_flight.load(Acquire);
        if in_flight == 0 {
            continue;
        }
        s.be_in_flight = s.be_in_flight.saturating_add(in_flight as u32);
        s.be_in_flight_unknown |= in_flight & IN_FLIGHT_UNKNOWN != 0;
        let left_ns = slot.drained_at_ns.load(Relaxed).saturating_sub(now_ns);
        s.be_in_flight_ns = s.be_in_flight_ns.saturating_add(left_ns);
    }
}

/// The bits that are set in a mask.
#[inline]
pub(super) fn bits(mask: &AtomicU64) -> impl Iterator<Item = usize> {
    let mut left = mask.load(Acquire);
    std::iter::from_fn(move || {
        let index = left.trailing_zeros() as usize;
        (left != 0).then(|| {
            left &= left - 1;
            index
        })
    })
}
