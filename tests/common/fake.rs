//! The double, opened in this process: its driver API by name, and its control functions.

use std::ffi::{CStr, CString, c_char, c_int, c_uint};

/// A driver handle, or the address in a parameter list. A number: threads may share it, and the ABI is a pointer's.
pub type Handle = usize;

/// How virtual time moves.
#[derive(Clone, Copy, Debug)]
pub enum Clock {
    /// Virtual time is CLOCK_MONOTONIC.
    Real = 0,
    /// Only [`Fake::advance_ns`] moves it; blocking calls wait for that.
    Manual = 1,
    /// As `Manual`, but a blocking call jumps to what it waits for.
    Auto = 2,
}

/// Flag of a [`Call`]: work of a graph launch.
pub const IN_GRAPH: u32 = 1;
/// Flag of a [`Call`]: its process died first.
pub const KILLED: u32 = 2;
/// Flag of a [`Call`]: went into a graph.
pub const CAPTURED: u32 = 4;
/// Flag of a [`Call`]: a cooperative launch.
pub const COOPERATIVE: u32 = 8;

#[repr(C)]
#[derive(Clone, Copy)]
struct RawCall {
    api: [c_char; 40],
    detail: [c_char; 64],
    id: u64,
    stream: u64,
    call_ns: u64,
    start_ns: u64,
    end_ns: u64,
    device: i32,
    priority: i32,
    pid: u32,
    tid: u32,
    flags: u32,
    pad: u32,
}

/// A recorded call; virtual times, `start_ns` and `end_ns` 0 until the GPU got there.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Call {
    pub api: String,
    pub detail: String,
    pub id: u64,
    pub stream: u64,
    pub call_ns: u64,
    pub start_ns: u64,
    pub end_ns: u64,
    pub device: i32,
    pub priority: i32,
    pub pid: u32,
    pub tid: u32,
    pub flags: u32,
}

impl Call {
    /// Whether both were on the GPU at one instant.
    pub fn overlaps(&self, other: &Call) -> bool {
        self.start_ns < other.end_ns && other.start_ns < self.end_ns
    }
}

/// The double.
pub struct Fake {
    lib: libloading::Library,
}

/// Looks a function up and calls it: `call!(fake, cuStreamQuery(stream: Handle))`.
macro_rules! call {
    ($fake:expr, $name:ident($($value:expr => $type:ty),* $(,)?)) => {{
        // SAFETY: the signature is that of the driver API's function; the double checks its handles.
        unsafe {
            let f = $fake.symbol::<unsafe extern "C" fn($($type),*) -> std::ffi::c_int>(stringify!($name));
            f($($value),*)
        }
    }};
}

pub(crate) use call;

impl Fake {
    /// Opens the double; cuInit is the caller's.
    pub fn open() -> Self {
        Self::open_at(&super::fakecuda_path())
    }

    /// Opens the double of that path.
    pub fn open_at(path: &std::path::Path) -> Self {
        // SAFETY: the double's initialisers do nothing.
        let lib = unsafe { libloading::Library::new(path) }.expect("the double can be opened");
        let fake = Fake { lib };
        // SAFETY: signature from fakecuda.h.
        let size = unsafe { fake.symbol::<unsafe extern "C" fn() -> usize>("fakecuda_call_size")() };
        assert_eq!(size, size_of::<RawCall>(), "fakecuda.h and fake.rs disagree");
        fake
    }

    /// Opens it, initialises it, sets the clock, and makes device 0's primary context current on this thread.
    pub fn ready(clock: Clock) -> Self {
        let fake = Fake::open();
        assert_eq!(call!(fake, cuInit(0 => c_uint)), 0);
        fake.set_clock(clock);
        fake.use_device(0);
        fake
    }

