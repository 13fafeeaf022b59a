//! The one cxx bridge: the two hot calls of the C++ extension. C++ calls Rust, never the other way round.
//!
//! The functions only translate and forward to `hook::api`; a panic becomes an error, since cxx would abort the process.
//! Everything that is not on a request's path goes through the C ABI (`cpp/include/mosaic.h`).

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::OnceLock,
};

use crate::hook::api;

#[cxx::bridge(namespace = "mosaic::bridge")]
mod ffi {
    /// What entering a section gave.
    struct Entered {
        /// Names the section to `leave`; 0 when there is nothing to leave.
        ctx: u64,
        /// The job's stream (a CUstream), or 0 when the caller's stream is already the job's.
        stream: u64,
    }

    extern "Rust" {
        fn require_device(device: i32) -> Result<()>;
        fn enter(job: i64, request: i64, device: i32, caller_stream: usize) -> Result<Entered>;
        fn leave(ctx: u64, ok: bool) -> Result<()>;
    }
}

/// Why a call of the bridge failed; C++ gets its text and torch raises it as a `RuntimeError`.
#[derive(Debug)]
#[non_exhaustive]
enum BridgeError {
    /// The launch path refused.
    Api(api::ApiError),
    /// There is no CUDA driver, or it does not work.
    NoDriver(String),
    /// The driver has fewer devices than asked for.
    NoDevice { device: i32, count: i32 },
    /// A bug of ours: caught here so that the process lives on.
    Panicked(String),
}

impl fmt::Display for BridgeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Api(error) => write!(f, "mosaic: {error}"),
            Self::NoDriver(found) => write!(
                f,
                "mosaic: no usable CUDA driver ({found}): a job needs an NVIDIA GPU; run `mosaic doctor` on this machine"
            ),
            Self::NoDevice { device, count } => write!(
                f,
                "mosaic: device {device} does not exist: the CUDA driver shows {count} device(s); look at \
                 CUDA_VISIBLE_DEVICES"
            ),
            Self::Panicked(text) => write!(f, "mosaic: internal error, please report it: {text}"),
        }
    }
}

impl std::error::Error for BridgeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Api(error) => Some(error),
            Self::NoDriver(_) | Self::NoDevice { .. } | Self::Panicked(_) => None,
        }
    }
}

/// Refuses a device that the driver does not have, before torch is asked for its stream: torch would print a back trace.
fn require_device(device: i32) -> Result<(), BridgeError> {
    guarded(|| {
        let count = device_count()?;
        if (0..count).contains(&device) { Ok(()) } else { Err(BridgeError::NoDevice { device, count }) }
    })
}

fn enter(job: i64, request: i64, device: i32, caller_stream: usize) -> Result<ffi::Entered, BridgeError> {
    guarded(|| {
        let entered = api::enter(job, request, device, caller_stream).map_err(BridgeError::Api)?;
        Ok(ffi::Entered { ctx: entered.ctx, stream: entered.stream })
    })
}

fn leave(ctx: u64, ok: bool) -> Result<(), BridgeError> {
    guarded(|| api::leave(ctx, ok).map_err(BridgeError::Api))
}

/// The driver's device count; asked once, and again only after a failure.
fn device_count() -> Result<i32, BridgeError> {
    static COUNT: OnceLock<i32> = OnceLock::new();
    if let Some(&count) = COUNT.get() {
        return Ok(count);
    }
    // SAFETY: opens the CUDA driver's library by its system name, whose initialisers are made to run in any process.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err(BridgeError::NoDriver("libcuda.so.1 was not found".into()));
    }
    let refused = |error| BridgeError::NoDriver(format!("the driver reports {error:?}"));
    cudarc::driver::result::init().map_err(refused)?;
    let count = cudarc::driver::result::device::get_count().map_err(refused)?;
    Ok(*COUNT.get_or_init(|| count))
}

/// Runs `call`; a panic in it becomes an error. What it may have left half done is guarded by the callee's own locks.
fn guarded<T>(call: impl FnOnce() -> Result<T, BridgeError>) -> Result<T, BridgeError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        let text = payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without a text".to_owned());
        Err(BridgeError::Panicked(text))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against a panic that reaches cxx, which aborts the whole Python process.
    #[test]
    fn panic_becomes_an_error_with_its_text() {
        let plain: Result<(), _> = guarded(|| panic!("plain text"));
        assert!(plain.unwrap_err().to_string().ends_with("please report it: plain text"));
        let formatted: Result<(), _> = guarded(|| panic!("slot {} of {}", 3, 2));
        assert!(formatted.unwrap_err().to_string().ends_with("slot 3 of 2"));
        let bare: Result<(), _> = guarded(|| std::panic::panic_any(7_u8));
        assert!(matches!(bare, Err(BridgeError::Panicked(_))));
    }

    /// Guards against garbage from C++ that panics, aborts or is taken for a real section.
    #[test]
    fn garbage_is_refused_by_every_call() {
        for device in [i32::MIN, -1, i32::MAX] {
            assert!(require_device(device).is_err(), "device {device}");
        }
        for (job, request, device) in [(-1, 0, 0), (i64::MAX, i64::MAX, i32::MAX), (i64::MIN, i64::MIN, i32::MIN)] {
            assert!(enter(job, request, device, usize::MAX).is_err(), "job {job}");
        }
        for ctx in [u64::MAX, 0xdead_beef] {
            assert!(leave(ctx, true).is_err(), "ctx {ctx}");
        }
    }
}
