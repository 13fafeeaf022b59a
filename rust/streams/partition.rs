//! Partitions of a GPU's SMs (Green Contexts, CUDA driver API).

use crate::hook::device::Device;
use crate::hook::driver::{self, DriverError, Entry, Handle};
use crate::hook::job;
use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::Ordering;

const RESOURCE_SM: u32 = 1;
/// A green context has no default stream of its own; the driver wants to be told so.
const DEFAULT_STREAM: u32 = 1;

/// CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION.
const NO_SUCH_SPLIT: driver::CuResult = 915;

/// CUdevResource. Newer drivers have more to say than this build knows: there is room for it.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Resource {
    kind: u32,
    internal: [u8; 92],
    sms: u32,
    more: [u8; 156],
}

impl Resource {
    const fn empty() -> Self {
        Resource { kind: 0, internal: [0; 92], sms: 0, more: [0; 156] }
    }

    fn address(&mut self) -> Handle {
        std::ptr::from_mut(self).cast()
    }
}

/// Some of a GPU's SMs, for as long as this lives; its streams go with it.
pub struct Partition {
    device: &'static Device,
    context: usize,
    sms: u32,
    streams: Mutex<Vec<usize>>,
}

/// No such partitions.
#[derive(Debug)]
#[non_exhaustive]
pub enum PartitionError {
    /// The driver knows no green contexts.
    Unsupported {
        /// The entry point that it lacks.
        lacks: &'static str,
    },
    /// Not a number of SMs that leaves some for both.
    Size {
        /// What was asked for.
        found: u32,
        /// SMs of the GPU.
        sms: u32,
    },
    /// The driver refused.
    Driver(DriverError),
}

impl From<DriverError> for PartitionError {
    fn from(e: DriverError) -> Self {
        PartitionError::Driver(e)
    }
}

impl fmt::Display for PartitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PartitionError::Unsupported { lacks } => {
                write!(f, "this driver makes no partitions: it has no {lacks}, found before CUDA 12.4; update it")
            }
            PartitionError::Size { found, sms } => {
                write!(
                    f,
                    "found a partition of {found} SMs, expected 1 to {} of this GPU's {sms}",
                    sms.saturating_sub(1)
                )
            }
            PartitionError::Driver(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for PartitionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PartitionError::Driver(e) => Some(e),
            _ => None,
        }
    }
}

/// Splits a GPU in two: at least `sms` SMs (the driver rounds up to its granularity; [`Partition::sms`] says what it
/// gave), and the rest. Both come of one split call: those of two calls may share SMs.
pub fn split(device: &'static Device, sms: u32) -> Result<(Partition, Partition), PartitionError> {
    for entry in [Entry::cuDeviceGetDevResource, Entry::cuDevSmResourceSplitByCount, Entry::cuGreenCtxStreamCreate] {
        if driver::slot(entry).load(Ordering::Relaxed).is_null() {
            return Err(PartitionError::Unsupported { lacks: entry.symbol() });
        }
    }
    let (mut all, mut part, mut rest) = (Resource::empty(), Resource::empty(), Resource::empty());
    // SAFETY: writes one resource, for which there is room.
    let found = unsafe { driver::cuDeviceGetDevResource(device.ordinal, all.address(), RESOURCE_SM) };
    driver::check("cuDeviceGetDevResource", found)?;
    if sms == 0 || sms >= all.sms {
        return Err(PartitionError::Size { found: sms, sms: all.sms });
    }
    let mut groups = 1;
    // SAFETY: one group is asked for, so one resource is written, and the rest.
    let done = unsafe {
        driver::cuDevSmResourceSplitByCount(part.address(), &mut groups, all.address(), rest.address(), 0, sms)
    };
    if done != NO_SUCH_SPLIT {
        driver::check("cuDevSmResourceSplitByCount", done)?;
    }
    // Rounded up to the whole GPU: nothing is left.
    if done == NO_SUCH_SPLIT || groups != 1 || rest.kind != RESOURCE_SM || rest.sms == 0 {
        return Err(PartitionError::Size { found: sms, sms: all.sms });
    }
    Ok((Partition::of(device, part)?, Partition::of(device, rest)?))
}

impl Partition {
    fn of(device: &'static Device, mut resource: Resource) -> Result<Partition, PartitionError> {
        let (mut desc, mut context): (Handle, Handle) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: handles are written; the resource comes from the driver.
        unsafe {
            driver::check(
                "cuDevResourceGenerateDesc",
                driver::cuDevResourceGenerateDesc(&mut desc, resource.address(), 1),
            )?;
            let made = driver::cuGreenCtxCreate(&mut context, desc, device.ordinal, DEFAULT_STREAM);
            driver::check("cuGreenCtxCreate", made)?;
        }
        Ok(Partition { device, context: context as usize, sms: resource.sms, streams: Mutex::new(Vec::new()) })
    }

    /// How many SMs it has.
    pub fn sms(&self) -> u32 {
        self.sms
    }

    /// A new non-blocking stream whose kernels run on its SMs alone.
    pub fn stream(&self, priority: i32) -> Result<usize, PartitionError> {
        let mut stream: Handle = std::ptr::null_mut();
        // The driver makes streams under a current context.
        let made = self.device.with_context(|| {
            // SAFETY: our own green context, which lives as long as `self`; writes one handle.
            unsafe {
                driver::cuGreenCtxStreamCreate(
                    &mut stream,
                    self.context as Handle,
                    driver::STREAM_NON_BLOCKING,
                    priority,
                )
            }
        })?;
        driver::check("cuGreenCtxStreamCreate", made)?;
        self.streams.lock().push(stream as usize);
        Ok(stream as usize)
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partition").field("sms", &self.sms).finish_non_exhaustive()
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        let streams = std::mem::take(self.streams.get_mut());
        let _ = self.device.with_context(|| {
            for stream in streams {
                job::stream_destroyed(stream);
                // SAFETY: made by `stream`, destroyed once; the driver does not destroy it with its context.
                unsafe { driver::cuStreamDestroy_v2(stream as Handle) };
            }
        });
        // SAFETY: made by `of`, destroyed once. At the process's end the driver may be gone, and refuses.
        unsafe { driver::cuGreenCtxDestroy(self.context as Handle) };
    }
}
