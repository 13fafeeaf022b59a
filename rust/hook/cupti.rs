//! The fallback where no detour can be installed: driver API callbacks through CUPTI.
//!
//! The callbacks see the same launches, on the calling thread, before and after the driver's own code. They can delay a
//! call, not change or skip it. CUPTI has one subscriber per process: a profiler may hold it, and while we hold it the
//! first use of `torch.profiler` records no GPU events. The subscription stays for good.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, mem, ptr};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

/// Called on the thread that calls the driver, with the call's id and a pointer to its parameter record
/// (`generated_cuda_meta.h`). It may block, and may call the driver: such calls come back here.
pub type Hook = fn(cbid: u32, params: *const c_void);

/// A subscription in force.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Subscription {
    /// The library it goes through.
    pub library: &'static str,
    /// Calls that this CUPTI does not know and the driver therefore hardly has.
    pub absent: Vec<&'static str>,
}

/// No callbacks can be had.
#[derive(Debug)]
#[non_exhaustive]
pub enum CuptiError {
    /// This process already has a subscription of ours.
    AlreadySubscribed,
    /// No library was found.
    Library {
        /// What each try said.
        tried: Vec<(&'static str, libloading::Error)>,
    },
    /// The library lacks a function.
    Symbol {
        /// The library.
        library: &'static str,
        /// The function.
        symbol: &'static str,
        /// What the dynamic linker said.
        source: libloading::Error,
    },
    /// Another profiler or debugger holds the only subscriber.
    Taken {
        /// The library.
        library: &'static str,
        /// CUPTI's answer.
        code: c_int,
    },
    /// A call failed.
    Call {
        /// The library.
        library: &'static str,
        /// The call, and what it was about.
        call: String,
        /// CUPTI's answer.
        code: c_int,
        /// CUPTI's name for it.
        text: String,
    },
}

impl fmt::Display for CuptiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadySubscribed => write!(f, "this process already has a cupti subscription of ours"),
            Self::Library { tried } => {
                write!(f, "no cupti library found; put the directory of libcupti.so.13 on LD_LIBRARY_PATH")?;
                tried.iter().try_for_each(|(name, e)| write!(f, "; {name}: {e}"))
            }
            Self::Symbol { library, symbol, source } => {
                write!(f, "{library} has no {symbol} ({source}); expected CUPTI 12 or 13")
            }
            Self::Taken { library, code } => write!(
                f,
                "another profiler holds the only cupti subscriber ({library} answered {code}); start without nsys, ncu, \
                 cuda-gdb and CUDA_INJECTION64_PATH, and use torch.profiler only after this process has no more \
                 best-effort work"
            ),
            Self::Call { library, call, code, text } => write!(f, "{library}: {call} failed with {code} ({text})"),
        }
    }
}

