//! The driver's entry points that the hook calls or takes over, found by name at run time.
//!
//! Each function has one slot. It holds the driver's own address until the entry point is detoured, and the address
//! of the trampoline (the original function) from just before the detour goes live: so a call from here never comes
//! back through the hook. An entry point that this driver lacks answers [`NOT_FOUND`].

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A CUresult. Kept as a number: a newer driver may answer with one that no enum of ours knows.
pub type CuResult = u32;
/// An opaque driver handle (stream, event, function, graph, context, …).
pub type Handle = *mut c_void;

/// CUDA_SUCCESS.
pub const SUCCESS: CuResult = 0;
/// CUDA_ERROR_INVALID_VALUE.
pub const INVALID_VALUE: CuResult = 1;
/// CUDA_ERROR_NOT_FOUND.
pub const NOT_FOUND: CuResult = 500;
/// CUDA_ERROR_NOT_READY.
pub const NOT_READY: CuResult = 600;

/// CUDA_ERROR_STREAM_CAPTURE_IMPLICIT.
pub const CAPTURE_IMPLICIT: CuResult = 906;

/// Legacy default stream, by its explicit handle.
pub const STREAM_LEGACY: usize = 1;
/// Per-thread default stream, by its explicit handle.
pub const STREAM_PER_THREAD: usize = 2;

/// CU_STREAM_NON_BLOCKING.
pub const STREAM_NON_BLOCKING: c_uint = 1;
/// CU_EVENT_DEFAULT: the event keeps its time.
pub const EVENT_TIMING: c_uint = 0;
/// CU_EVENT_DISABLE_TIMING.
pub const EVENT_NO_TIMING: c_uint = 2;
/// CU_STREAM_CAPTURE_MODE_RELAXED.
pub const CAPTURE_RELAXED: c_uint = 2;
/// CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP.
pub const HOST_REGISTER_MAPPED: c_uint = 3;
/// CU_GRAPH_NODE_TYPE_KERNEL.
pub const NODE_KERNEL: c_uint = 0;
/// CU_GRAPH_NODE_TYPE_GRAPH.
pub const NODE_CHILD_GRAPH: c_uint = 4;

/// CUlaunchConfig, with attributes left opaque but for their stride.
#[repr(C)]
pub struct LaunchConfigEx {
    /// Blocks in x, y, z, then threads of a block in x, y, z.
    pub grid: [c_uint; 3],
    /// Threads of a block.
    pub block: [c_uint; 3],
    /// Dynamic shared memory.
    pub shared_mem_bytes: c_uint,
    /// The stream.
    pub stream: Handle,
    /// `num_attrs` records of [`LaunchAttribute`].
    pub attrs: *const LaunchAttribute,
    /// Their number.
    pub num_attrs: c_uint,
}

/// CUlaunchAttribute: an id and 64 bytes of value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchAttribute {
    /// CUlaunchAttributeID, as a number: newer drivers know more of them.
    pub id: c_uint,
    pad: [u8; 4],
    /// The value's first words (a cluster dimension fills three).
    pub value: [c_uint; 16],
}

/// CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION.
pub const ATTR_CLUSTER_DIMENSION: c_uint = 4;
/// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT and CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT: each names an event.
pub const ATTRS_WITH_EVENT: [c_uint; 2] = [7, 12];

/// CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: it may begin before what stands before it has ended.
pub const ATTR_OVERLAPS: c_uint = 6;

/// CU_LAUNCH_ATTRIBUTE_COOPERATIVE, set: what cuLaunchCooperativeKernel is to cuLaunchKernelEx.
pub static COOPERATIVE: [LaunchAttribute; 1] =
    [LaunchAttribute { id: 2, pad: [0; 4], value: [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] }];

/// CU_LAUNCH_PARAM_END: of the keys in a launch's `extra` list, the last.
pub const EXTRA_END: usize = 0;
/// CU_LAUNCH_PARAM_BUFFER_POINTER.
pub const EXTRA_BUFFER_POINTER: usize = 1;
/// CU_LAUNCH_PARAM_BUFFER_SIZE.
pub const EXTRA_BUFFER_SIZE: usize = 2;

