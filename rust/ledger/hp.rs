//! The claim of a high-priority job.

use super::Ledger;
use super::claim::{self, Claim, Table};
use super::error::LedgerError;
use super::layout::{Body, HpRecord};
use super::prefix::{LANES, Prefix, SLOTS, Slot};
use super::robust::{Owner, kill_point};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// For so long nobody claims a slot whose owner went with a request open: its GPU work may still store 0 in a lane.
pub(super) const REST_NS: u64 = 1_000_000_000;

/// What an HP job tells about itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HpInfo {
    /// For people; cut at 64 bytes.
    pub name: String,
    /// Which workload it is: leads a BE process to its profile. 0 = not known.
    pub fingerprint: u64,
    /// The bound on its slowdown, a ratio of at least 1.
    pub slo_ratio: f64,
}

/// One of the 16 requests that an HP claim can have open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaneId(u8);

impl LaneId {
    /// Its number, below 16.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The lane of a number below 16.
    #[inline]
    pub fn from_index(index: usize) -> Option<LaneId> {
        (index < LANES).then_some(LaneId(index as u8))
    }
}

/// A claimed HP slot; dropping it gives the slot back.
///
/// In the child of a fork it is a dead copy: it opens no lane, and nothing done with it reaches the parent's slot.
pub struct HpClaim {
    claim: Claim,
    /// Bit *i*: lane *i* is not in use in this process.
    free_lanes: AtomicU32,
    /// Stands in for every lane word in the child of a fork, and after the release.
    orphan_word: AtomicU32,
    released: AtomicBool,
    /// Launches of each lane up to its last stamp.
    stamped: [AtomicU32; LANES],
}

struct HpTable<'a> {
    prefix: &'a Prefix,
    body: &'a Body,
}

impl Table for HpTable<'_> {
    const ROLE: &'static str = "HP";
    const SLOTS: usize = SLOTS;

    fn owner(&self, slot: usize) -> &Owner {
        &self.prefix.slots[slot].owner
    }

    fn mask(&self) -> &AtomicU64 {
        &self.prefix.hp_mask
    }

    fn generation(&self, slot: usize) -> &AtomicU32 {
        &self.body.hp[slot].generation
    }

    fn reset(&self, slot: usize, now_ns: u64) -> bool {
        let (shared, record) = (&self.prefix.slots[slot], &self.body.hp[slot]);
        let rest = shared.lanes.iter().any(|lane| lane.load(Acquire) != 0);
        if rest {
            record.rests_until_ns.store(now_ns + REST_NS, Release);
        }
        kill_point();
        shared.lanes.iter().for_each(|lane| lane.store(0, Release));
        shared.exclusive.store(0, Release);
        record.pid.store(0, Relaxed);
        record.t_iso_ns.store(0, Relaxed);
        record.t_iso_p99_ns.store(0, Relaxed);
        for lane in 0..LANES {
            record.begin(lane, 0);
        }
        rest
    }

    fn rests(&self, slot: usize, now_ns: u64) -> bool {
        // Never further ahead than a rest can be: a wrong clock must not close a slot for good.
        let until_ns = self.body.hp[slot].rests_until_ns.load(Acquire);
        until_ns > now_ns && until_ns - now_ns <= REST_NS
    }
}

impl HpRecord {
    /// Sets a lane's record to "begun, nothing launched".
    fn begin(&self, lane: usize, begin_ns: u64) {
        self.lanes[lane].arrived_ns.store(begin_ns, Relaxed);
        self.lanes[lane].begin_ns.store(begin_ns, Relaxed);
        self.lanes[lane].gpu_idle.store(1, Relaxed);
        self.progress[lane].last_launch_ns.store(0, Relaxed);
        self.progress[lane].kernels.store(0, Relaxed);
    }
}

impl Ledger {
    /// Claims an HP slot for this process. It counts at once, but no request is active yet.
    pub fn claim_hp(self: &Arc<Self>, info: &HpInfo) -> Result<HpClaim, LedgerError> {
        self.claimable()?;
        if !info.slo_ratio.is_finite() || info.slo_ratio < 1.0 {
            return Err(LedgerError::SloRatio { found: info.slo_ratio });
        }
        let (info, pid) = (info.clone(), std::process::id());
        let claim = Claim::new(self, move |list, ledger| {
            let table = HpTable { prefix: ledger.prefix(), body: ledger.claimable()? };
            let fill = |slot: usize| {
                let record = &table.body.hp[slot];
                record.pid.store(pid, Relaxed);
                record.fingerprint.store(info.fingerprint, Relaxed);
                record.slo_ratio_bits.store(info.slo_ratio.to_bits(), Relaxed);
                record.name.store(&info.name);
            };
            // SAFETY: the claim that is being made keeps the ledger mapped until its end releases the slot.
            unsafe { claim::take(list, &table, fill) }
        })?;
        Ok(HpClaim {
            claim,
            free_lanes: AtomicU32::new((1 << LANES) - 1),
            orphan_word: AtomicU32::new(0),
            released: AtomicBool::new(false),
            stamped: Default::default(),
        })
    }
}

impl HpClaim {
    /// Marks a request as active from `begin_ns` on. `None`: all 16 lanes are in use, or this is a forked copy.
    pub fn open_lane(&self, begin_ns: u64) -> Option<LaneId> {
        let (slot, record) = self.shared()?;
        let mut candidates = self.free_lanes.load(Acquire);
        while candidates != 0 {
            let index = candidates.trailing_zeros() as usize;
            let bit = 1 << index;
            candidates &= !bit;
            // The GPU may not be done with the lane's last request although the process is.
            if slot.lanes[index].load(Acquire) != 0 || self.free_lanes.fetch_and(!bit, AcqRel) & bit == 0 {
                continue;
            }
            record.begin(index, begin_ns);
            self.stamped[index].store(0, Relaxed);
            slot.lanes[index].store(1, Release);
            kill_point();
            return LaneId::from_index(index);
        }
        None
    }