impl std::error::Error for CuptiError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Symbol { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// A driver call to watch.
struct Watched {
    cbid: u32,
    name: &'static str,
}

const fn watch(cbid: u32, name: &'static str) -> Watched {
    Watched { cbid, name }
}

/// Without these nothing would be seen: each supported CUPTI knows them.
const REQUIRED: [Watched; 8] = [
    watch(307, "cuLaunchKernel"),
    watch(442, "cuLaunchKernel_ptsz"),
    watch(652, "cuLaunchKernelEx"),
    watch(653, "cuLaunchKernelEx_ptsz"),
    watch(477, "cuLaunchCooperativeKernel"),
    watch(478, "cuLaunchCooperativeKernel_ptsz"),
    watch(514, "cuGraphLaunch"),
    watch(515, "cuGraphLaunch_ptsz"),
];

/// Calls that only newer CUPTIs know, or that bring no kernel.
const OPTIONAL: [Watched; 53] = [
    watch(22, "cuModuleUnload"),
    watch(115, "cuLaunch"),
    watch(116, "cuLaunchGrid"),
    watch(117, "cuLaunchGridAsync"),
    watch(216, "cuMemsetD8Async"),
    watch(218, "cuMemsetD16Async"),
    watch(220, "cuMemsetD32Async"),
    watch(222, "cuMemsetD2D8Async"),
    watch(224, "cuMemsetD2D16Async"),
    watch(226, "cuMemsetD2D32Async"),
    watch(277, "cuMemcpyHtoDAsync_v2"),
    watch(279, "cuMemcpyDtoHAsync_v2"),
    watch(281, "cuMemcpyDtoDAsync_v2"),
    watch(283, "cuMemcpyAtoHAsync_v2"),
    watch(289, "cuMemcpy2DAsync_v2"),
    watch(291, "cuMemcpy3DAsync_v2"),
    watch(293, "cuMemcpyHtoAAsync_v2"),
    watch(306, "cuMemcpyAsync"),
    watch(319, "cuMemcpyPeerAsync"),
    watch(321, "cuMemcpy3DPeerAsync"),
    watch(326, "cuStreamDestroy_v2"),
    watch(418, "cuMemcpyAsync_ptsz"),
    watch(419, "cuMemcpyHtoAAsync_v2_ptsz"),
    watch(420, "cuMemcpyAtoHAsync_v2_ptsz"),
    watch(421, "cuMemcpyHtoDAsync_v2_ptsz"),
    watch(422, "cuMemcpyDtoHAsync_v2_ptsz"),
    watch(423, "cuMemcpyDtoDAsync_v2_ptsz"),
    watch(424, "cuMemcpy2DAsync_v2_ptsz"),
    watch(425, "cuMemcpy3DAsync_v2_ptsz"),
    watch(426, "cuMemcpyPeerAsync_ptsz"),
    watch(427, "cuMemcpy3DPeerAsync_ptsz"),
    watch(428, "cuMemsetD8Async_ptsz"),
    watch(429, "cuMemsetD16Async_ptsz"),
    watch(430, "cuMemsetD32Async_ptsz"),
    watch(431, "cuMemsetD2D8Async_ptsz"),
    watch(432, "cuMemsetD2D16Async_ptsz"),
    watch(433, "cuMemsetD2D32Async_ptsz"),
    watch(480, "cuLaunchCooperativeKernelMultiDevice"),
    watch(516, "cuGraphExecDestroy"),
    watch(527, "cuLaunchHostFunc"),
    watch(528, "cuLaunchHostFunc_ptsz"),
    watch(643, "cuGraphInstantiateWithFlags"),
    watch(656, "cuGraphInstantiateWithParams"),
    watch(657, "cuGraphInstantiateWithParams_ptsz"),
    watch(680, "cuLibraryUnload"),
    watch(776, "cuMemcpyBatchAsync"),
    watch(777, "cuMemcpyBatchAsync_ptsz"),
    watch(778, "cuMemcpy3DBatchAsync"),
    watch(779, "cuMemcpy3DBatchAsync_ptsz"),
    watch(796, "cuMemcpyBatchAsync_v2"),
    watch(797, "cuMemcpyBatchAsync_v2_ptsz"),
    watch(798, "cuMemcpy3DBatchAsync_v2"),
    watch(799, "cuMemcpy3DBatchAsync_v2_ptsz"),
];

/// The driver's name of a watched call, as its exported symbol spells it.
pub fn name(cbid: u32) -> Option<&'static str> {
    REQUIRED.iter().chain(&OPTIONAL).find(|w| w.cbid == cbid).map(|w| w.name)
}

/// Calls `on_enter` before and `on_exit` after every watched driver call of this process, from now on.
pub fn subscribe(on_enter: Hook, on_exit: Hook) -> Result<Subscription, CuptiError> {
    static SUBSCRIBED: AtomicBool = AtomicBool::new(false);
    if SUBSCRIBED.swap(true, Ordering::AcqRel) {
        return Err(CuptiError::AlreadySubscribed);
    }
    let result = load().and_then(|api| subscribe_through(&api, on_enter, on_exit));
    if result.is_err() {
        SUBSCRIBED.store(false, Ordering::Release);
    }
    result
}

const SUCCESS: c_int = 0;
const ERROR_INVALID_PARAMETER: c_int = 1;
/// CUPTI_ERROR_MAX_LIMIT_REACHED (older ones) and CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED.
const ERRORS_TAKEN: [c_int; 2] = [12, 39];
/// CUPTI_CB_DOMAIN_DRIVER_API.
const DOMAIN_DRIVER_API: c_int = 1;
/// CUPTI_API_ENTER; the other value is CUPTI_API_EXIT.
const SITE_ENTER: c_int = 0;

