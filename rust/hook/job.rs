//! Jobs and the streams that carry their role.

use super::calibration::Calibration;
use super::device::{self, Device, DeviceError};
use super::driver::{self, Handle};
use super::handles::HandleMap;
use super::histogram::Histogram;
use super::{problems, request, watch};
use crate::clock::now_ns;
use crate::ledger::{HpClaim, HpInfo, Keeper, LaneId, LedgerError};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// What a stream's work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// High priority: never held.
    Hp,
    /// Best effort: passes the gate.
    Be,
    /// Never held, and nobody waits for it: counted (the doctor's probe), and observed on demand.
    Observed,
}

/// Most jobs of one process, ended ones included.
pub const MAX_JOBS: usize = 1024;
/// Streams of one job; further threads share them.
const POOL_STREAMS: usize = 8;
/// Streams that a process can have under a role.
const MAX_STREAMS: usize = 4096;

/// How soon a process's role that could not be applied is tried again.
const ROLE_RETRY_NS: u64 = 1_000_000_000;
/// By device: until then a process's role is not tried again.
static ROLE_REFUSED_UNTIL_NS: [AtomicU64; device::MAX_DEVICES] = [const { AtomicU64::new(0) }; device::MAX_DEVICES];

/// One model, or one process, under a role. Lives as long as the process.
pub struct Job {
    /// Its number in this process.
    pub id: i64,
    /// HP or BE.
    pub role: Role,
    /// The user's name for it.
    pub name: String,
    /// The GPU it runs on.
    pub device: &'static Device,
    /// The HP side.
    pub hp: Option<Hp>,
    /// What the hook saw of it.
    pub counts: Counts,
    ended: AtomicBool,
    pool: Mutex<Vec<&'static Stream>>,
    next: AtomicUsize,
}

/// What an HP job has beside its name.
pub struct Hp {
    /// Tolerated slowdown of p99.
    pub slo_ratio: f64,
    /// Its place in the ledger.
    pub claim: HpClaim,
    /// Measures T_iso.
    pub calibration: Calibration,
    /// Service times since.
    pub service: Histogram,
    /// Requests opened.
    pub requests: AtomicU64,
    /// Requests whose code raised.
    pub failed_requests: AtomicU64,
    /// Stands for the requests beyond the number of lanes; open while there is one.
    pub overflow: Mutex<(u32, Option<LaneId>)>,
}

impl Hp {
    /// The lane that stands for a request: its own, or the one for those beyond the number of lanes.
    pub fn lane_in_use(&self, lane: Option<LaneId>) -> Option<LaneId> {
        lane.or_else(|| self.overflow.lock().1)
    }

    /// The same, as a stream keeps it.
    pub fn lane_mark(&self, lane: Option<LaneId>) -> u32 {
        self.lane_in_use(lane).map_or(0, |l| l.index() as u32 + 1)
    }
}

/// Counters of a job, all monotonic.
#[derive(Default)]
pub struct Counts {
    /// Kernels, those inside graphs counted one by one.
    pub kernels: AtomicU64,
    /// Launches of graphs.
    pub graphs: AtomicU64,
    /// Of the kernels, those inside graphs.
    pub graph_kernels: AtomicU64,
    /// Asynchronous copies and fills.
    pub copies: AtomicU64,
    /// BE launches that had to wait.
    pub held: AtomicU64,
    /// BE launches let in by the policy's rule.
    pub admitted: AtomicU64,
    /// BE launches let in because HP was stalled.
    pub admitted_hp_stalled: AtomicU64,
    /// BE launches let in because their wait reached its bound.
    pub admitted_wait_bound: AtomicU64,
    /// BE launches that did not pass the gate.
    pub escaped: AtomicU64,
    /// BE launches whose kernel's time was not known yet.
    pub unknown: AtomicU64,
    /// Launches that went into a graph being captured.
    pub captured: AtomicU64,
    /// Time that held BE launches waited.
    pub waits: Histogram,
}

