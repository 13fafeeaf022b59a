//! Kernel traces: what one job launched, and when. JSON lines, UTF-8, one object a line.
//!
//! # First line: where the trace comes from
//!
//! | key | type | meaning |
//! |---|---|---|
//! | `format` | string | `"mosaic-trace"` |
//! | `version` | integer | `1`; raised whenever a reader of this version would misread the file |
//! | `gpu`, `driver`, `cuda`, `torch` | string | names and versions as the machine reports them |
//! | `command` | string | the command that makes this file again |
//! | `date` | string | ISO 8601 |
//! | `workload` | string | model, precision, batch, shape |
//! | `kernels` | integer, optional | number of lines that follow; checked, so that a truncated file is refused |
//! | `gpu_gap_ns` | integer, optional, 0 | idle GPU time between two back-to-back kernels; 0 where durations contain it |
//! | `beside` | array, optional | measured co-location, see [`Beside`] |
//!
//! None may be blank; other keys may be added and are ignored.
//!
//! # Every other line: one kernel, copy or memset, in launch order
//!
//! | key | type | meaning |
//! |---|---|---|
//! | `kernel_id` | string | [`KernelId`] as 16 hexadecimal digits (a JSON number would lose bits in many readers) |
//! | `name` | string, optional | mangled name; on the first line of each `kernel_id` only, to keep files small |
//! | `kind` | string, optional, `"kernel"` | `"kernel"`, `"copy"` or `"set"` |
//! | `request` | integer, optional, 0 | which request of the recording, counted from 0 without gaps |
//! | `start_offset_ns` | integer | host time of the launch call since its request began; never falls within a request |
//! | `duration_ns` | integer, at least 1 | GPU time, alone on the GPU |
//! | `grid`, `block` | three integers, at least 1 | launch configuration; left out (or zeros) for copies and memsets |
//! | `dynamic_smem_bytes` | integer, optional, 0 | dynamic shared memory of a block |
//! | `cluster` | three integers, optional, zeros | blocks of a cluster |
//! | `after_sync` | boolean, optional, false | the host had waited for all earlier work of the request before this launch |
//!
//! An unknown key is an error: a misspelt optional key must not pass for its default.
//!
//! Record a job alone and with nothing gated, or its waits in the gate become part of `start_offset_ns`.

use std::{collections::BTreeMap, fmt, io, io::Read, path::Path, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::kernel::{KernelId, LaunchConfig};

const FORMAT: &str = "mosaic-trace";
const VERSION: u32 = 1;
/// Largest file that is read.
pub const MAX_BYTES: u64 = 64 << 20;
/// Most kernels of a trace.
pub const MAX_KERNELS: usize = 1 << 20;
/// Longest request: its last launch plus its GPU time. It keeps every sum of a replay far from overflow.
pub const MAX_REQUEST_NS: u64 = 60_000_000_000;
/// Largest slowdown of a co-location.
pub const MAX_SLOWDOWN_RATIO: f64 = 100.0;
const MAX_GAP_NS: u64 = 1_000_000;

/// One job's recorded requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Where it comes from.
    pub provenance: Provenance,
    /// Mangled names.
    pub names: BTreeMap<KernelId, String>,
    /// At least one request, each with at least one kernel.
    pub requests: Vec<Vec<TraceKernel>>,
}

/// The first line. The module's table says what each key means.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Provenance {
    pub format: String,
    pub version: u32,
    pub gpu: String,
    pub driver: String,
    pub cuda: String,
    pub torch: String,
    pub command: String,
    pub date: String,
    pub workload: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernels: Option<u64>,
    #[serde(default)]
    pub gpu_gap_ns: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<Beside>,
}

/// How much slower this BE job and an HP job ran beside each other without control, both in a closed loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beside {
    /// `workload` of the HP job's trace.
    pub hp_workload: String,
    /// HP's colocated over isolated time, at least 1.
    pub hp_slowdown_ratio: f64,
    /// BE's colocated over isolated time, at least 1.
    pub be_slowdown_ratio: f64,
    /// The record that holds the measurement.
    pub source: String,
}

/// What a line stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A kernel launch.
    #[default]
    Kernel,
    /// An asynchronous copy.
    Copy,
    /// An asynchronous memset.
    Set,
}

