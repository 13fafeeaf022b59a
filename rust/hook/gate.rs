//! The gate: where a best-effort launch waits until `decide()` lets it go.
//!
//! ```text
//! loop { books brought up to date -> snapshot of the ledger -> decide() -> Admit | Wait }
//! -> launch -> event
//! ```
//! A wait is on the CPU, with Python's lock released, never while capturing, and bounded.

use super::device::{self, Device};
use super::driver::{self, CuResult, Handle};
use super::job::{Job, Stream};
use super::tracker::{BestEffort, Ticket, Tracker};
use super::{gil, settings, stats, watch};
use crate::clock::now_ns;
use crate::sched::{Admit, Candidate, Decision, IdleOnly, Limits, Policy, Uncontrolled};
use parking_lot::RwLock;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Waits that end later than this are slept through; nearer ones are polled.
const SLEEP_FROM_NS: u64 = 60_000;
/// A sleep ends this much early, since waking takes time.
const WAKE_EARLY_NS: u64 = 30_000;
/// A sleep is this fraction of what is left, since HP may end early; more would burn the core that HP may share.
const SLEEP_FRACTION: u64 = 4;
/// Longest sleep.
const LONGEST_SLEEP_NS: u64 = 1_000_000;
/// Sleep between polls once `spin_us` of polling is used up; longer once the end is late by more than that many times.
const NAP_NS: u64 = 20_000;
const NAP_FRACTION: u64 = 8;

/// Opened at exit, and in forked children: launches go straight through.
static OPEN: AtomicBool = AtomicBool::new(false);
/// Launches that are held and come out when the gate opens.
static HELD: AtomicUsize = AtomicUsize::new(0);
/// CPU time that waiting took, by polling and napping.
static WAIT_CPU_NS: AtomicU64 = AtomicU64::new(0);

/// What the gate reads of the settings, swapped whole.
pub struct Rules {
    policy: Box<dyn Policy>,
    stall_ns: u64,
    spin_ns: u64,
}

static RULES: RwLock<Option<Rules>> = RwLock::new(None);

/// Puts changed settings into force.
pub fn configure(s: &settings::Settings) {
    let limits: Limits = s.limits();
    let policy: Box<dyn Policy> = match s.policy {
        settings::PolicyName::IdleOnly => Box::new(IdleOnly { limits }),
        settings::PolicyName::None => Box::new(Uncontrolled),
    };
    let rules = Rules { policy, stall_ns: (s.stall_ms * 1e6) as u64, spin_ns: (s.spin_us * 1e3) as u64 };
    *RULES.write() = Some(rules);
}

/// Opens or closes the gate for good.
pub fn set_open(open: bool) {
    OPEN.store(open, Ordering::Release);
}

/// Launches that are held and will come out of an open gate.
pub fn held() -> usize {
    HELD.load(Ordering::SeqCst)
}

/// In a forked child: the parent's threads are not here.
pub fn forget_held() {
    HELD.store(0, Ordering::SeqCst);
}

/// Whether launches go straight through. At exit not those of a daemon thread of Python's that `lacks_lock`: it stays
/// under the rules until it can be parked, rather than come back into an interpreter that ends.
fn is_open(lacks_lock: impl FnOnce() -> bool) -> bool {
    if !OPEN.load(Ordering::Acquire) {
        return false;
    }
    let stays = gil::dies_with_python() && lacks_lock();
    if stays {
        gil::park_if_python_ends();
    }
    !stays
}

/// CPU time spent waiting so far, all threads.
pub fn wait_cpu_ns() -> u64 {
    WAIT_CPU_NS.load(Ordering::Relaxed)
}

/// A best-effort launch that has been let through, until it is made.
pub struct Passage {
    stream: &'static Stream,
    /// `None`: it is not followed (captured, or escaped).
    ticket: Option<Ticket>,
    /// Python's lock is taken again only after the launch, which does not need it: another thread may keep it.
    _gil: Option<gil::Released>,
}

/// Makes a best-effort launch: waits, launches, follows it with an event. `key`: what its time is learnt under.
pub fn launch(stream: &'static Stream, key: impl FnOnce() -> u64, call: impl FnOnce() -> CuResult) -> CuResult {
    let passage = enter(stream, key);
    let result = call();
    passage.finish(result == driver::SUCCESS);
    result
}

/// Waits until a launch on `stream` may be made. A panic inside, which would be a bug of ours, lets the launch go: C and
/// C++ are above us, and the server is worth more than the bound.
pub fn enter(stream: &'static Stream, key: impl FnOnce() -> u64) -> Passage {
    catch_unwind(AssertUnwindSafe(|| wait_for_passage(stream, key))).unwrap_or_else(|_| {
        stream.job.counts.escaped.fetch_add(1, Ordering::Relaxed);
        Passage { stream, ticket: None, _gil: None }
    })
}

