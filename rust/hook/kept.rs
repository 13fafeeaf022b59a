//! Launches that are kept: deep copies of their parameters, so that the very kernel can be launched again later, on any
//! stream, past the hook; with the fills right before it, since such a kernel counts on cleared memory.
//!
//! A copy holds what the launch held: the addresses among its parameters must still mean something when it is launched
//! again, and the module of its kernel must still be loaded. The driver answers nothing about a handle that is gone, so
//! both are the caller's to see to.

use super::device::Device;
use super::driver::{self, DriverError, Handle, LaunchAttribute, LaunchConfigEx};
use super::names;
use crate::kernel::LaunchConfig;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

/// What a kernel is launched with beside its configuration, as the caller gave it.
pub struct Arguments<'a> {
    /// An array of the parameters' addresses, or null.
    pub params: *mut Handle,
    /// The other form, a list that names a buffer of all parameters, or null.
    pub extra: *mut Handle,
    /// Launch attributes.
    pub attributes: &'a [LaunchAttribute],
}

impl Arguments<'static> {
    /// Those of cuLaunchCooperativeKernel.
    pub fn cooperative(params: *mut Handle) -> Self {
        Arguments { params, extra: std::ptr::null_mut(), attributes: &driver::COOPERATIVE }
    }
}

/// What a launch was given beside its description, as far as it can be kept.
pub enum Given<'a> {
    /// A kernel's.
    Kernel(Arguments<'a>),
    /// A fill's.
    Fill(Fill),
}

/// A fill of device memory.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    /// Where.
    pub to: u64,
    /// With what.
    pub value: u32,
    /// Bits of the value that count: 8, 16 or 32.
    pub bits: u8,
    /// Values of a row.
    pub width: usize,
    /// Bytes from one row to the next, and the number of rows; `None`: one row.
    pub rows: Option<(usize, usize)>,
}

impl Fill {
    fn launch(&self, stream: Handle) -> Result<(), DriverError> {
        let Fill { to, value, bits, width, rows } = *self;
        // SAFETY: what was filled before; the caller of `launch` answers for the memory.
        let filled = unsafe {
            match (bits, rows) {
                (8, None) => driver::cuMemsetD8Async(to, value, width, stream),
                (16, None) => driver::cuMemsetD16Async(to, value, width, stream),
                (_, None) => driver::cuMemsetD32Async(to, value, width, stream),
                (8, Some((pitch, rows))) => driver::cuMemsetD2D8Async(to, pitch, value, width, rows, stream),
                (16, Some((pitch, rows))) => driver::cuMemsetD2D16Async(to, pitch, value, width, rows, stream),
                (_, Some((pitch, rows))) => driver::cuMemsetD2D32Async(to, pitch, value, width, rows, stream),
            }
        };
        driver::check("cuMemsetAsync", filled)
    }
}

struct Kept {
    device: &'static Device,
    fills: Vec<Fill>,
    f: usize,
    config: LaunchConfig,
    attributes: Vec<LaunchAttribute>,
    parameters: Parameters,
}

/// Parameter memory of a kernel, in the form in which the caller gave it.
#[derive(Debug)]
enum Parameters {
    /// One by one; where each begins.
    Each(Vec<u8>, Vec<usize>),
    /// As one buffer.
    Buffer(Vec<u8>),
}

/// The kept launches, and how many were dropped before: a number never comes to mean another launch.
struct Store {
    dropped: i64,
    launches: Vec<Arc<Kept>>,
}

static STORE: Mutex<Store> = Mutex::new(Store { dropped: 0, launches: Vec::new() });

/// A kept launch could not be launched again.
#[derive(Debug)]
#[non_exhaustive]
pub enum KeptError {
    /// No such launch.
    Unknown(i64),
    /// The driver refused.
    Driver(DriverError),
}

impl fmt::Display for KeptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeptError::Unknown(n) => {
                write!(f, "no kept launch has number {n}: it was never kept, or was dropped by mosaic_kept_clear")
            }
            KeptError::Driver(e) => write!(f, "the kept launch failed: {e}"),
        }
    }
}

impl std::error::Error for KeptError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            KeptError::Driver(e) => Some(e),
            KeptError::Unknown(_) => None,
        }
    }
}

/// Drops all kept launches.
pub fn clear() {
    let mut store = STORE.lock();
    store.dropped += store.launches.len() as i64;
    store.launches.clear();
}

/// Keeps a launch that the driver has just taken, with the fills right before it, and says by which number; or why it
/// cannot be kept.
///
/// # Safety
/// The arguments are those of a successful launch of `f`, whose caller has not got them back yet.
pub unsafe fn keep(
    device: &'static Device,
    f: Handle,
    config: LaunchConfig,
    arguments: &Arguments<'_>,
    fills: &[Fill],
) -> Result<i64, String> {
    if let Some(a) = arguments.attributes.iter().find(|a| driver::ATTRS_WITH_EVENT.contains(&a.id)) {
        return Err(format!("its launch attribute {} names an event, which a later launch must not use", a.id));
    }
    // SAFETY: the caller's promise.
    let parameters = unsafe { parameters(f, arguments) }?;
    // Launched alone or again and again it must not overlap what happens to stand before it.
    let attributes = arguments.attributes.iter().filter(|a| a.id != driver::ATTR_OVERLAPS).copied().collect();
    let kept = Arc::new(Kept { device, fills: fills.to_vec(), f: f as usize, config, attributes, parameters });
    let mut store = STORE.lock();
    store.launches.push(kept);
    Ok(store.dropped + store.launches.len() as i64 - 1)
}