/// One launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceKernel {
    /// Identity.
    pub id: KernelId,
    /// Kernel, copy or memset.
    pub kind: Kind,
    /// Host time of the launch call since the request began.
    pub start_offset_ns: u64,
    /// GPU time, alone on the GPU.
    pub duration_ns: u64,
    /// Launch configuration; zeros for copies and memsets.
    pub config: LaunchConfig,
    /// The host had waited for all earlier work of the request.
    pub after_sync: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    kernel_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    kind: Kind,
    #[serde(default, skip_serializing_if = "is_default")]
    request: u32,
    start_offset_ns: u64,
    duration_ns: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    grid: [u32; 3],
    #[serde(default, skip_serializing_if = "is_default")]
    block: [u32; 3],
    #[serde(default, skip_serializing_if = "is_default")]
    dynamic_smem_bytes: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    cluster: [u32; 3],
    #[serde(default, skip_serializing_if = "is_default")]
    after_sync: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Trace {
    /// Reads and checks a file.
    pub fn read(path: &Path) -> Result<Trace, TraceError> {
        let io = |source| TraceError::Io { path: path.to_owned(), source };
        let mut bytes = Vec::new();
        std::fs::File::open(path).map_err(io)?.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
        Trace::parse(&bytes)
    }

    /// Checks a trace held in memory.
    pub fn parse(bytes: &[u8]) -> Result<Trace, TraceError> {
        if bytes.len() as u64 > MAX_BYTES {
            return Err(TraceError::TooLarge { limit_bytes: MAX_BYTES });
        }
        let mut lines = bytes.strip_suffix(b"\n").unwrap_or(bytes).split(|b| *b == b'\n');
        let first = lines.next().filter(|l| !l.is_empty()).ok_or(TraceError::Empty)?;
        let provenance: Provenance =
            serde_json::from_slice(first).map_err(|source| TraceError::Json { line: 1, source })?;
        check_provenance(&provenance)?;

        let mut names = BTreeMap::new();
        let mut requests: Vec<Vec<TraceKernel>> = Vec::new();
        let mut count = 0;
        let mut gpu_ns = 0u64;
        for (index, text) in lines.enumerate() {
            let line = index + 2;
            if count == MAX_KERNELS {
                return Err(TraceError::TooManyKernels { limit: MAX_KERNELS });
            }
            count += 1;
            let parsed: Line = serde_json::from_slice(text).map_err(|source| TraceError::Json { line, source })?;
            let kernel = check_line(&parsed, line)?;
            check_name(&mut names, kernel.id, parsed.name, line)?;

            let request = parsed.request as usize;
            if request == requests.len() {
                requests.push(Vec::new());
                gpu_ns = 0;
            } else if request + 1 != requests.len() {
                let expected = requests.len().saturating_sub(1);
                return Err(TraceError::Request { line, found: parsed.request, expected });
            }
            let Some(kernels) = requests.last_mut() else { return Err(TraceError::NoKernels) };
            if let Some(previous) = kernels.last().filter(|p| p.start_offset_ns > kernel.start_offset_ns) {
                return Err(TraceError::Order {
                    line,
                    found_ns: kernel.start_offset_ns,
                    previous_ns: previous.start_offset_ns,
                });
            }
            gpu_ns = gpu_ns.saturating_add(kernel.duration_ns);
            if gpu_ns.saturating_add(kernel.start_offset_ns) > MAX_REQUEST_NS {
                return Err(TraceError::TooLong { line, limit_ns: MAX_REQUEST_NS });
            }
            kernels.push(kernel);
        }
        if requests.is_empty() {
            return Err(TraceError::NoKernels);
        }
        if let Some(expected) = provenance.kernels.filter(|k| *k != count as u64) {
            return Err(TraceError::Truncated { found: count, expected });
        }
        Ok(Trace { provenance, names, requests })
    }

    /// The file's text.
    pub fn to_jsonl(&self) -> Result<String, serde_json::Error> {
        let mut text = serde_json::to_string(&self.provenance)? + "\n";
        let mut named = std::collections::BTreeSet::new();
        for (request, kernels) in self.requests.iter().enumerate() {
            for k in kernels {
                let name = if named.insert(k.id) { self.names.get(&k.id).cloned() } else { None };
                let line = Line {
                    kernel_id: format!("{:016x}", k.id.0),
                    name,
                    kind: k.kind,
                    request: request as u32,
                    start_offset_ns: k.start_offset_ns,
                    duration_ns: k.duration_ns,
                    grid: k.config.grid,
                    block: k.config.block,
                    dynamic_smem_bytes: k.config.dynamic_smem_bytes,
                    cluster: k.config.cluster,
                    after_sync: k.after_sync,
                };
                text += &serde_json::to_string(&line)?;
                text.push('\n');
            }
        }
        Ok(text)
    }

    /// One request that stands for all: of each launch the smallest duration (queued behind others it holds no launch
    /// latency) and the median host time. All requests must launch the same.
    pub fn condense(&self) -> Result<Trace, CondenseError> {
        let mut request = Vec::new();
        let first = self.requests.first().map_or(&[][..], Vec::as_slice);
        for (index, other) in self.requests.iter().enumerate() {
            let differs = first.iter().zip(other).position(|(a, b)| a.id != b.id);
            if differs.is_some() || other.len() != first.len() {
                let launch = differs.unwrap_or(first.len().min(other.len()));
                return Err(CondenseError::Differs { request: index, launch });
            }
        }
        for (position, kernel) in first.iter().enumerate() {
            let same: Vec<&TraceKernel> = self.requests.iter().filter_map(|r| r.get(position)).collect();
            let mut offsets_ns: Vec<u64> = same.iter().map(|k| k.start_offset_ns).collect();
            offsets_ns.sort_unstable();
            request.push(TraceKernel {
                start_offset_ns: offsets_ns.get(offsets_ns.len() / 2).copied().unwrap_or(kernel.start_offset_ns),
                duration_ns: same.iter().map(|k| k.duration_ns).min().unwrap_or(kernel.duration_ns),
                after_sync: 2 * same.iter().filter(|k| k.after_sync).count() > same.len(),
                ..*kernel
            });
        }
        let provenance = Provenance { kernels: Some(request.len() as u64), ..self.provenance.clone() };
        Ok(Trace { provenance, names: self.names.clone(), requests: vec![request] })
    }

    /// Launches of all requests.
    pub fn kernels(&self) -> impl Iterator<Item = &TraceKernel> {
        self.requests.iter().flatten()
    }
}

