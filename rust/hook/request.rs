//! HP requests: opened, entered, left, closed; and the joining of streams on the way, for BE too.
//!
//! A request is "active" from its opening until the GPU has finished what was launched in it. Its end is one write by
//! the GPU itself into the ledger's page; where the GPU cannot write there, an event that the keeper polls.

use super::calibration::Change;
use super::device::{self, Device};
use super::driver::{self, Handle};
use super::job::{self, Hp, Job, JobError, Role, Stream};
use super::{gate, settings, watch};
use crate::clock::now_ns;
use crate::ledger::LaneId;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};

/// A request or a section could not be entered or ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum RequestError {
    /// The job is not usable.
    Job(JobError),
    /// Only HP jobs have requests.
    NotHp(String),
    /// A best-effort call inside an HP request would be held by its own request.
    BeInsideHp {
        /// The BE job.
        be: String,
        /// The HP job.
        hp: String,
    },
    /// The number is of no open request.
    Unknown(i64),
    /// The request belongs to another job.
    Foreign {
        /// The request's job.
        found: String,
        /// The job that was entered.
        expected: String,
    },
    /// Another device than the job's.
    Device {
        /// The current device.
        found: i32,
        /// The job's.
        expected: i32,
    },
}

impl std::fmt::Display for RequestError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RequestError::Job(e) => write!(f, "{e}"),
            RequestError::NotHp(name) => {
                write!(f, "job {name:?} is not high priority: only such a job has requests")
            }
            RequestError::BeInsideHp { be, hp } => write!(
                f,
                "best-effort job {be:?} was called inside a request of high-priority job {hp:?}, which would hold it \
                 until the request ends; call it outside, or give both the same role"
            ),
            RequestError::Unknown(id) => write!(f, "request {id} is not open: it was closed, or never opened"),
            RequestError::Foreign { found, expected } => {
                write!(f, "the request belongs to job {found:?}, but job {expected:?} was entered with it")
            }
            RequestError::Device { found, expected } => {
                write!(f, "the call is on GPU {found}, but the job was registered on GPU {expected}")
            }
        }
    }
}

impl std::error::Error for RequestError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RequestError::Job(e) => Some(e),
            _ => None,
        }
    }
}

impl From<JobError> for RequestError {
    fn from(e: JobError) -> Self {
        RequestError::Job(e)
    }
}

