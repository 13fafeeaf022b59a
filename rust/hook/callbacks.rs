//! The launch path where no detour can be had: the same handling, from CUPTI's callbacks before and after each call.
//!
//! A callback can hold a launch, which is all that the gate needs; it cannot change one.

use super::cupti::{self, CuptiError, Subscription};
use super::driver::{Entry, Handle, LaunchConfigEx};
use super::entry::{self, Work};
use super::gate::{self, Passage};
use super::job::{self, Role};
use super::{graphs, names};
use crate::kernel::LaunchConfig;
use std::cell::RefCell;
use std::ffi::{c_uint, c_void};

thread_local! {
    /// Watched calls that this thread is in; each with its passage if it is a best-effort launch.
    static CALLS: RefCell<Vec<Option<Passage>>> = const { RefCell::new(Vec::new()) };
}

/// Parameters of cuLaunchKernel and cuLaunchCooperativeKernel (generated_cuda_meta.h), as far as they are read.
#[repr(C)]
struct KernelParams {
    f: Handle,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_mem_bytes: c_uint,
    stream: Handle,
}

#[repr(C)]
struct KernelExParams {
    config: *const LaunchConfigEx,
    f: Handle,
}

#[repr(C)]
struct GraphLaunchParams {
    exec: Handle,
    stream: Handle,
}

/// Of the one-dimensional copies and fills: two addresses, or an address and a value; a number of elements.
#[repr(C)]
struct CopyParams {
    dst: u64,
    src_or_value: u64,
    count: usize,
    stream: Handle,
}

#[repr(C)]
struct InstantiateParams {
    exec: *const Handle,
    graph: Handle,
}

const COPIES: [Entry; 7] = [
    Entry::cuMemcpyAsync,
    Entry::cuMemcpyHtoDAsync_v2,
    Entry::cuMemcpyDtoHAsync_v2,
    Entry::cuMemcpyDtoDAsync_v2,
    Entry::cuMemsetD8Async,
    Entry::cuMemsetD16Async,
    Entry::cuMemsetD32Async,
];

/// Subscribes.
pub fn install() -> Result<Subscription, CuptiError> {
    cupti::subscribe(on_enter, on_exit)
}

/// The stream and the work of a launch or copy; `None` for other calls.
///
/// # Safety
/// `params` is the parameter record of the call `name`.
unsafe fn parse(name: &str, params: *const c_void) -> Option<(Handle, Work)> {
    match name {
        "cuLaunchKernel" | "cuLaunchCooperativeKernel" => {
            // SAFETY: the caller's promise.
            let p = unsafe { &*params.cast::<KernelParams>() };
            let config =
                LaunchConfig { grid: p.grid, block: p.block, dynamic_smem_bytes: p.shared_mem_bytes, cluster: [0; 3] };
            Some((p.stream, Work::Kernel { f: p.f, config }))
        }
        "cuLaunchKernelEx" => {
            // SAFETY: the caller's promise; null, or the caller's configuration.
            let p = unsafe { &*params.cast::<KernelExParams>() };
            // SAFETY: as above.
            let config = unsafe { p.config.as_ref() }?;
            Some((config.stream, Work::Kernel { f: p.f, config: entry::ex_config(config) }))
        }
        "cuGraphLaunch" => {
            // SAFETY: the caller's promise.
            let p = unsafe { &*params.cast::<GraphLaunchParams>() };
            Some((p.stream, Work::Graph { exec: p.exec }))
        }
        _ => {
            let copy = COPIES.into_iter().find(|c| c.symbol() == name)?;
            // SAFETY: the caller's promise.
            let p = unsafe { &*params.cast::<CopyParams>() };
            Some((p.stream, Work::Copy { entry: copy, bytes: p.count }))
        }
    }
}

fn on_enter(cbid: u32, params: *const c_void) {
    let passage = entry::once(|| {
        let full = cupti::name(cbid)?;
        let name = full.trim_end_matches("_ptsz");
        match name {
            "cuModuleUnload" | "cuLibraryUnload" => names::module_unloaded(),
            // SAFETY: its parameters are the one handle.
            "cuGraphExecDestroy" => graphs::destroyed(unsafe { *params.cast::<Handle>() }),
            // SAFETY: as above.
            "cuStreamDestroy_v2" => job::stream_destroyed(unsafe { *params.cast::<usize>() }),
            _ => {}
        }
        // SAFETY: CUPTI gives the call's own parameter record.
        let (stream, work) = unsafe { parse(name, params) }?;
        let stream = job::of_stream(stream, full.len() > name.len())?;
        entry::note(stream, work);
        (stream.job.role == Role::Be).then(|| gate::enter(stream, || work.key()))
    });
    if let Some(passage) = passage {
        CALLS.with_borrow_mut(|calls| calls.push(passage));
    }
}

fn on_exit(cbid: u32, params: *const c_void) {
    entry::once(|| {
        match cupti::name(cbid) {
            Some("cuModuleUnload" | "cuLibraryUnload") => names::module_unloaded(),
            Some(name) if name.starts_with("cuGraphInstantiate") => {
                // SAFETY: CUPTI gives the call's own parameter record, and the driver has written the handle.
                let p = unsafe { &*params.cast::<InstantiateParams>() };
                // SAFETY: as above.
                if let Some(exec) = unsafe { p.exec.as_ref() }.filter(|e| !e.is_null()) {
                    graphs::instantiated(*exec, p.graph);
                }
            }
            _ => {}
        }
        // A launch that failed is followed by an event all the same: it is done at once.
        if let Some(Some(passage)) = CALLS.with_borrow_mut(Vec::pop) {
            passage.finish(true);
        }
    });
}
