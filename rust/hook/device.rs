//! One GPU as this process uses it: its ledger, its primary context, its pools of events.

use super::driver::{self, DriverError, Handle};
use super::tracker::BestEffort;
use crate::ledger::{Keeper, Ledger, LedgerError};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};

/// Most GPUs of one process.
pub const MAX_DEVICES: usize = 64;

/// A GPU that has at least one role in this process. Lives as long as the process.
pub struct Device {
    /// CUDA's ordinal of it, in this process.
    pub ordinal: i32,
    /// Its UUID: the name of its ledger, the same in every process and container.
    pub uuid: [u8; 16],
    /// Who runs what on it now.
    pub ledger: Arc<Ledger>,
    /// Lowest and highest stream priority (numerically greatest and least).
    pub priorities: (i32, i32),
    context: usize,
    lanes_gpu: OnceLock<Option<u64>>,
    free_events: [Mutex<Vec<usize>>; 2],
    best_effort: OnceLock<BestEffort>,
}

/// A device could not be taken into use.
#[derive(Debug)]
#[non_exhaustive]
pub enum DeviceError {
    /// The ordinal does not exist.
    Ordinal {
        /// What was asked for.
        found: i32,
        /// How many devices there are.
        count: i32,
    },
    /// The driver refused.
    Driver(String),
    /// The ledger could not be opened.
    Ledger(LedgerError),
}

impl std::fmt::Display for DeviceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DeviceError::Ordinal { found, count } => {
                write!(f, "GPU {found} does not exist: this process sees {count}; check CUDA_VISIBLE_DEVICES")
            }
            DeviceError::Driver(text) => f.write_str(text),
            DeviceError::Ledger(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for DeviceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            DeviceError::Ledger(e) => Some(e),
            _ => None,
        }
    }
}

impl From<DriverError> for DeviceError {
    fn from(e: DriverError) -> Self {
        DeviceError::Driver(e.to_string())
    }
}

impl From<LedgerError> for DeviceError {
    fn from(e: LedgerError) -> Self {
        DeviceError::Ledger(e)
    }
}

static DEVICES: [AtomicPtr<Device>; MAX_DEVICES] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_DEVICES];
static OPENING: Mutex<()> = Mutex::new(());

/// The device, opened on first use (initialises CUDA and retains the primary context).
pub fn get(ordinal: i32) -> Result<&'static Device, DeviceError> {
    let count = count()?;
    let slot = match usize::try_from(ordinal) {
        Ok(i) if ordinal < count && i < MAX_DEVICES => &DEVICES[i],
        _ => return Err(DeviceError::Ordinal { found: ordinal, count }),
    };
    if let Some(device) = opened(slot) {
        return Ok(device);
    }
    let _opening = OPENING.lock();
    if let Some(device) = opened(slot) {
        return Ok(device);
    }
    let device: &'static Device = Box::leak(Box::new(Device::open(ordinal)?));
    slot.store(std::ptr::from_ref(device).cast_mut(), Ordering::Release);
    Ok(device)
}

/// The devices opened so far.
pub fn all() -> impl Iterator<Item = &'static Device> {
    DEVICES.iter().filter_map(opened)
}

fn opened(slot: &AtomicPtr<Device>) -> Option<&'static Device> {
    // SAFETY: only `get` stores there, a leaked box.
    unsafe { slot.load(Ordering::Acquire).as_ref() }
}

fn count() -> Result<i32, DeviceError> {
    driver::load().map_err(|e| DeviceError::Driver(e.to_string()))?;
    let mut count = 0;
    // SAFETY: initialises the driver; idempotent.
    driver::check("cuInit", unsafe { driver::cuInit(0) })?;
    // SAFETY: writes one int.
    driver::check("cuDeviceGetCount", unsafe { driver::cuDeviceGetCount(&mut count) })?;
    Ok(count)
}

impl Device {
    fn open(ordinal: i32) -> Result<Device, DeviceError> {
        let (mut handle, mut uuid, mut context) = (0, [0u8; 16], std::ptr::null_mut());
        // SAFETY: plain queries into locals; the primary context is retained for the life of the process.
        unsafe {
            driver::check("cuDeviceGet", driver::cuDeviceGet(&mut handle, ordinal))?;
            driver::check("cuDeviceGetUuid", driver::cuDeviceGetUuid_v2(&mut uuid, handle))?;
            driver::check("cuDevicePrimaryCtxRetain", driver::cuDevicePrimaryCtxRetain(&mut context, handle))?;
        }
        let context = context as usize;
        let mut priorities = (0, 0);
        with_context(context, || {
            // SAFETY: writes two ints; the context is current.
            driver::check("cuCtxGetStreamPriorityRange", unsafe {
                driver::cuCtxGetStreamPriorityRange(&mut priorities.0, &mut priorities.1)
            })
        })??;
        Ok(Device {
            ordinal,
            uuid,
            ledger: Ledger::open(&crate::ledger::default_dir(), uuid)?,
            priorities,
            context,
            lanes_gpu: OnceLock::new(),
            free_events: [Mutex::new(Vec::new()), Mutex::new(Vec::new())],
            best_effort: OnceLock::new(),
        })
    }

