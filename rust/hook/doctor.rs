//! What `mosaic doctor` finds out without torch: the mechanism in force, proved by one launch, and the GPUs.

use super::driver::{self, Handle};
use super::job::{self, Role};
use super::{Mechanism, device};
use serde::Serialize;
use std::ffi::{c_char, c_int};
use std::sync::atomic::Ordering;

/// A kernel that does nothing, for the proof.
const PROBE_PTX: &std::ffi::CStr =
    c".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry mosaic_probe()\n{\n ret;\n}\n";

const ATTRIBUTE_MULTIPROCESSORS: c_int = 16;
const ATTRIBUTE_MAJOR: c_int = 75;
const ATTRIBUTE_MINOR: c_int = 76;

/// Something that is wrong.
#[derive(Debug, Serialize)]
pub struct Problem {
    /// What was found.
    pub what: String,
    /// What to do.
    #[serde(rename = "do")]
    pub remedy: String,
}

/// A GPU.
#[derive(Debug, Serialize)]
pub struct Gpu {
    /// CUDA's ordinal.
    pub ordinal: i32,
    /// The product.
    pub name: String,
    /// UUID as hexadecimal digits: the name of its ledger.
    pub uuid: String,
    /// Compute capability.
    pub compute_capability: String,
    /// Streaming multiprocessors.
    pub sms: i32,
    /// Green Context partitions come in multiples of this many SMs; `None` where there are none.
    pub partition_granularity_sms: Option<u32>,
    /// One launch on it was seen by the hook.
    pub proved: bool,
    /// Who has a place in its ledger now.
    pub ledger: serde_json::Value,
    /// The ledger's file.
    pub ledger_path: String,
}

/// Everything.
#[derive(Debug, Serialize)]
pub struct Report {
    /// This build.
    pub version: &'static str,
    /// Newest CUDA that the driver supports.
    pub driver_cuda: Option<String>,
    /// The kernel module's version.
    pub driver: Option<String>,
    /// How launches are seen.
    pub mechanism: Option<Mechanism>,
    /// Proved by one launch on every GPU.
    pub proved: bool,
    /// Whether an MPS server takes this process's CUDA.
    pub mps: bool,
    /// The GPUs that this process sees.
    pub gpus: Vec<Gpu>,
    /// What is wrong.
    pub problems: Vec<Problem>,
}

/// Looks.
pub fn report() -> Report {
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION"),
        driver_cuda: None,
        driver: kernel_module_version(),
        mechanism: None,
        proved: false,
        mps: mps_control_socket_exists(),
        gpus: Vec::new(),
        problems: Vec::new(),
    };
    let mut problem = |what: String, remedy: &str| report.problems.push(Problem { what, remedy: remedy.into() });
    match super::install() {
        Ok(mechanism) => {
            match &mechanism {
                Mechanism::Detour { missing, .. } if missing.is_empty() => {}
                Mechanism::Detour { missing, .. } => problem(
                    format!("not detoured: {}", missing.join("; ")),
                    "launches are seen all the same; report it with the driver's version",
                ),
                Mechanism::Cupti { because } => problem(
                    format!("no detour ({because}); a CUPTI subscriber sees the launches"),
                    "do not use a profiler in the same process",
                ),
                Mechanism::SectionsOnly { because } => problem(
                    format!("launches are not seen: {because}"),
                    "use best_effort() sections, or allow what was refused",
                ),
            }
            report.mechanism = Some(mechanism);
        }
        Err(e) => problem(e.to_string(), "mend what it names; without a GPU only `mosaic demo` works"),
    }
    let mut version = 0;
    // SAFETY: writes one int.
    if report.mechanism.is_some() && unsafe { driver::cuDriverGetVersion(&mut version) } == driver::SUCCESS {
        report.driver_cuda = Some(format!("{}.{}", version / 1000, version % 1000 / 10));
        let mut count = 0;
        // SAFETY: initialises the driver; writes one int.
        let found = unsafe { (driver::cuInit(0), driver::cuDeviceGetCount(&mut count)) };
        if found != (driver::SUCCESS, driver::SUCCESS) || count == 0 {
            report.problems.push(Problem {
                what: format!("no GPU: cuInit answers {}, {count} devices", driver::error_name(found.0)),
                remedy: "check nvidia-smi and CUDA_VISIBLE_DEVICES; in a container start it with the GPU".into(),
            });
        }
        for ordinal in 0..count {
            match gpu(ordinal).and_then(|gpu| Ok(Gpu { proved: prove(ordinal)?, ..gpu })) {
                Ok(gpu) => report.gpus.push(gpu),
                Err(what) => report.problems.push(Problem {
                    what: format!("GPU {ordinal}: {what}"),
                    remedy: "mend what it names; other GPUs are not affected".into(),
                }),
            }
        }
    }
    report.problems.extend(
        super::problems::all()
            .into_iter()
            .map(|what| Problem { what, remedy: "mend what it names, and start this process again".into() }),
    );
    report.proved = !report.gpus.is_empty() && report.gpus.iter().all(|g| g.proved);
    for gpu in report.gpus.iter().filter(|g| !g.proved) {
        report.problems.push(Problem {
            what: format!("GPU {}: a launch was made and not seen", gpu.ordinal),
            remedy: "do not rely on mosaic in this process; report it with the driver's version".into(),
        });
    }
    report
}

