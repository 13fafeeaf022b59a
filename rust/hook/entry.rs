//! Our side of each entry point that is detoured: same signature, then the original.
//!
//! HP: counted, noted in the ledger, passed on; it never waits, allocates or takes a lock. BE: through the gate.
//! Everything else goes straight through. Nothing here panics: these functions are called from C.

#![allow(non_snake_case)] // the driver's own names

use super::driver::{self, CuResult, Entry, Handle, LaunchAttribute, LaunchConfigEx};
use super::job::{self, Role, Stream};
use super::kept::{Arguments, Fill, Given};
use super::stalls::{self, Kind};
use super::watch::{self, CaptureGuard};
use super::{gate, graphs, names, observe, record};
use crate::clock::now_ns;
use crate::kernel::{Fnv, LaunchConfig};
use crate::ledger::LaneId;
use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::sync::atomic::Ordering;

thread_local! {
    /// A driver call that we make, or that the driver makes inside one of ours, is not a launch of the user's.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` unless this thread is inside one of our handlers already.
pub(super) fn once<R>(f: impl FnOnce() -> R) -> Option<R> {
    if INSIDE.replace(true) {
        return None;
    }
    let result = f();
    INSIDE.set(false);
    Some(result)
}

/// What is launched: enough to know its cost by.
#[derive(Clone, Copy)]
pub(super) enum Work {
    Kernel { f: Handle, config: LaunchConfig },
    Graph { exec: Handle },
    Copy { entry: Entry, bytes: usize },
}

impl Work {
    /// What its time is learnt under: the KernelId, which survives unloading; for a graph its number; for a copy its
    /// kind and size.
    pub(super) fn key(self) -> u64 {
        let mut h = Fnv::new();
        match self {
            Work::Kernel { f, config } => return names::kernel_id(f as usize, &config).0,
            Work::Graph { exec } => {
                h.write(b"graph");
                h.write(&graphs::number(exec).to_le_bytes());
            }
            Work::Copy { entry, bytes } => {
                h.write(entry.symbol().as_bytes());
                h.write(&bytes.to_le_bytes());
            }
        }
        h.finish()
    }

    /// Its kind, as an observation names it.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Work::Kernel { .. } => "kernel",
            Work::Graph { .. } => "graph",
            Work::Copy { entry, .. } if entry.symbol().starts_with("cuMemset") => "set",
            Work::Copy { .. } => "copy",
        }
    }

    /// As a recording names it; a graph is not taken apart there.
    fn recorded(self) -> Option<record::What> {
        match self {
            Work::Kernel { f, config } => Some(record::What::Kernel(f, config)),
            Work::Graph { .. } => None,
            Work::Copy { .. } if self.kind() == "set" => Some(record::What::Set(self.key())),
            Work::Copy { .. } => Some(record::What::Copy(self.key())),
        }
    }
}

/// The way of every launch. `given`: what only an observation reads.
#[inline]
fn launch<'a>(
    stream: Handle,
    per_thread: bool,
    work: impl FnOnce() -> Work,
    given: impl FnOnce() -> Option<Given<'a>>,
    call: impl FnOnce() -> CuResult,
) -> CuResult {
    let Some(stream) = job::of_stream(stream, per_thread) else { return call() };
    let work = work();
    note(stream, work);
    match stream.job.role {
        Role::Observed if INSIDE.get() || !observe::is_observed(stream.job.id) => call(),
        Role::Observed => observed(stream, work, given(), call),
        Role::Hp if record::is_recording(stream.job.id) => recorded(stream, work, call),
        Role::Hp => {
            let result = match stream.handle {
                driver::STREAM_PER_THREAD => watch::with_tail(stream, call),
                _ => call(),
            };
            // The keeper may have ended the work outside requests while this thread stood before the driver's door.
            if let (0, Some(hp)) = (stream.lane.load(Ordering::Relaxed), &stream.job.hp) {
                watch::begin_activity(stream, hp);
            }
            result
        }
        Role::Be if INSIDE.get() => call(),
        Role::Be => {
            INSIDE.set(true);
            let result = gate::launch(stream, || work.key(), call);
            INSIDE.set(false);
            result
        }
    }
}