macro_rules! driver {
    ($($name:ident($($a:ident: $t:ty),*);)*) => {
        /// One entry point of the driver.
        #[allow(non_camel_case_types, missing_docs)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Entry { $($name),* }

        impl Entry {
            /// All of them, in order.
            pub const ALL: &'static [Entry] = &[$(Entry::$name),*];

            /// The exported symbol.
            pub const fn symbol(self) -> &'static str {
                match self { $(Entry::$name => stringify!($name)),* }
            }
        }

        static SLOTS: [AtomicPtr<()>; Entry::ALL.len()] =
            [const { AtomicPtr::new(std::ptr::null_mut()) }; Entry::ALL.len()];

        $(
            /// The driver's function of this name, past the hook.
            ///
            /// # Safety
            /// As the CUDA driver API's documentation asks.
            #[allow(non_snake_case, clippy::too_many_arguments)]
            #[inline]
            pub unsafe fn $name($($a: $t),*) -> CuResult {
                let p = SLOTS[Entry::$name as usize].load(Ordering::Acquire);
                if p.is_null() {
                    return NOT_FOUND;
                }
                // SAFETY: the slot holds the driver's function of this name (or its trampoline), whose signature is
                // the one declared here (cuda.h).
                let f: unsafe extern "C" fn($($t),*) -> CuResult = unsafe { std::mem::transmute(p) };
                // SAFETY: passed on to the caller.
                unsafe { f($($a),*) }
            }
        )*
    };
}