/// A stream under a role. Never freed, so that the launch path can hold it without a lock.
pub struct Stream {
    /// The driver's handle.
    pub handle: usize,
    /// The job it works for.
    pub job: &'static Job,
    /// Lane of the request that runs on it, plus 1; 0 outside requests.
    pub lane: AtomicU32,
    /// Taken while it may join a capture or is queried: a query must not hit a capturing stream.
    pub capture_guard: AtomicBool,
    /// Its handle means nothing any more, or another stream.
    pub destroyed: AtomicBool,
    /// What its work is ordered with.
    pub join: Mutex<Join>,
    /// Of a thread's default stream, which no other thread can ask about: an event behind its last launch. 0: none yet.
    pub tail: AtomicUsize,
}

/// How a stream is ordered with its callers' streams.
#[derive(Default)]
pub struct Join {
    /// Event for the orders; made on first use.
    pub event: Option<usize>,
    /// Streams that got outputs of this one: they may still read memory that the next request re-uses.
    pub callers: SmallVec<[usize; 4]>,
}

/// A job could not be registered.
#[derive(Debug)]
#[non_exhaustive]
pub enum JobError {
    /// The device cannot be used.
    Device(DeviceError),
    /// The ledger has no room, or is not usable.
    Ledger(LedgerError),
    /// A bound below 1 cannot be met.
    Slo(f64),
    /// Too many.
    Full(&'static str, usize),
    /// No such job.
    Unknown(i64),
    /// A driver call failed.
    Driver(String),
    /// CUDA cannot be used in the child of a fork.
    Forked,
    /// Another recording is going on.
    Recording,
}

impl std::fmt::Display for JobError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            JobError::Device(e) => write!(f, "{e}"),
            JobError::Ledger(e) => write!(f, "{e}"),
            JobError::Slo(found) => {
                write!(f, "slo is the tolerated p99 slowdown: found {found}, expected a ratio from 1.0 to 1000")
            }
            JobError::Full(what, limit) => write!(f, "too many {what}: the limit is {limit} in one process"),
            JobError::Unknown(id) => write!(f, "no job has number {id}: it was never registered, or has ended"),
            JobError::Driver(text) => f.write_str(text),
            JobError::Recording => f.write_str("a recording is going on: end it with mosaic_record_stop first"),
            JobError::Forked => f.write_str(
                "this process was forked after its parent had used CUDA, which no forked child can use: start it with \
                 multiprocessing's spawn method",
            ),
        }
    }
}

impl std::error::Error for JobError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            JobError::Device(e) => Some(e),
            JobError::Ledger(e) => Some(e),
            _ => None,
        }
    }
}

impl From<DeviceError> for JobError {
    fn from(e: DeviceError) -> Self {
        JobError::Device(e)
    }
}

impl From<LedgerError> for JobError {
    fn from(e: LedgerError) -> Self {
        JobError::Ledger(e)
    }
}

static JOBS: [AtomicPtr<Job>; MAX_JOBS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_JOBS];
static JOB_COUNT: AtomicUsize = AtomicUsize::new(0);
static STREAMS: HandleMap<MAX_STREAMS> = HandleMap::new();
/// Some stream of this process has a role: otherwise launches go straight through.
static ANY_ROLE: AtomicBool = AtomicBool::new(false);
/// Default streams may have a role.
static DEFAULT_STREAMS: AtomicBool = AtomicBool::new(false);
/// The role of every stream that has none of its own, per device.
static PROCESS_JOBS: Mutex<Option<ProcessRole>> = Mutex::new(None);
static HAS_PROCESS_ROLE: AtomicBool = AtomicBool::new(false);

/// A role for a whole process.
#[derive(Clone, Debug)]
pub struct ProcessRole {
    /// HP or BE.
    pub role: Role,
    /// Name of its jobs.
    pub name: String,
    /// Tolerated slowdown, for HP.
    pub slo_ratio: f64,
}

