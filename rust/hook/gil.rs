//! Releases Python's interpreter lock around a wait, where the calling thread holds it.
//!
//! Inductor's static launcher and some extensions launch with the lock held: a wait there would stop every Python
//! thread of the process, HP's too. The interpreter's functions are looked up at run time; there may be none.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

struct Python {
    is_initialized: extern "C" fn() -> c_int,
    is_finalizing: extern "C" fn() -> c_int,
    this_thread: extern "C" fn() -> *mut c_void,
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
    let this_thread = find(c"PyGILState_GetThisThreadState")?;
    let gil_check = find(c"PyGILState_Check")?;
    // 3.13 renamed both.
    let is_finalizing = find(c"Py_IsFinalizing").or_else(|| find(c"_Py_IsFinalizing"))?;
    let current = find(c"PyThreadState_GetUnchecked").or_else(|| find(c"_PyThreadState_UncheckedGet"))?;
    let save = find(c"PyEval_SaveThread")?;
    let restore = find(c"PyEval_RestoreThread")?;
    // SAFETY: CPython's stable signatures of these functions.
    let found = unsafe {
        Python {
            is_initialized: std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(is_initialized),
            is_finalizing: std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(is_finalizing),
            this_thread: std::mem::transmute::<*mut c_void, extern "C" fn() -> *mut c_void>(this_thread),
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
/// The thread that is about to end the interpreter; 0: none.
static ENDER: AtomicI32 = AtomicI32::new(0);

/// Threads that are inside the gate with the interpreter lock released.
pub fn released_threads() -> usize {
    RELEASED.load(Ordering::SeqCst)
}

/// From now on nobody releases the lock: who did not before this keeps it, and [`released_threads`] has all others.
pub fn release_no_more() {
    if is_pythons() {
        ENDER.store(this_thread(), Ordering::SeqCst);
    }
    ENDING.store(true, Ordering::SeqCst);
}

fn this_thread() -> i32 {
    // SAFETY: a plain query.
    unsafe { libc::gettid() }
}

/// Whether Python knows this thread.
pub fn is_pythons() -> bool {
    python().is_some_and(|py| !(py.this_thread)().is_null())
}

/// Whether this thread, which [`is_pythons`], is to die with the interpreter: Python's exit joins threads that are no
/// daemons before it tells us.
pub fn dies_with_python() -> bool {
    let ender = ENDER.load(Ordering::SeqCst);
    // SAFETY: a plain query: the main thread's id.
    ender != 0 && ![ender, unsafe { libc::getpid() }].contains(&this_thread())
}

/// Never returns once the interpreter that this thread dies with ends. Up to 3.13 Python ends a thread that comes back
/// for its lock then by unwinding it, which torch's operators and our frames answer with an abort; later ones park it
/// too. Not earlier: an exit handler may still wait for the thread.
pub fn park_if_python_ends() {
    if dies_with_python() && python().is_some_and(|py| (py.is_finalizing)() != 0) {
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
}

/// In a forked child: the parent's threads are not here.
pub fn forget_threads() {
    RELEASED.store(0, Ordering::SeqCst);
    ENDER.store(0, Ordering::SeqCst);
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
    is_held(py).then(|| Lent { state: (py.save)() })
}

/// Whether this thread holds the lock.
pub fn is_held_here() -> bool {
    python().is_some_and(is_held)
}

fn is_held(py: &Python) -> bool {
    // The state is asked for too: with sub-interpreters the check alone answers 1 for any thread.
    (py.is_initialized)() != 0 && (py.gil_check)() != 0 && !(py.current)().is_null()
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(py) = python() {
            park_if_python_ends();
            (py.restore)(self.state);
        }
    }
}