    /// Tells that the request arrived before it began.
    pub fn set_arrived(&self, lane: LaneId, arrived_ns: u64) {
        if let Some((_, record)) = self.shared() {
            record.lanes[lane.index()].arrived_ns.store(arrived_ns, Relaxed);
        }
    }

    /// The lane's word: not 0 while the request is active. The GPU or the CPU stores 0 there at its end.
    #[inline]
    pub fn lane_word(&self, lane: LaneId) -> &AtomicU32 {
        self.shared().map_or(&self.orphan_word, |(slot, _)| &slot.lanes[lane.index()])
    }

    /// Ends the request from the CPU. The lane can be used again once it is also freed.
    #[inline]
    pub fn close_lane(&self, lane: LaneId) {
        self.lane_word(lane).store(0, Release);
        kill_point();
    }

    /// The request is active.
    #[inline]
    pub fn lane_open(&self, lane: LaneId) -> bool {
        self.lane_word(lane).load(Acquire) != 0
    }

    /// This process has no more use for the lane: it may be opened again as soon as its word is 0.
    ///
    /// To be called once, by whoever opened it, and after the GPU's store of 0 has been queued.
    #[inline]
    pub fn free_lane(&self, lane: LaneId) {
        self.free_lanes.fetch_or(1 << lane.index(), AcqRel);
    }

    /// Notes a launch: the position moves on by one kernel, and the GPU side is not idle. When it was is stamped by
    /// [`Self::stamp_launches`]: reading the clock would be most of a launch's cost here.
    #[inline]
    pub fn note_launch(&self, lane: LaneId) {
        let Some((_, record)) = self.shared() else { return };
        record.progress[lane.index()].kernels.fetch_add(1, Relaxed);
        // A load first: the line is shared with readers, and the flag rarely changes.
        let gpu_idle = &record.lanes[lane.index()].gpu_idle;
        if gpu_idle.load(Relaxed) != 0 {
            gpu_idle.store(0, Release);
        }
    }

    /// Stamps the launches since the last call with `now_ns`: the stamp is late by at most the time between two calls.
    pub fn stamp_launches(&self, lane: LaneId, now_ns: u64) {
        let Some((_, record)) = self.shared() else { return };
        let progress = &record.progress[lane.index()];
        let kernels = progress.kernels.load(Relaxed);
        if self.stamped[lane.index()].swap(kernels, Relaxed) != kernels {
            progress.last_launch_ns.store(now_ns, Relaxed);
        }
    }

    /// The job moved at `now_ns`, if not by a launch of this request: it is not silent.
    pub fn touch(&self, lane: LaneId, now_ns: u64) {
        if let Some((_, record)) = self.shared() {
            record.progress[lane.index()].last_launch_ns.fetch_max(now_ns, Relaxed);
        }
    }

    /// Says whether the GPU has finished everything that the request has launched so far. True for a new lane.
    #[inline]
    pub fn set_gpu_idle(&self, lane: LaneId, idle: bool) {
        if let Some((_, record)) = self.shared() {
            record.lanes[lane.index()].gpu_idle.store(idle.into(), Release);
        }
    }

    /// Tells the isolated service time; 0 = not known.
    pub fn set_t_iso(&self, p50_ns: u64, p99_ns: u64) {
        if let Some((_, record)) = self.shared() {
            record.t_iso_ns.store(p50_ns, Release);
            record.t_iso_p99_ns.store(p99_ns, Release);
        }
    }

    /// While true, BE stays away even between this job's requests.
    pub fn set_calibrating(&self, calibrating: bool) {
        if let Some((slot, _)) = self.shared() {
            slot.exclusive.store(calibrating.into(), Release);
        }
    }

    /// When the request last launched something; its begin, if it has not yet.
    #[inline]
    pub fn last_launch_ns(&self, lane: LaneId) -> u64 {
        self.shared().map_or(0, |(_, record)| {
            let begin_ns = record.lanes[lane.index()].begin_ns.load(Relaxed);
            record.progress[lane.index()].last_launch_ns.load(Relaxed).max(begin_ns)
        })
    }

    /// The lanes whose requests are active.
    pub fn open_lanes(&self) -> impl Iterator<Item = LaneId> {
        (0..LANES).filter_map(LaneId::from_index).filter(|lane| self.lane_open(*lane))
    }

    /// The number of its slot.
    pub fn slot(&self) -> usize {
        self.claim.slot
    }

    /// The ledger that it stands in.
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.claim.ledger
    }

    /// Gives the slot back now, while others may still hold the claim: nothing done with it reaches the slot any more.
    pub fn release(&self) {
        if self.released.swap(true, AcqRel) {
            return;
        }
        self.claim.end(|list, ledger, slot| {
            let Some(body) = ledger.body() else { return };
            let table = HpTable { prefix: ledger.prefix(), body };
            table.reset(slot, crate::clock::now_ns());
            claim::leave(list, &table, slot);
        });
    }

    /// `None` in the child of a fork, and after the release.
    #[inline]
    fn shared(&self) -> Option<(&Slot, &HpRecord)> {
        if !self.claim.is_ours() || self.released.load(Relaxed) {
            return None;
        }
        let ledger = &self.claim.ledger;
        Some((ledger.prefix().slots.get(self.claim.slot)?, ledger.body()?.hp.get(self.claim.slot)?))
    }
}

impl Drop for HpClaim {
    fn drop(&mut self) {
        self.release();
    }
}