driver! {
    // Devices and contexts.
    cuInit(flags: c_uint);
    cuDriverGetVersion(version: *mut c_int);
    cuDeviceGet(device: *mut c_int, ordinal: c_int);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int);
    cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int);
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int);
    cuDevicePrimaryCtxRetain(ctx: *mut Handle, device: c_int);
    cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int);
    cuCtxGetCurrent(ctx: *mut Handle);
    cuCtxPushCurrent_v2(ctx: Handle);
    cuCtxPopCurrent_v2(ctx: *mut Handle);
    cuCtxGetDevice(device: *mut c_int);
    cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    cuGetErrorName(error: CuResult, name: *mut *const c_char);

    // Streams and events.
    cuStreamCreateWithPriority(stream: *mut Handle, flags: c_uint, priority: c_int);
    cuStreamGetPriority(stream: Handle, priority: *mut c_int);
    cuStreamIsCapturing(stream: Handle, status: *mut c_uint);
    cuStreamQuery(stream: Handle);
    cuStreamQuery_ptsz(stream: Handle);
    cuStreamSynchronize(stream: Handle);
    cuStreamSynchronize_ptsz(stream: Handle);
    cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint);
    cuStreamWaitEvent_ptsz(stream: Handle, event: Handle, flags: c_uint);
    cuStreamDestroy_v2(stream: Handle);
    cuStreamBeginCapture_v2(stream: Handle, mode: c_uint);
    cuStreamBeginCapture_v2_ptsz(stream: Handle, mode: c_uint);
    cuStreamWriteValue32_v2(stream: Handle, address: u64, value: u32, flags: c_uint);
    cuEventCreate(event: *mut Handle, flags: c_uint);
    cuEventQuery(event: Handle);
    cuEventElapsedTime(ms: *mut f32, start: Handle, end: Handle);
    cuEventRecord(event: Handle, stream: Handle);
    cuEventRecord_ptsz(event: Handle, stream: Handle);
    cuEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint);
    cuEventRecordWithFlags_ptsz(event: Handle, stream: Handle, flags: c_uint);
    cuThreadExchangeStreamCaptureMode(mode: *mut c_uint);

    // Launches.
    cuLaunchKernel(f: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, smem: c_uint, stream: Handle, params: *mut Handle, extra: *mut Handle);
    cuLaunchKernel_ptsz(f: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, smem: c_uint, stream: Handle, params: *mut Handle, extra: *mut Handle);
    cuLaunchKernelEx(config: *const LaunchConfigEx, f: Handle, params: *mut Handle, extra: *mut Handle);
    cuLaunchKernelEx_ptsz(config: *const LaunchConfigEx, f: Handle, params: *mut Handle, extra: *mut Handle);
    cuLaunchCooperativeKernel(f: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, smem: c_uint, stream: Handle, params: *mut Handle);
    cuLaunchCooperativeKernel_ptsz(f: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, smem: c_uint, stream: Handle, params: *mut Handle);
    cuGraphLaunch(exec: Handle, stream: Handle);
    cuGraphLaunch_ptsz(exec: Handle, stream: Handle);

    // Asynchronous copies and fills: addresses, sizes and descriptors are passed on unread.
    cuMemcpyAsync(dst: u64, src: u64, bytes: usize, stream: Handle);
    cuMemcpyAsync_ptsz(dst: u64, src: u64, bytes: usize, stream: Handle);
    cuMemcpyPeerAsync(dst: u64, dst_ctx: Handle, src: u64, src_ctx: Handle, bytes: usize, stream: Handle);
    cuMemcpyPeerAsync_ptsz(dst: u64, dst_ctx: Handle, src: u64, src_ctx: Handle, bytes: usize, stream: Handle);
    cuMemcpyHtoDAsync_v2(dst: u64, src: Handle, bytes: usize, stream: Handle);
    cuMemcpyHtoDAsync_v2_ptsz(dst: u64, src: Handle, bytes: usize, stream: Handle);
    cuMemcpyDtoHAsync_v2(dst: Handle, src: u64, bytes: usize, stream: Handle);
    cuMemcpyDtoHAsync_v2_ptsz(dst: Handle, src: u64, bytes: usize, stream: Handle);
    cuMemcpyDtoDAsync_v2(dst: u64, src: u64, bytes: usize, stream: Handle);
    cuMemcpyDtoDAsync_v2_ptsz(dst: u64, src: u64, bytes: usize, stream: Handle);
    cuMemcpyHtoAAsync_v2(dst: Handle, offset: usize, src: Handle, bytes: usize, stream: Handle);
    cuMemcpyHtoAAsync_v2_ptsz(dst: Handle, offset: usize, src: Handle, bytes: usize, stream: Handle);
    cuMemcpyAtoHAsync_v2(dst: Handle, src: Handle, offset: usize, bytes: usize, stream: Handle);
    cuMemcpyAtoHAsync_v2_ptsz(dst: Handle, src: Handle, offset: usize, bytes: usize, stream: Handle);
    cuMemcpy2DAsync_v2(copy: Handle, stream: Handle);
    cuMemcpy2DAsync_v2_ptsz(copy: Handle, stream: Handle);
    cuMemcpy3DAsync_v2(copy: Handle, stream: Handle);
    cuMemcpy3DAsync_v2_ptsz(copy: Handle, stream: Handle);
    cuMemcpy3DPeerAsync(copy: Handle, stream: Handle);
    cuMemcpy3DPeerAsync_ptsz(copy: Handle, stream: Handle);
    cuMemcpyBatchAsync(dsts: Handle, srcs: Handle, sizes: Handle, count: usize, attrs: Handle, indices: Handle, num_attrs: usize, fail: Handle, stream: Handle);
    cuMemcpyBatchAsync_ptsz(dsts: Handle, srcs: Handle, sizes: Handle, count: usize, attrs: Handle, indices: Handle, num_attrs: usize, fail: Handle, stream: Handle);
    cuMemcpyBatchAsync_v2(dsts: Handle, srcs: Handle, sizes: Handle, count: usize, attrs: Handle, indices: Handle, num_attrs: usize, stream: Handle);
    cuMemcpyBatchAsync_v2_ptsz(dsts: Handle, srcs: Handle, sizes: Handle, count: usize, attrs: Handle, indices: Handle, num_attrs: usize, stream: Handle);
    cuMemsetD8Async(dst: u64, value: u32, n: usize, stream: Handle);
    cuMemsetD8Async_ptsz(dst: u64, value: u32, n: usize, stream: Handle);
    cuMemsetD16Async(dst: u64, value: u32, n: usize, stream: Handle);
    cuMemsetD16Async_ptsz(dst: u64, value: u32, n: usize, stream: Handle);
    cuMemsetD32Async(dst: u64, value: u32, n: usize, stream: Handle);
    cuMemsetD32Async_ptsz(dst: u64, value: u32, n: usize, stream: Handle);
    cuMemsetD2D8Async(dst: u64, pitch: usize, value: u32, width: usize, height: usize, stream: Handle);
    cuMemsetD2D8Async_ptsz(dst: u64, pitch: usize, value: u32, width: usize, height: usize, stream: Handle);
    cuMemsetD2D16Async(dst: u64, pitch: usize, value: u32, width: usize, height: usize, stream: Handle);
    cuMemsetD2D16Async_ptsz(dst: u64, pitch: usize, value: u32, width: usize, height: usize, stream: Handle);
    cuMemsetD2D32Async(dst: u64, pitch: usize, value: u32, width: usize, height: usize, stream: Handle);
    cuMemsetD2D32Async_ptsz(dst: u64, pitch: usize, value: u32, width: usize, height: usize, stream: Handle);

    // Graphs.
    cuGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize);
    cuGraphNodeGetType(node: Handle, kind: *mut c_uint);
    cuGraphChildGraphNodeGetGraph(node: Handle, graph: *mut Handle);
    cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, flags: u64);
    cuGraphInstantiateWithParams(exec: *mut Handle, graph: Handle, params: Handle);
    cuGraphInstantiateWithParams_ptsz(exec: *mut Handle, graph: Handle, params: Handle);
    cuGraphExecDestroy(exec: Handle);

    // Modules and the names in them.
    cuModuleLoadData(module: *mut Handle, image: *const c_void);
    cuModuleLoadDataEx(module: *mut Handle, image: *const c_void, n: c_uint, options: Handle, values: Handle);
    cuModuleLoadFatBinary(module: *mut Handle, image: *const c_void);
    cuModuleUnload(module: Handle);
    cuModuleGetFunction(f: *mut Handle, module: Handle, name: *const c_char);
    cuLibraryLoadData(library: *mut Handle, image: *const c_void, jit: Handle, jit_values: Handle, njit: c_uint, options: Handle, values: Handle, n: c_uint);
    cuLibraryUnload(library: Handle);
    cuFuncGetName(name: *mut *const c_char, f: Handle);
    cuKernelGetName(name: *mut *const c_char, kernel: Handle);
    cuFuncGetAttribute(value: *mut c_int, attribute: c_int, f: Handle);
    cuKernelGetAttribute(value: *mut c_int, attribute: c_int, kernel: Handle, device: c_int);
    cuFuncGetParamInfo(f: Handle, index: usize, offset: *mut usize, bytes: *mut usize);
    cuKernelGetParamInfo(kernel: Handle, index: usize, offset: *mut usize, bytes: *mut usize);

    // A profiler's range.
    cuProfilerStart();
    cuProfilerStop();

    // Memory.
    cuMemHostRegister_v2(address: Handle, bytes: usize, flags: c_uint);
    cuMemHostGetDevicePointer_v2(device: *mut u64, host: Handle, flags: c_uint);
    cuMemAlloc_v2(address: *mut u64, bytes: usize);
    cuMemFree_v2(address: u64);
    cuMemAllocAsync(address: *mut u64, bytes: usize, stream: Handle);
    cuMemAllocAsync_ptsz(address: *mut u64, bytes: usize, stream: Handle);
    cuMemFreeAsync(address: u64, stream: Handle);
    cuMemFreeAsync_ptsz(address: u64, stream: Handle);
    cuMemCreate(handle: *mut u64, bytes: usize, prop: Handle, flags: u64);
    cuMemRelease(handle: u64);
    cuMemHostAlloc(address: *mut Handle, bytes: usize, flags: c_uint);
    cuMemFreeHost(address: Handle);

    // Partitions.
    cuDeviceGetDevResource(device: c_int, resource: Handle, kind: c_uint);
    cuDevSmResourceSplitByCount(groups: Handle, count: *mut c_uint, input: Handle, rest: Handle, flags: c_uint, least: c_uint);
    cuDevResourceGenerateDesc(desc: *mut Handle, resources: Handle, count: c_uint);
    cuGreenCtxCreate(context: *mut Handle, desc: Handle, device: c_int, flags: c_uint);
    cuGreenCtxDestroy(context: Handle);
    cuGreenCtxStreamCreate(stream: *mut Handle, context: Handle, flags: c_uint, priority: c_int);
}

