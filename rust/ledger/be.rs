//! The claim of a best-effort job.

use super::Ledger;
use super::claim::{self, Claim, Table};
use super::error::LedgerError;
use super::layout::{BE_SLOTS, BeSlot, Body, IN_FLIGHT_UNKNOWN};
use super::robust::{Owner, kill_point};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Relaxed, Release},
};

/// A claimed BE slot; dropping it gives the slot back. In the child of a fork it is a dead copy.
pub struct BeClaim {
    claim: Claim,
}

struct BeTable<'a>(&'a Body);

impl Table for BeTable<'_> {
    const ROLE: &'static str = "BE";
    const SLOTS: usize = BE_SLOTS;

    fn owner(&self, slot: usize) -> &Owner {
        &self.0.be[slot].owner
    }

    fn mask(&self) -> &AtomicU64 {
        &self.0.be_mask
    }

    fn generation(&self, slot: usize) -> &AtomicU32 {
        &self.0.be[slot].generation
    }

    fn reset(&self, slot: usize, _now_ns: u64) -> bool {
        let record = &self.0.be[slot];
        for field in [&record.in_flight, &record.drained_at_ns, &record.launched, &record.held] {
            field.store(0, Relaxed);
        }
        record.pid.store(0, Relaxed);
        // The GPU never writes here.
        false
    }

    fn rests(&self, _slot: usize, _now_ns: u64) -> bool {
        false
    }
}

impl Ledger {
    /// Claims a BE slot for this process.
    pub fn claim_be(self: &Arc<Self>, name: &str) -> Result<BeClaim, LedgerError> {
        self.claimable()?;
        let (name, pid) = (name.to_owned(), std::process::id());
        let claim = Claim::new(self, move |list, ledger| {
            let table = BeTable(ledger.claimable()?);
            let fill = |slot: usize| {
                table.0.be[slot].pid.store(pid, Relaxed);
                table.0.be[slot].name.store(&name);
            };
            // SAFETY: the claim that is being made keeps the ledger mapped until its end releases the slot.
            unsafe { claim::take(list, &table, fill) }
        })?;
        Ok(BeClaim { claim })
    }
}

impl BeClaim {
    /// Tells what this job has on the GPU: kernels, the predicted instant at which they are done, and whether one of
    /// them has an unknown duration. One thread at a time.
    #[inline]
    pub fn set_in_flight(&self, kernels: u32, drained_at_ns: u64, unknown: bool) {
        let Some(slot) = self.shared() else { return };
        // The instant first: who sees the new number must not see the old instant.
        slot.drained_at_ns.store(drained_at_ns, Relaxed);
        slot.in_flight.store(u64::from(kernels) | if unknown { IN_FLIGHT_UNKNOWN } else { 0 }, Release);
        kill_point();
    }

    /// Counts launches that were let through.
    #[inline]
    pub fn add_launched(&self, launches: u64) {
        if let Some(slot) = self.shared() {
            slot.launched.fetch_add(launches, Relaxed);
        }
    }

    /// Counts launches that had to wait.
    #[inline]
    pub fn add_held(&self, launches: u64) {
        if let Some(slot) = self.shared() {
            slot.held.fetch_add(launches, Relaxed);
        }
    }

    /// The number of its slot.
    pub fn slot(&self) -> usize {
        self.claim.slot
    }

    /// The ledger that it stands in.
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.claim.ledger
    }

    /// `None` in the child of a fork.
    #[inline]
    fn shared(&self) -> Option<&BeSlot> {
        if !self.claim.is_ours() {
            return None;
        }
        self.claim.ledger.body()?.be.get(self.claim.slot)
    }
}

impl Drop for BeClaim {
    fn drop(&mut self) {
        self.claim.end(|list, ledger, slot| {
            let Some(body) = ledger.body() else { return };
            claim::leave(list, &BeTable(body), slot);
        });
    }
}
