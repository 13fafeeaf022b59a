//! The double of libcuda (tests/fakecuda) keeps the promises that the hook's tests rest on.

mod common;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::fake::{CAPTURED, Call, Clock, Fake, Handle, IN_GRAPH, KILLED, call};
use common::isolated;

const NOT_INITIALIZED: c_int = 3;
const INVALID_CONTEXT: c_int = 201;
const INVALID_HANDLE: c_int = 400;
const NOT_READY: c_int = 600;
const CAPTURE_UNSUPPORTED: c_int = 900;
const CAPTURE_INVALIDATED: c_int = 901;
const CAPTURE_UNJOINED: c_int = 904;
const CAPTURE_ISOLATION: c_int = 905;
const CAPTURE_IMPLICIT: c_int = 906;
const CAPTURE_WRONG_THREAD: c_int = 908;

const GLOBAL: c_uint = 0;
const THREAD_LOCAL: c_uint = 1;
const RELAXED: c_uint = 2;

fn record(fake: &Fake, event: Handle, stream: Handle) -> c_int {
    call!(fake, cuEventRecord(event => Handle, stream => Handle))
}

fn wait(fake: &Fake, stream: Handle, event: Handle) -> c_int {
    call!(fake, cuStreamWaitEvent(stream => Handle, event => Handle, 0 => c_uint))
}

fn query(fake: &Fake, stream: Handle) -> c_int {
    call!(fake, cuStreamQuery(stream => Handle))
}

fn begin_capture(fake: &Fake, stream: Handle, mode: c_uint) -> c_int {
    call!(fake, cuStreamBeginCapture_v2(stream => Handle, mode => c_uint))
}

fn end_capture(fake: &Fake, stream: Handle) -> (c_int, Handle) {
    let mut graph: Handle = 0;
    (call!(fake, cuStreamEndCapture(stream => Handle, &mut graph => *mut Handle)), graph)
}

fn capture_status(fake: &Fake, stream: Handle) -> c_uint {
    let mut status = 9;
    assert_eq!(call!(fake, cuStreamIsCapturing(stream => Handle, &mut status => *mut c_uint)), 0);
    status
}

fn write_value(fake: &Fake, stream: Handle, word: &AtomicU32, value: u32) -> c_int {
    call!(fake, cuStreamWriteValue32_v2(stream => Handle, word.as_ptr() as u64 => u64, value => u32, 0 => c_uint))
}

fn register(fake: &Fake, address: *mut c_void, bytes: usize) -> c_int {
    call!(fake, cuMemHostRegister_v2(address => *mut c_void, bytes => usize, 3 => c_uint))
}

fn one(calls: Vec<Call>) -> Call {
    assert_eq!(calls.len(), 1, "{calls:?}");
    calls.into_iter().next().expect("one call")
}

// ---- entry points ----

/// Fault: a detour tested against the double meets other bytes than on a GPU machine.
#[test]
fn entry_points_begin_as_libcuda_580s_do() {
    let fake = Fake::open();
    for name in fake.symbols() {
        // SAFETY: only the address is used, and the 10 bytes of code that stand there.
        let at = unsafe { fake.symbol::<*const u8>(name) };
        assert_eq!(at as usize % 16, 0, "{name} is not 16-byte aligned");
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(at, 10) };
        assert_eq!(bytes, [0x55, 0x48, 0x89, 0xe5, 0x41, 0x54, 0x48, 0x83, 0xec, 0x08], "{name}");
    }
}

/// Fault: the variant for "unknown bytes are refused" has the ordinary bytes.
#[test]
fn the_odd_variant_begins_with_a_rip_relative_instruction() {
    let path = common::odd_fakecuda_dir().join("libcuda.so.1");
    // SAFETY: the double's initialisers do nothing.
    let lib = unsafe { libloading::Library::new(path) }.expect("the odd double can be opened");
    // SAFETY: only the code's first bytes are read.
    let bytes = unsafe {
        let at = *lib.get::<*const u8>("cuLaunchKernel").expect("it exports cuLaunchKernel");
        std::slice::from_raw_parts(at, 3)
    };
    assert_eq!(bytes, [0x48, 0x8d, 0x05]);
    // SAFETY: cuDriverGetVersion's signature.
    let version = unsafe {
        let mut v = 0;
        let f = *lib.get::<unsafe extern "C" fn(*mut c_int) -> c_int>("cuDriverGetVersion").expect("exported");
        assert_eq!(f(&mut v), 0);
        v
    };
    assert_eq!(version, 13000, "the odd prologue must still reach the function");
}

/// Fault: the hook uses an entry point that the double lacks, and tests silently run without it.
#[test]
fn every_entry_point_of_the_hook_is_there() {
    let source =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/rust/hook/driver.rs")).expect("driver.rs");
    let have = Fake::open().symbols();
    let wanted: Vec<&str> = source
        .lines()
        .filter_map(|l| l.strip_prefix("    cu")?.split_once('(').map(|(name, _)| &l[4..6 + name.len()]))
        .collect();
    assert!(wanted.len() > 80, "found only {wanted:?} in driver.rs: has its form changed?");
    let missing: Vec<_> = wanted.iter().filter(|w| !have.contains(w)).collect();
    assert!(missing.is_empty(), "the double lacks {missing:?}");
}

/// Fault: cudart (cuGetProcAddress) and Triton (dlsym) would reach different code, so a detour would see half.
#[test]
fn look_up_by_name_gives_the_exported_addresses() {
    let fake = Fake::open();
    let get = |name: &CStr, version: c_int, flags: u64| {
        let (mut p, mut status): (*mut c_void, c_int) = (null_mut(), 9);
        let r = call!(fake, cuGetProcAddress_v2(name.as_ptr() => *const c_char, &mut p => *mut *mut c_void,
            version => c_int, flags => u64, &mut status => *mut c_int));
        assert_eq!(r, 0);
        (p, status)
    };
    // SAFETY: only addresses are compared.
    let at = |name: &str| unsafe { fake.symbol::<*mut c_void>(name) };
    assert_eq!(get(c"cuLaunchKernel", 13000, 1), (at("cuLaunchKernel"), 0));
    assert_eq!(get(c"cuLaunchKernel", 13000, 2), (at("cuLaunchKernel_ptsz"), 0));
    assert_ne!(at("cuLaunchKernel"), at("cuLaunchKernel_ptsz"));
    assert_eq!(get(c"cuMemAlloc", 13000, 0), (at("cuMemAlloc_v2"), 0));
    assert_eq!(get(c"cuMemcpyBatchAsync", 12080, 0), (at("cuMemcpyBatchAsync"), 0));
    assert_eq!(get(c"cuMemcpyBatchAsync", 13000, 0), (at("cuMemcpyBatchAsync_v2"), 0));
    assert_eq!(get(c"cuStreamGetCaptureInfo", 12000, 0), (at("cuStreamGetCaptureInfo_v2"), 0));
    assert_eq!(get(c"cuNoSuchThing", 13000, 0), (null_mut(), 1));
    assert_eq!(get(c"cuLaunchKernelEx", 11000, 0), (null_mut(), 2));
}