/// libcuda could not be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum DriverError {
    /// No libcuda.so.1 could be opened.
    Absent(libloading::Error),
    /// It lacks an entry point that no supported driver lacks.
    Symbol(&'static str),
    /// A call failed.
    Call {
        /// The call.
        what: &'static str,
        /// Its answer.
        code: CuResult,
    },
}

impl std::fmt::Display for DriverError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DriverError::Absent(e) => write!(
                f,
                "no CUDA driver: libcuda.so.1 cannot be opened ({e}); install NVIDIA's driver, or in a container start \
                 it with the GPU"
            ),
            DriverError::Symbol(name) => {
                write!(f, "libcuda.so.1 has no {name}: found a driver older than CUDA 12.4, update it")
            }
            DriverError::Call { what, code } => write!(f, "{what} failed with {} ({code})", error_name(*code)),
        }
    }
}

impl std::error::Error for DriverError {}

/// Opens libcuda and fills every slot. Idempotent; needs no GPU and no cuInit.
pub fn load() -> Result<&'static libloading::Library, &'static DriverError> {
    static LIB: OnceLock<Result<libloading::Library, DriverError>> = OnceLock::new();
    LIB.get_or_init(|| {
        // SAFETY: libcuda's initialisers are those that every CUDA program runs.
        let lib = unsafe { libloading::Library::new("libcuda.so.1") }.map_err(DriverError::Absent)?;
        let lib = match behind(&lib) {
            Some(lib_behind) => {
                let _ = FRONT.set(lib);
                lib_behind
            }
            None => lib,
        };
        for &entry in Entry::ALL {
            // SAFETY: only the address is taken here; the signature is given where it is called.
            if let Ok(symbol) = unsafe { lib.get::<*mut ()>(entry.symbol()) } {
                SLOTS[entry as usize].store(*symbol, Ordering::Release);
            }
        }
        for needed in [Entry::cuInit, Entry::cuLaunchKernel, Entry::cuEventRecord, Entry::cuKernelGetName] {
            if slot(needed).load(Ordering::Relaxed).is_null() {
                return Err(DriverError::Symbol(needed.symbol()));
            }
        }
        Ok(lib)
    })
    .as_ref()
}

