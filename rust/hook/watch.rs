//! What the keeper does between sleeps, on a thread for this alone: ends requests whose end the GPU could not write,
//! reads service times, and notices HP work that belongs to no request, or that has fallen silent.

use super::calibration::Change;
use super::device;
use super::driver::{self, Handle};
use super::job::{self, Hp, Job, Stream};
use super::request::{self, Closing, end_lane};
use super::{gate, problems, settings};
use crate::clock::now_ns;
use crate::ledger::{Keeper, LaneId};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;

/// HP work outside requests ends once its stream has been idle, and silent, for this long.
const ACTIVITY_END_NS: u64 = 200_000;
/// A request that launched something within this time is not looked at.
const SILENT_NS: u64 = 1_000_000;

/// How long rounds go on after there was something to watch.
const LINGER_NS: u64 = 100_000_000;

/// How often the ledger's file is looked at.
const FILE_CHECK_NS: u64 = 1_000_000_000;

static FILES_CHECKED_NS: AtomicU64 = AtomicU64::new(0);
static LAST_WATCHED_NS: AtomicU64 = AtomicU64::new(0);
static CLOSING: Mutex<Vec<Closing>> = Mutex::new(Vec::new());
static ACTIVITIES: Mutex<Vec<(&'static Stream, LaneId)>> = Mutex::new(Vec::new());

/// A request has been closed; its GPU work may still run.
pub fn add(closing: Closing) {
    CLOSING.lock().push(closing);
}

/// There is something to watch.
pub fn wake() {
    /// The keeper that has the tick: the child of a fork gets another one.
    static TICKING: AtomicPtr<Keeper> = AtomicPtr::new(std::ptr::null_mut());
    let Ok(keeper) = Keeper::get() else { return };
    let this = std::ptr::from_ref(keeper).cast_mut();
    if TICKING.load(Ordering::Acquire) == this {
        return keeper.wake();
    }
    keeper.set_tick(tick);
    TICKING.store(this, Ordering::Release);
}

/// HP work on a stream outside any request (a backward pass, an unmodified program): it is a request of its own,
/// from its first launch until the stream is idle.
#[cold]
pub fn begin_activity(stream: &'static Stream, hp: &'static Hp) {
    let mut activities = ACTIVITIES.lock();
    if stream.lane.load(Ordering::Acquire) != 0 {
        return;
    }
    let Some(lane) = hp.claim.open_lane(now_ns()) else { return };
    hp.claim.note_launch(lane);
    stream.lane.store(lane.index() as u32 + 1, Ordering::Release);
    activities.push((stream, lane));
    drop(activities);
    wake();
}

/// One round. Returns when the next is due; `None`: when woken.
fn tick() -> Option<Duration> {
    let _relaxed = device::RelaxedCapture::enter();
    // The keeper's thread has no context of its own, and the driver may refuse to answer without one.
    let now = now_ns();
    let mut watching = false;
    for device in device::all() {
        watching |= gate::keep_books(device, now);
        watching |= device.with_context(|| collect_where(|c| std::ptr::eq(c.job.device, device)) > 0).unwrap_or(false);
    }
    check_files(now);
    let activities = end_activities(now);
    let settings = settings();
    for job in job::all() {
        let Some(hp) = &job.hp else { continue };
        if hp.calibration.is_running() {
            watching = true;
            let max_ns = (settings.calibration_max_s * 1e9) as u64;
            apply(hp, hp.calibration.step(None, now, settings.calibration_requests, max_ns));
        }
        watching |= watch_silence(job, hp, now);
    }
    let watched_ns = if watching || activities { now } else { LAST_WATCHED_NS.load(Ordering::Relaxed) };
    LAST_WATCHED_NS.store(watched_ns, Ordering::Relaxed);
    match activities {
        true => Some(Duration::from_nanos(ACTIVITY_END_NS)),
        // Goes on for a while: under load the next request finds this thread awake, and need not wake it.
        false if now.saturating_sub(watched_ns) < LINGER_NS => Some(Duration::from_nanos(SILENT_NS)),
        false => None,
    }
}

/// A ledger that is removed (systemd does that in /dev/shm when a user logs out) splits the jobs that have it open from
/// those that come later: its users have to know.
fn check_files(now: u64) {
    if now.saturating_sub(FILES_CHECKED_NS.load(Ordering::Relaxed)) < FILE_CHECK_NS {
        return;
    }
    FILES_CHECKED_NS.store(now, Ordering::Relaxed);
    for device in device::all().filter(|d| d.ledger.was_removed()) {
        problems::report(format!(
            "the ledger {} was removed: jobs that start from now on neither see this process nor are seen by it; restart \
             them together, with MOSAIC_LEDGER_DIR or systemd's RemoveIPC=no so that the file stays",
            device.ledger.path().display()
        ));
    }
}

/// Ends what the GPU has finished of one job, to free its lanes.
pub fn collect(job: &'static Job) {
    let _relaxed = device::RelaxedCapture::enter();
    let _ = job.device.with_context(|| collect_where(|c| std::ptr::eq(c.job, job)));
}

/// Ends what the GPU has finished of those; returns how many of them are left. Their context is current.
fn collect_where(which: impl Fn(&Closing) -> bool) -> usize {
    let mut all = CLOSING.lock();
    let is_done = |c: &mut Closing| {
        // SAFETY: an event of our own pool.
        which(c)
            && match unsafe { driver::cuEventQuery(c.end_event as Handle) } {
                driver::NOT_READY => false,
                // The GPU's own write comes after the event: until it is seen the request is at its end, not stalled.
                driver::SUCCESS => c.close_lane || !is_open(c),
                // A GPU that has failed writes nothing any more.
                _ => {
                    c.close_lane = true;
                    true
                }
            }
    };
    let done: Vec<Closing> = all.extract_if(.., is_done).collect();
    let left = all.iter().filter(|c| which(c)).count();
    drop(all);
    for c in done {
        finish(c);
    }
    left
}

fn is_open(c: &Closing) -> bool {
    c.job.hp.as_ref().zip(c.lane).is_some_and(|(hp, lane)| hp.claim.lane_open(lane))
}

fn finish(c: Closing) {
    let Some(hp) = &c.job.hp else { return };
    match c.lane {
        Some(lane) if !c.close_lane => hp.claim.free_lane(lane),
        lane => end_lane(hp, lane),
    }
    if let Some(begin) = c.begin_event {
        let mut ms = 0f32;
        // SAFETY: both events are ours and timed.
        let timed = unsafe { driver::cuEventElapsedTime(&mut ms, begin as Handle, c.end_event as Handle) };
        if timed == driver::SUCCESS && ms.is_finite() && ms >= 0.0 && !c.failed {
            let service_ns = (f64::from(ms) * 1e6) as u64;
            hp.service.add(service_ns);
            let s = settings();
            let max_ns = (s.calibration_max_s * 1e9) as u64;
            apply(hp, hp.calibration.step(Some(service_ns), now_ns(), s.calibration_requests, max_ns));
        }
        c.job.device.recycle(begin, true);
    }
    c.job.device.recycle(c.end_event, true);
}

fn apply(hp: &Hp, change: Option<Change>) {
    if let Some(Change::Ended(result)) = change {
        if let Some(t) = result {
            hp.claim.set_t_iso(t.p50_ns, t.p99_ns);
        }
        hp.claim.set_calibrating(false);
    }
}

/// A stream is about to be destroyed: what it runs outside requests ends with what is on it now.
pub fn stream_destroyed(stream: &'static Stream) {
    let ended: Vec<LaneId> = {
        let mut activities = ACTIVITIES.lock();
        activities.extract_if(.., |(s, _)| std::ptr::eq(*s, stream)).map(|(_, lane)| lane).collect()
    };
    let (Some(hp), device) = (&stream.job.hp, stream.job.device) else { return };
    stream.lane.store(0, Ordering::Release);
    for lane in ended {
        let end_event = device.with_context(|| request::record_timed(device, stream)).unwrap_or(None);
        match end_event {
            Some(end_event) => {
                let (lane, begin_event) = (Some(lane), None);
                add(Closing { job: stream.job, lane, begin_event, end_event, close_lane: true, failed: false });
            }
            None => end_lane(hp, Some(lane)),
        }
    }
}

fn end_activities(now: u64) -> bool {
    let mut ended = Vec::new();
    let mut activities = ACTIVITIES.lock();
    activities.retain(|(stream, lane)| {
        let Some(hp) = &stream.job.hp else { return false };
        hp.claim.stamp_launches(*lane, now);
        let silent_ns = now.saturating_sub(hp.claim.last_launch_ns(*lane));
        if silent_ns < ACTIVITY_END_NS || !is_idle(stream) {
            return true;
        }
        stream.lane.store(0, Ordering::Release);
        hp.claim.close_lane(*lane);
        hp.claim.free_lane(*lane);
        ended.push((*stream, hp));
        false
    });
    drop(activities);
    for (stream, hp) in ended {
        // A launch may have come between the look and the end, and have taken the lane for open.
        if !is_idle(stream) {
            begin_activity(stream, hp);
        }
    }
    !ACTIVITIES.lock().is_empty()
}

/// Publishes which open requests have an idle GPU side: one that is silent as well may wait for a held BE.
fn watch_silence(job: &'static Job, hp: &'static Hp, now: u64) -> bool {
    let mut moved_ns = 0;
    for lane in hp.claim.open_lanes() {
        hp.claim.stamp_launches(lane, now);
        moved_ns = moved_ns.max(hp.claim.last_launch_ns(lane));
    }
    for lane in hp.claim.open_lanes() {
        // A request that waits for its turn is not stalled while its job serves another one.
        hp.claim.touch(lane, moved_ns);
        let silent = now.saturating_sub(hp.claim.last_launch_ns(lane)) >= SILENT_NS;
        hp.claim.set_gpu_idle(lane, silent && is_lane_idle(job, hp, lane));
    }
    moved_ns > 0
}

/// Whether the GPU has finished everything that was launched for the requests of a lane.
fn is_lane_idle(job: &'static Job, hp: &'static Hp, lane: LaneId) -> bool {
    // One that its code has left is still on the GPU, or it would not be here.
    if CLOSING.lock().iter().any(|c| std::ptr::eq(c.job, job) && hp.lane_in_use(c.lane) == Some(lane)) {
        return false;
    }
    let mut streams = request::streams_on(job, hp, lane);
    streams.extend(ACTIVITIES.lock().iter().filter(|(s, l)| *l == lane && std::ptr::eq(s.job, job)).map(|(s, _)| *s));
    streams.into_iter().all(is_idle)
}

/// Makes a launch on the calling thread's default stream, and an event behind it that other threads can ask about.
#[cold]
pub fn with_tail<R>(stream: &Stream, call: impl FnOnce() -> R) -> R {
    let result = call();
    if device::is_capturing(stream.handle) {
        return result;
    }
    let tail = match stream.tail.load(Ordering::Acquire) {
        0 => stream.job.device.event(false).unwrap_or(0),
        tail => tail,
    };
    // SAFETY: our own event, on the stream of the launch; this is its thread.
    if tail != 0 && unsafe { driver::cuEventRecord(tail as Handle, stream.handle as Handle) } == driver::SUCCESS {
        stream.tail.store(tail, Ordering::Release);
    }
    result
}

/// Whether the GPU has nothing to do on a stream. Never asked of a capturing stream: that would break the capture.
fn is_idle(stream: &Stream) -> bool {
    let Some(_guard) = CaptureGuard::try_enter(stream) else { return false };
    if stream.destroyed.load(Ordering::Acquire) {
        return true;
    }
    if stream.handle == driver::STREAM_PER_THREAD {
        let tail = stream.tail.load(Ordering::Acquire) as Handle;
        // SAFETY: our own event.
        let query = || unsafe { driver::cuEventQuery(tail) == driver::SUCCESS };
        return tail.is_null() || stream.job.device.with_context(query).unwrap_or(false);
    }
    // SAFETY: a stream with a role that is not destroyed while the guard is held.
    let query = || unsafe { driver::cuStreamQuery(stream.handle as Handle) == driver::SUCCESS };
    stream.job.device.with_context(|| !device::is_capturing(stream.handle) && query()).unwrap_or(false)
}

/// Held while a stream may join a capture, and while it is queried.
pub struct CaptureGuard<'a>(&'a Stream);

impl<'a> CaptureGuard<'a> {
    fn try_enter(stream: &'a Stream) -> Option<Self> {
        (!stream.capture_guard.swap(true, Ordering::AcqRel)).then_some(CaptureGuard(stream))
    }

    /// Waits, for the microsecond that a query takes.
    pub fn enter(stream: &'a Stream) -> Self {
        loop {
            if let Some(guard) = Self::try_enter(stream) {
                return guard;
            }
            std::hint::spin_loop();
        }
    }
}

impl Drop for CaptureGuard<'_> {
    fn drop(&mut self) {
        self.0.capture_guard.store(false, Ordering::Release);
    }
}