// ---- initialisation, contexts ----

/// Fault: a hook that calls too early, or from a thread without a context, passes on the double and fails on a GPU.
#[test]
fn calls_without_init_or_context_fail_as_the_drivers_do() {
    isolated("calls_without_init_or_context_fail_as_the_drivers_do", &[("FAKECUDA_DEVICES", "2")], || {
        let fake = Fake::open();
        let mut n: c_int = 0;
        assert_eq!(call!(fake, cuDeviceGetCount(&mut n => *mut c_int)), NOT_INITIALIZED);
        assert_eq!(call!(fake, cuInit(0 => c_uint)), 0);
        assert_eq!(call!(fake, cuDeviceGetCount(&mut n => *mut c_int)), 0);
        assert_eq!(n, 2);
        let mut e: Handle = 0;
        assert_eq!(call!(fake, cuEventCreate(&mut e => *mut Handle, 0 => c_uint)), INVALID_CONTEXT);
        fake.use_device(1);
        let s = fake.stream(-9);
        let mut priority = 0;
        assert_eq!(call!(fake, cuStreamGetPriority(s => Handle, &mut priority => *mut c_int)), 0);
        assert_eq!(priority, -5, "clamped to the range");
        std::thread::scope(|t| {
            t.spawn(|| assert_eq!(query(&fake, s), INVALID_CONTEXT));
        });
        assert_eq!(query(&fake, 0x1234_5670), INVALID_HANDLE);
        assert_eq!(call!(fake, cuStreamDestroy_v2(s => Handle)), 0);
        assert_eq!(query(&fake, s), INVALID_HANDLE);
    });
}

/// Fault: a misspelt setting silently tests something else.
#[test]
fn a_wrong_setting_is_refused() {
    isolated("a_wrong_setting_is_refused", &[("FAKECUDA_CLOCK", "manuel")], || {
        assert_eq!(call!(Fake::open(), cuInit(0 => c_uint)), 304);
    });
}

/// Fault: a forked child goes on using its parent's driver, which the real one refuses.
#[test]
fn a_forked_child_is_not_initialised() {
    isolated("a_forked_child_is_not_initialised", &[], || {
        let fake = Fake::ready(Clock::Real);
        let s = fake.stream(0);
        // SAFETY: the child only calls the double (which answers without a lock) and _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let ok = query(&fake, s) == NOT_INITIALIZED
                && call!(fake, cuInit(0 => c_uint)) == NOT_INITIALIZED
                && fake.now_ns() == 0;
            // SAFETY: ends the child.
            unsafe { libc::_exit(c_int::from(!ok)) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0);
        assert_eq!(query(&fake, s), 0, "the parent goes on");
    });
}

// ---- the GPU ----

/// Fault: order, priority or non-preemption differ from a GPU's, so the gate is tested against a fiction.
#[test]
fn kernels_run_one_at_a_time_by_priority_and_are_not_preempted() {
    isolated("kernels_run_one_at_a_time_by_priority_and_are_not_preempted", &[], || {
        let fake = Fake::ready(Clock::Manual);
        let (low, high) = (fake.stream(0), fake.stream(-5));
        let (long, short) = (fake.kernel("be_100us_id"), fake.kernel("hp_10us"));
        let t0 = fake.now_ns();
        assert_eq!(fake.launch_id(long, low, 1), 0);
        assert_eq!(fake.launch_id(long, low, 2), 0);
        fake.advance_ns(30_000);
        assert_eq!(fake.launch(short, high), 0);
        assert_eq!(query(&fake, high), NOT_READY);
        fake.advance_ns(1_000_000);
        assert_eq!(query(&fake, high), 0);
        let be = fake.runs_of("be_100us_id");
        let hp = one(fake.runs_of("hp_10us"));
        assert_eq!((be[0].id, be[0].start_ns, be[0].end_ns), (1, t0, t0 + 100_000), "runs to its end");
        assert_eq!(
            (hp.call_ns, hp.start_ns, hp.end_ns),
            (t0 + 30_000, t0 + 100_000, t0 + 110_000),
            "then the higher one"
        );
        assert_eq!((be[1].id, be[1].start_ns, be[1].end_ns), (2, t0 + 110_000, t0 + 210_000));
        assert_eq!((be[0].priority, hp.priority, hp.stream), (0, -5, high as u64));
    });
}

/// Fault: an event wait does not hold, or holds for a record that came after it.
#[test]
fn event_waits_hold_for_the_record_before_them() {
    isolated("event_waits_hold_for_the_record_before_them", &[], || {
        let fake = Fake::ready(Clock::Manual);
        let (a, b) = (fake.stream(0), fake.stream(0));
        let (k, l, e) = (fake.kernel("first_50us"), fake.kernel("second_1us"), fake.event());
        assert_eq!(wait(&fake, b, e), 0);
        assert_eq!(query(&fake, b), 0, "an event that was never recorded holds nobody");
        assert_eq!(fake.launch(k, a), 0);
        assert_eq!(record(&fake, e, a), 0);
        assert_eq!(wait(&fake, b, e), 0);
        assert_eq!(fake.launch(l, b), 0);
        assert_eq!(fake.launch(fake.kernel("later_500us"), a), 0);
        assert_eq!(record(&fake, e, a), 0);
        fake.advance_ns(2_000_000);
        let (first, second) = (one(fake.runs_of("first_50us")), one(fake.runs_of("second_1us")));
        assert!(second.start_ns >= first.end_ns, "{first:?} {second:?}");
        let later = one(fake.runs_of("later_500us"));
        assert!(second.end_ns <= later.end_ns + 1_000, "must not wait for the second record: {second:?} {later:?}");
    });
}

