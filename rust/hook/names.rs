//! What a function handle stands for: its mangled name and a fingerprint of its code, looked up once per handle.

use super::driver::{self, Handle};
use super::handles::HandleMap;
use crate::kernel::{Fnv, KernelId, LaunchConfig};
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicU64, Ordering};

/// Handles whose names are kept; beyond, every launch asks the driver again.
const MAX_NAMES: usize = 16384;
/// CUfunction_attribute: max threads, static shared, constant and local bytes, registers, PTX and binary version.
const ATTRIBUTES: [c_int; 7] = [0, 1, 2, 3, 4, 5, 6];
const STATIC_SMEM_BYTES: usize = 1;
const REGISTERS: usize = 4;

static NAMES: HandleMap<MAX_NAMES> = HandleMap::new();
/// Rises when handles may mean something else from now on.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// A function, as far as it can be told apart.
#[derive(Debug)]
pub struct Function {
    /// Its mangled name.
    pub name: Box<[u8]>,
    /// Of the name and of a fingerprint of the code behind it: kernels of two modules can share a name.
    pub hash: Fnv,
    /// The handle is a CUkernel (the runtime passes those), not a CUfunction.
    pub is_kernel: bool,
    /// Of a thread.
    pub registers: c_int,
    /// Of a block.
    pub static_smem_bytes: c_int,
    /// Of the handles, when it was last looked up.
    generation: AtomicU64,
}

/// A module or a library is being unloaded: its handles will be given to other functions.
pub fn module_unloaded() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
}

/// What the handle stands for; `None` if the driver knows no name for it. Asks the driver on first sight.
pub fn of(f: usize) -> Option<&'static Function> {
    let generation = GENERATION.load(Ordering::Acquire);
    // SAFETY: the map holds addresses of leaked `Function`s.
    let known = NAMES.get(f).map(|p| unsafe { &*(p as *const Function) });
    if let Some(known) = known
        && known.generation.load(Ordering::Acquire) == generation
    {
        return Some(known);
    }
    let (name, is_kernel) = ask_name(f)?;
    let mut image = Fnv::new();
    let values = ATTRIBUTES.map(|attribute| {
        let mut value = 0;
        // SAFETY: writes one int; `f` is a live handle of the kind that answered to its name.
        unsafe {
            if is_kernel {
                let mut device = 0;
                driver::cuCtxGetDevice(&mut device);
                driver::cuKernelGetAttribute(&mut value, attribute, f as Handle, device);
            } else {
                driver::cuFuncGetAttribute(&mut value, attribute, f as Handle);
            }
        }
        image.write(&value.to_le_bytes());
        value
    });
    let hash = KernelId::function_hash(name, image.finish());
    // Most handles mean the same after some other module is gone: only a changed one makes a new entry.
    if let Some(known) = known
        && *known.name == *name
        && known.hash.finish() == hash.finish()
        && known.is_kernel == is_kernel
    {
        known.generation.store(generation, Ordering::Release);
        return Some(known);
    }
    let function: &'static Function = Box::leak(Box::new(Function {
        name: name.into(),
        hash,
        is_kernel,
        registers: values[REGISTERS],
        static_smem_bytes: values[STATIC_SMEM_BYTES],
        generation: AtomicU64::new(generation),
    }));
    NAMES.set(f, std::ptr::from_ref(function) as usize);
    Some(function)
}

/// The name, and whether the handle is a CUkernel.
fn ask_name(f: usize) -> Option<(&'static [u8], bool)> {
    let mut name: *const c_char = std::ptr::null();
    // SAFETY: writes one pointer; a handle of the other kind is answered with an error.
    let kernel = unsafe { driver::cuKernelGetName(&mut name, f as Handle) } == driver::SUCCESS;
    // SAFETY: as above.
    if !kernel && unsafe { driver::cuFuncGetName(&mut name, f as Handle) } != driver::SUCCESS {
        return None;
    }
    // SAFETY: on success the name is nul-terminated and lives as long as its module; it is copied before that ends.
    (!name.is_null()).then(|| (unsafe { CStr::from_ptr(name) }.to_bytes(), kernel))
}

/// The identity of a launch; one that the driver cannot name is known by its handle, in this process.
pub fn kernel_id(f: usize, config: &LaunchConfig) -> KernelId {
    match of(f) {
        Some(function) => KernelId::of_function(function.hash, config),
        None => KernelId::new(&f.to_le_bytes(), 0, config),
    }
}