fn wait_for_passage(stream: &'static Stream, key: impl FnOnce() -> u64) -> Passage {
    let counts = &stream.job.counts;
    let free = |counter: &AtomicU64| {
        counter.fetch_add(1, Ordering::Relaxed);
        Passage { stream, ticket: None, _gil: None }
    };
    if is_open(|| gil::is_pythons() && !gil::is_held_here()) || stream.job.device.best_effort_if_claimed().is_none() {
        return free(&counts.escaped);
    }
    if device::is_capturing(stream.handle) {
        return free(&counts.captured);
    }
    let (ticket, _gil) = admit(stream, key());
    match &ticket {
        None => drop(free(&counts.escaped)),
        Some(ticket) => {
            if let Some(start) = ticket.start {
                // SAFETY: our own event, on the stream of the launch.
                unsafe { driver::cuEventRecord(start as Handle, stream.handle as Handle) };
            }
        }
    }
    Passage { stream, ticket, _gil }
}

impl Passage {
    /// Takes Python's lock back now.
    pub fn holding_python(mut self) -> Self {
        self._gil = None;
        self
    }

    /// The launch was made (or failed).
    pub fn finish(self, launched: bool) {
        // As in `enter`.
        let _ = catch_unwind(AssertUnwindSafe(|| self.follow(launched)));
    }

    fn follow(self, launched: bool) {
        let (Some(ticket), device) = (&self.ticket, self.stream.job.device) else { return };
        let event = if launched { device.event(ticket.start.is_some()) } else { None };
        // SAFETY: our own event, on the stream of the launch.
        let follows =
            |e: &usize| unsafe { driver::cuEventRecord(*e as Handle, self.stream.handle as Handle) == driver::SUCCESS };
        let Some(be) = device.best_effort_if_claimed() else { return };
        match event.filter(follows) {
            Some(event) => {
                be.tracker.lock().launched(ticket, event);
                if !be.watched.swap(true, Ordering::AcqRel) {
                    watch::wake();
                }
            }
            // What can't be followed must not be waited for.
            None => be.tracker.lock().cancel(device, ticket),
        }
    }
}

/// Waits until the launch may go. `None`: the gate opened meanwhile.
fn admit(stream: &Stream, key: u64) -> (Option<Ticket>, Option<gil::Released>) {
    let job = stream.job;
    // Since when it waits is set at the first look, which reads the clock anyway.
    let mut candidate = Candidate { duration_ns: None, waiting_since_ns: u64::MAX };
    let mut wait: Option<Waiting> = None;
    loop {
        match try_admit(stream, key, &mut candidate) {
            Ok((ticket, why)) => {
                count(job, &candidate, why, wait.as_ref());
                return (Some(ticket), wait.as_mut().and_then(|w| w.gil.take()));
            }
            Err(recheck_ns) => {
                let wait = wait.get_or_insert_with(Waiting::begin);
                if wait.pause(recheck_ns) == Woken::BySignal {
                    // A signal for the main thread: one kernel goes, so that Python gets to handle it.
                    candidate.waiting_since_ns = 0;
                }
            }
        }
        if is_open(|| wait.as_ref().is_some_and(|w| w.is_pythons && w.gil.is_none())) {
            return (None, wait.as_mut().and_then(|w| w.gil.take()));
        }
    }
}

fn publish(be: &BestEffort, tracker: &Tracker) {
    let (in_flight, drained_at_ns, unknown) = tracker.state();
    be.claim.set_in_flight(in_flight, drained_at_ns, unknown);
}

fn poll_and_publish(device: &Device, be: &BestEffort, tracker: &mut Tracker, now_ns: u64) {
    if tracker.state().0 > 0 {
        // The launching thread may have another context, or none; and its query must not break a capture.
        let _ = device.with_context(|| tracker.poll(device, now_ns));
    }
    publish(be, tracker);
}

/// Brings the books in the ledger up to date while this process launches nothing: other processes wait for what it has
/// in flight. Returns whether something is.
pub fn keep_books(device: &Device, now_ns: u64) -> bool {
    let Some(be) = device.best_effort_if_claimed() else { return false };
    // Whoever holds it is at it.
    let Some(mut tracker) = be.tracker.try_lock() else { return true };
    poll_and_publish(device, be, &mut tracker, now_ns);
    let in_flight = tracker.state().0 > 0;
    // One round more, so that launches with pauses between them do not wake the keeper each.
    let watched = in_flight || !be.quiet.swap(true, Ordering::AcqRel);
    if in_flight {
        be.quiet.store(false, Ordering::Release);
    }
    // Under the tracker's lock: a launch that is booked later wakes the keeper again.
    be.watched.store(watched, Ordering::Release);
    watched
}