/// Fault: event times do not tell virtual time.
#[test]
fn events_tell_virtual_time_and_blocking_calls_jump_in_auto() {
    isolated("events_tell_virtual_time_and_blocking_calls_jump_in_auto", &[("FAKECUDA_CLOCK", "auto")], || {
        let fake = Fake::ready(Clock::Auto);
        let (s, k) = (fake.stream(0), fake.kernel("k_2ms"));
        let (a, b, never) = (fake.event(), fake.event(), fake.event());
        let elapsed = |x: Handle, y: Handle| {
            let mut ms = -1f32;
            (call!(fake, cuEventElapsedTime(&mut ms => *mut f32, x => Handle, y => Handle)), ms)
        };
        assert_eq!(record(&fake, a, s), 0);
        assert_eq!(fake.launch(k, s), 0);
        assert_eq!(record(&fake, b, s), 0);
        assert_eq!(call!(fake, cuEventQuery(b => Handle)), NOT_READY);
        assert_eq!(elapsed(a, b).0, NOT_READY);
        let t = Instant::now();
        assert_eq!(call!(fake, cuEventSynchronize(b => Handle)), 0);
        assert_eq!(elapsed(a, b), (0, 2.0));
        assert_eq!(elapsed(a, never).0, INVALID_HANDLE);
        assert!(t.elapsed() < Duration::from_secs(1), "virtual time must not take real time");
    });
}

/// Fault: in real time a kernel takes no time, or for ever.
#[test]
fn in_real_time_a_kernel_takes_its_time() {
    isolated("in_real_time_a_kernel_takes_its_time", &[], || {
        let fake = Fake::ready(Clock::Real);
        let (s, k) = (fake.stream(0), fake.kernel("k_20ms"));
        let t = Instant::now();
        assert_eq!(fake.launch(k, s), 0);
        assert!(t.elapsed() < Duration::from_millis(20), "the launch is asynchronous");
        assert_eq!(fake.synchronize(s), 0);
        assert!(t.elapsed() >= Duration::from_millis(20));
        let k = one(fake.runs_of("k_20ms"));
        assert_eq!(k.end_ns - k.start_ns, 20_000_000);
    });
}

/// Fault: the end mark of a request shows only once somebody calls the driver, where a GPU writes by itself.
#[test]
fn a_stream_write_reaches_memory_without_another_call() {
    isolated("a_stream_write_reaches_memory_without_another_call", &[], || {
        let fake = Fake::ready(Clock::Real);
        let word = Box::new(AtomicU32::new(7));
        let s = fake.stream(0);
        assert_eq!(write_value(&fake, s, &word, 1), 1, "memory that is not registered is refused");
        assert_eq!(register(&fake, word.as_ptr().cast(), 4), 0);
        assert_eq!(register(&fake, word.as_ptr().cast(), 4), 712, "registered twice");
        assert_eq!(fake.launch(fake.kernel("k_3ms"), s), 0);
        assert_eq!(write_value(&fake, s, &word, 0), 0);
        assert_eq!(word.load(Ordering::Acquire), 7, "not before the kernel");
        let t = Instant::now();
        while word.load(Ordering::Acquire) != 0 {
            assert!(t.elapsed() < Duration::from_secs(5), "the write never came");
            std::thread::yield_now();
        }
        assert!(t.elapsed() >= Duration::from_millis(1));
        assert_eq!(call!(fake, cuMemHostUnregister(word.as_ptr().cast() => *mut c_void)), 0);
    });
}

/// Fault: copies or fills are empty, happen at the call, or read a pageable source after the caller may have freed it.
#[test]
fn copies_and_fills_happen_in_stream_order() {
    isolated("copies_and_fills_happen_in_stream_order", &[], || {
        let fake = Fake::ready(Clock::Manual);
        let s = fake.stream(0);
        let (a, b) = (fake.alloc(64), fake.alloc(64));
        let at = |p: u64, i: usize| {
            // SAFETY: the double's device memory is memory of this process.
            unsafe { ((p as *const u8).add(i)).read_volatile() }
        };
        let mut source = [3u8; 64];
        assert_eq!(fake.launch(fake.kernel("k_10us"), s), 0);
        let r = call!(fake, cuMemcpyHtoDAsync_v2(a => u64, source.as_ptr().cast() => *const c_void, 64 => usize, s => Handle));
        assert_eq!(r, 0);
        source.fill(9);
        assert_eq!(call!(fake, cuMemcpyDtoDAsync_v2(b => u64, a => u64, 32 => usize, s => Handle)), 0);
        assert_eq!(call!(fake, cuMemsetD32Async(a => u64, 0x0102_0304 => u32, 2 => usize, s => Handle)), 0);
        assert_eq!(
            call!(fake, cuMemsetD2D8Async(b + 1 => u64, 8 => usize, 5u8 => u8, 2 => usize, 3 => usize, s => Handle)),
            0
        );
        assert_eq!((at(a, 63), at(b, 0)), (0, 0), "nothing at the call");
        fake.advance_ns(1_000_000);
        assert_eq!((at(a, 63), at(a, 0), at(a, 7), at(a, 8)), (3, 4, 1, 3));
        assert_eq!((at(b, 0), at(b, 1), at(b, 2), at(b, 3), at(b, 17), at(b, 31), at(b, 32)), (3, 5, 5, 3, 5, 3, 0));
        assert_eq!(call!(fake, cuMemsetD8Async(12345 => u64, 0u8 => u8, 1 => usize, s => Handle)), 1);
        let bytes: Vec<_> = fake.calls().iter().filter(|c| c.api.starts_with("cuMemcpy")).map(|c| c.id).collect();
        assert_eq!(bytes, [64, 32]);
        fake.set_clock(Clock::Auto);
        let mut back = [0u8; 4];
        let r = call!(fake, cuMemcpyDtoHAsync_v2(back.as_mut_ptr().cast() => *mut c_void, a => u64, 4 => usize, s => Handle));
        assert_eq!((r, back), (0, [4u8, 3, 2, 1]), "a pageable destination is written at return");
        assert_eq!(call!(fake, cuMemFree_v2(a => u64)), 0);
        assert_eq!(call!(fake, cuMemFree_v2(a => u64)), 1, "freed twice");
    });
}