/// Counts a launch; HP's is noted in the ledger.
#[inline]
pub(super) fn note(stream: &'static Stream, work: Work) {
    let job = stream.job;
    match work {
        Work::Kernel { .. } => job.counts.kernels.fetch_add(1, Ordering::Relaxed),
        Work::Copy { .. } => job.counts.copies.fetch_add(1, Ordering::Relaxed),
        Work::Graph { exec } => {
            let kernels = graphs::kernels(exec);
            job.counts.kernels.fetch_add(kernels, Ordering::Relaxed);
            job.counts.graph_kernels.fetch_add(kernels, Ordering::Relaxed);
            job.counts.graphs.fetch_add(1, Ordering::Relaxed)
        }
    };
    let Some(hp) = &job.hp else { return };
    match (stream.lane.load(Ordering::Relaxed) as usize).checked_sub(1).and_then(LaneId::from_index) {
        Some(lane) => hp.claim.note_launch(lane),
        None => watch::begin_activity(stream, hp),
    }
}

#[cold]
fn recorded(stream: &Stream, work: Work, call: impl FnOnce() -> CuResult) -> CuResult {
    match work.recorded() {
        Some(what) => record::launch(stream, what, now_ns(), call),
        None => call(),
    }
}

#[cold]
fn observed(stream: &Stream, work: Work, given: Option<Given<'_>>, call: impl FnOnce() -> CuResult) -> CuResult {
    INSIDE.set(true);
    let result = observe::launch(stream, work, given, call);
    INSIDE.set(false);
    result
}

fn attributes(c: &LaunchConfigEx) -> &[LaunchAttribute] {
    if c.attrs.is_null() {
        return &[];
    }
    // SAFETY: the caller of cuLaunchKernelEx gives `num_attrs` attributes.
    unsafe { std::slice::from_raw_parts(c.attrs, c.num_attrs as usize) }
}

pub(super) fn ex_config(c: &LaunchConfigEx) -> LaunchConfig {
    let mut cluster = [0; 3];
    for a in attributes(c) {
        if a.id == driver::ATTR_CLUSTER_DIMENSION {
            cluster = [a.value[0], a.value[1], a.value[2]];
        }
    }
    LaunchConfig { grid: c.grid, block: c.block, dynamic_smem_bytes: c.shared_mem_bytes, cluster }
}

macro_rules! on_kernel {
    ($($name:ident, $per_thread:literal, ($($extra:ident),*), $arguments:expr;)*) => {$(
        #[allow(clippy::too_many_arguments)]
        unsafe extern "C" fn $name(
            f: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, smem: c_uint,
            stream: Handle, $($extra: *mut Handle),*
        ) -> CuResult {
            let config = LaunchConfig { grid: [gx, gy, gz], block: [bx, by, bz], dynamic_smem_bytes: smem, cluster: [0; 3] };
            launch(stream, $per_thread, || Work::Kernel { f, config }, || Some(Given::Kernel($arguments)), || {
                // SAFETY: the caller's own arguments, passed on.
                unsafe { driver::$name(f, gx, gy, gz, bx, by, bz, smem, stream, $($extra),*) }
            })
        }
    )*};
}

on_kernel! {
    cuLaunchKernel, false, (params, extra), Arguments { params, extra, attributes: &[] };
    cuLaunchKernel_ptsz, true, (params, extra), Arguments { params, extra, attributes: &[] };
    cuLaunchCooperativeKernel, false, (params), Arguments::cooperative(params);
    cuLaunchCooperativeKernel_ptsz, true, (params), Arguments::cooperative(params);
}

macro_rules! on_kernel_ex {
    ($($name:ident, $per_thread:literal;)*) => {$(
        unsafe extern "C" fn $name(c: *const LaunchConfigEx, f: Handle, params: *mut Handle, extra: *mut Handle) -> CuResult {
            // SAFETY: the caller's own arguments, passed on.
            let call = || unsafe { driver::$name(c, f, params, extra) };
            // SAFETY: null, or the caller's valid configuration.
            let Some(config) = (unsafe { c.as_ref() }) else { return call() };
            let given = || Some(Given::Kernel(Arguments { params, extra, attributes: attributes(config) }));
            launch(config.stream, $per_thread, || Work::Kernel { f, config: ex_config(config) }, given, call)
        }
    )*};
}

on_kernel_ex! {
    cuLaunchKernelEx, false;
    cuLaunchKernelEx_ptsz, true;
}

macro_rules! on_graph {
    ($($name:ident, $per_thread:literal;)*) => {$(
        unsafe extern "C" fn $name(exec: Handle, stream: Handle) -> CuResult {
            launch(stream, $per_thread, || Work::Graph { exec }, || None, || {
                // SAFETY: the caller's own arguments, passed on.
                unsafe { driver::$name(exec, stream) }
            })
        }
    )*};
}