    /// Runs `f` with this device's primary context current.
    pub fn with_context<R>(&self, f: impl FnOnce() -> R) -> Result<R, DriverError> {
        with_context(self.context, f)
    }

    /// Best-effort side of this process on this device, claimed in the ledger on first use.
    pub fn best_effort(&self, name: &str) -> Result<&BestEffort, LedgerError> {
        if let Some(be) = self.best_effort.get() {
            return Ok(be);
        }
        Keeper::get()?;
        let claimed = BestEffort::new(self.ledger.claim_be(name)?);
        Ok(self.best_effort.get_or_init(|| claimed))
    }

    /// The same, where it has been claimed.
    pub fn best_effort_if_claimed(&self) -> Option<&BestEffort> {
        self.best_effort.get()
    }

    /// An event of the pool, made if need be. `timing`: it keeps its time.
    pub fn event(&self, timing: bool) -> Option<usize> {
        if let Some(e) = self.free_events[usize::from(timing)].lock().pop() {
            return Some(e);
        }
        let mut event: Handle = std::ptr::null_mut();
        let flags = if timing { driver::EVENT_TIMING } else { driver::EVENT_NO_TIMING };
        // SAFETY: writes one handle; the context is current.
        let made = self.with_context(|| unsafe { driver::cuEventCreate(&mut event, flags) });
        matches!(made, Ok(driver::SUCCESS)).then_some(event as usize)
    }

    /// Gives an event back.
    pub fn recycle(&self, event: usize, timing: bool) {
        self.free_events[usize::from(timing)].lock().push(event);
    }

    /// GPU address of a word of the ledger's page, if the GPU can write there: the page is registered with CUDA on
    /// first use, which a driver or a container may refuse.
    pub fn gpu_address(&self, word: *const std::sync::atomic::AtomicU32) -> Option<u64> {
        let (page, bytes) = self.ledger.gpu_page();
        let base = self.lanes_gpu.get_or_init(|| {
            self.with_context(|| {
                let mut address = 0;
                // SAFETY: the page stays mapped for the life of the process (the ledger is never dropped).
                unsafe {
                    let registered = driver::cuMemHostRegister_v2(page.cast(), bytes, driver::HOST_REGISTER_MAPPED);
                    (registered == driver::SUCCESS
                        && driver::cuMemHostGetDevicePointer_v2(&mut address, page.cast(), 0) == driver::SUCCESS)
                        .then_some(address)
                }
            })
            .ok()
            .flatten()
        });
        let offset = (word as usize).checked_sub(page as usize).filter(|o| *o < bytes)?;
        base.map(|b| b + offset as u64)
    }

    /// Whether request ends are written by the GPU itself (the fast form), if that was tried.
    pub fn gpu_writes(&self) -> Option<bool> {
        self.lanes_gpu.get().map(Option::is_some)
    }
}

/// Runs `f` with `context` current in this thread, and so that nothing it does breaks another thread's capture.
fn with_context<R>(context: usize, f: impl FnOnce() -> R) -> Result<R, DriverError> {
    let _relaxed = RelaxedCapture::enter();
    let mut current: Handle = std::ptr::null_mut();
    // SAFETY: writes one handle.
    if unsafe { driver::cuCtxGetCurrent(&mut current) } == driver::SUCCESS && current as usize == context {
        return Ok(f());
    }
    // SAFETY: `context` is the retained primary context; it is popped again below.
    driver::check("cuCtxPushCurrent", unsafe { driver::cuCtxPushCurrent_v2(context as Handle) })?;
    let result = f();
    // SAFETY: pops what was pushed above.
    unsafe { driver::cuCtxPopCurrent_v2(&mut current) };
    Ok(result)
}

/// While this lives, driver calls of this thread cannot invalidate a capture that another thread has open.
pub struct RelaxedCapture {
    previous: std::ffi::c_uint,
}

impl RelaxedCapture {
    /// Sets this thread's capture mode to relaxed.
    pub fn enter() -> Self {
        let mut mode = driver::CAPTURE_RELAXED;
        // SAFETY: exchanges one value of this thread.
        unsafe { driver::cuThreadExchangeStreamCaptureMode(&mut mode) };
        RelaxedCapture { previous: mode }
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { driver::cuThreadExchangeStreamCaptureMode(&mut self.previous) };
    }
}

/// Whether work sent to `stream` now would go into a graph instead of to the GPU. The legacy stream counts as capturing
/// while a blocking stream of its context is: nothing may be asked of it, or that capture breaks.
pub fn is_capturing(stream: usize) -> bool {
    let mut status = 0;
    // SAFETY: writes one number; a bad stream is answered with an error.
    let r = unsafe { driver::cuStreamIsCapturing(stream as Handle, &mut status) };
    r == driver::CAPTURE_IMPLICIT || (r == driver::SUCCESS && status != 0)
}