/// An open request.
#[derive(Clone)]
struct Request {
    job: &'static Job,
    /// `None`: there was no free lane, the overflow lane stands for it.
    lane: Option<LaneId>,
    /// Timed event at its first entry.
    begin_event: Option<usize>,
    streams: SmallVec<[&'static Stream; 2]>,
    failed: bool,
    /// Its end is being marked.
    closing: bool,
}

static REQUESTS: Mutex<Option<HashMap<i64, Request>>> = Mutex::new(None);
static NEXT_REQUEST: AtomicI64 = AtomicI64::new(1);

fn with_requests<R>(f: impl FnOnce(&mut HashMap<i64, Request>) -> R) -> R {
    f(REQUESTS.lock().get_or_insert_default())
}

/// The streams that the open requests of a lane have launched on.
pub fn streams_on(job: &Job, hp: &Hp, lane: LaneId) -> SmallVec<[&'static Stream; 8]> {
    with_requests(|requests| {
        let mine = requests.values().filter(|r| std::ptr::eq(r.job, job) && hp.lane_in_use(r.lane) == Some(lane));
        mine.flat_map(|r| r.streams.iter().copied()).collect()
    })
}

/// A stream is about to be destroyed: no request marks its end there any more.
pub fn stream_destroyed(stream: &Stream) {
    with_requests(|requests| {
        for request in requests.values_mut() {
            request.streams.retain(|s| !std::ptr::eq(*s, stream));
        }
    });
}

/// A request whose GPU work may still be running.
pub struct Closing {
    /// Its job.
    pub job: &'static Job,
    /// Its lane.
    pub lane: Option<LaneId>,
    /// Timed event at its begin.
    pub begin_event: Option<usize>,
    /// Timed event at its end.
    pub end_event: usize,
    /// The GPU does not write the lane: it is closed when the event is done.
    pub close_lane: bool,
    /// The code raised: its time says nothing.
    pub failed: bool,
}

fn hp_of(job: &'static Job) -> Result<&'static Hp, RequestError> {
    job.hp.as_ref().ok_or_else(|| RequestError::NotHp(job.name.clone()))
}

/// Opens a request: HP is active from now on. `arrived_at_ns` 0: now.
pub fn open(job_id: i64, arrived_at_ns: u64) -> Result<i64, RequestError> {
    let job = job::get(job_id)?;
    let hp = hp_of(job)?;
    let now = now_ns();
    if hp.calibration.request_begins(now, settings().calibration_requests) == Some(Change::Begun) {
        hp.claim.set_calibrating(true);
    }
    hp.requests.fetch_add(1, Ordering::Relaxed);
    super::record::request_begins(job_id, now);
    let lane = hp.claim.open_lane(now).or_else(|| {
        watch::collect(job);
        hp.claim.open_lane(now)
    });
    if let Some(lane) = lane {
        if (1..now).contains(&arrived_at_ns) {
            hp.claim.set_arrived(lane, arrived_at_ns);
        }
    } else {
        let mut overflow = hp.overflow.lock();
        overflow.0 += 1;
        if let Some(lane) = overflow.1 {
            // A sign of life: the lane's own begin is that of the first of all.
            hp.claim.note_launch(lane);
            hp.claim.lane_word(lane).store(1, Ordering::Release);
        }
    }
    let id = NEXT_REQUEST.fetch_add(1, Ordering::Relaxed);
    let request = Request { job, lane, begin_event: None, streams: SmallVec::new(), failed: false, closing: false };
    with_requests(|r| r.insert(id, request));
    watch::wake();
    Ok(id)
}

/// Closes a request: it ends once the GPU is done with what was launched in it.
pub fn close(id: i64) -> Result<(), RequestError> {
    if super::process::forked_after_use() {
        // It is the parent's, and the table's lock may be held by a thread that does not exist here.
        return Err(JobError::Forked.into());
    }
    // It stays in the table until the keeper has it: in between it would look like one with nothing on the GPU.
    let request = with_requests(|requests| {
        let request = requests.get_mut(&id).filter(|r| !r.closing).ok_or(RequestError::Unknown(id))?;
        request.closing = true;
        Ok::<_, RequestError>(request.clone())
    })?;
    let closed = close_once(request);
    with_requests(|requests| requests.remove(&id));
    closed
}

fn close_once(request: Request) -> Result<(), RequestError> {
    let hp = hp_of(request.job)?;
    if request.failed {
        hp.failed_requests.fetch_add(1, Ordering::Relaxed);
    }
    let lane = request.lane;
    for stream in &request.streams {
        let mine = hp.lane_mark(lane);
        let _ = stream.lane.compare_exchange(mine, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
    let end = request.job.device.with_context(|| mark_end(hp, &request)).unwrap_or(None);
    let Some((end_event, written)) = end else {
        // Nothing was launched, or it went into a graph, or the driver refuses: the CPU's word is all there is.
        if let Some(event) = request.begin_event {
            request.job.device.recycle(event, true);
        }
        end_lane(hp, lane);
        return Ok(());
    };
    watch::add(Closing {
        job: request.job,
        lane,
        begin_event: request.begin_event,
        end_event,
        close_lane: !written,
        failed: request.failed,
    });
    Ok(())
}

/// Puts the end's marks on the request's stream: a timed event, and the GPU's own write of the lane.
fn mark_end(hp: &Hp, request: &Request) -> Option<(usize, bool)> {
    let (last, others) = request.streams.split_first()?;
    if request.streams.iter().any(|s| device::is_capturing(s.handle)) {
        return None;
    }
    for other in others {
        other.release_to(&mut other.join.lock(), last.handle).ok()?;
    }
    let device = request.job.device;
    let end = device.event(true)?;
    let stream = last.handle as Handle;
    // SAFETY: our own event and stream.
    if unsafe { driver::cuEventRecord(end as Handle, stream) } != driver::SUCCESS {
        device.recycle(end, true);
        return None;
    }
    let address = request.lane.and_then(|l| device.gpu_address(hp.claim.lane_word(l)));
    // SAFETY: the address is that of the lane's word in the registered page, which is never unmapped.
    let written =
        address.is_some_and(|a| unsafe { driver::cuStreamWriteValue32_v2(stream, a, 0, 0) } == driver::SUCCESS);
    Some((end, written))
}

/// The CPU ends a request's lane and frees it.
pub fn end_lane(hp: &Hp, lane: Option<LaneId>) {
    match lane {
        Some(lane) => {
            hp.claim.close_lane(lane);
            hp.claim.free_lane(lane);
        }
        None => {
            let mut overflow = hp.overflow.lock();
            overflow.0 = overflow.0.saturating_sub(1);
            if let (0, Some(lane)) = *overflow {
                hp.claim.close_lane(lane);
            }
        }
    }
}

/// A thread's stay on a job's stream, from [`enter`] to [`leave`].
pub struct Section {
    stream: &'static Stream,
    caller: usize,
    /// Closed with the section, if it was opened with it.
    own_request: Option<i64>,
    request: Option<i64>,
    /// Where launches are not seen: the section itself passed the gate, as if it were one kernel.
    passage: Option<gate::Passage>,
}

// SAFETY: a section is left by the thread that entered it (the extension sees to that); it only lies in a shared table
// meanwhile, and what is not `Send` in it is that thread's hold on Python's lock.
unsafe impl Send for Section {}

/// Takes the calling thread onto the job's stream: waits, on the GPU, for the caller's stream, and for every stream
/// that got earlier outputs. `None`: there is nothing to do, since the thread is on a stream of this job already, or
/// the caller's stream is capturing (what is captured must stay on it).
pub fn enter(job_id: i64, request: i64, ordinal: i32, caller: usize) -> Result<Option<Section>, RequestError> {
    let job = job::get(job_id)?;
    if ordinal != job.device.ordinal {
        return Err(RequestError::Device { found: ordinal, expected: job.device.ordinal });
    }
    let entered = job.device.with_context(|| enter_here(job, request, caller));
    entered.map_err(|e| JobError::Driver(e.to_string()))?
}

fn enter_here(job: &'static Job, request: i64, caller: usize) -> Result<Option<Section>, RequestError> {
    if let Some(current) = job::of_stream(caller as Handle, false) {
        if std::ptr::eq(current.job, job) {
            return Ok(None);
        }
        if job.role == Role::Be && current.job.role == Role::Hp {
            return Err(RequestError::BeInsideHp { be: job.name.clone(), hp: current.job.name.clone() });
        }
    }
    if device::is_capturing(caller) {
        return Ok(None);
    }
    let own_request = match (job.role, request) {
        (Role::Hp, 0) => Some(open(job.id, 0)?),
        _ => None,
    };
    let request = own_request.or((request > 0).then_some(request));
    let entered = join_in(job, request, caller);
    if let (Err(_), Some(id)) = (&entered, own_request) {
        close(id)?;
    }
    let stream = entered?;
    let passage = (job.role == Role::Be && super::sections_only()).then(|| {
        // Python's lock is not given up for the whole section: its code needs it.
        gate::enter(stream, || job.id as u64).holding_python()
    });
    Ok(Some(Section { stream, caller, own_request, request, passage }))
}

fn join_in(job: &'static Job, request: Option<i64>, caller: usize) -> Result<&'static Stream, RequestError> {
    let stream = job.stream_of_thread()?;
    {
        let mut join = stream.join.lock();
        for earlier in join.callers.clone() {
            if earlier != caller && !device::is_capturing(earlier) {
                stream.wait_for(&mut join, earlier)?;
            }
        }
        // Mostly the caller has nothing under way: then there is nothing to wait for.
        // SAFETY: the caller's current stream, which is not capturing.
        if unsafe { driver::cuStreamQuery(caller as Handle) } != driver::SUCCESS {
            stream.wait_for(&mut join, caller)?;
        }
    }
    if let Some(id) = request {
        with_requests(|requests| {
            let request = requests.get_mut(&id).filter(|r| !r.closing).ok_or(RequestError::Unknown(id))?;
            if !std::ptr::eq(request.job, job) {
                return Err(RequestError::Foreign { found: request.job.name.clone(), expected: job.name.clone() });
            }
            if !request.streams.iter().any(|s| std::ptr::eq(*s, stream)) {
                request.streams.push(stream);
            }
            stream.lane.store(hp_of(job)?.lane_mark(request.lane), Ordering::Release);
            if request.begin_event.is_none() {
                request.begin_event = record_timed(job.device, stream);
            }
            Ok(())
        })?;
    }
    Ok(stream)
}

/// A timed event of the pool, recorded on the stream; the device's context is current.
pub fn record_timed(device: &Device, stream: &Stream) -> Option<usize> {
    let event = device.event(true)?;
    // SAFETY: our own event and stream.
    if unsafe { driver::cuEventRecord(event as Handle, stream.handle as Handle) } == driver::SUCCESS {
        return Some(event);
    }
    device.recycle(event, true);
    None
}

impl Section {
    /// The stream that the thread is to use.
    pub fn stream(&self) -> usize {
        self.stream.handle
    }
}

/// Ends a section: the caller's stream waits, on the GPU, for what was launched in it.
pub fn leave(section: Section, ok: bool) -> Result<(), RequestError> {
    let stream = section.stream;
    if let Some(passage) = section.passage {
        passage.finish(true);
    }
    let joined = stream.job.device.with_context(|| {
        let mut join = stream.join.lock();
        if !join.callers.contains(&section.caller) {
            join.callers.push(section.caller);
        }
        stream.release_to(&mut join, section.caller)
    });
    if let Some(id) = section.request
        && !ok
    {
        with_requests(|r| r.get_mut(&id).map(|r| r.failed = true));
    }
    // The request ends whatever became of the join: nothing else would end it.
    if let Some(id) = section.own_request {
        close(id)?;
    }
    joined.map_err(|e| JobError::Driver(e.to_string()))?.map_err(RequestError::Job)
}

/// Opens a request and gives `stream` the job's role: for engines that have streams of their own.
pub fn begin_on(job_id: i64, arrived_at_ns: u64, stream: usize) -> Result<i64, RequestError> {
    let job = job::get(job_id)?;
    let hp = hp_of(job)?;
    let stream = job::set_stream_role(stream, Some(job))?.ok_or(JobError::Unknown(job_id))?;
    let id = open(job_id, arrived_at_ns)?;
    let marked = job.device.with_context(|| {
        with_requests(|requests| {
            if let Some(request) = requests.get_mut(&id) {
                request.streams.push(stream);
                stream.lane.store(hp.lane_mark(request.lane), Ordering::Release);
                if !device::is_capturing(stream.handle) {
                    request.begin_event = record_timed(job.device, stream);
                }
            }
        });
    });
    marked.map(|()| id).map_err(|e| {
        // One left open would hold every BE.
        let _ = close(id);
        JobError::Driver(e.to_string()).into()
    })
}
