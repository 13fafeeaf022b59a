//! Records what one HP job launches, kernel by kernel, with the GPU time of each from timed events around it.
//!
//! The lines are those of `sim::trace`, without the first: who records adds where they come from. A kernel whose
//! stream was idle is timed with the launch latency in it; records of requests sent without waiting for each other
//! have queued kernels, and the smallest time of a position over all requests is its own.

use super::device::RelaxedCapture;
use super::driver::{self, CuResult, Handle};
use super::job::{self, JobError, Stream};
use super::names;
use crate::kernel::{KernelId, LaunchConfig};
use parking_lot::Mutex;
use serde_json::json;
use std::collections::HashSet;
use std::sync::atomic::{AtomicI64, Ordering};

/// Launches that one recording keeps.
const MAX_LAUNCHES: usize = 1 << 18;

/// Timed events that are ready when a recording starts.
const EVENTS_MADE_BEFORE: usize = 16384;

/// What is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A kernel.
    Kernel(Handle, LaunchConfig),
    /// A copy, with the number that its kind and size are known by.
    Copy(u64),
    /// A fill, likewise.
    Set(u64),
}

struct Launch {
    request: u32,
    id: KernelId,
    function: Option<&'static names::Function>,
    what: &'static str,
    config: LaunchConfig,
    start_offset_ns: u64,
    events: [usize; 2],
    after_sync: bool,
}

#[derive(Default)]
struct Recording {
    requests: u32,
    began_ns: u64,
    synced: bool,
    launches: Vec<Launch>,
    lost: u64,
}

static JOB: AtomicI64 = AtomicI64::new(-1);
static RECORDING: Mutex<Option<Recording>> = Mutex::new(None);

/// Whether this job is being recorded.
#[inline]
pub fn is_recording(job: i64) -> bool {
    JOB.load(Ordering::Relaxed) == job
}

/// Starts to record a job.
pub fn start(job: i64) -> Result<(), JobError> {
    // Made now: what a launch does beside being launched would be recorded as the host's time.
    let device = job::get(job)?.device;
    let events: Vec<usize> = (0..EVENTS_MADE_BEFORE).map_while(|_| device.event(true)).collect();
    events.into_iter().for_each(|e| device.recycle(e, true));
    let mut recording = RECORDING.lock();
    if recording.is_some() {
        return Err(JobError::Recording);
    }
    *recording = Some(Recording::default());
    JOB.store(job, Ordering::Release);
    Ok(())
}

/// A request of the job begins.
pub fn request_begins(job: i64, now_ns: u64) {
    if is_recording(job)
        && let Some(r) = RECORDING.lock().as_mut()
    {
        r.requests += 1;
        (r.began_ns, r.synced) = (now_ns, true);
    }
}

/// The host has waited for a stream.
pub fn synchronized() {
    if JOB.load(Ordering::Relaxed) >= 0
        && let Some(r) = RECORDING.lock().as_mut()
    {
        r.synced = true;
    }
}

/// Makes the launch between two timed events.
pub fn launch(stream: &Stream, what: What, now_ns: u64, call: impl FnOnce() -> CuResult) -> CuResult {
    let device = stream.job.device;
    let record = |event: &usize| {
        // SAFETY: our own event, on the caller's stream.
        unsafe { driver::cuEventRecord(*event as Handle, stream.handle as Handle) == driver::SUCCESS }
    };
    let before = device.event(true).filter(record);
    let result = call();
    let after = device.event(true).filter(record);
    let mut recording = RECORDING.lock();
    let Some(r) = recording.as_mut() else { return result };
    let (Some(before), Some(after), true) = (before, after, r.requests > 0 && r.launches.len() < MAX_LAUNCHES) else {
        r.lost += 1;
        return result;
    };
    let (id, function, kind, config) = match what {
        What::Kernel(f, config) => (names::kernel_id(f as usize, &config), names::of(f as usize), "kernel", config),
        What::Copy(key) => (KernelId(key), None, "copy", LaunchConfig::default()),
        What::Set(key) => (KernelId(key), None, "set", LaunchConfig::default()),
    };
    let launch = Launch {
        request: r.requests - 1,
        id,
        function,
        what: kind,
        config,
        start_offset_ns: now_ns.saturating_sub(r.began_ns),
        events: [before, after],
        after_sync: std::mem::take(&mut r.synced),
    };
    r.launches.push(launch);
    result
}

/// Ends the recording; the caller has waited for the GPU. JSON lines; `Err`: how many launches could not be recorded.
pub fn stop() -> Result<String, u64> {
    let id = JOB.swap(-1, Ordering::AcqRel);
    let (Some(recording), Ok(job)) = (RECORDING.lock().take(), job::get(id)) else { return Err(0) };
    if recording.lost > 0 {
        return Err(recording.lost);
    }
    let _relaxed = RelaxedCapture::enter();
    let mut named = HashSet::new();
    let mut lines = String::new();
    for l in recording.launches {
        let mut ms = 0f32;
        // SAFETY: both events are ours and timed.
        let timed = unsafe { driver::cuEventElapsedTime(&mut ms, l.events[0] as Handle, l.events[1] as Handle) };
        if timed != driver::SUCCESS {
            return Err(1);
        }
        let mut line = json!({
            "kernel_id": format!("{:016x}", l.id.0),
            "request": l.request,
            "kind": l.what,
            "start_offset_ns": l.start_offset_ns,
            "duration_ns": ((ms * 1e6) as u64).max(1),
            "after_sync": l.after_sync,
        });
        if l.what == "kernel" {
            line["grid"] = json!(l.config.grid);
            line["block"] = json!(l.config.block);
            line["dynamic_smem_bytes"] = json!(l.config.dynamic_smem_bytes);
            line["cluster"] = json!(l.config.cluster);
        }
        if let (Some(function), true) = (l.function, named.insert(l.id)) {
            line["name"] = json!(String::from_utf8_lossy(&function.name));
        }
        lines.push_str(&line.to_string());
        lines.push('\n');
        for event in l.events {
            job.device.recycle(event, true);
        }
    }
    Ok(lines)
}