    /// The address of a symbol, as a function pointer of type `F`.
    ///
    /// # Safety
    /// `F` must be a function pointer of the symbol's signature.
    pub unsafe fn symbol<F: Copy>(&self, name: &str) -> F {
        // SAFETY: passed on to the caller.
        *unsafe { self.lib.get::<F>(name) }.unwrap_or_else(|e| panic!("the double lacks {name}: {e}"))
    }

    /// Makes the device's primary context current on this thread.
    pub fn use_device(&self, device: c_int) -> Handle {
        let mut ctx: Handle = 0;
        assert_eq!(call!(self, cuDevicePrimaryCtxRetain(&mut ctx => *mut Handle, device => c_int)), 0);
        assert_eq!(call!(self, cuCtxSetCurrent(ctx => Handle)), 0);
        ctx
    }

    /// A non-blocking stream.
    pub fn stream(&self, priority: c_int) -> Handle {
        let mut s: Handle = 0;
        let r = call!(self, cuStreamCreateWithPriority(&mut s => *mut Handle, 1 => c_uint, priority => c_int));
        assert_eq!(r, 0);
        s
    }

    /// An event that keeps its time.
    pub fn event(&self) -> Handle {
        let mut e: Handle = 0;
        assert_eq!(call!(self, cuEventCreate(&mut e => *mut Handle, 0 => c_uint)), 0);
        e
    }

    /// A CUkernel of that name, in a library of its own.
    pub fn kernel(&self, name: &str) -> Handle {
        let (mut lib, mut k): (Handle, Handle) = (0, 0);
        let image = c"image".as_ptr();
        let r = call!(self, cuLibraryLoadData(&mut lib => *mut Handle, image => *const c_char, 0 => Handle,
            0 => Handle, 0 => c_uint, 0 => Handle, 0 => Handle, 0 => c_uint));
        assert_eq!(r, 0);
        let name = CString::new(name).expect("no NUL in a kernel's name");
        let r = call!(self, cuLibraryGetKernel(&mut k => *mut Handle, lib => Handle, name.as_ptr() => *const c_char));
        assert_eq!(r, 0);
        k
    }

    /// Launches a kernel without parameters.
    pub fn launch(&self, kernel: Handle, stream: Handle) -> c_int {
        self.launch_with(kernel, stream, std::ptr::null_mut())
    }

    /// Launches a kernel that carries an id (its name has "_id" in it).
    pub fn launch_id(&self, kernel: Handle, stream: Handle, id: u64) -> c_int {
        let mut id = id;
        let mut params = [(&raw mut id) as Handle];
        self.launch_with(kernel, stream, params.as_mut_ptr())
    }

    /// Launches a kernel with these parameters.
    pub fn launch_with(&self, kernel: Handle, stream: Handle, params: *mut Handle) -> c_int {
        let null = std::ptr::null_mut::<Handle>();
        call!(self, cuLaunchKernel(kernel => Handle, 1 => c_uint, 1 => c_uint, 1 => c_uint, 32 => c_uint,
            1 => c_uint, 1 => c_uint, 0 => c_uint, stream => Handle, params => *mut Handle, null => *mut Handle))
    }

    /// Waits for the stream.
    pub fn synchronize(&self, stream: Handle) -> c_int {
        call!(self, cuStreamSynchronize(stream => Handle))
    }

    /// Device memory.
    pub fn alloc(&self, bytes: usize) -> u64 {
        let mut p = 0u64;
        assert_eq!(call!(self, cuMemAlloc_v2(&mut p => *mut u64, bytes => usize)), 0);
        p
    }

    /// Virtual time.
    pub fn now_ns(&self) -> u64 {
        // SAFETY: signature from fakecuda.h.
        unsafe { self.symbol::<unsafe extern "C" fn() -> u64>("fakecuda_now_ns")() }
    }

    /// Chooses how virtual time moves.
    pub fn set_clock(&self, clock: Clock) {
        assert_eq!(call!(self, fakecuda_set_clock(clock as c_int => c_int)), 0);
    }