on_graph! {
    cuGraphLaunch, false;
    cuGraphLaunch_ptsz, true;
}

fn fill(bits: u8, to: u64, value: u32, width: usize, rows: Option<(usize, usize)>) -> Fill {
    Fill { to, value, bits, width, rows }
}

/// Copies and fills: the stream is the last argument, the size a named one (or none); a fill says what it fills.
macro_rules! on_copy {
    ($($name:ident $ptsz:ident ($($a:ident: $t:ty),*) $bytes:expr $(, $fill:expr)?;)*) => {$(
        on_copy!(@one $name, false, ($($a: $t),*), $bytes, on_copy!(@given $($fill)?));
        on_copy!(@one $ptsz, true, ($($a: $t),*), $bytes, on_copy!(@given $($fill)?));
    )*};
    (@given) => { None };
    (@given $fill:expr) => { Some(Given::Fill($fill)) };
    (@one $name:ident, $per_thread:literal, ($($a:ident: $t:ty),*), $bytes:expr, $given:expr) => {
        #[allow(clippy::too_many_arguments)]
        unsafe extern "C" fn $name($($a: $t,)* stream: Handle) -> CuResult {
            launch(stream, $per_thread, || Work::Copy { entry: Entry::$name, bytes: $bytes }, || $given, || {
                // SAFETY: the caller's own arguments, passed on.
                unsafe { driver::$name($($a,)* stream) }
            })
        }
    };
}

on_copy! {
    cuMemcpyAsync cuMemcpyAsync_ptsz (dst: u64, src: u64, bytes: usize) bytes;
    cuMemcpyPeerAsync cuMemcpyPeerAsync_ptsz (dst: u64, dst_ctx: Handle, src: u64, src_ctx: Handle, bytes: usize) bytes;
    cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2_ptsz (dst: u64, src: Handle, bytes: usize) bytes;
    cuMemcpyDtoHAsync_v2 cuMemcpyDtoHAsync_v2_ptsz (dst: Handle, src: u64, bytes: usize) bytes;
    cuMemcpyDtoDAsync_v2 cuMemcpyDtoDAsync_v2_ptsz (dst: u64, src: u64, bytes: usize) bytes;
    cuMemcpyHtoAAsync_v2 cuMemcpyHtoAAsync_v2_ptsz (dst: Handle, offset: usize, src: Handle, bytes: usize) bytes;
    cuMemcpyAtoHAsync_v2 cuMemcpyAtoHAsync_v2_ptsz (dst: Handle, src: Handle, offset: usize, bytes: usize) bytes;
    cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz (copy: Handle) 0;
    cuMemcpy3DAsync_v2 cuMemcpy3DAsync_v2_ptsz (copy: Handle) 0;
    cuMemcpy3DPeerAsync cuMemcpy3DPeerAsync_ptsz (copy: Handle) 0;
    cuMemcpyBatchAsync cuMemcpyBatchAsync_ptsz (dsts: Handle, srcs: Handle, sizes: Handle, count: usize, attrs: Handle, indices: Handle, num_attrs: usize, fail: Handle) count;
    cuMemcpyBatchAsync_v2 cuMemcpyBatchAsync_v2_ptsz (dsts: Handle, srcs: Handle, sizes: Handle, count: usize, attrs: Handle, indices: Handle, num_attrs: usize) count;
    cuMemsetD8Async cuMemsetD8Async_ptsz (dst: u64, value: u32, n: usize) n, fill(8, dst, value, n, None);
    cuMemsetD16Async cuMemsetD16Async_ptsz (dst: u64, value: u32, n: usize) n, fill(16, dst, value, n, None);
    cuMemsetD32Async cuMemsetD32Async_ptsz (dst: u64, value: u32, n: usize) n, fill(32, dst, value, n, None);
    cuMemsetD2D8Async cuMemsetD2D8Async_ptsz (dst: u64, pitch: usize, value: u32, width: usize, height: usize) width * height, fill(8, dst, value, width, Some((pitch, height)));
    cuMemsetD2D16Async cuMemsetD2D16Async_ptsz (dst: u64, pitch: usize, value: u32, width: usize, height: usize) width * height, fill(16, dst, value, width, Some((pitch, height)));
    cuMemsetD2D32Async cuMemsetD2D32Async_ptsz (dst: u64, pitch: usize, value: u32, width: usize, height: usize) width * height, fill(32, dst, value, width, Some((pitch, height)));
}

