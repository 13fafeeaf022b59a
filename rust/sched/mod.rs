//! Admission: what a best-effort launch is told when it knocks.
//!
//! [`Policy::decide`] is a pure function: no clock, no lock, no CUDA. The hook and the simulator call the same one;
//! a comparison between policies differs in the policy alone.

mod idle_only;
pub use idle_only::IdleOnly;

/// What is known of the GPU at one instant. Times are CLOCK_MONOTONIC nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// HP jobs that are registered, whether they have requests or not.
    pub hp_jobs: u32,
    /// HP requests that are open: pending, running, or whose last kernel the GPU has not finished.
    pub hp_active: u32,
    /// An HP job is measuring its isolated times: BE stays away even between its requests.
    pub hp_calibrating: bool,
    /// Every open HP request has an idle GPU side and has been silent for longer than its profile explains:
    /// it may be waiting for something that a held BE owns.
    pub hp_stalled: bool,
    /// When the last open HP request is expected to end, where its isolated time is known.
    pub hp_expected_end_ns: Option<u64>,
    /// When an HP request was last seen active, as far as the asker knows.
    pub hp_last_active_ns: Option<u64>,
    /// Smallest isolated service time of the registered HP jobs; `None` while none is known.
    pub min_t_iso_ns: Option<u64>,
    /// BE kernels in flight on this GPU, in all processes.
    pub be_in_flight: u32,
    /// Predicted time until the GPU is done with them.
    pub be_in_flight_ns: u64,
    /// One of them has an unknown duration.
    pub be_in_flight_unknown: bool,
}

/// The launch that asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// Its learnt duration alone on the GPU; `None` if this kernel has not been measured yet.
    pub duration_ns: Option<u64>,
    /// Since when it has waited.
    pub waiting_since_ns: u64,
}

/// What the launch is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Launch now.
    Admit(Admit),
    /// Ask again: no later than `recheck_ns` (CLOCK_MONOTONIC), sooner if the snapshot may have changed.
    Wait {
        /// What it waits for.
        why: Wait,
        /// When nothing is expected to change before.
        recheck_ns: u64,
    },
}

/// Why a launch was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    /// The policy's own rule held.
    Rule,
    /// HP is stalled: it may wait for what this BE owns, so BE goes on one kernel at a time.
    HpStalled,
    /// The longest allowed wait is over; one kernel goes.
    WaitBound,
}

/// Why a launch waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// An HP request is active.
    HpActive,
    /// One was, a moment ago.
    HpSettling,
    /// An HP job is measuring its isolated times.
    Calibrating,
    /// The cap on BE time in flight is reached.
    InFlight,
}

/// The limits that a user can set; each is documented in README.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Cap on BE time in flight, as a fraction of the smallest isolated HP service time.
    pub in_flight_fraction: f64,
    /// Longest wait of one launch.
    pub max_wait_ns: u64,
    /// With this much BE work left on the GPU the next launch may go even if it alone exceeds the cap: it hides the
    /// launch latency, so that long kernels run back to back.
    pub launch_lead_ns: u64,
    /// HP must have been idle for so long: a server that turns to its next request at once finds no BE between two.
    pub settle_ns: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { in_flight_fraction: 0.01, max_wait_ns: 1_000_000_000, launch_lead_ns: 8_000, settle_ns: 30_000 }
    }
}

impl Limits {
    /// Cap on BE time in flight; `None` while no isolated time is known, which means one kernel at a time.
    pub fn cap_ns(&self, snapshot: &Snapshot) -> Option<u64> {
        snapshot.min_t_iso_ns.map(|t| (t as f64 * self.in_flight_fraction) as u64)
    }
}

/// An admission policy.
pub trait Policy: Send + Sync {
    /// The word in records and in `stats()`.
    fn name(&self) -> &'static str;
    /// Decides on one launch. Pure: the same arguments give the same answer.
    fn decide(&self, snapshot: &Snapshot, candidate: &Candidate, now_ns: u64) -> Decision;
}

/// No control at all: what streams (or stream priorities, which the hardware applies) do alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Uncontrolled;

impl Policy for Uncontrolled {
    fn name(&self) -> &'static str {
        "uncontrolled"
    }

    fn decide(&self, _: &Snapshot, _: &Candidate, _: u64) -> Decision {
        Decision::Admit(Admit::Rule)
    }
}