type Subscriber = *mut c_void;
type Callback = extern "C" fn(*mut c_void, c_int, u32, *const CallbackData);

/// The head of CUpti_CallbackData; the rest is not read.
#[repr(C)]
struct CallbackData {
    site: c_int,
    function_name: *const c_char,
    params: *const c_void,
}

/// The functions of CUPTI that are used.
struct Api {
    library: &'static str,
    subscribe: unsafe extern "C" fn(*mut Subscriber, Callback, *mut c_void) -> c_int,
    enable: unsafe extern "C" fn(u32, Subscriber, c_int, u32) -> c_int,
    unsubscribe: unsafe extern "C" fn(Subscriber) -> c_int,
    result_string: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
}

/// Torch brings its own CUPTI and loads it by a path of its own: one that is already loaded comes first, by its name.
/// A second one would be another subscriber to the same driver.
fn load() -> Result<Api, CuptiError> {
    const NAMES: [&str; 2] = ["libcupti.so.13", "libcupti.so.12"];
    const TOOLKIT: [&str; 2] =
        ["/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13", "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.12"];
    let flags = RTLD_NOW | RTLD_LOCAL;
    let loaded = NAMES.map(|name| (name, flags | libc::RTLD_NOLOAD));
    let others = [NAMES, TOOLKIT].concat().into_iter().map(|name| (name, flags));
    let mut tried = Vec::new();
    for (name, flags) in loaded.into_iter().chain(others) {
        // SAFETY: NVIDIA's library may be opened at any time; its initialisers only set up its own state.
        match unsafe { Library::open(Some(name), flags) } {
            Ok(library) => return api(library, name),
            // That it is not loaded yet is no news.
            Err(_) if flags & libc::RTLD_NOLOAD != 0 => {}
            Err(e) => tried.push((name, e)),
        }
    }
    Err(CuptiError::Library { tried })
}

fn api(library: Library, name: &'static str) -> Result<Api, CuptiError> {
    /// # Safety
    /// `T` is the function's type.
    unsafe fn get<T: Copy>(library: &Library, name: &'static str, symbol: &'static str) -> Result<T, CuptiError> {
        // SAFETY: passed on to the caller.
        let found: Result<Symbol<T>, _> = unsafe { library.get(symbol.as_bytes()) };
        found.map(|f| *f).map_err(|source| CuptiError::Symbol { library: name, symbol, source })
    }
    // SAFETY: the signatures are those of cupti_callbacks.h and cupti_result.h, the same in CUPTI 12 and 13.
    let api = unsafe {
        Api {
            library: name,
            subscribe: get(&library, name, "cuptiSubscribe")?,
            enable: get(&library, name, "cuptiEnableCallback")?,
            unsubscribe: get(&library, name, "cuptiUnsubscribe")?,
            result_string: get(&library, name, "cuptiGetResultString")?,
        }
    };
    // Its functions and threads are in use until the process ends.
    mem::forget(library);
    Ok(api)
}

/// What the callback is given.
struct Hooks {
    on_enter: Hook,
    on_exit: Hook,
}

fn subscribe_through(api: &Api, on_enter: Hook, on_exit: Hook) -> Result<Subscription, CuptiError> {
    // Leaked: a callback may run at any time, even after a failure here.
    let hooks: *mut Hooks = Box::leak(Box::new(Hooks { on_enter, on_exit }));
    let mut subscriber = ptr::null_mut();
    // SAFETY: all pointers are valid; the callback and the hooks stay for good.
    match unsafe { (api.subscribe)(&mut subscriber, on_callback, hooks.cast()) } {
        SUCCESS => {}
        code if ERRORS_TAKEN.contains(&code) => return Err(CuptiError::Taken { library: api.library, code }),
        code => return Err(api.error("cuptiSubscribe".into(), code)),
    }

    let mut absent = Vec::new();
    let required = REQUIRED.iter().map(|w| (w, true));
    for (watched, required) in required.chain(OPTIONAL.iter().map(|w| (w, false))) {
        // SAFETY: the subscriber is the one just made.
        match unsafe { (api.enable)(1, subscriber, DOMAIN_DRIVER_API, watched.cbid) } {
            SUCCESS => {}
            ERROR_INVALID_PARAMETER if !required => absent.push(watched.name),
            code => {
                let error = api.error(format!("cuptiEnableCallback for {}", watched.name), code);
                // SAFETY: as above; the slot must not stay taken for nothing.
                unsafe { (api.unsubscribe)(subscriber) };
                return Err(error);
            }
        }
    }
    Ok(Subscription { library: api.library, absent })
}