/// Fault: the legacy default stream does not order blocking streams, or orders non-blocking ones too.
#[test]
fn the_default_streams_follow_their_rules() {
    isolated("the_default_streams_follow_their_rules", &[], || {
        let fake = Fake::ready(Clock::Manual);
        let mut blocking: Handle = 0;
        assert_eq!(call!(fake, cuStreamCreate(&mut blocking => *mut Handle, 0 => c_uint)), 0);
        let free = fake.stream(-5);
        let mut order: Vec<&str> = Vec::new();
        for (name, stream) in [("a_10us", blocking), ("b_10us", 0), ("c_10us", blocking), ("d_10us", free)] {
            assert_eq!(fake.launch(fake.kernel(name), stream), 0);
            order.push(name);
        }
        let null = null_mut::<Handle>();
        let own = fake.kernel("own_10us");
        let r = call!(fake, cuLaunchKernel_ptsz(own => Handle, 1 => c_uint, 1 => c_uint, 1 => c_uint, 1 => c_uint,
            1 => c_uint, 1 => c_uint, 0 => c_uint, 0 => Handle, null => *mut Handle, null => *mut Handle));
        assert_eq!(r, 0);
        fake.advance_ns(1_000_000);
        let run = |name: &str| one(fake.runs_of(name));
        assert!(run("b_10us").start_ns >= run("a_10us").end_ns);
        assert!(run("c_10us").start_ns >= run("b_10us").end_ns);
        assert!(run("d_10us").start_ns < run("b_10us").start_ns, "a non-blocking stream does not wait");
        assert_ne!(run("own_10us").stream, run("b_10us").stream, "_ptsz means the thread's own stream");
        assert_eq!(run("own_10us").api, "cuLaunchKernel_ptsz");
    });
}

/// Fault: host functions run early, twice, or on a thread that holds the double's lock.
#[test]
fn host_functions_run_in_order_and_may_take_their_time() {
    static ORDER: AtomicU64 = AtomicU64::new(0);
    extern "C" fn note(arg: *mut c_void) {
        ORDER.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |v| Some(v * 10 + arg as u64)).expect("never refused");
    }
    isolated("host_functions_run_in_order_and_may_take_their_time", &[], || {
        let fake = Fake::ready(Clock::Manual);
        let s = fake.stream(0);
        for n in 1..4usize {
            assert_eq!(fake.launch(fake.kernel("k_10us"), s), 0);
            let r = call!(fake, cuLaunchHostFunc(s => Handle, note => extern "C" fn(*mut c_void), n => Handle));
            assert_eq!(r, 0);
        }
        fake.advance_ns(10_000);
        assert_eq!(ORDER.load(Ordering::SeqCst), 1);
        fake.advance_ns(1_000_000);
        assert_eq!(ORDER.load(Ordering::SeqCst), 123);
        assert_eq!(query(&fake, s), 0);
    });
}

/// Fault: a launch never blocks, where the driver's queue is full after about a thousand.
#[test]
fn a_full_queue_blocks_the_launch() {
    isolated("a_full_queue_blocks_the_launch", &[], || {
        let fake = Fake::ready(Clock::Manual);
        let (s, k) = (fake.stream(0), fake.kernel("k_1us"));
        let ctx = fake.use_device(0);
        let launched = AtomicU32::new(0);
        std::thread::scope(|t| {
            t.spawn(|| {
                assert_eq!(call!(fake, cuCtxSetCurrent(ctx => Handle)), 0);
                for _ in 0..1100 {
                    assert_eq!(fake.launch(k, s), 0);
                    launched.fetch_add(1, Ordering::SeqCst);
                }
            });
            let t0 = Instant::now();
            while launched.load(Ordering::SeqCst) < 1024 {
                assert!(t0.elapsed() < Duration::from_secs(10));
                std::thread::yield_now();
            }
            assert_eq!(fake.pending(s), 1024);
            while launched.load(Ordering::SeqCst) < 1100 {
                fake.advance_ns(1_000);
            }
        });
        fake.advance_ns(10_000_000);
        assert_eq!(fake.pending(s), 0);
    });
}

/// Fault: freeing memory does not wait, so a hook's "stalls" bookkeeping is never exercised.
#[test]
fn freeing_waits_for_the_device() {
    isolated("freeing_waits_for_the_device", &[], || {
        let fake = Fake::ready(Clock::Auto);
        let (s, p) = (fake.stream(0), fake.alloc(1 << 20));
        assert_eq!(fake.launch(fake.kernel("k_5ms"), s), 0);
        let t0 = fake.now_ns();
        assert_eq!(call!(fake, cuMemFree_v2(p => u64)), 0);
        assert_eq!(fake.now_ns(), t0 + 5_000_000);
    });
}

/// Fault: injected failures fail the wrong call, or every call.
#[test]
fn injected_failures_and_delays_hit_their_call() {
    isolated("injected_failures_and_delays_hit_their_call", &[], || {
        let fake = Fake::ready(Clock::Auto);
        let (s, k) = (fake.stream(0), fake.kernel("k_1us"));
        fake.fail("cuLaunchKernel", 719, 1);
        assert_eq!([fake.launch(k, s), fake.launch(k, s), fake.launch(k, s)], [0, 719, 0]);
        assert_eq!(fake.call_count("cuLaunchKernel"), 3);
        assert_eq!(fake.runs_of("k_1us").len(), 2);
        assert_eq!(fake.call_count("cuNoSuchThing"), -1);
        fake.delay_ns("cuMemAlloc_v2", 20_000_000);
        let t = Instant::now();
        fake.alloc(64);
        assert!(t.elapsed() >= Duration::from_millis(20));
    });
}

// ---- names ----

