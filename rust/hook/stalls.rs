//! What can stall HP without being a launch: allocation, free, module load. Counted and time-stamped.

use crate::clock::now_ns;
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

/// A call shorter than this stalls nobody.
const NOTED_FROM_NS: u64 = 500_000;
/// Long calls that are kept, the latest.
const KEPT: usize = 256;

/// The kinds of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(usize)]
pub enum Kind {
    /// Device or pinned memory allocated.
    Alloc,
    /// Freed.
    Free,
    /// Code loaded.
    ModuleLoad,
    /// Code unloaded.
    ModuleUnload,
    /// A graph made executable.
    GraphInstantiate,
}

/// One long call.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Stall {
    /// What it was.
    pub kind: Kind,
    /// The driver's function.
    pub call: &'static str,
    /// When it began, CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// How long it took.
    pub duration_ns: u64,
}

/// Sum of all calls of a kind.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Total {
    /// What they were.
    pub kind: Kind,
    /// How many.
    pub calls: u64,
    /// Their time.
    pub total_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

const KINDS: [Kind; 5] = [Kind::Alloc, Kind::Free, Kind::ModuleLoad, Kind::ModuleUnload, Kind::GraphInstantiate];

static SUMS: [[AtomicU64; 3]; KINDS.len()] = [const { [const { AtomicU64::new(0) }; 3] }; KINDS.len()];
static LONG: Mutex<VecDeque<Stall>> = Mutex::new(VecDeque::new());

/// Makes the call and notes how long it took.
pub fn timed<R>(kind: Kind, call: &'static str, f: impl FnOnce() -> R) -> R {
    let at_ns = now_ns();
    let result = f();
    let duration_ns = now_ns().saturating_sub(at_ns);
    let [calls, total, max] = &SUMS[kind as usize];
    calls.fetch_add(1, Ordering::Relaxed);
    total.fetch_add(duration_ns, Ordering::Relaxed);
    max.fetch_max(duration_ns, Ordering::Relaxed);
    if duration_ns >= NOTED_FROM_NS {
        let mut long = LONG.lock();
        if long.len() == KEPT {
            long.pop_front();
        }
        long.push_back(Stall { kind, call, at_ns, duration_ns });
    }
    result
}

/// Totals of each kind, and the latest long calls.
pub fn report() -> (Vec<Total>, Vec<Stall>) {
    let totals = KINDS.map(|kind| {
        let [calls, total, max] = SUMS[kind as usize].each_ref().map(|a| a.load(Ordering::Relaxed));
        Total { kind, calls, total_ns: total, max_ns: max }
    });
    (totals.to_vec(), LONG.lock().iter().copied().collect())
}