/// What stands before libcuda under its name.
static FRONT: OnceLock<libloading::Library> = OnceLock::new();

/// The entry point as a library has it that stands before libcuda; null where there is none.
pub fn front(entry: Entry) -> *const () {
    // SAFETY: only the address is taken.
    let symbol = FRONT.get().and_then(|front| unsafe { front.get::<*const ()>(entry.symbol()) }.ok());
    symbol.map_or(std::ptr::null(), |symbol| *symbol)
}

/// The library that another one stands before under its name, as Nsight Compute's does: every launch reaches it, and
/// those of the CUDA runtime, which asks cuGetProcAddress, reach it alone.
fn behind(front: &libloading::Library) -> Option<libloading::Library> {
    type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut Handle, c_int, u64, *mut c_int) -> CuResult;
    const CUDA_12: c_int = 12000;
    let (mut inside, mut status) = (std::ptr::null_mut(), 0);
    // SAFETY: the exported functions of these names; the call needs no cuInit, and writes an address and a number.
    let outside = unsafe {
        let get = front.get::<GetProcAddress>("cuGetProcAddress_v2").ok()?;
        get(c"cuInit".as_ptr(), &mut inside, CUDA_12, 0, &mut status);
        *front.get::<Handle>("cuInit").ok()?
    };
    let path = object_of(inside)?;
    if object_of(outside)? == path {
        return None;
    }
    // SAFETY: it is loaded already, and has been initialised.
    unsafe { libloading::Library::new(path) }.ok()
}

/// The path of the loaded object that holds this address.
fn object_of(address: Handle) -> Option<std::ffi::OsString> {
    use std::os::unix::ffi::OsStrExt;
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: any address may be asked for; an answer fills the record, whose name is a string of the loader's.
    let name = unsafe {
        if libc::dladdr(address, found.as_mut_ptr()) == 0 {
            return None;
        }
        std::ffi::CStr::from_ptr(found.assume_init().dli_fname)
    };
    Some(std::ffi::OsStr::from_bytes(name.to_bytes()).to_owned())
}

/// The signature of cuLaunchKernel.
pub type LaunchKernel = unsafe extern "C" fn(
    Handle,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Handle,
    *mut Handle,
    *mut Handle,
) -> CuResult;

/// The exported cuLaunchKernel, as any caller finds it: detoured, where a detour is in force.
pub fn exported_launch() -> Result<LaunchKernel, DriverError> {
    let name = Entry::cuLaunchKernel.symbol();
    let lib = load().map_err(|_| DriverError::Symbol(name))?;
    // SAFETY: the exported function of this name has this signature.
    unsafe { lib.get::<LaunchKernel>(name) }.map(|f| *f).map_err(|_| DriverError::Symbol(name))
}

/// The slot of an entry point; null where the driver lacks it.
pub fn slot(entry: Entry) -> &'static AtomicPtr<()> {
    &SLOTS[entry as usize]
}

/// Turns an answer into a result that names the call.
pub fn check(what: &'static str, code: CuResult) -> Result<(), DriverError> {
    if code == SUCCESS { Ok(()) } else { Err(DriverError::Call { what, code }) }
}

/// The driver's name of an error.
pub fn error_name(code: CuResult) -> String {
    let mut name: *const c_char = std::ptr::null();
    // SAFETY: `name` receives a pointer to a static string of the driver.
    if unsafe { cuGetErrorName(code, &mut name) } == SUCCESS && !name.is_null() {
        // SAFETY: on success it is a nul-terminated static string.
        return unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy().into_owned();
    }
    "CUDA_ERROR".into()
}
