//! How a slot is found, taken and given back: the same for both roles.

use super::Ledger;
use super::error::LedgerError;
use super::keeper::{self, Keeper};
use super::robust::{Owner, RobustList, TID_MASK, kill_point};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::AcqRel};

/// The slots of one role.
pub(super) trait Table {
    const ROLE: &'static str;
    const SLOTS: usize;
    fn owner(&self, slot: usize) -> &Owner;
    fn mask(&self) -> &AtomicU64;
    /// Counts the owners of a slot.
    fn generation(&self, slot: usize) -> &AtomicU32;
    /// Clears what the last owner left. True: the slot must rest, because the GPU may still write there.
    fn reset(&self, slot: usize, now_ns: u64) -> bool;
    /// The slot still rests.
    fn rests(&self, slot: usize, now_ns: u64) -> bool;
}

/// Takes a slot; `fill` writes its record before it counts. Runs on the keeper's thread.
///
/// # Safety
/// The table's memory must stay mapped until the slot is released or this thread is dead.
pub(super) unsafe fn take<T: Table>(
    list: &mut RobustList,
    table: &T,
    fill: impl Fn(usize),
) -> Result<usize, LedgerError> {
    let now_ns = crate::clock::now_ns();
    let (mut live, mut resting) = (0, 0);
    for slot in 0..T::SLOTS {
        let owner = table.owner(slot);
        let seen = owner.word();
        if seen & TID_MASK != 0 {
            live += 1;
            continue;
        }
        if table.rests(slot, now_ns) {
            resting += 1;
            continue;
        }
        // SAFETY: by this function's own contract.
        if !unsafe { list.acquire(owner, seen) } {
            live += 1;
            continue;
        }
        if table.reset(slot, now_ns) {
            leave(list, table, slot);
            resting += 1;
            continue;
        }
        kill_point();
        table.generation(slot).fetch_add(1, AcqRel);
        fill(slot);
        table.mask().fetch_or(1 << slot, AcqRel);
        kill_point();
        list.activate(owner);
        kill_point();
        return Ok(slot);
    }
    Err(LedgerError::Full { role: T::ROLE, live, resting })
}

/// Gives a slot back. Runs on the keeper's thread.
pub(super) fn leave<T: Table>(list: &mut RobustList, table: &T, slot: usize) {
    kill_point();
    // Only the owner changes its bit: it is still ours here.
    table.mask().fetch_and(!(1 << slot), AcqRel);
    list.release(table.owner(slot));
}

/// What both kinds of claims hold.
pub(super) struct Claim {
    pub ledger: Arc<Ledger>,
    pub slot: usize,
    keeper: &'static Keeper,
    epoch: u32,
    pid: u32,
}

impl Claim {
    /// Runs `take` on the keeper's thread.
    pub fn new(
        ledger: &Arc<Ledger>,
        take: impl FnOnce(&mut RobustList, &Ledger) -> Result<usize, LedgerError> + Send + 'static,
    ) -> Result<Claim, LedgerError> {
        let keeper = Keeper::get()?;
        let (for_job, epoch) = (Arc::clone(ledger), keeper::epoch());
        let slot = keeper.run(move |list| take(list, &for_job))??;
        Ok(Claim { ledger: Arc::clone(ledger), slot, keeper, epoch, pid: std::process::id() })
    }

    /// False in the child of a fork: the claim is the parent's, and not to be touched.
    #[inline]
    pub fn is_ours(&self) -> bool {
        self.epoch == keeper::epoch()
    }

    /// Runs `leave` on the keeper's thread, unless this is a forked copy.
    pub fn end(&self, leave: impl FnOnce(&mut RobustList, &Ledger, usize) + Send + 'static) {
        // The process id too: a child made by the bare system call runs no fork handler.
        if !self.is_ours() || self.pid != std::process::id() {
            return;
        }
        let (ledger, slot) = (Arc::clone(&self.ledger), self.slot);
        let done = self.keeper.run(move |list| leave(list, &ledger, slot));
        if done.is_err() {
            // Still on the list: the memory must stay mapped until the process ends, which releases the slot.
            std::mem::forget(Arc::clone(&self.ledger));
        }
    }
}
