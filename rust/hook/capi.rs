//! Placeholder.
#![allow(missing_docs, clippy::missing_safety_doc)]
use std::{
    cell::RefCell,
    ffi::{CString, c_char, c_void},
};
thread_local! { static LAST: RefCell<CString> = RefCell::new(CString::default()); }
fn fail() -> i32 {
    LAST.with(|last| *last.borrow_mut() = CString::new("placeholder: no launch path").unwrap_or_default());
    -1
}
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_last_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mosaic_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: from into_raw.
        drop(unsafe { CString::from_raw(text) });
    }
}
macro_rules! stubs { ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = $value:expr;)*) => { $(
    #[unsafe(no_mangle)]
    pub extern "C" fn $name($(_: $ty),*) -> $ret { fail(); $value }
)* } }
stubs! {
    mosaic_init() -> i32 = -1;
    mosaic_shutdown() -> () = ();
    mosaic_configure(json: *const c_char) -> i32 = -1;
    mosaic_process_role(role: i32, name: *const c_char, slo: f64) -> i32 = -1;
    mosaic_job_register(name: *const c_char, role: i32, device: i32, slo: f64, fingerprint: u64) -> i64 = -1;
    mosaic_job_unregister(job: i64) -> i32 = -1;
    mosaic_stream_set_role(stream: *mut c_void, job: i64) -> i32 = -1;
    mosaic_request_open(job: i64, at: i64) -> i64 = -1;
    mosaic_request_close(request: i64) -> i32 = -1;
    mosaic_request_begin(job: i64, at: i64, stream: *mut c_void) -> i64 = -1;
    mosaic_request_end(request: i64) -> i32 = -1;
    mosaic_stats_json() -> *mut c_char = CString::new("{}").unwrap_or_default().into_raw();
    mosaic_doctor_json() -> *mut c_char = CString::new("{}").unwrap_or_default().into_raw();
    mosaic_record_start(job: i64) -> i32 = -1;
    mosaic_record_stop() -> *mut c_char = std::ptr::null_mut();
}