fn check_provenance(p: &Provenance) -> Result<(), TraceError> {
    if p.format != FORMAT {
        return Err(TraceError::Format { found: p.format.clone() });
    }
    if p.version != VERSION {
        return Err(TraceError::Version { found: p.version });
    }
    let texts = [
        ("gpu", &p.gpu),
        ("driver", &p.driver),
        ("cuda", &p.cuda),
        ("torch", &p.torch),
        ("command", &p.command),
        ("date", &p.date),
        ("workload", &p.workload),
    ];
    if let Some((field, _)) = texts.iter().find(|(_, text)| text.trim().is_empty()) {
        return Err(TraceError::Blank { field });
    }
    if p.gpu_gap_ns > MAX_GAP_NS {
        return Err(field_error(1, "gpu_gap_ns", p.gpu_gap_ns, "at most one millisecond in nanoseconds"));
    }
    for b in &p.beside {
        for (field, ratio) in [("hp_slowdown_ratio", b.hp_slowdown_ratio), ("be_slowdown_ratio", b.be_slowdown_ratio)] {
            if !(1.0..=MAX_SLOWDOWN_RATIO).contains(&ratio) {
                return Err(field_error(1, field, ratio, "a ratio from 1 to 100"));
            }
        }
    }
    Ok(())
}

fn check_line(l: &Line, line: usize) -> Result<TraceKernel, TraceError> {
    let id = Some(&l.kernel_id)
        .filter(|s| s.len() == 16 && s.bytes().all(|b| b.is_ascii_hexdigit()))
        .and_then(|s| u64::from_str_radix(s, 16).ok())
        .ok_or_else(|| field_error(line, "kernel_id", &l.kernel_id, "16 hexadecimal digits"))?;
    if l.duration_ns == 0 {
        return Err(field_error(line, "duration_ns", l.duration_ns, "at least 1"));
    }
    for (field, dims) in [("grid", l.grid), ("block", l.block)] {
        if l.kind == Kind::Kernel && dims.contains(&0) {
            return Err(field_error(
                line,
                field,
                format_args!("{dims:?}"),
                "three integers of at least 1 for a kernel",
            ));
        }
    }
    Ok(TraceKernel {
        id: KernelId(id),
        kind: l.kind,
        start_offset_ns: l.start_offset_ns,
        duration_ns: l.duration_ns,
        config: LaunchConfig {
            grid: l.grid,
            block: l.block,
            dynamic_smem_bytes: l.dynamic_smem_bytes,
            cluster: l.cluster,
        },
        after_sync: l.after_sync,
    })
}

fn check_name(
    names: &mut BTreeMap<KernelId, String>,
    id: KernelId,
    name: Option<String>,
    line: usize,
) -> Result<(), TraceError> {
    let Some(name) = name else { return Ok(()) };
    match names.get(&id) {
        Some(known) if *known != name => Err(TraceError::Name { line, found: name, previous: known.clone() }),
        Some(_) => Ok(()),
        None => {
            names.insert(id, name);
            Ok(())
        }
    }
}