    /// Moves virtual time on.
    pub fn advance_ns(&self, ns: u64) {
        assert_eq!(call!(self, fakecuda_advance_ns(ns => u64)), 0);
    }

    /// All recorded calls, oldest first, of all processes of the engine.
    pub fn calls(&self) -> Vec<Call> {
        const CAP: usize = 65536;
        let mut raw: Vec<RawCall> = Vec::with_capacity(CAP);
        // SAFETY: signature from fakecuda.h; it writes at most CAP records and says how many.
        unsafe {
            let f = self.symbol::<unsafe extern "C" fn(*mut RawCall, usize) -> usize>("fakecuda_calls");
            let n = f(raw.as_mut_ptr(), CAP);
            raw.set_len(n);
        }
        raw.iter()
            .map(|c| Call {
                api: text(&c.api),
                detail: text(&c.detail),
                id: c.id,
                stream: c.stream,
                call_ns: c.call_ns,
                start_ns: c.start_ns,
                end_ns: c.end_ns,
                device: c.device,
                priority: c.priority,
                pid: c.pid,
                tid: c.tid,
                flags: c.flags,
            })
            .collect()
    }

    /// The recorded calls that name this kernel.
    pub fn runs_of(&self, kernel: &str) -> Vec<Call> {
        self.calls().into_iter().filter(|c| c.detail == kernel).collect()
    }

    /// Forgets the recorded calls.
    pub fn clear_calls(&self) {
        // SAFETY: signature from fakecuda.h.
        unsafe { self.symbol::<unsafe extern "C" fn()>("fakecuda_clear_calls")() }
    }

    /// Times that this process called the symbol.
    pub fn call_count(&self, symbol: &str) -> i64 {
        let name = CString::new(symbol).expect("no NUL in a symbol");
        // SAFETY: signature from fakecuda.h.
        unsafe { self.symbol::<unsafe extern "C" fn(*const c_char) -> i64>("fakecuda_call_count")(name.as_ptr()) }
    }

    /// The (skip + 1)-th next call of the symbol fails with `result`.
    pub fn fail(&self, symbol: &str, result: c_int, skip: c_uint) {
        let name = CString::new(symbol).expect("no NUL in a symbol");
        let known = call!(self, fakecuda_fail(name.as_ptr() => *const c_char, result => c_int, skip => c_uint));
        assert_eq!(known, 1, "the double has no {symbol}");
    }

    /// From now on each call of the symbol first sleeps that long, in real time.
    pub fn delay_ns(&self, symbol: &str, ns: u64) {
        let name = CString::new(symbol).expect("no NUL in a symbol");
        let known = call!(self, fakecuda_delay(name.as_ptr() => *const c_char, ns => u64));
        assert_eq!(known, 1, "the double has no {symbol}");
    }

    /// Operations on the stream that are not done.
    pub fn pending(&self, stream: Handle) -> i64 {
        // SAFETY: signature from fakecuda.h.
        unsafe { self.symbol::<unsafe extern "C" fn(Handle, c_int) -> i64>("fakecuda_pending")(stream, 0) }
    }

    /// Living processes of the engine.
    pub fn processes(&self) -> c_int {
        call!(self, fakecuda_processes())
    }

    /// The symbols of the driver API that the double exports.
    pub fn symbols(&self) -> Vec<&'static str> {
        // SAFETY: signature from fakecuda.h: a NULL-terminated static array of static strings.
        unsafe {
            let mut p = self.symbol::<unsafe extern "C" fn() -> *const *const c_char>("fakecuda_symbols")();
            let mut all = Vec::new();
            while !(*p).is_null() {
                all.push(CStr::from_ptr(*p).to_str().expect("symbols are ASCII"));
                p = p.add(1);
            }
            all
        }
    }
}

fn text(raw: &[c_char]) -> String {
    let bytes: Vec<u8> = raw.iter().take_while(|&&c| c != 0).map(|&c| c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