fn try_admit(stream: &Stream, key: u64, candidate: &mut Candidate) -> Result<(Ticket, Admit), u64> {
    let device = stream.job.device;
    let rules = RULES.read();
    let (Some(be), Some(rules)) = (device.best_effort_if_claimed(), rules.as_ref()) else {
        return Err(now_ns());
    };
    // Held across decision and booking: two threads must not both take the last room.
    let mut tracker = be.tracker.lock();
    let now = now_ns();
    candidate.waiting_since_ns = candidate.waiting_since_ns.min(now);
    poll_and_publish(device, be, &mut tracker, now);
    candidate.duration_ns = tracker.duration_ns(key);
    let mut snapshot = device.ledger.snapshot(now, rules.stall_ns);
    if snapshot.hp_active > 0 {
        be.hp_seen_ns.store(now, Ordering::Relaxed);
    }
    snapshot.hp_last_active_ns = Some(be.hp_seen_ns.load(Ordering::Relaxed)).filter(|at_ns| *at_ns > 0);
    match rules.policy.decide(&snapshot, candidate, now) {
        Decision::Admit(why) => {
            let ticket = tracker.reserve(device, stream.handle, key, now);
            publish(be, &tracker);
            Ok((ticket, why))
        }
        Decision::Wait { recheck_ns, .. } => Err(recheck_ns),
    }
}

fn count(job: &Job, candidate: &Candidate, why: Admit, wait: Option<&Waiting>) {
    let c = &job.counts;
    let by_reason = match why {
        Admit::Rule => &c.admitted,
        Admit::HpStalled => &c.admitted_hp_stalled,
        Admit::WaitBound => &c.admitted_wait_bound,
    };
    by_reason.fetch_add(1, Ordering::Relaxed);
    if candidate.duration_ns.is_none() {
        c.unknown.fetch_add(1, Ordering::Relaxed);
    }
    if let Some(wait) = wait {
        c.held.fetch_add(1, Ordering::Relaxed);
        c.waits.add(now_ns().saturating_sub(wait.since_ns));
        WAIT_CPU_NS.fetch_add(stats::thread_cpu_ns().saturating_sub(wait.cpu_ns), Ordering::Relaxed);
    }
}

#[derive(PartialEq)]
enum Woken {
    ByTime,
    BySignal,
}

/// A launch that is being held.
struct Waiting {
    since_ns: u64,
    cpu_ns: u64,
    /// Since when the end has been near enough to poll.
    near_since_ns: u64,
    timer_slack: i32,
    /// Asked before the wait: when the interpreter has ended, nobody can tell.
    is_pythons: bool,
    /// Whether it may have to stay when the gate opens, as [`is_open`] says.
    stays: bool,
    gil: Option<gil::Released>,
}

impl Waiting {
    fn begin() -> Self {
        let (is_pythons, gil) = (gil::is_pythons(), gil::release());
        let now = now_ns();
        // SAFETY: reads and sets this thread's timer slack; the default of 50 us would be most of a nap.
        let timer_slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
        // SAFETY: as above.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1000) };
        let stays = is_pythons && gil.is_none();
        HELD.fetch_add(usize::from(!stays), Ordering::SeqCst);
        Waiting {
            since_ns: now,
            cpu_ns: stats::thread_cpu_ns(),
            near_since_ns: now,
            timer_slack,
            is_pythons,
            stays,
            gil,
        }
    }

    fn pause(&mut self, recheck_ns: u64) -> Woken {
        let now = now_ns();
        let ahead_ns = recheck_ns.saturating_sub(now);
        if ahead_ns > SLEEP_FROM_NS {
            self.near_since_ns = now + ahead_ns;
            let part_ns = (ahead_ns / SLEEP_FRACTION).clamp(SLEEP_FROM_NS, LONGEST_SLEEP_NS);
            return sleep(part_ns.min(ahead_ns - WAKE_EARLY_NS));
        }
        let spin_ns = RULES.read().as_ref().map_or(0, |r| r.spin_ns);
        let late_ns = now.saturating_sub(self.near_since_ns);
        if late_ns < spin_ns {
            std::hint::spin_loop();
            return Woken::ByTime;
        }
        sleep((late_ns / NAP_FRACTION).clamp(NAP_NS, LONGEST_SLEEP_NS))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.stays {
            // None below zero: in a forked child this thread may be the one that is left.
            let _ = HELD.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        }
        if self.timer_slack > 0 {
            // SAFETY: puts this thread's timer slack back.
            unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, self.timer_slack as libc::c_ulong) };
        }
    }
}

fn sleep(ns: u64) -> Woken {
    let time = libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    // Not clock_nanosleep: that tells of a signal only if it came before the time was up, which waking from a nap this
    // short rarely is.
    // SAFETY: no descriptors, a valid timespec, the signal mask left as it is.
    let r = unsafe { libc::ppoll(std::ptr::null_mut(), 0, &time, std::ptr::null()) };
    let interrupted = r < 0 && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted;
    // SAFETY: plain queries. Python handles signals in its main thread.
    if interrupted && unsafe { libc::gettid() == libc::getpid() } { Woken::BySignal } else { Woken::ByTime }
}