/// What one GPU has, for who places work on it. Unlike the whole report it launches nothing.
pub fn device(ordinal: i32) -> Result<serde_json::Value, String> {
    let gpu = gpu(ordinal)?;
    let (lowest, highest) = device::get(ordinal).map_err(|e| e.to_string())?.priorities;
    Ok(serde_json::json!({
        "name": gpu.name,
        "compute_capability": gpu.compute_capability,
        "sms": gpu.sms,
        "granularity_sms": gpu.partition_granularity_sms,
        "priority_lowest": lowest,
        "priority_highest": highest,
    }))
}

/// All of a GPU but the proof.
fn gpu(ordinal: i32) -> Result<Gpu, String> {
    let device = device::get(ordinal).map_err(|e| e.to_string())?;
    let mut name = [0 as c_char; 128];
    // SAFETY: the buffer's size is given.
    driver::check("cuDeviceGetName", unsafe { driver::cuDeviceGetName(name.as_mut_ptr(), 128, ordinal) })
        .map_err(|e| e.to_string())?;
    let attribute = |which| {
        let mut value = 0;
        // SAFETY: writes one int.
        unsafe { driver::cuDeviceGetAttribute(&mut value, which, ordinal) };
        value
    };
    let (major, minor) = (attribute(ATTRIBUTE_MAJOR), attribute(ATTRIBUTE_MINOR));
    let name: Vec<u8> = name.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    Ok(Gpu {
        ordinal,
        name: String::from_utf8_lossy(&name).into_owned(),
        uuid: device.uuid.iter().map(|b| format!("{b:02x}")).collect(),
        compute_capability: format!("{major}.{minor}"),
        sms: attribute(ATTRIBUTE_MULTIPROCESSORS),
        partition_granularity_sms: granularity(major),
        proved: false,
        ledger: serde_json::to_value(device.ledger.describe()).unwrap_or_default(),
        ledger_path: device.ledger.path().display().to_string(),
    })
}

/// SMs per step of a partition, where this driver can make partitions (CUDA driver API, Green Contexts).
fn granularity(major: i32) -> Option<u32> {
    if driver::slot(driver::Entry::cuDeviceGetDevResource).load(Ordering::Relaxed).is_null() {
        return None;
    }
    match major {
        ..=7 => Some(2),
        8 => Some(4),
        _ => Some(8),
    }
}

fn prove(ordinal: i32) -> Result<bool, String> {
    let device = device::get(ordinal).map_err(|e| e.to_string())?;
    device.with_context(|| probe(ordinal)).map_err(|e| e.to_string())?.map_err(|e| e.to_string())
}

/// Launches one kernel, through the driver's own entry point as any caller would, and looks whether it was counted.
fn probe(ordinal: i32) -> Result<bool, job::JobError> {
    let fail = |e: driver::DriverError| job::JobError::Driver(e.to_string());
    let job = job::register("doctor", Role::Observed, ordinal, 1.0, 0)?;
    let stream = job.stream_of_thread()?;
    let (mut module, mut f): (Handle, Handle) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the image is nul-terminated PTX; handles are written; the context is current.
    unsafe {
        driver::check("cuModuleLoadData", driver::cuModuleLoadData(&mut module, PROBE_PTX.as_ptr().cast()))
            .map_err(fail)?;
        driver::check("cuModuleGetFunction", driver::cuModuleGetFunction(&mut f, module, c"mosaic_probe".as_ptr()))
            .map_err(fail)?;
    }
    let launch = driver::exported_launch().map_err(fail)?;
    let (null, stream) = (std::ptr::null_mut(), stream.handle as Handle);
    // SAFETY: a kernel without parameters on our own stream.
    unsafe {
        driver::check("cuLaunchKernel", launch(f, 1, 1, 1, 1, 1, 1, 0, stream, null, null)).map_err(fail)?;
        driver::check("cuStreamSynchronize", driver::cuStreamSynchronize(stream)).map_err(fail)?;
        driver::cuModuleUnload(module);
    }
    let seen = job.counts.kernels.load(Ordering::Relaxed) == 1;
    job::end(job.id)?;
    Ok(seen)
}

fn kernel_module_version() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    text.lines()
        .next()?
        .split_whitespace()
        .find(|w| w.split('.').count() >= 2 && w.starts_with(|c: char| c.is_ascii_digit()))
        .map(Into::into)
}

/// MPS's control daemon listens in its pipe directory.
fn mps_control_socket_exists() -> bool {
    let dir = std::env::var("CUDA_MPS_PIPE_DIRECTORY").unwrap_or_else(|_| "/tmp/nvidia-mps".into());
    std::path::Path::new(&dir).join("control").exists()
}