impl Api {
    fn error(&self, call: String, code: c_int) -> CuptiError {
        let mut text = ptr::null();
        // SAFETY: `text` is valid to write to; CUPTI stores a static string there if it knows the code.
        let known = unsafe { (self.result_string)(code, &mut text) } == SUCCESS && !text.is_null();
        let text = match known {
            // SAFETY: as above.
            true => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
            false => "unknown".into(),
        };
        CuptiError::Call { library: self.library, call, code, text }
    }
}

extern "C" fn on_callback(hooks: *mut c_void, _domain: c_int, cbid: u32, data: *const CallbackData) {
    // SAFETY: the hooks are the leaked ones given to CUPTI; the data is valid during the callback, and of this type in
    // the only domain that is enabled.
    let (hooks, data) = unsafe { (&*hooks.cast::<Hooks>(), &*data) };
    let hook = if data.site == SITE_ENTER { hooks.on_enter } else { hooks.on_exit };
    // No panic may unwind into CUPTI; the call itself goes on.
    let _ = catch_unwind(AssertUnwindSafe(|| hook(cbid, data.params)));
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    thread_local! {
        static SUBSCRIBE_ANSWER: Cell<c_int> = const { Cell::new(SUCCESS) };
        static REFUSED: Cell<(u32, c_int)> = const { Cell::new((0, SUCCESS)) };
        static ENABLED: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
        static CALLBACK: Cell<Option<(Callback, *mut c_void)>> = const { Cell::new(None) };
        static CALLS: RefCell<Vec<(&'static str, u32, usize)>> = const { RefCell::new(Vec::new()) };
    }

    const SUBSCRIBER: usize = 0x5b;

    unsafe extern "C" fn fake_subscribe(out: *mut Subscriber, callback: Callback, data: *mut c_void) -> c_int {
        let answer = SUBSCRIBE_ANSWER.get();
        if answer == SUCCESS {
            // SAFETY: the caller passes a place to write to.
            unsafe { *out = ptr::without_provenance_mut(SUBSCRIBER) };
            CALLBACK.set(Some((callback, data)));
        }
        answer
    }

    unsafe extern "C" fn fake_enable(on: u32, subscriber: Subscriber, domain: c_int, cbid: u32) -> c_int {
        assert_eq!((on, subscriber.addr(), domain), (1, SUBSCRIBER, DOMAIN_DRIVER_API));
        match REFUSED.get() {
            (refused, code) if refused == cbid => code,
            _ => {
                ENABLED.with_borrow_mut(|e| e.push(cbid));
                SUCCESS
            }
        }
    }

    unsafe extern "C" fn fake_unsubscribe(subscriber: Subscriber) -> c_int {
        assert_eq!(subscriber.addr(), SUBSCRIBER);
        CALLBACK.set(None);
        SUCCESS
    }

    unsafe extern "C" fn fake_string(_code: c_int, out: *mut *const c_char) -> c_int {
        // SAFETY: the caller passes a place to write to.
        unsafe { *out = c"CUPTI_ERROR_X".as_ptr() };
        SUCCESS
    }

    const FAKE: Api = Api {
        library: "fake",
        subscribe: fake_subscribe,
        enable: fake_enable,
        unsubscribe: fake_unsubscribe,
        result_string: fake_string,
    };

    fn enter(cbid: u32, params: *const c_void) {
        CALLS.with_borrow_mut(|c| c.push(("enter", cbid, params.addr())));
    }

    fn exit(cbid: u32, params: *const c_void) {
        CALLS.with_borrow_mut(|c| c.push(("exit", cbid, params.addr())));
    }

    fn fire(cbid: u32, site: c_int, params: usize) {
        let (callback, hooks) = CALLBACK.get().expect("subscribed");
        let params = ptr::without_provenance(params);
        callback(hooks, DOMAIN_DRIVER_API, cbid, &CallbackData { site, function_name: ptr::null(), params });
    }

    /// Fault: a call's parameters are handed to the wrong hook, or those of another field of the record.
    #[test]
    fn test_callbacks_reach_their_hook() {
        let subscription = subscribe_through(&FAKE, enter, exit).unwrap();
        assert_eq!(subscription, Subscription { library: "fake", absent: vec![] });
        fire(307, SITE_ENTER, 0x10);
        fire(307, 1, 0x20);
        assert_eq!(CALLS.take(), [("enter", 307, 0x10), ("exit", 307, 0x20)]);
        // Byte offsets of cupti_callbacks.h.
        assert_eq!(mem::offset_of!(CallbackData, params), 16);
    }

    /// Fault: a panic in a hook unwinds through the driver.
    #[test]
    fn test_panic_stays_in_the_callback() {
        subscribe_through(&FAKE, |_, _| panic!("in a hook"), exit).unwrap();
        fire(307, SITE_ENTER, 0);
        fire(307, 1, 0x20);
        assert_eq!(CALLS.take(), [("exit", 307, 0x20)]);
    }

    /// Fault: a launch entry point goes unwatched, or one is listed twice.
    #[test]
    fn test_every_call_is_enabled_once() {
        subscribe_through(&FAKE, enter, exit).unwrap();
        let mut enabled = ENABLED.take();
        assert_eq!(enabled.len(), REQUIRED.len() + OPTIONAL.len());
        enabled.sort_unstable();
        enabled.dedup();
        assert_eq!(enabled.len(), REQUIRED.len() + OPTIONAL.len());
        for (cbid, symbol) in [(307, "cuLaunchKernel"), (653, "cuLaunchKernelEx_ptsz"), (515, "cuGraphLaunch_ptsz")] {
            assert!(enabled.contains(&cbid));
            assert_eq!(name(cbid), Some(symbol));
        }
        assert_eq!(name(0), None);
    }

    /// Fault: that a profiler holds the subscriber is not told from a broken CUPTI.
    #[test]
    fn test_taken_subscriber_is_named() {
        for code in ERRORS_TAKEN {
            SUBSCRIBE_ANSWER.set(code);
            let error = subscribe_through(&FAKE, enter, exit).unwrap_err();
            assert!(matches!(error, CuptiError::Taken { library: "fake", .. }));
            assert!(error.to_string().contains(&code.to_string()), "{error}");
        }
        SUBSCRIBE_ANSWER.set(15);
        let error = subscribe_through(&FAKE, enter, exit).unwrap_err();
        assert_eq!(error.to_string(), "fake: cuptiSubscribe failed with 15 (CUPTI_ERROR_X)");
    }

    /// Fault: a call that this CUPTI does not know makes all others go unwatched, or is passed over in silence.
    #[test]
    fn test_unknown_call_is_reported_absent() {
        let unknown = &OPTIONAL[OPTIONAL.len() - 1];
        REFUSED.set((unknown.cbid, ERROR_INVALID_PARAMETER));
        let subscription = subscribe_through(&FAKE, enter, exit).unwrap();
        assert_eq!(subscription.absent, [unknown.name]);
        assert_eq!(ENABLED.take().len(), REQUIRED.len() + OPTIONAL.len() - 1);
    }

    /// Fault: a subscription that misses launches is taken for a good one, or keeps the slot from others.
    #[test]
    fn test_unwatched_launch_is_an_error() {
        REFUSED.set((307, ERROR_INVALID_PARAMETER));
        let error = subscribe_through(&FAKE, enter, exit).unwrap_err();
        assert!(error.to_string().contains("cuptiEnableCallback for cuLaunchKernel failed with 1"), "{error}");
        assert!(CALLBACK.get().is_none(), "still subscribed");
    }

    /// Fault: a real CUPTI is not found by name, or lacks a function that is used.
    #[test]
    #[ignore = "needs libcupti.so.12 or .13 on LD_LIBRARY_PATH"]
    fn test_real_library_loads() {
        let api = load().unwrap();
        assert!(api.error("x".into(), 39).to_string().contains("MULTIPLE_SUBSCRIBERS"), "another code table");
    }
}