/// Fault: a name cache that outlives a module is not found out, because handles never come back.
#[test]
fn names_belong_to_their_kind_of_handle_and_handles_come_back() {
    isolated("names_belong_to_their_kind_of_handle_and_handles_come_back", &[], || {
        let fake = Fake::ready(Clock::Auto);
        let name = |symbol: &str, h: Handle| {
            let mut p: *const c_char = std::ptr::null();
            // SAFETY: the signature of cuKernelGetName and cuFuncGetName; the name is read while its module lives.
            unsafe {
                let f = fake.symbol::<unsafe extern "C" fn(*mut *const c_char, Handle) -> c_int>(symbol);
                match f(&mut p, h) {
                    0 => Ok(CStr::from_ptr(p).to_str().expect("ASCII").to_owned()),
                    e => Err(e),
                }
            }
        };
        let k = fake.kernel("gemm_1us");
        assert_eq!(name("cuKernelGetName", k).as_deref(), Ok("gemm_1us"));
        assert_eq!(name("cuFuncGetName", k), Err(INVALID_HANDLE));
        let mut f: Handle = 0;
        assert_eq!(call!(fake, cuKernelGetFunction(&mut f => *mut Handle, k => Handle)), 0);
        assert_eq!(name("cuFuncGetName", f).as_deref(), Ok("gemm_1us"));
        assert_eq!(name("cuKernelGetName", f), Err(INVALID_HANDLE));

        let load = |function: &CStr| {
            let (mut m, mut f): (Handle, Handle) = (0, 0);
            assert_eq!(call!(fake, cuModuleLoadData(&mut m => *mut Handle, c"image".as_ptr() => *const c_char)), 0);
            let r = call!(fake, cuModuleGetFunction(&mut f => *mut Handle, m => Handle, function.as_ptr() => *const c_char));
            assert_eq!(r, 0);
            (m, f)
        };
        let (m, old) = load(c"old_1us");
        assert_eq!(call!(fake, cuModuleUnload(m => Handle)), 0);
        assert_eq!(fake.launch(old, fake.stream(0)), INVALID_HANDLE);
        let (_, new) = load(c"new_1us");
        assert_eq!(old, new, "a freed handle is given out again");
        assert_eq!(name("cuFuncGetName", new).as_deref(), Ok("new_1us"));
    });
}

// ---- capture and graphs ----

/// Fault: the double forgives a poller that breaks captures on a GPU.
#[test]
fn an_event_query_elsewhere_breaks_a_global_capture_unless_exchanged() {
    isolated("an_event_query_elsewhere_breaks_a_global_capture_unless_exchanged", &[], || {
        let fake = Fake::ready(Clock::Auto);
        let ctx = fake.use_device(0);
        let (s, k, e) = (fake.stream(0), fake.kernel("k_1us"), fake.event());
        let elsewhere = |mode: Option<c_uint>| {
            std::thread::scope(|t| {
                let poll = || {
                    assert_eq!(call!(fake, cuCtxSetCurrent(ctx => Handle)), 0);
                    if let Some(mut m) = mode {
                        let f = call!(fake, cuThreadExchangeStreamCaptureMode(&mut m => *mut c_uint));
                        assert_eq!((f, m), (0, GLOBAL), "gives back the old mode");
                    }
                    call!(fake, cuEventQuery(e => Handle))
                };
                t.spawn(poll).join().expect("the poller ends")
            })
        };
        for (capture, poller, answer, status, end) in [
            (GLOBAL, None, CAPTURE_UNSUPPORTED, 2, CAPTURE_INVALIDATED),
            (GLOBAL, Some(THREAD_LOCAL), 0, 1, 0),
            (GLOBAL, Some(RELAXED), 0, 1, 0),
            (THREAD_LOCAL, None, 0, 1, 0),
            (RELAXED, None, 0, 1, 0),
        ] {
            assert_eq!(begin_capture(&fake, s, capture), 0);
            assert_eq!(fake.launch(k, s), 0);
            assert_eq!(elsewhere(poller), answer, "capture {capture}, poller {poller:?}");
            assert_eq!(capture_status(&fake, s), status);
            let (r, graph) = end_capture(&fake, s);
            assert_eq!((r, (graph == 0)), (end, end != 0));
            assert_eq!(capture_status(&fake, s), 0);
        }
        // In the capturing thread itself.
        for (mode, answer) in [(THREAD_LOCAL, CAPTURE_UNSUPPORTED), (RELAXED, 0)] {
            assert_eq!(begin_capture(&fake, s, mode), 0);
            let mut p = 0u64;
            assert_eq!(call!(fake, cuMemAlloc_v2(&mut p => *mut u64, 64 => usize)), answer);
            assert_eq!(end_capture(&fake, s).0, if answer == 0 { 0 } else { CAPTURE_INVALIDATED });
        }
    });
}