fn field_error(line: usize, field: &'static str, found: impl fmt::Display, expected: &'static str) -> TraceError {
    TraceError::Field { line, field, found: found.to_string(), expected }
}

/// Why a trace was refused. Lines count from 1.
#[derive(Debug)]
#[non_exhaustive]
pub enum TraceError {
    /// The file could not be read.
    Io {
        /// Its path.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file is larger than any trace.
    TooLarge {
        /// The limit.
        limit_bytes: u64,
    },
    /// There is no first line.
    Empty,
    /// A line is not JSON, or lacks a key, or has an unknown one.
    Json {
        /// Where.
        line: usize,
        /// What serde found.
        source: serde_json::Error,
    },
    /// The first line names another format.
    Format {
        /// What it names.
        found: String,
    },
    /// The file is of another version.
    Version {
        /// Its version.
        found: u32,
    },
    /// A text of the first line is blank.
    Blank {
        /// Which.
        field: &'static str,
    },
    /// A value is out of range.
    Field {
        /// Where.
        line: usize,
        /// Which key.
        field: &'static str,
        /// Its value.
        found: String,
        /// What it must be.
        expected: &'static str,
    },
    /// A launch stands before the one above it.
    Order {
        /// Where.
        line: usize,
        /// Its offset.
        found_ns: u64,
        /// The offset above.
        previous_ns: u64,
    },
    /// Request numbers jump or go back.
    Request {
        /// Where.
        line: usize,
        /// Its number.
        found: u32,
        /// The request that the line above belongs to.
        expected: usize,
    },
    /// A request is longer than any.
    TooLong {
        /// Where its time passes the limit.
        line: usize,
        /// The limit.
        limit_ns: u64,
    },
    /// One kernel_id has two names.
    Name {
        /// Where.
        line: usize,
        /// The second name.
        found: String,
        /// The first.
        previous: String,
    },
    /// There are more kernels than a trace may have.
    TooManyKernels {
        /// The limit.
        limit: usize,
    },
    /// No kernel follows the first line.
    NoKernels,
    /// The number of kernels is not the one that the first line gives.
    Truncated {
        /// Lines found.
        found: usize,
        /// Lines promised.
        expected: u64,
    },
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, source } => write!(f, "cannot read trace {}: {source}", path.display()),
            Self::TooLarge { limit_bytes } => write!(f, "trace is larger than {limit_bytes} bytes"),
            Self::Empty => write!(f, "trace is empty, expected a first line that says where it comes from"),
            Self::Json { line, source } => {
                // serde counts lines within this one.
                let text = source.to_string();
                let text = text.split_once(" at line ").map_or(text.as_str(), |(what, _)| what);
                write!(f, "line {line} of the trace: {text} (column {})", source.column())
            }
            Self::Format { found } => write!(f, "not a kernel trace: format is {found:?}, expected {FORMAT:?}"),
            Self::Version { found } => {
                write!(f, "trace is of version {found}, this build reads version {VERSION}: record it again")
            }
            Self::Blank { field } => write!(f, "{field} is blank on line 1: a trace must say where it comes from"),
            Self::Field { line, field, found, expected } => {
                write!(f, "line {line} of the trace: {field} is {found}, expected {expected}")
            }
            Self::Order { line, found_ns, previous_ns } => {
                write!(
                    f,
                    "line {line} of the trace: launched at {found_ns} ns, before the line above ({previous_ns} ns)"
                )
            }
            Self::Request { line, found, expected } => write!(
                f,
                "line {line} of the trace: request is {found}, expected {expected} or one more (requests count from 0)"
            ),
            Self::TooLong { line, limit_ns } => {
                write!(f, "line {line} of the trace: the request takes more than {limit_ns} ns")
            }
            Self::Name { line, found, previous } => {
                write!(f, "line {line} of the trace: kernel_id is named {found:?} here and {previous:?} above")
            }
            Self::TooManyKernels { limit } => write!(f, "trace has more than {limit} kernels"),
            Self::NoKernels => write!(f, "trace has no kernels after its first line"),
            Self::Truncated { found, expected } => {
                write!(f, "trace has {found} kernels, its first line promises {expected}: the file is incomplete")
            }
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Json { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Why requests could not be condensed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CondenseError {
    /// A request launches something else than the first.
    Differs {
        /// Which request, from 0.
        request: usize,
        /// Its first launch that differs, from 0.
        launch: usize,
    },
}

impl fmt::Display for CondenseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Differs { request, launch } = self;
        write!(
            f,
            "request {request} differs from request 0 from launch {launch} on: record more warm-up before, and requests \
             of one shape"
        )
    }
}

impl std::error::Error for CondenseError {}

#[cfg(test)]
mod tests;