/// Makes the fills of a kept launch again, on this stream.
pub fn fill(number: i64, stream: usize) -> Result<(), KeptError> {
    again(number, |kept| kept.fills.iter().try_for_each(|fill| fill.launch(stream as Handle)))
}

/// Launches a kept launch again, on this stream.
pub fn launch(number: i64, stream: usize) -> Result<(), KeptError> {
    again(number, |kept| kept.launch(stream))
}

/// Does it with the launch of this number, in its device's context.
fn again(number: i64, what: impl FnOnce(&Kept) -> Result<(), DriverError>) -> Result<(), KeptError> {
    let kept = {
        let store = STORE.lock();
        let at = number.checked_sub(store.dropped).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| store.launches.get(at)).cloned().ok_or(KeptError::Unknown(number))?
    };
    kept.device.with_context(|| what(&kept)).and_then(|done| done).map_err(KeptError::Driver)
}

impl Kept {
    /// Through cuLaunchKernelEx, which the other forms are short for; the device's context is current.
    fn launch(&self, stream: usize) -> Result<(), DriverError> {
        let config = LaunchConfigEx {
            grid: self.config.grid,
            block: self.config.block,
            shared_mem_bytes: self.config.dynamic_smem_bytes,
            stream: stream as Handle,
            attrs: self.attributes.as_ptr(),
            num_attrs: self.attributes.len() as u32,
        };
        let address = |bytes: &[u8]| bytes.as_ptr().cast_mut().cast();
        let f = self.f as Handle;
        let launched = match &self.parameters {
            Parameters::Each(bytes, offsets) => {
                let mut params: Vec<Handle> = offsets.iter().map(|offset| address(&bytes[*offset..])).collect();
                // SAFETY: as many addresses as the kernel has parameters, each of memory of its size, which is read.
                unsafe { driver::cuLaunchKernelEx(&config, f, params.as_mut_ptr(), std::ptr::null_mut()) }
            }
            Parameters::Buffer(bytes) => {
                let mut size = bytes.len();
                let mut extra = [
                    driver::EXTRA_BUFFER_POINTER as Handle,
                    address(bytes),
                    driver::EXTRA_BUFFER_SIZE as Handle,
                    (&raw mut size).cast(),
                    driver::EXTRA_END as Handle,
                ];
                // SAFETY: a list with its end, which names a buffer of this size, which is read.
                unsafe { driver::cuLaunchKernelEx(&config, f, std::ptr::null_mut(), extra.as_mut_ptr()) }
            }
        };
        driver::check("cuLaunchKernelEx", launched)
    }
}

/// Copies a launch's parameters.
///
/// # Safety
/// As [`keep`].
unsafe fn parameters(f: Handle, arguments: &Arguments<'_>) -> Result<Parameters, String> {
    if !arguments.extra.is_null() {
        // SAFETY: the caller's promise.
        return unsafe { buffer(arguments.extra) }.map(Parameters::Buffer);
    }
    let function = names::of(f as usize).ok_or("the driver has no name for its function")?;
    let layout = layout(f, function.is_kernel).map_err(|e| format!("its parameters are not known: {e}"))?;
    if arguments.params.is_null() && !layout.is_empty() {
        return Err(format!("it has {} parameters, and was launched without", layout.len()));
    }
    let mut bytes = vec![0; layout.iter().map(|(offset, size)| offset + size).max().unwrap_or(0)];
    for (i, &(offset, size)) in layout.iter().enumerate() {
        // SAFETY: the launch succeeded, so there is an address for each parameter, of as much memory as it takes.
        unsafe {
            let parameter = (*arguments.params.add(i)).cast::<u8>();
            std::ptr::copy_nonoverlapping(parameter, bytes[offset..].as_mut_ptr(), size);
        }
    }
    Ok(Parameters::Each(bytes, layout.into_iter().map(|(offset, _)| offset).collect()))
}

/// Offset and size of each parameter of a kernel.
fn layout(f: Handle, is_kernel: bool) -> Result<Vec<(usize, usize)>, DriverError> {
    let what = if is_kernel { "cuKernelGetParamInfo" } else { "cuFuncGetParamInfo" };
    let mut all = Vec::new();
    loop {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: a live handle of this kind; two numbers are written.
        let answer = unsafe {
            match is_kernel {
                true => driver::cuKernelGetParamInfo(f, all.len(), &mut offset, &mut size),
                false => driver::cuFuncGetParamInfo(f, all.len(), &mut offset, &mut size),
            }
        };
        match answer {
            driver::INVALID_VALUE => return Ok(all),
            driver::NOT_FOUND => return Err(DriverError::Symbol(what)),
            _ => driver::check(what, answer)?,
        }
        all.push((offset, size));
    }
}

/// The buffer that an `extra` list names.
///
/// # Safety
/// The list has its end, and what it names is readable.
unsafe fn buffer(mut extra: *const Handle) -> Result<Vec<u8>, String> {
    let (mut address, mut size): (*const u8, usize) = (std::ptr::null(), 0);
    loop {
        // SAFETY: the caller's promise: keys that are not the end have a value behind them.
        unsafe {
            match *extra as usize {
                driver::EXTRA_END => break,
                driver::EXTRA_BUFFER_POINTER => address = (*extra.add(1)).cast(),
                driver::EXTRA_BUFFER_SIZE => size = *(*extra.add(1)).cast(),
                key => return Err(format!("its parameters are given in a form that is not known (key {key})")),
            }
            extra = extra.add(2);
        }
    }
    if address.is_null() {
        return Ok(Vec::new());
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(address, size) }.to_vec())
}