/// A stream with a role may join a capture by these: not while it is being queried.
macro_rules! on_joining_capture {
    ($($name:ident, $per_thread:literal, ($($a:ident: $t:ty),*);)*) => {$(
        unsafe extern "C" fn $name(stream: Handle, $($a: $t),*) -> CuResult {
            let _guard = job::of_stream(stream, $per_thread).map(CaptureGuard::enter);
            // SAFETY: the caller's own arguments, passed on.
            unsafe { driver::$name(stream, $($a),*) }
        }
    )*};
}

on_joining_capture! {
    cuStreamBeginCapture_v2, false, (mode: c_uint);
    cuStreamBeginCapture_v2_ptsz, true, (mode: c_uint);
    cuStreamWaitEvent, false, (event: Handle, flags: c_uint);
    cuStreamWaitEvent_ptsz, true, (event: Handle, flags: c_uint);
}

unsafe extern "C" fn cuStreamDestroy_v2(stream: Handle) -> CuResult {
    job::stream_destroyed(stream as usize);
    // SAFETY: the caller's own arguments, passed on.
    unsafe { driver::cuStreamDestroy_v2(stream) }
}

/// Seen and passed on: counted, since later policies order their work by them.
macro_rules! on_seen {
    ($($name:ident ($($a:ident: $t:ty),*);)*) => {$(
        unsafe extern "C" fn $name($($a: $t),*) -> CuResult {
            super::stats::SEEN[Entry::$name as usize].fetch_add(1, Ordering::Relaxed);
            // SAFETY: the caller's own arguments, passed on.
            unsafe { driver::$name($($a),*) }
        }
    )*};
}

on_seen! {
    cuEventRecord(event: Handle, stream: Handle);
    cuEventRecord_ptsz(event: Handle, stream: Handle);
    cuEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint);
    cuEventRecordWithFlags_ptsz(event: Handle, stream: Handle, flags: c_uint);
    cuStreamQuery(stream: Handle);
    cuStreamQuery_ptsz(stream: Handle);
}

macro_rules! on_synchronize {
    ($($name:ident;)*) => {$(
        unsafe extern "C" fn $name(stream: Handle) -> CuResult {
            super::stats::SEEN[Entry::$name as usize].fetch_add(1, Ordering::Relaxed);
            // SAFETY: the caller's own arguments, passed on.
            let result = unsafe { driver::$name(stream) };
            record::synchronized();
            result
        }
    )*};
}

on_synchronize! {
    cuStreamSynchronize;
    cuStreamSynchronize_ptsz;
}

/// Time-stamped: they stall HP without being a launch. `$after` runs on success.
macro_rules! on_timed {
    ($($kind:ident $name:ident ($($a:ident: $t:ty),*) $after:expr;)*) => {$(
        unsafe extern "C" fn $name($($a: $t),*) -> CuResult {
            // SAFETY: the caller's own arguments, passed on.
            let result = stalls::timed(Kind::$kind, Entry::$name.symbol(), || unsafe { driver::$name($($a),*) });
            if result == driver::SUCCESS {
                let _: () = $after;
            }
            result
        }
    )*};
}

/// The graph that a successful instantiation wrote.
fn instantiated(exec: *mut Handle, graph: Handle) {
    // SAFETY: the driver has just written there.
    if let Some(exec) = unsafe { exec.as_ref() } {
        graphs::instantiated(*exec, graph);
    }
}

on_timed! {
    GraphInstantiate cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, flags: u64) instantiated(exec, graph);
    GraphInstantiate cuGraphInstantiateWithParams(exec: *mut Handle, graph: Handle, params: Handle) instantiated(exec, graph);
    GraphInstantiate cuGraphInstantiateWithParams_ptsz(exec: *mut Handle, graph: Handle, params: Handle) instantiated(exec, graph);
    ModuleLoad cuModuleLoadData(module: *mut Handle, image: *const c_void) ();
    ModuleLoad cuModuleLoadDataEx(module: *mut Handle, image: *const c_void, n: c_uint, options: Handle, values: Handle) ();
    ModuleLoad cuModuleLoadFatBinary(module: *mut Handle, image: *const c_void) ();
    ModuleLoad cuLibraryLoadData(library: *mut Handle, image: *const c_void, jit: Handle, jit_values: Handle, njit: c_uint, options: Handle, values: Handle, n: c_uint) ();
    Alloc cuMemAlloc_v2(address: *mut u64, bytes: usize) ();
    Alloc cuMemAllocAsync(address: *mut u64, bytes: usize, stream: Handle) ();
    Alloc cuMemAllocAsync_ptsz(address: *mut u64, bytes: usize, stream: Handle) ();
    Alloc cuMemCreate(handle: *mut u64, bytes: usize, prop: Handle, flags: u64) ();
    Alloc cuMemHostAlloc(address: *mut Handle, bytes: usize, flags: c_uint) ();
    Free cuMemFree_v2(address: u64) ();
    Free cuMemFreeAsync(address: u64, stream: Handle) ();
    Free cuMemFreeAsync_ptsz(address: u64, stream: Handle) ();
    Free cuMemRelease(handle: u64) ();
    Free cuMemFreeHost(address: Handle) ();
}