/// Fault: captured work runs, graphs lose nodes, or a replay's kernels cannot be told from plain launches.
#[test]
fn a_captured_graph_has_its_nodes_and_runs_them_at_each_launch() {
    isolated("a_captured_graph_has_its_nodes_and_runs_them_at_each_launch", &[], || {
        let fake = Fake::ready(Clock::Auto);
        let (s, side, p) = (fake.stream(0), fake.stream(0), fake.alloc(8));
        let (fork, join) = (fake.event(), fake.event());
        let (store, add) = (fake.kernel("set_store_2us"), fake.kernel("inc_add_3us"));
        let (mut dst, mut value) = (p, 5u32);
        let mut params = [(&raw mut dst) as Handle, (&raw mut value) as Handle];
        assert_eq!(begin_capture(&fake, s, GLOBAL), 0);
        assert_eq!(fake.launch_with(store, s, params.as_mut_ptr()), 0);
        assert_eq!(record(&fake, fork, s), 0);
        assert_eq!(wait(&fake, side, fork), 0);
        assert_eq!(capture_status(&fake, side), 1, "joined through the event");
        assert_eq!(fake.launch_with(add, side, params.as_mut_ptr()), 0);
        assert_eq!(record(&fake, join, side), 0);
        assert_eq!(call!(fake, cuMemsetD8Async(p + 4 => u64, 1u8 => u8, 1 => usize, s => Handle)), 0);
        assert_eq!(wait(&fake, s, join), 0);
        let (r, graph) = end_capture(&fake, s);
        assert_eq!(r, 0);
        assert_eq!(fake.now_ns(), fake.runs_of("set_store_2us")[0].call_ns);
        assert_eq!(fake.runs_of("set_store_2us")[0].flags, CAPTURED);

        let mut n = 0usize;
        let null = null_mut::<Handle>();
        assert_eq!(call!(fake, cuGraphGetNodes(graph => Handle, null => *mut Handle, &mut n => *mut usize)), 0);
        assert_eq!(n, 3);
        let mut nodes = vec![0; n];
        let r = call!(fake, cuGraphGetNodes(graph => Handle, nodes.as_mut_ptr() => *mut Handle, &mut n => *mut usize));
        assert_eq!(r, 0);
        let mut types: Vec<c_uint> = nodes
            .iter()
            .map(|&node| {
                let mut t = 99;
                assert_eq!(call!(fake, cuGraphNodeGetType(node => Handle, &mut t => *mut c_uint)), 0);
                t
            })
            .collect();
        types.sort_unstable();
        assert_eq!(types, [0, 0, 2], "two kernels and a memset");

        let mut exec: Handle = 0;
        let r = call!(fake, cuGraphInstantiateWithFlags(&mut exec => *mut Handle, graph => Handle, 0 => u64));
        assert_eq!(r, 0);
        assert_eq!(call!(fake, cuGraphDestroy(graph => Handle)), 0);
        fake.clear_calls();
        for _ in 0..2 {
            assert_eq!(call!(fake, cuGraphLaunch(exec => Handle, s => Handle)), 0);
        }
        assert_eq!(fake.synchronize(s), 0);
        // SAFETY: the double's device memory is memory of this process.
        assert_eq!(unsafe { (p as *const u32).read_volatile() }, 10, "set to 5, then 5 added, each time");
        let runs = fake.runs_of("inc_add_3us");
        assert_eq!((runs.len(), runs[0].flags), (2, IN_GRAPH));
        let launch = fake.calls().into_iter().find(|c| c.api == "cuGraphLaunch").expect("recorded");
        assert_eq!(launch.id, 3, "its nodes");
        assert!(launch.start_ns < runs[0].start_ns && runs[0].end_ns <= launch.end_ns, "{launch:?} {runs:?}");
        assert_eq!(call!(fake, cuGraphExecDestroy(exec => Handle)), 0);
        assert_eq!(call!(fake, cuGraphLaunch(exec => Handle, s => Handle)), 1);
    });
}

/// Fault: a graph launched into a capture is lost, and a child graph's kernels with it.
#[test]
fn a_graph_launch_in_a_capture_becomes_a_child_graph() {
    isolated("a_graph_launch_in_a_capture_becomes_a_child_graph", &[], || {
        let fake = Fake::ready(Clock::Auto);
        let (s, k) = (fake.stream(0), fake.kernel("k_1us"));
        let capture = |body: &dyn Fn()| {
            assert_eq!(begin_capture(&fake, s, THREAD_LOCAL), 0);
            body();
            let (r, graph) = end_capture(&fake, s);
            assert_eq!(r, 0);
            let mut exec: Handle = 0;
            let r = call!(fake, cuGraphInstantiateWithFlags(&mut exec => *mut Handle, graph => Handle, 0 => u64));
            assert_eq!(r, 0);
            (graph, exec)
        };
        let (_, inner) = capture(&|| assert_eq!(fake.launch(k, s), 0));
        let (outer_graph, outer) = capture(&|| assert_eq!(call!(fake, cuGraphLaunch(inner => Handle, s => Handle)), 0));
        let (mut node, mut n, mut kind): (Handle, usize, c_uint) = (0, 1, 99);
        let r = call!(fake, cuGraphGetNodes(outer_graph => Handle, &mut node => *mut Handle, &mut n => *mut usize));
        assert_eq!((r, n), (0, 1));
        assert_eq!(call!(fake, cuGraphNodeGetType(node => Handle, &mut kind => *mut c_uint)), 0);
        assert_eq!(kind, 4);
        let mut child: Handle = 0;
        assert_eq!(call!(fake, cuGraphChildGraphNodeGetGraph(node => Handle, &mut child => *mut Handle)), 0);
        assert!(child != 0);
        fake.clear_calls();
        assert_eq!(call!(fake, cuGraphLaunch(outer => Handle, s => Handle)), 0);
        assert_eq!(fake.synchronize(s), 0);
        assert_eq!(one(fake.runs_of("k_1us")).flags, IN_GRAPH);
    });
}

/// Fault: misuse of captures that a GPU punishes passes here.
#[test]
fn captures_that_are_misused_end_in_the_drivers_errors() {
    isolated("captures_that_are_misused_end_in_the_drivers_errors", &[], || {
        let fake = Fake::ready(Clock::Auto);
        let ctx = fake.use_device(0);
        let (s, side, k, e) = (fake.stream(0), fake.stream(0), fake.kernel("k_1us"), fake.event());
        assert_eq!(end_capture(&fake, s).0, 401, "not capturing");

        assert_eq!(begin_capture(&fake, s, GLOBAL), 0);
        assert_eq!(begin_capture(&fake, s, GLOBAL), 401, "begun twice");
        assert_eq!(record(&fake, e, s), 0);
        assert_eq!(wait(&fake, side, e), 0);
        assert_eq!(fake.launch(k, side), 0);
        assert_eq!(end_capture(&fake, s).0, CAPTURE_UNJOINED);

        assert_eq!(record(&fake, e, side), 0);
        assert_eq!(begin_capture(&fake, s, GLOBAL), 0);
        assert_eq!(wait(&fake, s, e), CAPTURE_ISOLATION, "on work outside of the capture");
        assert_eq!(end_capture(&fake, s).0, CAPTURE_INVALIDATED);

        assert_eq!(begin_capture(&fake, s, GLOBAL), 0);
        let other = std::thread::scope(|t| {
            let end = || {
                assert_eq!(call!(fake, cuCtxSetCurrent(ctx => Handle)), 0);
                end_capture(&fake, s).0
            };
            t.spawn(end).join().expect("ends")
        });
        assert_eq!(other, CAPTURE_WRONG_THREAD);
        assert_eq!(end_capture(&fake, s).0, CAPTURE_INVALIDATED);

        assert_eq!(begin_capture(&fake, s, RELAXED), 0);
        assert_eq!(query(&fake, s), CAPTURE_UNSUPPORTED, "a question about the capturing stream itself");
        assert_eq!(fake.launch(k, s), CAPTURE_INVALIDATED);
        assert_eq!(end_capture(&fake, s).0, CAPTURE_INVALIDATED);

        let mut blocking: Handle = 0;
        assert_eq!(call!(fake, cuStreamCreate(&mut blocking => *mut Handle, 0 => c_uint)), 0);
        assert_eq!(begin_capture(&fake, blocking, RELAXED), 0);
        let mut status = 0;
        assert_eq!(call!(fake, cuStreamIsCapturing(0 => Handle, &mut status => *mut c_uint)), CAPTURE_IMPLICIT);
        assert_eq!(fake.launch(k, 0), CAPTURE_IMPLICIT);
        assert_eq!(end_capture(&fake, blocking).0, CAPTURE_INVALIDATED);
    });
}

