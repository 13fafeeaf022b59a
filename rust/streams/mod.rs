//! Streams made through the driver, not taken from torch's pool: torch clamps priorities at -3 of -5 and hands the
//! same 32 streams out again, so a role given to one of them would leak to strangers.

pub mod numbered;
mod partition;

pub use partition::{Partition, PartitionError, split};

use crate::hook::device::Device;
use crate::hook::driver::{self, DriverError, Handle};

/// A non-blocking stream of the device's primary context, with this priority. Never destroyed.
pub fn create(device: &Device, priority: i32) -> Result<usize, DriverError> {
    let mut stream: Handle = std::ptr::null_mut();
    let made = device.with_context(|| {
        // SAFETY: writes one handle; the context is current.
        unsafe { driver::cuStreamCreateWithPriority(&mut stream, driver::STREAM_NON_BLOCKING, priority) }
    })?;
    driver::check("cuStreamCreateWithPriority", made)?;
    Ok(stream as usize)
}