/// Handles may mean something else once their module is gone: what is known of them is dropped before, since another
/// thread may get one of them again before we do, and after, since one may have been asked for meanwhile.
macro_rules! on_unload {
    ($($name:ident;)*) => {$(
        unsafe extern "C" fn $name(module: Handle) -> CuResult {
            names::module_unloaded();
            // SAFETY: the caller's own arguments, passed on.
            let result = stalls::timed(Kind::ModuleUnload, Entry::$name.symbol(), || unsafe { driver::$name(module) });
            names::module_unloaded();
            result
        }
    )*};
}

on_unload! {
    cuModuleUnload;
    cuLibraryUnload;
}

unsafe extern "C" fn cuGraphExecDestroy(exec: Handle) -> CuResult {
    graphs::destroyed(exec);
    // SAFETY: the caller's own arguments, passed on.
    unsafe { driver::cuGraphExecDestroy(exec) }
}

macro_rules! table {
    ($($name:ident)*) => { &[$((Entry::$name, $name as *const ())),*] };
}

/// The entry points that decide who runs: without all of those that the driver has, the hook is not in force.
pub const LAUNCHES: &[(Entry, *const ())] = table! {
    cuLaunchKernel cuLaunchKernel_ptsz cuLaunchKernelEx cuLaunchKernelEx_ptsz cuLaunchCooperativeKernel
    cuLaunchCooperativeKernel_ptsz cuGraphLaunch cuGraphLaunch_ptsz
};

/// The rest.
pub const OTHERS: &[(Entry, *const ())] = table! {
    cuMemcpyAsync cuMemcpyAsync_ptsz cuMemcpyPeerAsync cuMemcpyPeerAsync_ptsz cuMemcpyHtoDAsync_v2
    cuMemcpyHtoDAsync_v2_ptsz cuMemcpyDtoHAsync_v2 cuMemcpyDtoHAsync_v2_ptsz cuMemcpyDtoDAsync_v2
    cuMemcpyDtoDAsync_v2_ptsz cuMemcpyHtoAAsync_v2 cuMemcpyHtoAAsync_v2_ptsz cuMemcpyAtoHAsync_v2
    cuMemcpyAtoHAsync_v2_ptsz cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz cuMemcpy3DAsync_v2 cuMemcpy3DAsync_v2_ptsz
    cuMemcpy3DPeerAsync cuMemcpy3DPeerAsync_ptsz cuMemcpyBatchAsync cuMemcpyBatchAsync_ptsz cuMemcpyBatchAsync_v2
    cuMemcpyBatchAsync_v2_ptsz cuMemsetD8Async cuMemsetD8Async_ptsz cuMemsetD16Async cuMemsetD16Async_ptsz
    cuMemsetD32Async cuMemsetD32Async_ptsz cuMemsetD2D8Async cuMemsetD2D8Async_ptsz cuMemsetD2D16Async
    cuMemsetD2D16Async_ptsz cuMemsetD2D32Async cuMemsetD2D32Async_ptsz
    cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz cuStreamWaitEvent cuStreamWaitEvent_ptsz cuStreamDestroy_v2
    cuEventRecord cuEventRecord_ptsz cuEventRecordWithFlags cuEventRecordWithFlags_ptsz cuStreamSynchronize
    cuStreamSynchronize_ptsz cuStreamQuery cuStreamQuery_ptsz
    cuGraphInstantiateWithFlags cuGraphInstantiateWithParams cuGraphInstantiateWithParams_ptsz cuGraphExecDestroy
    cuModuleLoadData cuModuleLoadDataEx cuModuleLoadFatBinary cuLibraryLoadData cuModuleUnload cuLibraryUnload
    cuMemAlloc_v2 cuMemAllocAsync cuMemAllocAsync_ptsz cuMemCreate cuMemHostAlloc cuMemFree_v2 cuMemFreeAsync
    cuMemFreeAsync_ptsz cuMemRelease cuMemFreeHost
};
