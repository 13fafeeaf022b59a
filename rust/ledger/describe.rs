//! The ledger for people: `mosaic doctor` and `stats()`.

use super::Ledger;
use super::layout::{IN_FLIGHT_UNKNOWN, known_ns};
use super::prefix::LANES;
use super::snapshot::bits;
use serde::Serialize;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// One live slot.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
#[non_exhaustive]
pub enum Entry {
    /// Of a high-priority job.
    Hp(HpEntry),
    /// Of a best-effort job.
    Be(BeEntry),
}

/// A high-priority job. Of a file with another layout only `slot`, `calibrating` and the open lanes' numbers are known.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct HpEntry {
    /// Number of its slot.
    pub slot: usize,
    /// Process id in its own PID namespace; 0 = not known.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Its workload's fingerprint; 0 = not known.
    pub fingerprint: u64,
    /// The bound on its slowdown.
    pub slo_ratio: Option<f64>,
    /// Isolated service time, p50.
    pub t_iso_ns: Option<u64>,
    /// Isolated service time, p99.
    pub t_iso_p99_ns: Option<u64>,
    /// It measures its isolated times.
    pub calibrating: bool,
    /// Its open requests.
    pub lanes: Vec<LaneEntry>,
}

/// An open request of an HP job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LaneEntry {
    /// Number of its lane.
    pub lane: usize,
    /// When it arrived, CLOCK_MONOTONIC.
    pub arrived_ns: Option<u64>,
    /// When it began, CLOCK_MONOTONIC.
    pub begin_ns: Option<u64>,
    /// Its last launch, CLOCK_MONOTONIC.
    pub last_launch_ns: Option<u64>,
    /// The GPU has finished what it launched so far.
    pub gpu_idle: bool,
    /// Kernels launched since it began.
    pub kernels: u32,
}

/// A best-effort job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BeEntry {
    /// Number of its slot.
    pub slot: usize,
    /// Process id in its own PID namespace.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Kernels in flight.
    pub in_flight: u32,
    /// One of them has an unknown duration.
    pub in_flight_unknown: bool,
    /// Predicted instant at which they are done, CLOCK_MONOTONIC.
    pub drained_at_ns: Option<u64>,
    /// Launches let through.
    pub launched: u64,
    /// Launches that had to wait.
    pub held: u64,
}

impl Ledger {
    /// Every live slot: HP jobs first. A slot that changes its owner meanwhile is left out.
    pub fn describe(&self) -> Vec<Entry> {
        let hp = bits(&self.prefix().hp_mask).filter_map(|slot| self.describe_hp(slot)).map(Entry::Hp);
        let be = self.body().into_iter().flat_map(|body| bits(&body.be_mask));
        hp.chain(be.filter_map(|slot| self.describe_be(slot)).map(Entry::Be)).collect()
    }

    fn describe_hp(&self, index: usize) -> Option<HpEntry> {
        let slot = self.prefix().slots.get(index)?;
        if !slot.owner.is_live() {
            return None;
        }
        let calibrating = slot.exclusive.load(Acquire) != 0;
        let open = (0..LANES).filter(|lane| slot.lanes[*lane].load(Acquire) != 0);
        let Some(record) = self.body().and_then(|body| body.hp.get(index)) else {
            let lanes = open.map(|lane| LaneEntry { lane, ..Default::default() }).collect();
            return Some(HpEntry { slot: index, calibrating, lanes, ..Default::default() });
        };
        let generation = record.generation.load(Acquire);
        let entry = HpEntry {
            slot: index,
            pid: record.pid.load(Relaxed),
            name: record.name.load(),
            fingerprint: record.fingerprint.load(Relaxed),
            slo_ratio: Some(f64::from_bits(record.slo_ratio_bits.load(Relaxed))),
            t_iso_ns: known_ns(record.t_iso_ns.load(Relaxed)),
            t_iso_p99_ns: known_ns(record.t_iso_p99_ns.load(Relaxed)),
            calibrating,
            lanes: open
                .map(|lane| LaneEntry {
                    lane,
                    arrived_ns: known_ns(record.lanes[lane].arrived_ns.load(Relaxed)),
                    begin_ns: known_ns(record.lanes[lane].begin_ns.load(Relaxed)),
                    last_launch_ns: known_ns(record.progress[lane].last_launch_ns.load(Relaxed)),
                    gpu_idle: record.lanes[lane].gpu_idle.load(Relaxed) != 0,
                    kernels: record.progress[lane].kernels.load(Relaxed),
                })
                .collect(),
        };
        let unchanged = slot.owner.is_live() && record.generation.load(Acquire) == generation;
        unchanged.then_some(entry)
    }

    fn describe_be(&self, index: usize) -> Option<BeEntry> {
        let slot = self.body()?.be.get(index)?;
        if !slot.owner.is_live() {
            return None;
        }
        let generation = slot.generation.load(Acquire);
        let in_flight = slot.in_flight.load(Acquire);
        let entry = BeEntry {
            slot: index,
            pid: slot.pid.load(Relaxed),
            name: slot.name.load(),
            in_flight: in_flight as u32,
            in_flight_unknown: in_flight & IN_FLIGHT_UNKNOWN != 0,
            drained_at_ns: known_ns(slot.drained_at_ns.load(Relaxed)),
            launched: slot.launched.load(Relaxed),
            held: slot.held.load(Relaxed),
        };
        let unchanged = slot.owner.is_live() && slot.generation.load(Acquire) == generation;
        unchanged.then_some(entry)
    }
}