// ---- green contexts ----

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Resource {
    kind: c_uint,
    internal: [u8; 92],
    sm: [c_uint; 12],
}

/// Fault: partitions of sizes that no H200 grants, or that do not run beside each other.
#[test]
fn green_contexts_split_in_eights_and_run_side_by_side() {
    isolated("green_contexts_split_in_eights_and_run_side_by_side", &[], || {
        let fake = Fake::ready(Clock::Manual);
        let mut all = Resource { kind: 0, internal: [0; 92], sm: [0; 12] };
        assert_eq!(size_of::<Resource>(), 144);
        assert_eq!(call!(fake, cuDeviceGetDevResource(0 => c_int, &mut all => *mut Resource, 1 => c_uint)), 0);
        assert_eq!((all.kind, all.sm[0]), (1, 132));
        let split = |input: &Resource, least: c_uint, groups: &mut [Resource]| {
            let (mut n, mut rest) = (groups.len() as c_uint, all);
            let out = if groups.is_empty() { null_mut() } else { groups.as_mut_ptr() };
            let r = call!(fake, cuDevSmResourceSplitByCount(out => *mut Resource, &mut n => *mut c_uint,
                input => *const Resource, &mut rest => *mut Resource, 0 => c_uint, least => c_uint));
            (r, n, rest)
        };
        let (r, n, rest) = split(&all, 8, &mut [all; 20]);
        assert_eq!((r, n, rest.sm[0]), (0, 15, 12), "as measured on an H200");
        assert_eq!(split(&all, 8, &mut []).1, 15, "asks only");
        let mut group = [all];
        let (r, n, rest) = split(&all, 30, &mut group);
        assert_eq!((r, n, group[0].sm[0], rest.sm[0]), (0, 1, 32, 100), "30 asked, 32 granted");
        assert_eq!(split(&all, 133, &mut [all]).0, 915);

        let green = |mut part: Resource| {
            let (mut desc, mut ctx, mut s): (Handle, Handle, Handle) = (0, 0, 0);
            let r = call!(fake, cuDevResourceGenerateDesc(&mut desc => *mut Handle, &mut part => *mut Resource, 1 => c_uint));
            assert_eq!(r, 0);
            let create = |flags: c_uint, ctx: &mut Handle| call!(fake, cuGreenCtxCreate(ctx => *mut Handle, desc => Handle, 0 => c_int, flags => c_uint));
            assert_eq!(create(0, &mut ctx), 1, "the default-stream flag is required");
            assert_eq!(create(1, &mut ctx), 0);
            let r = call!(fake, cuGreenCtxStreamCreate(&mut s => *mut Handle, ctx => Handle, 1 => c_uint, -5 => c_int));
            assert_eq!(r, 0);
            let mut of: Handle = 0;
            assert_eq!(call!(fake, cuStreamGetGreenCtx(s => Handle, &mut of => *mut Handle)), 0);
            assert_eq!(of, ctx);
            s
        };
        let (small, large, whole) = (green(group[0]), green(rest), fake.stream(0));
        for (name, s) in [("a_100us", small), ("b_100us", large), ("c_100us", whole)] {
            assert_eq!(fake.launch(fake.kernel(name), s), 0);
        }
        fake.advance_ns(10_000_000);
        let run = |name: &str| one(fake.runs_of(name));
        assert!(run("a_100us").overlaps(&run("b_100us")), "disjoint SMs");
        assert_eq!(run("a_100us").end_ns - run("a_100us").start_ns, 412_500, "132 / 32 of its time");
        assert!(run("c_100us").start_ns >= run("a_100us").end_ns, "all SMs: after both");
    });
}

// ---- two processes ----

struct Engine {
    path: std::path::PathBuf,
}

impl Engine {
    fn new(test: &str) -> Self {
        let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
        Engine { path: dir.join(format!("engine-{test}-{}", std::process::id())) }
    }

