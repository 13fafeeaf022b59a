//! The C ABI (cpp/include/mosaic.h): Python's cold calls, and engines outside Python.
//!
//! Each function catches panics and tells errors by its value; the text is in `mosaic_last_error`.

pub mod profiling;

use super::job::{self, ProcessRole, Role};
use super::{doctor, process, record, request, stats};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::new(CString::default());
}

fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

/// Runs `f`; an error or a panic becomes `failed`, with its text kept for this thread.
fn guarded<T>(failed: T, f: impl FnOnce() -> Result<T, String>) -> T {
    let result = catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string()));
        Err(format!("internal error, please report it: {}", text.unwrap_or_default()))
    });
    result.unwrap_or_else(|text| {
        // A thread that is ending has no place for it any more.
        let _ = LAST_ERROR.try_with(|e| *e.borrow_mut() = c_string(&text));
        failed
    })
}

/// As [`guarded`], for what takes locks: a forked child may find them taken by threads that it does not have.
fn guarded_in_parent<T>(failed: T, f: impl FnOnce() -> Result<T, String>) -> T {
    guarded(failed, || if process::forked_after_use() { Err(text(job::JobError::Forked)) } else { f() })
}

fn text<E: std::fmt::Display>(e: E) -> String {
    e.to_string()
}

/// The string argument.
///
/// # Safety
/// `p` is null or nul-terminated and lives for the call.
unsafe fn argument<'a>(what: &str, p: *const c_char) -> Result<&'a str, String> {
    if p.is_null() {
        return Err(format!("{what}: found a null pointer, expected a nul-terminated string"));
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(p) }.to_str().map_err(|_| format!("{what}: found bytes that are not UTF-8"))
}

fn role(number: c_int) -> Result<Role, String> {
    match number {
        1 => Ok(Role::Hp),
        2 => Ok(Role::Be),
        3 => Ok(Role::Observed),
        other => Err(format!("role: found {other}, expected 1 (high priority), 2 (best effort) or 3 (observed)")),
    }
}

/// Of a job's name.
const MAX_NAME_BYTES: usize = 63;

/// Installs the hook.
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_init() -> c_int {
    guarded_in_parent(-1, || super::install().map(|_| 0).map_err(text))
}

/// Text of this thread's last error.
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_last_error() -> *const c_char {
    LAST_ERROR.try_with(|e| e.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Registers a job.
///
/// # Safety
/// `name` is nul-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mosaic_job_register(
    name: *const c_char,
    role_number: c_int,
    device: c_int,
    slo_ratio: f64,
    fingerprint: u64,
) -> i64 {
    guarded(-1, || {
        // SAFETY: the caller's promise.
        let name = unsafe { argument("name", name) }?;
        if name.len() > MAX_NAME_BYTES {
            return Err(format!("name: found {} bytes, expected at most {MAX_NAME_BYTES}", name.len()));
        }
        super::install().map_err(text)?;
        job::register(name, role(role_number)?, device, slo_ratio, fingerprint).map(|j| j.id).map_err(text)
    })
}

/// Ends a job.
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_job_unregister(job: i64) -> c_int {
    guarded(-1, || job::end(job).map(|()| 0).map_err(text))
}

/// Opens a request.
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_request_open(job: i64, arrived_at_ns: i64) -> i64 {
    guarded(-1, || request::open(job, arrived_at_ns.max(0) as u64).map_err(text))
}

/// Closes a request.
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_request_close(request: i64) -> c_int {
    guarded(-1, || request::close(request).map(|()| 0).map_err(text))
}

/// Opens a request that runs on a stream of the caller's.
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_request_begin(job: i64, arrived_at_ns: i64, stream: *mut c_void) -> i64 {
    guarded(-1, || request::begin_on(job, arrived_at_ns.max(0) as u64, stream as usize).map_err(text))
}

/// Ends it.
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_request_end(request: i64) -> c_int {
    mosaic_request_close(request)
}

/// Gives a stream of the caller's a role; job -1 takes it away.
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_stream_set_role(stream: *mut c_void, job: i64) -> c_int {
    guarded_in_parent(-1, || {
        let job = if job < 0 { None } else { Some(job::get(job).map_err(text)?) };
        job::set_stream_role(stream as usize, job).map(|_| 0).map_err(text)
    })
}

/// Puts the whole process under a role.
///
/// # Safety
/// `name` is nul-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mosaic_process_role(role_number: c_int, name: *const c_char, slo_ratio: f64) -> c_int {
    guarded_in_parent(-1, || {
        // SAFETY: the caller's promise.
        let name = unsafe { argument("name", name) }?.to_string();
        let role = role(role_number)?;
        if role == Role::Observed {
            return Err("role: found 3 (observed), expected 1 or 2: only a job can be observed, not a process".into());
        }
        if role == Role::Hp && !(1.0..=1000.0).contains(&slo_ratio) {
            return Err(job::JobError::Slo(slo_ratio).to_string());
        }
        super::install().map_err(text)?;
        job::set_process_role(ProcessRole { role, name, slo_ratio });
        Ok(0)
    })
}

/// Changes settings.
///
/// # Safety
/// `json` is nul-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mosaic_configure(json: *const c_char) -> c_int {
    guarded_in_parent(-1, || {
        // SAFETY: the caller's promise.
        super::configure(unsafe { argument("settings", json) }?).map(|()| 0).map_err(text)
    })
}

fn owned(json: String) -> *mut c_char {
    c_string(&json).into_raw()
}

/// Statistics as JSON, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_stats_json() -> *mut c_char {
    guarded_in_parent(std::ptr::null_mut(), || Ok(owned(stats::json())))
}

/// What `mosaic doctor` finds, as JSON, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_doctor_json() -> *mut c_char {
    guarded_in_parent(std::ptr::null_mut(), || serde_json::to_string(&doctor::report()).map(owned).map_err(text))
}

/// Frees a string that one of these functions returned.
///
/// # Safety
/// `p` is null or such a string, not freed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mosaic_free(p: *mut c_char) {
    if !p.is_null() {
        // SAFETY: made by `CString::into_raw` in `owned`.
        drop(unsafe { CString::from_raw(p) });
    }
}

/// Opens the gate and lets threads out of it: before an interpreter ends.
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_shutdown() {
    guarded((), || {
        process::shutdown();
        Ok(())
    });
}

/// Starts to record an HP job's kernels.
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_record_start(job: i64) -> c_int {
    guarded_in_parent(-1, || record::start(job).map(|()| 0).map_err(text))
}

/// Ends the recording: JSON lines, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_record_stop() -> *mut c_char {
    guarded_in_parent(std::ptr::null_mut(), || {
        record::stop().map(owned).map_err(|lost| match lost {
            0 => "no recording is going on: call mosaic_record_start first".to_string(),
            n => format!("{n} launches could not be recorded: record fewer requests, and wait for the GPU before"),
        })
    })
}