/// Registers a job on a device.
pub fn register(
    name: &str,
    role: Role,
    ordinal: i32,
    slo_ratio: f64,
    fingerprint: u64,
) -> Result<&'static Job, JobError> {
    if role == Role::Hp && !(1.0..=1000.0).contains(&slo_ratio) {
        return Err(JobError::Slo(slo_ratio));
    }
    if super::process::forked_after_use() {
        return Err(JobError::Forked);
    }
    let device = device::get(ordinal)?;
    let hp = match role {
        Role::Hp => {
            Keeper::get()?;
            let claim = device.ledger.claim_hp(&HpInfo { name: name.to_string(), fingerprint, slo_ratio })?;
            let overflow = claim.open_lane(0);
            if let Some(lane) = overflow {
                claim.close_lane(lane);
            }
            Some(Hp {
                slo_ratio,
                claim,
                calibration: Calibration::default(),
                service: Histogram::default(),
                requests: AtomicU64::new(0),
                failed_requests: AtomicU64::new(0),
                overflow: Mutex::new((0, overflow)),
            })
        }
        Role::Be => {
            device.best_effort(name)?;
            None
        }
        Role::Observed => None,
    };
    let id = JOB_COUNT.fetch_add(1, Ordering::AcqRel);
    if id >= MAX_JOBS {
        JOB_COUNT.fetch_sub(1, Ordering::AcqRel);
        return Err(JobError::Full("jobs", MAX_JOBS));
    }
    let job: &'static Job = Box::leak(Box::new(Job {
        id: id as i64,
        role,
        name: name.to_string(),
        device,
        hp,
        counts: Counts::default(),
        ended: AtomicBool::new(false),
        pool: Mutex::new(Vec::new()),
        next: AtomicUsize::new(0),
    }));
    JOBS[id].store(std::ptr::from_ref(job).cast_mut(), Ordering::Release);
    Ok(job)
}

/// The job of a number.
pub fn get(id: i64) -> Result<&'static Job, JobError> {
    if super::process::forked_after_use() {
        return Err(JobError::Forked);
    }
    usize::try_from(id)
        .ok()
        .and_then(|i| JOBS.get(i))
        // SAFETY: only `register` stores there, a leaked box.
        .and_then(|p| unsafe { p.load(Ordering::Acquire).as_ref() })
        .filter(|j| !j.ended.load(Ordering::Relaxed))
        .ok_or(JobError::Unknown(id))
}

/// All jobs that have not ended.
pub fn all() -> impl Iterator<Item = &'static Job> {
    (0..JOB_COUNT.load(Ordering::Acquire).min(MAX_JOBS)).filter_map(|i| get(i as i64).ok())
}

/// Ends a job: its streams lose their role, its place in the ledger is given up.
pub fn end(id: i64) -> Result<(), JobError> {
    let job = get(id)?;
    job.ended.store(true, Ordering::Relaxed);
    job.pool.lock().clear();
    // SAFETY: the map holds only addresses of leaked `Stream`s.
    STREAMS.remove_where(|stream| std::ptr::eq(unsafe { &*(stream as *const Stream) }.job, job));
    if let Some(hp) = &job.hp {
        hp.claim.release();
    }
    Ok(())
}

/// Puts streams without a role of their own under one.
pub fn set_process_role(role: ProcessRole) {
    *PROCESS_JOBS.lock() = Some(role);
    ROLE_REFUSED_UNTIL_NS.iter().for_each(|until| until.store(0, Ordering::Relaxed));
    HAS_PROCESS_ROLE.store(true, Ordering::Release);
    DEFAULT_STREAMS.store(true, Ordering::Release);
    ANY_ROLE.store(true, Ordering::Release);
}

/// The process's role, if it has one.
pub fn process_role() -> Option<ProcessRole> {
    PROCESS_JOBS.lock().clone()
}

/// In a forked child: no stream has a role.
pub fn abandon_roles() {
    ANY_ROLE.store(false, Ordering::Release);
    JOB_COUNT.store(0, Ordering::Release);
}