    fn env(&self) -> [(&str, &str); 1] {
        [("FAKECUDA_SHM", self.path.to_str().expect("a UTF-8 path"))]
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // A test that failed before the first process started has no file.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let t = Instant::now();
    while !done() {
        assert!(t.elapsed() < Duration::from_secs(20), "{what}: did not come");
        std::thread::yield_now();
    }
}

/// Not a test of its own: a second process, which launches kernels without end.
#[test]
#[ignore = "started by other tests"]
fn other_process() {
    isolated("other_process", &[], || {
        let fake = Fake::ready(Clock::Real);
        let (s, k) = (fake.stream(0), fake.kernel(&std::env::var("OTHER_KERNEL").unwrap_or("other_200us".into())));
        let word = Box::new(AtomicU32::new(0));
        assert_eq!(register(&fake, word.as_ptr().cast(), 4), 0);
        fake.alloc(1 << 30);
        for n in 1.. {
            assert_eq!(fake.launch(k, s), 0);
            assert_eq!(write_value(&fake, s, &word, n), 0);
            if n % 4 == 0 {
                assert_eq!(fake.synchronize(s), 0);
                assert_eq!(word.load(Ordering::Acquire), n, "our own effects, whoever simulated");
            }
        }
    });
}

/// Fault: two processes have a GPU each, so nothing that is tested across processes is tested.
#[test]
fn two_processes_compete_for_one_gpu() {
    let test = "two_processes_compete_for_one_gpu";
    let engine = Engine::new(test);
    isolated(test, &engine.env(), || {
        let fake = Fake::ready(Clock::Real);
        let mut other = common::isolated_command("other_process", &[]).spawn().expect("starts");
        let pid = other.id();
        wait_for("kernels of the other process", || fake.runs_of("other_200us").len() > 20);
        let (s, k) = (fake.stream(-5), fake.kernel("mine_100us"));
        for _ in 0..50 {
            assert_eq!(fake.launch(k, s), 0);
            assert_eq!(fake.synchronize(s), 0);
        }
        assert!(other.try_wait().expect("can be asked").is_none(), "the other process ended by itself");
        other.kill().expect("is killed");
        other.wait().expect("is reaped");
        let mut runs: Vec<Call> =
            fake.calls().into_iter().filter(|c| c.detail.ends_with("us") && c.start_ns > 0 && c.end_ns > 0).collect();
        assert!(runs.iter().any(|c| c.pid == pid) && runs.iter().any(|c| c.pid == std::process::id()));
        runs.sort_by_key(|c| c.start_ns);
        for pair in runs.windows(2) {
            assert!(!pair[0].overlaps(&pair[1]), "one at a time: {pair:?}");
        }
        let waits: Vec<u64> = fake.runs_of("mine_100us").iter().map(|c| c.start_ns - c.call_ns).collect();
        assert!(waits.iter().all(|&w| w <= 200_000), "at most the kernel that runs: {waits:?}");
        assert!(waits.iter().any(|&w| w > 0), "the other's kernels must be in the way at least once");
    });
}

/// Fault: a killed process keeps the GPU, its memory or its slot, or leaves the lock broken.
#[test]
fn a_process_killed_at_any_point_leaves_the_gpu_to_the_others() {
    let test = "a_process_killed_at_any_point_leaves_the_gpu_to_the_others";
    let engine = Engine::new(test);
    isolated(test, &engine.env(), || {
        let fake = Fake::ready(Clock::Real);
        let (s, k) = (fake.stream(0), fake.kernel("mine_10us"));
        let mut seed = 42u64;
        let free_bytes = || {
            let (mut free, mut total) = (0usize, 0usize);
            assert_eq!(call!(fake, cuMemGetInfo_v2(&mut free => *mut usize, &mut total => *mut usize)), 0);
            free
        };
        let free_before = free_bytes();
        for round in 0..25 {
            fake.clear_calls();
            let mut other = common::isolated_command("other_process", &[("OTHER_KERNEL", "other_20us")])
                .stdout(std::process::Stdio::null())
                .spawn()
                .expect("starts");
            wait_for("its first kernel", || !fake.runs_of("other_20us").is_empty());
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            assert_eq!(free_bytes(), free_before - (1 << 30), "one GPU's memory for both");
            let until = Instant::now() + Duration::from_micros(seed >> 54);
            while Instant::now() < until {
                assert_eq!(fake.launch(k, s), 0);
                assert_eq!(fake.synchronize(s), 0);
            }
            other.kill().expect("is killed");
            // Not reaped yet: a zombie must count as dead.
            wait_for("the end of the killed process", || fake.processes() == 1);
            let t = Instant::now();
            assert_eq!(fake.launch(k, s), 0);
            assert_eq!(fake.synchronize(s), 0);
            assert!(t.elapsed() < Duration::from_secs(2), "round {round}: the GPU was not free");
            other.wait().expect("is reaped");
            assert_eq!(free_bytes(), free_before, "its memory is free again");
        }
    });
}

/// Fault: the kernel of a killed process goes on for its full time.
#[test]
fn a_killed_process_s_running_kernel_ends_with_it() {
    let test = "a_killed_process_s_running_kernel_ends_with_it";
    let engine = Engine::new(test);
    isolated(test, &engine.env(), || {
        let fake = Fake::ready(Clock::Real);
        let mut other =
            common::isolated_command("other_process", &[("OTHER_KERNEL", "other_3600s")]).spawn().expect("starts");
        wait_for("its kernel on the GPU", || fake.runs_of("other_3600s").iter().any(|c| c.start_ns > 0));
        let s = fake.stream(0);
        assert_eq!(fake.launch(fake.kernel("mine_10us"), s), 0);
        assert_eq!(query(&fake, s), NOT_READY);
        other.kill().expect("is killed");
        assert_eq!(fake.synchronize(s), 0);
        other.wait().expect("is reaped");
        assert_eq!(fake.runs_of("other_3600s")[0].flags, KILLED);
    });
}

/// Fault: virtual time passes by an effect that another process has yet to apply.
#[test]
fn manual_time_waits_for_the_other_process_s_effects() {
    let test = "manual_time_waits_for_the_other_process_s_effects";
    let engine = Engine::new(test);
    isolated(test, &engine.env(), || {
        let fake = Fake::ready(Clock::Manual);
        let mut other = common::isolated_command("manual_other", &[]).spawn().expect("starts");
        wait_for("its launches", || fake.calls().iter().filter(|c| c.api == "cuStreamWriteValue32_v2").count() == 2);
        let t0 = fake.now_ns();
        fake.advance_ns(1_000_000);
        let writes: Vec<u64> =
            fake.calls().iter().filter(|c| c.api == "cuStreamWriteValue32_v2").map(|c| c.end_ns - t0).collect();
        assert_eq!(writes, [10_000, 20_000], "at the instant, though another process applied them");
        assert!(other.wait().expect("ends").success(), "it must see its own effects");
    });
}

/// Not a test of its own: the second process of the test above.
#[test]
#[ignore = "started by another test"]
fn manual_other() {
    isolated("manual_other", &[], || {
        let fake = Fake::ready(Clock::Manual);
        let (s, k) = (fake.stream(0), fake.kernel("k_10us"));
        let word = Box::new(AtomicU32::new(0));
        assert_eq!(register(&fake, word.as_ptr().cast(), 4), 0);
        for n in 1..=2 {
            assert_eq!(fake.launch(k, s), 0);
            assert_eq!(write_value(&fake, s, &word, n), 0);
        }
        assert_eq!(fake.synchronize(s), 0);
        assert_eq!(word.load(Ordering::Acquire), 2);
    });
}
