//! Releases Python's interpreter lock around a wait, where the calling thread holds it.
//!
//! Inductor's static launcher and some extensions launch with the lock held: a wait there would stop every Python
//! thread of the process, HP's too. The interpreter's functions are looked up at run time; there may be none.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

struct Python {
    is_initialized: extern "C" fn() -> c_int,
    gil_check: extern "C" fn() -> c_int,
    current: extern "C" fn() -> *mut c_void,
    save: extern "C" fn() -> *mut c_void,
    restore: extern "C" fn(*mut c_void),
}

fn find(name: &std::ffi::CStr) -> Option<*mut c_void> {
    // SAFETY: a lookup in the global scope by a nul-terminated name.
    let p = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!p.is_null()).then_some(p)
}

fn python() -> Option<&'static Python> {
    static PYTHON: OnceLock<Python> = OnceLock::new();
    if let Some(p) = PYTHON.get() {
        return Some(p);
    }
    // An interpreter may be loaded after us, so absence is not remembered.
    let is_initialized = find(c"Py_IsInitialized")?;
    let gil_check = find(c"PyGILState_Check")?;
    // 3.13 renamed it.
    let current = find(c"PyThreadState_GetUnchecked").or_else(|| find(c"_PyThreadState_UncheckedGet"))?;
    let save = find(c"PyEval_SaveThread")?;
    let restore = find(c"PyEval_RestoreThread")?;
    // SAFETY: CPython's stable signatures of these functions.
    let found = unsafe {
        Python {
            is_initialized: std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(is_initialized),
            gil_check: std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(gil_check),
            current: std::mem::transmute::<*mut c_void, extern "C" fn() -> *mut c_void>(current),
            save: std::mem::transmute::<*mut c_void, extern "C" fn() -> *mut c_void>(save),
            restore: std::mem::transmute::<*mut c_void, extern "C" fn(*mut c_void)>(restore),
        }
    };
    Some(PYTHON.get_or_init(|| found))
}

/// Threads that wait with the lock released: the exit waits until there are none.
static RELEASED: AtomicUsize = AtomicUsize::new(0);
/// The interpreter is about to end.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Threads that are inside the gate with the interpreter lock released.
pub fn released_threads() -> usize {
    RELEASED.load(Ordering::SeqCst)
}

/// From now on nobody releases the lock: who did not before this keeps it, and [`released_threads`] has all others.
pub fn release_no_more() {
    ENDING.store(true, Ordering::SeqCst);
}

/// In a forked child: the parent's threads are not here.
pub fn forget_threads() {
    RELEASED.store(0, Ordering::SeqCst);
}

/// The interpreter lock, given up until this is dropped.
pub struct Released {
    /// Dropped first: the thread counts as waiting until it has the lock again.
    _lent: Lent,
    _counted: Counted,
}

/// One of the [`RELEASED`] threads.
struct Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        // None below zero: in a forked child this thread may be the one that is left.
        let _ = RELEASED.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
    }
}

/// Releases the lock if this thread holds it.
pub fn release() -> Option<Released> {
    RELEASED.fetch_add(1, Ordering::SeqCst);
    let _counted = Counted;
    // Counted first, so that the exit either sees this thread or has told it.
    if ENDING.load(Ordering::SeqCst) {
        return None;
    }
    Some(Released { _lent: release_uncounted()?, _counted })
}

/// The lock given up by a thread that waits for the others: it is not counted among them.
pub struct Lent {
    state: *mut c_void,
}

/// Lends the lock if this thread holds it.
pub fn release_uncounted() -> Option<Lent> {
    let py = python()?;
    // The state is asked for too: with sub-interpreters the check alone answers 1 for any thread.
    if (py.is_initialized)() == 0 || (py.gil_check)() == 0 || (py.current)().is_null() {
        return None;
    }
    Some(Lent { state: (py.save)() })
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(py) = python() {
            (py.restore)(self.state);
        }
    }
}