/// Key of a stream in the map, and the handle that means it wherever no `_ptsz` entry point is called. The legacy stream
/// is one handle for all devices, the per-thread stream one for all devices and threads.
fn key(stream: usize, per_thread: bool) -> Option<(usize, usize)> {
    thread_local! {
        /// Stands for this thread: its addresses are nobody else's while the thread lives.
        static THIS: [u8; device::MAX_DEVICES] = const { [0; device::MAX_DEVICES] };
    }
    if stream > driver::STREAM_PER_THREAD {
        return Some((stream, stream));
    }
    let mut device = 0;
    // SAFETY: writes one int; without a current context it is an error and there is no device.
    if unsafe { driver::cuCtxGetDevice(&mut device) } != driver::SUCCESS {
        return None;
    }
    let device = device as usize;
    if stream == driver::STREAM_PER_THREAD || (stream == 0 && per_thread) {
        let of_thread = THIS.try_with(|bytes| bytes.as_ptr() as usize).ok()?;
        return (device < device::MAX_DEVICES).then_some((of_thread + device, driver::STREAM_PER_THREAD));
    }
    Some((device + 1, driver::STREAM_LEGACY))
}

/// The role of a stream: one look-up without a lock. `per_thread`: 0 means the per-thread default stream.
#[inline]
pub fn of_stream(stream: Handle, per_thread: bool) -> Option<&'static Stream> {
    if !ANY_ROLE.load(Ordering::Relaxed) {
        return None;
    }
    let handle = stream as usize;
    if handle > driver::STREAM_PER_THREAD {
        if let Some(found) = STREAMS.get(handle) {
            // SAFETY: the map holds only addresses of leaked `Stream`s.
            return Some(unsafe { &*(found as *const Stream) });
        }
        if !HAS_PROCESS_ROLE.load(Ordering::Relaxed) {
            return None;
        }
    } else if !DEFAULT_STREAMS.load(Ordering::Relaxed) {
        return None;
    }
    of_default_or_new(handle, per_thread)
}

/// Default streams, and streams that take the process's role when they are first seen.
#[cold]
fn of_default_or_new(handle: usize, per_thread: bool) -> Option<&'static Stream> {
    let (key, handle) = key(handle, per_thread)?;
    if let Some(found) = STREAMS.get(key) {
        // SAFETY: as above.
        return Some(unsafe { &*(found as *const Stream) });
    }
    let mut device = 0;
    // SAFETY: writes one int.
    if unsafe { driver::cuCtxGetDevice(&mut device) } != driver::SUCCESS {
        return None;
    }
    let refused_until_ns = ROLE_REFUSED_UNTIL_NS.get(device as usize)?;
    if now_ns() < refused_until_ns.load(Ordering::Relaxed) {
        return None;
    }
    // The lock also makes one job per device of it.
    let role = PROCESS_JOBS.lock();
    let role = role.as_ref()?;
    let job = all().find(|j| j.role == role.role && j.name == role.name && j.device.ordinal == device);
    let job = job.map_or_else(|| register(&role.name, role.role, device, role.slo_ratio, 0), Ok);
    job.and_then(|job| insert(key, handle, job))
        .inspect_err(|e| {
            problems::report(format!("this process runs WITHOUT its role on GPU {device}: {e}"));
            refused_until_ns.store(now_ns() + ROLE_RETRY_NS, Ordering::Relaxed);
        })
        .ok()
}

