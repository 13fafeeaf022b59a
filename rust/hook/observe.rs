//! Observes what one job launches: the sequence, in order over all of its streams, with neither events nor times.
//! Launches of choice are made inside a profiler's range (Nsight Compute with `--profile-from-start off`), and launches
//! can be kept.

mod options;

pub use options::{Options, OptionsError};

use super::driver::{self, CuResult, DriverError};
use super::entry::Work;
use super::job::{self, JobError, Role, Stream};
use super::kept::{self, Fill, Given};
use super::{Mechanism, device, graphs, names};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};

#[derive(Default)]
struct Observation {
    options: Options,
    /// Launches so far, by what is launched.
    seen: HashMap<u64, u64>,
    /// Fills that nothing has followed yet, by stream.
    fills: HashMap<usize, Vec<Fill>>,
    /// JSON lines.
    lines: String,
    /// The first range that could not be begun or ended.
    failed: Option<DriverError>,
}

/// The job that is observed.
static JOB: AtomicI64 = AtomicI64::new(-1);
static OBSERVATION: Mutex<Option<Observation>> = Mutex::new(None);

/// An observation could not be started, or came to nothing.
#[derive(Debug)]
#[non_exhaustive]
pub enum ObserveError {
    /// The job is not usable.
    Job(JobError),
    /// A job of another role.
    Role(String),
    /// The options were refused.
    Options(OptionsError),
    /// Launches do not come through a detour.
    NoDetour(Option<Mechanism>),
    /// Another one is going on.
    Going,
    /// None is going on.
    None,
    /// A launch was not made inside a profiler's range, as it should have been.
    Profiler(DriverError),
}

impl fmt::Display for ObserveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObserveError::Job(e) => write!(f, "{e}"),
            ObserveError::Role(name) => {
                write!(f, "job {name:?} cannot be observed: expected one that was registered as observed")
            }
            ObserveError::Options(e) => write!(f, "{e}"),
            ObserveError::NoDetour(found) => {
                write!(f, "launches can be observed only through the detour: found {found:?}")
            }
            ObserveError::Going => f.write_str("an observation is going on: end it with mosaic_observe_stop first"),
            ObserveError::None => f.write_str("no observation is going on: call mosaic_observe_start first"),
            ObserveError::Profiler(e) => write!(f, "a chosen launch was not profiled: {e}"),
        }
    }
}

impl std::error::Error for ObserveError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ObserveError::Job(e) => Some(e),
            ObserveError::Options(e) => Some(e),
            ObserveError::Profiler(e) => Some(e),
            _ => None,
        }
    }
}

impl From<JobError> for ObserveError {
    fn from(e: JobError) -> Self {
        ObserveError::Job(e)
    }
}

impl From<OptionsError> for ObserveError {
    fn from(e: OptionsError) -> Self {
        ObserveError::Options(e)
    }
}

/// Whether this job is observed.
#[inline]
pub fn is_observed(job: i64) -> bool {
    JOB.load(Ordering::Relaxed) == job
}

/// Starts to observe a job; `options` as JSON.
pub fn start(job: i64, options: &str) -> Result<(), ObserveError> {
    let job = job::get(job)?;
    if job.role != Role::Observed {
        return Err(ObserveError::Role(job.name.clone()));
    }
    let options: Options = options.parse()?;
    match super::mechanism() {
        Some(Mechanism::Detour { .. }) => {}
        other => return Err(ObserveError::NoDetour(other)),
    }
    let mut observation = OBSERVATION.lock();
    if observation.is_some() {
        return Err(ObserveError::Going);
    }
    *observation = Some(Observation { options, ..Observation::default() });
    JOB.store(job.id, Ordering::Release);
    Ok(())
}

/// Ends the observation: JSON lines.
pub fn stop() -> Result<String, ObserveError> {
    JOB.store(-1, Ordering::Release);
    let observation = OBSERVATION.lock().take().ok_or(ObserveError::None)?;
    observation.failed.map_or(Ok(observation.lines), |e| Err(ObserveError::Profiler(e)))
}

/// Makes a launch of the observed job.
pub(super) fn launch(
    stream: &Stream,
    work: Work,
    given: Option<Given<'_>>,
    call: impl FnOnce() -> CuResult,
) -> CuResult {
    // What is captured is launched with its graph.
    if device::is_capturing(stream.handle) {
        return call();
    }
    // Held while the launch is made: the order is that of the launches, and none strays into another one's range.
    let mut observation = OBSERVATION.lock();
    match observation.as_mut() {
        Some(o) => o.launch(stream, work, given, call),
        None => call(),
    }
}

impl Observation {
    fn launch(
        &mut self,
        stream: &Stream,
        work: Work,
        given: Option<Given<'_>>,
        call: impl FnOnce() -> CuResult,
    ) -> CuResult {
        let id = work.key();
        let seen = self.seen.entry(id).or_default();
        let occurrence = *seen;
        *seen += 1;
        let profiled = self.options.profile.contains(&(id, occurrence));
        let result = if profiled { self.in_range(call) } else { call() };
        let mut line = json!({
            "kernel_id": format!("{id:016x}"),
            "kind": work.kind(),
            "stream": stream.handle,
            "occurrence": occurrence,
            "profiled": profiled,
        });
        if result != driver::SUCCESS {
            line["failed"] = json!(driver::error_name(result));
        }
        let fills = self.fills.entry(stream.handle).or_default();
        let before = std::mem::take(fills);
        if let (driver::SUCCESS, Some(Given::Fill(fill))) = (result, &given) {
            fills.extend(before.iter().chain([fill]));
        }
        match work {
            Work::Kernel { f, config } => {
                line["grid"] = json!(config.grid);
                line["block"] = json!(config.block);
                line["dynamic_smem_bytes"] = json!(config.dynamic_smem_bytes);
                line["cluster"] = json!(config.cluster);
                if let Some(function) = names::of(f as usize) {
                    line["symbol"] = json!(String::from_utf8_lossy(&function.name));
                    line["registers"] = json!(function.registers);
                    line["static_smem_bytes"] = json!(function.static_smem_bytes);
                }
                if let (true, driver::SUCCESS, Some(Given::Kernel(arguments))) = (self.options.keep, result, given) {
                    // SAFETY: the arguments of this call, which was successful and has not returned to its caller.
                    let kept = unsafe { kept::keep(stream.job.device, f, config, &arguments, &before) };
                    let (key, value) = match kept {
                        Ok(number) => ("kept", json!(number)),
                        Err(why) => ("not_kept", Value::String(why)),
                    };
                    line[key] = value;
                }
            }
            Work::Graph { exec } => line["kernels"] = json!(graphs::kernels(exec)),
            Work::Copy { .. } => {}
        }
        self.lines.push_str(&line.to_string());
        self.lines.push('\n');
        result
    }

    /// Makes the call inside a profiler's range; it is made also where there is none to be had.
    fn in_range(&mut self, call: impl FnOnce() -> CuResult) -> CuResult {
        // SAFETY: no arguments; the launching thread has the context that it launches in.
        let begun = driver::check("cuProfilerStart", unsafe { driver::cuProfilerStart() });
        let result = call();
        // SAFETY: as above.
        let ended = begun.and_then(|()| driver::check("cuProfilerStop", unsafe { driver::cuProfilerStop() }));
        if let (Err(e), None) = (ended, &self.failed) {
            self.failed = Some(e);
        }
        result
    }
}
