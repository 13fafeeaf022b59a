//! What concerns the process as a whole: fork, exit, staying loaded.

use super::{gate, gil};
use crate::clock::now_ns;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// Longest wait at exit for threads to come out of the gate.
const DRAIN_NS: u64 = 5_000_000_000;

/// This process was forked from one that had used CUDA through us: neither CUDA nor our state is usable here.
static FORKED_AFTER_USE: AtomicBool = AtomicBool::new(false);

/// Whether this is such a child.
pub fn forked_after_use() -> bool {
    FORKED_AFTER_USE.load(Ordering::Acquire)
}

extern "C" fn in_child() {
    // Only atomics: any lock may be held by a thread that does not exist here.
    if super::device::all().next().is_some() {
        FORKED_AFTER_USE.store(true, Ordering::Release);
        super::job::abandon_roles();
        gate::set_open(true);
        gil::forget_threads();
        gate::forget_held();
    }
}

/// Registers the fork handler, once, and keeps this library loaded: the driver jumps into it from now on.
pub fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only stores atomics.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        stay_loaded();
    });
}

/// A reference that is never given back.
fn stay_loaded() {
    // SAFETY: asks for the object that holds this function, and opens it once more by its own name.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(stay_loaded as *const libc::c_void, &mut info) != 0 && !info.dli_fname.is_null() {
            libc::dlopen(info.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        }
    }
}

/// Before the interpreter ends: the gate opens, and the threads in it come out, those that gave Python's lock up with it. One that
/// took it again during finalisation would be ended by Python, through our frames. Daemon threads without the lock stay.
pub fn shutdown() {
    gil::release_no_more();
    gate::set_open(true);
    let until = now_ns() + DRAIN_NS;
    while (gil::released_threads() > 0 || gate::held() > 0) && now_ns() < until {
        // They need Python's lock to come out.
        let _gil = gil::release_uncounted();
        std::thread::yield_now();
    }
}