fn insert(key: usize, handle: usize, job: &'static Job) -> Result<&'static Stream, JobError> {
    let stream = Box::into_raw(Box::new(Stream {
        handle,
        job,
        lane: AtomicU32::new(0),
        capture_guard: AtomicBool::new(false),
        destroyed: AtomicBool::new(false),
        join: Mutex::new(Join::default()),
        tail: AtomicUsize::new(0),
    }));
    if !STREAMS.set(key, stream as usize) {
        // SAFETY: from `Box::into_raw`, and nobody else has seen it.
        drop(unsafe { Box::from_raw(stream) });
        return Err(JobError::Full("streams", MAX_STREAMS));
    }
    ANY_ROLE.store(true, Ordering::Release);
    // SAFETY: leaked from here on, and shared only as a reference.
    Ok(unsafe { &*stream })
}

/// Gives a stream that somebody else made a role, or takes it away.
pub fn set_stream_role(handle: usize, job: Option<&'static Job>) -> Result<Option<&'static Stream>, JobError> {
    let Some(job) = job else {
        if let Some((key, _)) = key(handle, false) {
            STREAMS.remove(key);
        }
        return Ok(None);
    };
    let found = job.device.with_context(|| key(handle, false)).map_err(|e| JobError::Driver(e.to_string()))?;
    let (key, handle) = found.ok_or_else(|| JobError::Driver("the stream belongs to no device".into()))?;
    if handle <= driver::STREAM_PER_THREAD {
        DEFAULT_STREAMS.store(true, Ordering::Release);
    }
    if let Some(known) = STREAMS.get(key) {
        // SAFETY: as above.
        let known = unsafe { &*(known as *const Stream) };
        if known.job.id == job.id {
            return Ok(Some(known));
        }
    }
    insert(key, handle, job).map(Some)
}

/// A stream is about to be destroyed: it loses its role, and nobody waits for it any more.
pub fn stream_destroyed(handle: usize) {
    if !ANY_ROLE.load(Ordering::Relaxed) {
        return;
    }
    if handle > driver::STREAM_PER_THREAD
        && let Some(found) = STREAMS.get(handle)
    {
        // SAFETY: as above.
        let stream = unsafe { &*(found as *const Stream) };
        STREAMS.remove(handle);
        request::stream_destroyed(stream);
        watch::stream_destroyed(stream);
        // Whoever queries it is waited for; nobody will again.
        let _guard = watch::CaptureGuard::enter(stream);
        stream.destroyed.store(true, Ordering::Release);
    }
    for job in all() {
        for stream in job.pool.lock().iter() {
            stream.join.lock().callers.retain(|c| *c != handle);
        }
    }
}

impl Job {
    /// The stream that this thread uses for the job: always the same one, so that library workspaces and cached
    /// memory, which are kept per stream, are used again.
    pub fn stream_of_thread(&'static self) -> Result<&'static Stream, JobError> {
        thread_local! {
            static MINE: std::cell::RefCell<SmallVec<[(*const Job, &'static Stream); 4]>> =
                const { std::cell::RefCell::new(SmallVec::new_const()) };
        }
        let this = std::ptr::from_ref(self);
        MINE.with_borrow_mut(|mine| {
            if let Some((_, stream)) = mine.iter().find(|(job, _)| std::ptr::eq(*job, this)) {
                return Ok(*stream);
            }
            let stream = self.next_stream()?;
            mine.push((this, stream));
            Ok(stream)
        })
    }

    fn next_stream(&'static self) -> Result<&'static Stream, JobError> {
        let mut pool = self.pool.lock();
        if pool.len() == POOL_STREAMS {
            return Ok(pool[self.next.fetch_add(1, Ordering::Relaxed) % POOL_STREAMS]);
        }
        let (lowest, highest) = self.device.priorities;
        let priority = if self.role == Role::Hp { highest } else { lowest };
        let handle = crate::streams::create(self.device, priority).map_err(|e| JobError::Driver(e.to_string()))?;
        let stream = insert(handle, handle, self)?;
        pool.push(stream);
        Ok(stream)
    }

    /// The streams made for it so far.
    pub fn streams(&self) -> Vec<&'static Stream> {
        self.pool.lock().clone()
    }
}

impl Stream {
    /// Makes this stream's later work wait for what is on `other` now.
    pub fn wait_for(&self, join: &mut Join, other: usize) -> Result<(), JobError> {
        order(self.job.device, join, other, self.handle)
    }

    /// Makes `other`'s later work wait for what is on this stream now.
    pub fn release_to(&self, join: &mut Join, other: usize) -> Result<(), JobError> {
        order(self.job.device, join, self.handle, other)
    }
}

fn order(device: &Device, join: &mut Join, before: usize, after: usize) -> Result<(), JobError> {
    let event = match join.event {
        Some(e) => e,
        None => {
            let made = device.event(false).ok_or_else(|| JobError::Driver("no event could be made".into()))?;
            *join.event.insert(made)
        }
    };
    let fail = |what, code| driver::check(what, code).map_err(|e| JobError::Driver(e.to_string()));
    // SAFETY: our own event; `before` and `after` are streams that the caller holds. A wait refers to the event's
    // latest record, so one event serves for all orders.
    unsafe {
        fail("cuEventRecord", driver::cuEventRecord(event as Handle, before as Handle))?;
        fail("cuStreamWaitEvent", driver::cuStreamWaitEvent(after as Handle, event as Handle, 0))
    }
}
