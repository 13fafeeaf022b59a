//! Observed launches, profiled ones and kept ones, through the C ABI; on the double.
#![cfg(feature = "cuda")]

mod common;

use common::fake::{COOPERATIVE, Fake, Handle, call};
use common::hooked::*;
use mosaic::hook::capi::{self, profiling};
use mosaic::hook::job::{self, Job, Role};
use serde_json::{Value, json};
use std::ffi::{c_char, c_uint, c_void};
use std::sync::atomic::Ordering;

const MS: u64 = 1_000_000;
const CAPTURE_RELAXED: c_uint = 2;

fn observed() -> &'static Job {
    let name = c("profiled");
    // SAFETY: nul-terminated.
    let id = unsafe { capi::mosaic_job_register(name.as_ptr(), 3, 0, 0.0, 0) };
    job::get(id).expect("role 3 is taken")
}

fn try_start(job: i64, options: &str) -> Result<(), String> {
    let options = c(options);
    // SAFETY: nul-terminated.
    let started = unsafe { profiling::mosaic_observe_start(job, options.as_ptr()) };
    if started == 0 { Ok(()) } else { Err(last_error()) }
}

#[track_caller]
fn start(job: &Job, options: Value) {
    try_start(job.id, &options.to_string()).expect("the observation starts");
}

fn try_stop() -> Result<Vec<Value>, String> {
    let text = owned_text(profiling::mosaic_observe_stop())?;
    Ok(text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect())
}

#[track_caller]
fn stop() -> Vec<Value> {
    try_stop().expect("the observation ends")
}

/// One value of each line.
fn column(lines: &[Value], key: &str) -> Vec<Value> {
    lines.iter().map(|line| line[key].clone()).collect()
}

#[track_caller]
fn launch_kept(kept: &Value, stream: Handle) {
    let kept = kept.as_i64().expect("it was kept");
    for again in [profiling::mosaic_kept_fill, profiling::mosaic_kept_launch] {
        assert_eq!(again(kept, stream as *mut c_void), 0, "{}", last_error());
    }
}

/// A CUfunction of a module of its own: what Triton launches.
fn function(fake: &Fake, name: &str) -> Handle {
    let (mut module, mut f): (Handle, Handle) = (0, 0);
    assert_eq!(call!(fake, cuModuleLoadData(&mut module => *mut Handle, c"image".as_ptr() => *const c_char)), 0);
    let name = c(name);
    let r = call!(fake, cuModuleGetFunction(&mut f => *mut Handle, module => Handle, name.as_ptr() => *const c_char));
    assert_eq!(r, 0);
    f
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Attribute {
    id: u32,
    pad: u32,
    value: [u32; 16],
}

impl Attribute {
    fn new(id: u32, value: u32) -> Self {
        Attribute { id, pad: 0, value: [value; 16] }
    }
}

#[repr(C)]
struct Config {
    sizes: [c_uint; 7],
    stream: Handle,
    attributes: *const Attribute,
    count: c_uint,
}

fn launch_ex(fake: &Fake, f: Handle, stream: Handle, attributes: &[Attribute], params: *mut Handle) -> i32 {
    let count = attributes.len() as c_uint;
    let config = Config { sizes: [1, 2, 3, 32, 1, 1, 512], stream, attributes: attributes.as_ptr(), count };
    call!(fake, cuLaunchKernelEx(&config => *const Config, f => Handle, params => *mut Handle, 0 => Handle))
}

/// Parameters of a kernel with "_store" in its name.
#[repr(C)]
struct Store {
    address: u64,
    value: u32,
}

/// Parameters of a kernel with "_sum" in its name.
#[repr(C)]
struct Sum {
    byte: u8,
    words: [u64; 5],
}

/// The u32 at a device address, which is memory of this process in the double.
fn word(address: u64) -> u32 {
    // SAFETY: the test's own allocation, and the double is idle.
    unsafe { (address as *const u32).read_volatile() }
}

/// Fault: a launch is missing, out of order, or described as another; or what is captured counts as launched.
#[test]
fn the_sequence_is_that_of_the_launches_on_all_streams() {
    alone(&[], || {
        let fake = hooked();
        let job = observed();
        let streams = [stream_of(fake, job), stream_of(fake, job)];
        let (a, b) = (kernel(fake, "a_5us"), function(fake, "b_5us"));
        let memory = fake.alloc(64);
        let graph = {
            let (mut graph, mut exec): (Handle, Handle) = (0, 0);
            let r = call!(fake, cuStreamBeginCapture_v2(streams[0] => Handle, CAPTURE_RELAXED => c_uint));
            assert_eq!(r, 0);
            start(job, json!({}));
            (0..3).for_each(|_| assert_eq!(launch(fake, a, streams[0]), 0));
            assert_eq!(call!(fake, cuStreamEndCapture(streams[0] => Handle, &mut graph => *mut Handle)), 0);
            let r = call!(fake, cuGraphInstantiateWithFlags(&mut exec => *mut Handle, graph => Handle, 0 => u64));
            assert_eq!(r, 0);
            exec
        };
        assert_eq!(launch(fake, a, streams[0]), 0);
        assert_eq!(launch(fake, a, streams[1]), 0);
        assert_eq!(call!(fake, cuGraphLaunch(graph => Handle, streams[1] => Handle)), 0);
        assert_eq!(launch_ex(fake, b, streams[0], &[Attribute::new(4, 2)], std::ptr::null_mut()), 0);
        let r = call!(fake, cuMemcpyDtoDAsync_v2(memory => u64, memory + 32 => u64, 8 => usize, streams[0] => Handle));
        assert_eq!(r, 0);
        assert_eq!(call!(fake, cuMemsetD8Async(memory => u64, 1 => c_uint, 8 => usize, streams[1] => Handle)), 0);
        assert_eq!(launch(fake, a, streams[1]), 0);
        assert_eq!(launch(fake, a, fake.stream(0)), 0, "a stream of nobody's");
        let lines = stop();
        assert_eq!(launch(fake, a, streams[0]), 0, "after the end");

        let kinds = ["kernel", "kernel", "graph", "kernel", "copy", "set", "kernel"];
        assert_eq!(column(&lines, "kind"), kinds);
        assert_eq!(column(&lines, "occurrence"), [0, 1, 0, 0, 0, 0, 2]);
        assert_eq!(column(&lines, "stream"), [0, 1, 1, 0, 0, 1, 1].map(|i: usize| streams[i]));
        assert_eq!(column(&lines, "symbol")[..4], [json!("a_5us"), json!("a_5us"), json!(null), json!("b_5us")]);
        assert!(lines.iter().all(|l| l["profiled"] == false && l.get("kept").is_none() && l.get("failed").is_none()));
        assert_eq!(lines[2]["kernels"], 3);
        let config = mosaic::kernel::LaunchConfig {
            grid: [1, 2, 3],
            block: [32, 1, 1],
            dynamic_smem_bytes: 512,
            cluster: [2; 3],
        };
        let id = mosaic::hook::names::kernel_id(b, &config).0;
        let b = json!({"kernel_id": format!("{id:016x}"), "kind": "kernel", "stream": streams[0], "occurrence": 0,
            "profiled": false, "symbol": "b_5us", "grid": [1, 2, 3], "block": [32, 1, 1], "cluster": [2, 2, 2],
            "dynamic_smem_bytes": 512, "registers": 32, "static_smem_bytes": 256});
        assert_eq!(lines[3], b);
        let mut keys: Vec<_> = lines[4].as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["kernel_id", "kind", "occurrence", "profiled", "stream"]);
        assert_eq!(job.counts.kernels.load(Ordering::Relaxed), 3 + 4 + 3 + 1, "and all were counted");
    });
}

/// Fault: the profiler gets another occurrence, none, or a launch of another thread beside the chosen one.
#[test]
fn exactly_the_chosen_launches_are_inside_a_profilers_range() {
    alone(&[], || {
        let fake = hooked();
        let job = observed();
        let streams = [stream_of(fake, job), stream_of(fake, job)];
        let kernels = [kernel(fake, "a_5us"), kernel(fake, "b_5us")];
        let run = || {
            for _ in 0..20 {
                kernels.iter().for_each(|k| assert_eq!(launch(fake, *k, streams[0]), 0));
            }
        };
        start(job, json!({}));
        run();
        let ids = column(&stop(), "kernel_id");
        assert_eq!(fake.call_count("cuProfilerStart"), 0);

        fake.advance_ns(MS);
        fake.clear_calls();
        start(job, json!({"profile": [[ids[0], 2], [ids[1], 5], [ids[1], 100], ["0123456789abcdef", 0]]}));
        let other = task(move |fake| {
            let k = kernel(fake, "other_5us");
            (0..200).for_each(|_| assert_eq!(launch(fake, k, streams[1]), 0));
        });
        run();
        other.join();
        let lines = stop();
        let chosen = |l: &&Value| l["profiled"] == true;
        let chosen: Vec<_> = lines.iter().filter(chosen).map(|l| (&l["symbol"], &l["occurrence"])).collect();
        assert_eq!(chosen, [(&json!("a_5us"), &json!(2)), (&json!("b_5us"), &json!(5))]);

        let calls = fake.calls();
        let calls: Vec<_> =
            calls.iter().map(|c| (c.api.as_str(), c.detail.as_str())).filter(|c| c.0 != "cuLibraryLoadData").collect();
        let launched: Vec<_> = calls.iter().filter(|c| c.0 == "cuLaunchKernel").map(|c| json!(c.1)).collect();
        assert_eq!(launched, column(&lines, "symbol"), "the lines are in the order of the launches");
        let starts: Vec<_> = (0..calls.len()).filter(|i| calls[*i].0 == "cuProfilerStart").collect();
        let ranges: Vec<_> = starts.iter().map(|i| &calls[*i + 1..*i + 3]).collect();
        let range = |name| [("cuLaunchKernel", name), ("cuProfilerStop", "")];
        assert_eq!(ranges, [&range("a_5us")[..], &range("b_5us")[..]]);
        let stops = calls.iter().filter(|c| c.0 == "cuProfilerStop").count();
        assert_eq!(stops, 2);
    });
}

/// Fault: a launch that no profiler saw is taken for a profiled one; or it is not made at all.
#[test]
fn a_profiler_that_refuses_fails_the_observation_not_the_launch() {
    alone(&[], || {
        let fake = hooked();
        let job = observed();
        let (k, stream) = (kernel(fake, "a_5us"), stream_of(fake, job));
        start(job, json!({}));
        assert_eq!(launch(fake, k, stream), 0);
        let id = column(&stop(), "kernel_id").remove(0);
        for refuses in ["cuProfilerStart", "cuProfilerStop"] {
            fake.clear_calls();
            fake.fail(refuses, 801, 0);
            start(job, json!({"profile": [[id, 0], [id, 1]]}));
            assert_eq!((launch(fake, k, stream), launch(fake, k, stream)), (0, 0));
            let e = try_stop().unwrap_err();
            assert_eq!(
                e,
                format!("a chosen launch was not profiled: {refuses} failed with CUDA_ERROR_NOT_SUPPORTED (801)")
            );
            assert_eq!(fake.runs_of("a_5us").len(), 2);
        }
        start(job, json!({"profile": [[id, 0]]}));
        assert_eq!(launch(fake, k, stream), 0);
        assert_eq!(column(&stop(), "profiled"), [true], "the next one is not spoilt");
    });
}

/// Fault: a kept launch reads its parameters from its caller's memory, which holds something else by now; or some form
/// of launch loses a part of what it was given.
#[test]
fn a_kept_launch_is_launched_again_as_it_was() {
    alone(&[], || {
        let fake = hooked();
        let job = observed();
        let (stream, later) = (stream_of(fake, job), fake.stream(0));
        let memory = fake.alloc(16);
        start(job, json!({"keep": true}));

        // The parameters of the launches, in memory that is used again for each.
        let mut given = Store { address: memory, value: 7 };
        let mut array = [(&raw mut given.address) as Handle, (&raw mut given.value) as Handle];
        assert_eq!(fake.launch_with(kernel(fake, "kernel_store"), stream, array.as_mut_ptr()), 0);
        (given.address, given.value) = (memory + 4, 8);
        assert_eq!(fake.launch_with(function(fake, "function_store"), stream, array.as_mut_ptr()), 0);
        (given.address, given.value) = (memory + 8, 9);
        let cooperative = kernel(fake, "cooperative_store");
        let r = call!(fake, cuLaunchCooperativeKernel(cooperative => Handle, 1 => c_uint, 1 => c_uint, 1 => c_uint,
            32 => c_uint, 1 => c_uint, 1 => c_uint, 0 => c_uint, stream => Handle, array.as_mut_ptr() => *mut Handle));
        assert_eq!(r, 0);
        (given.address, given.value) = (memory + 12, 10);
        let mut attributes = [Attribute::new(8, 0), Attribute::new(2, 1), Attribute::new(6, 1)];
        assert_eq!(launch_ex(fake, kernel(fake, "ex_store"), stream, &attributes, array.as_mut_ptr()), 0);
        attributes.fill(Attribute::new(12, 0));
        (given.address, given.value) = (memory, 0);

        // A byte, a gap, a structure; then the same in one buffer.
        let mut sum = Sum { byte: 3, words: [1, 20, 300, 4000, 50_000] };
        let mut array = [(&raw mut sum.byte) as Handle, (&raw mut sum.words) as Handle];
        assert_eq!(fake.launch_with(kernel(fake, "each_sum"), stream, array.as_mut_ptr()), 0);
        sum = Sum { byte: 5, words: [0, 0, 0, 0, 60] };
        let mut size = size_of_val(&sum);
        let mut extra = [1, (&raw mut sum) as Handle, 2, (&raw mut size) as Handle, 0];
        let packed = kernel(fake, "buffer_sum");
        let r = call!(fake, cuLaunchKernel(packed => Handle, 4 => c_uint, 1 => c_uint, 1 => c_uint, 32 => c_uint,
            1 => c_uint, 1 => c_uint, 0 => c_uint, stream => Handle, 0 => Handle, extra.as_mut_ptr() => *mut Handle));
        assert_eq!(r, 0);
        sum = Sum { byte: 0, words: [0; 5] };
        (size, extra) = (0, [0; 5]);
        assert_eq!(launch(fake, kernel(fake, "none"), stream), 0);
        fake.advance_ns(MS);

        let lines = stop();
        let counted = job.counts.kernels.load(Ordering::Relaxed);
        assert_eq!(column(&lines, "kept"), [0, 1, 2, 3, 4, 5, 6], "{lines:?}");
        // SAFETY: the test's own allocation, and the double is idle.
        unsafe { std::ptr::write_bytes(memory as *mut u8, 0, 16) };
        fake.clear_calls();
        // From a thread that has no context; and more than once.
        let kept = column(&lines, "kept");
        let again = std::thread::spawn(move || (0..2).for_each(|_| kept.iter().for_each(|k| launch_kept(k, later))));
        again.join().unwrap();
        fake.advance_ns(MS);
        assert_eq!([0, 4, 8, 12].map(|at| word(memory + at)), [7, 8, 9, 10]);
        let calls = fake.calls();
        assert!(calls.iter().all(|c| c.stream == later as u64 && c.api == "cuLaunchKernelEx" && c.end_ns > 0));
        let names =
            ["kernel_store", "function_store", "cooperative_store", "ex_store", "each_sum", "buffer_sum", "none"];
        assert_eq!(calls.iter().map(|c| c.detail.as_str()).collect::<Vec<_>>(), [names, names].concat());
        let ids = [0, 0, 0, 0, 54_324, 65, 0];
        assert_eq!(calls.iter().map(|c| c.id).collect::<Vec<_>>(), [ids, ids].concat());
        let together = [false, false, true, true, false, false, false];
        assert_eq!(calls.iter().map(|c| c.flags & COOPERATIVE != 0).collect::<Vec<_>>(), [together, together].concat());
        assert_eq!(job.counts.kernels.load(Ordering::Relaxed), counted, "past the hook");
        std::hint::black_box((given, sum, size, extra, attributes));
    });
}

/// Fault: a kernel that counts on cleared memory finds what its last launch left there, or the fill of another stream or
/// of before another kernel is made.
#[test]
fn a_kept_launch_takes_the_fills_right_before_it_along() {
    alone(&[], || {
        let fake = hooked();
        let job = observed();
        let (stream, other, later) = (stream_of(fake, job), stream_of(fake, job), fake.stream(0));
        let (k, memory) = (kernel(fake, "a_5us"), fake.alloc(32));
        start(job, json!({"keep": true}));
        let set32 = |to: u64, value: c_uint, n: usize, stream: Handle| {
            let r = call!(fake, cuMemsetD32Async(to => u64, value => c_uint, n => usize, stream => Handle));
            assert_eq!(r, 0);
        };
        set32(memory, 7, 2, stream);
        set32(memory + 16, 9, 1, other);
        let r = call!(fake, cuMemsetD2D8Async(memory + 8 => u64, 4 => usize, 3 => c_uint, 1 => usize, 2 => usize,
            stream => Handle));
        assert_eq!(r, 0);
        assert_eq!(launch(fake, k, stream), 0);
        assert_eq!(launch(fake, k, stream), 0);
        fake.advance_ns(MS);
        let lines = stop();
        let kept = column(&lines, "kept");
        assert_eq!(kept[3..], [json!(0), json!(1)]);
        // SAFETY: the test's own allocation, and the double is idle.
        unsafe { std::ptr::write_bytes(memory as *mut u8, 0, 32) };
        fake.clear_calls();
        launch_kept(&kept[4], later);
        fake.advance_ns(MS);
        assert_eq!([0, 8, 16].map(|at| word(memory + at)), [0, 0, 0]);
        launch_kept(&kept[3], later);
        fake.advance_ns(MS);
        assert_eq!([0, 4, 8, 12, 16].map(|at| word(memory + at)), [7, 7, 3, 3, 0]);
        let calls = fake.calls();
        let names: Vec<_> = calls.iter().map(|c| c.api.as_str()).collect();
        assert_eq!(names, ["cuLaunchKernelEx", "cuMemsetD32Async", "cuMemsetD2D8Async", "cuLaunchKernelEx"]);
        assert!(calls.iter().all(|c| c.stream == later as u64));
    });
}

/// Fault: a launch that cannot be kept is left out without a word, or half of it is kept.
#[test]
fn a_launch_that_cannot_be_kept_says_why() {
    alone(&[], || {
        let fake = hooked();
        let job = observed();
        let (k, stream) = (kernel(fake, "a_id_5us"), stream_of(fake, job));
        let event = Attribute::new(7, 0);
        start(job, json!({"keep": true}));
        fake.fail("cuKernelGetParamInfo", 801, 0);
        assert_eq!(fake.launch_id(k, stream, 1), 0);
        assert_eq!(launch(fake, k, stream), 0);
        assert_eq!(launch_ex(fake, k, stream, &[event], std::ptr::null_mut()), 0);
        fake.fail("cuLaunchKernel", 2, 0);
        assert_eq!(fake.launch_id(k, stream, 1), 2);
        assert_eq!(fake.launch_id(k, stream, 1), 0);
        let lines = stop();
        let why = [
            json!("its parameters are not known: cuKernelGetParamInfo failed with CUDA_ERROR_NOT_SUPPORTED (801)"),
            json!("it has 1 parameters, and was launched without"),
            json!("its launch attribute 7 names an event, which a later launch must not use"),
            json!(null),
            json!(null),
        ];
        assert_eq!(column(&lines, "not_kept"), why);
        assert_eq!(column(&lines, "kept"), [json!(null), json!(null), json!(null), json!(null), json!(0)]);
        assert_eq!(column(&lines, "failed")[3..], [json!("CUDA_ERROR_OUT_OF_MEMORY"), json!(null)]);
        let occurrences = [0, 1, 0, 2, 3];
        assert_eq!(column(&lines, "occurrence"), occurrences);
    });
}

/// Fault: a number comes to mean another launch, or one that was dropped is launched.
#[test]
fn a_kept_launch_has_its_number_until_it_is_dropped() {
    alone(&[], || {
        let fake = hooked();
        let job = observed();
        let (k, stream) = (kernel(fake, "a_5us"), stream_of(fake, job));
        let keep = |keep: bool| {
            start(job, json!({"keep": keep}));
            (0..2).for_each(|_| assert_eq!(launch(fake, k, stream), 0));
            column(&stop(), "kept")
        };
        let refused = |kept: i64| {
            for again in [profiling::mosaic_kept_fill, profiling::mosaic_kept_launch] {
                assert_eq!(again(kept, stream as *mut c_void), -1);
                let e = last_error();
                let says = format!("no kept launch has number {kept}: it was never kept, or was dropped");
                assert!(e.contains(&says), "{e}");
            }
        };
        assert_eq!(keep(true), [0, 1]);
        assert_eq!(keep(false), [json!(null), json!(null)]);
        launch_kept(&json!(1), stream);
        [2, -1, i64::MIN, i64::MAX].into_iter().for_each(refused);
        assert_eq!(keep(true), [2, 3]);
        [0, 2].into_iter().for_each(|kept| launch_kept(&json!(kept), stream));
        assert_eq!(profiling::mosaic_kept_clear(), 0);
        [0, 1, 2, 3].into_iter().for_each(refused);
        assert_eq!(keep(true), [4, 5]);
        fake.fail("cuLaunchKernelEx", 719, 0);
        assert_eq!(profiling::mosaic_kept_launch(4, stream as *mut c_void), -1);
        let says = "the kept launch failed: cuLaunchKernelEx failed with CUDA_ERROR_LAUNCH_FAILED (719)";
        assert_eq!(last_error(), says);
    });
}

/// Fault: HP waits for an observation, is profiled by it, or shows up in it; or BE is not held meanwhile.
#[test]
fn launches_of_other_roles_are_as_before() {
    alone(&[], || {
        let fake = hooked();
        let (hp, be, job) = (self::job("hp", Role::Hp), self::job("be", Role::Be), observed());
        let theirs = stream_of(fake, be);
        let k = kernel(fake, "a_5us");
        let config =
            mosaic::kernel::LaunchConfig { grid: [1; 3], block: [32, 1, 1], dynamic_smem_bytes: 0, cluster: [0; 3] };
        let id = format!("{:016x}", mosaic::hook::names::kernel_id(k, &config).0);
        start(job, json!({"profile": [[id, 0], [id, 1]], "keep": true}));
        let open = capi::mosaic_request_open(hp.id, 0);
        let mine = stream_of(fake, hp);
        assert_eq!(launch(fake, k, mine), 0);
        let held = launching(k, theirs);
        held.is_held();
        let observed_stream = stream_of(fake, job);
        assert_eq!(fake.call_count("cuProfilerStart"), 0);
        assert_eq!(launch(fake, k, observed_stream), 0, "an observed job is not held");
        assert_eq!(fake.call_count("cuProfilerStart"), 1);
        assert_eq!(capi::mosaic_request_close(open), 0);
        fake.advance_ns(MS);
        held.join();
        let lines = stop();
        assert_eq!((lines.len(), &lines[0]["stream"]), (1, &json!(observed_stream)));
        assert_eq!(fake.call_count("cuProfilerStart"), 1);
    });
}

/// Fault: two observations mix; one of a job whose launches look otherwise starts, and stays empty.
#[test]
fn what_cannot_be_observed_is_refused() {
    alone(&[], || {
        hooked();
        let (hp, job) = (self::job("hp", Role::Hp), observed());
        let says = |started: Result<(), String>, text: &str| {
            let e = started.unwrap_err();
            assert!(e.contains(text), "{e}");
        };
        says(try_start(hp.id, "{}"), "job \"hp\" cannot be observed: expected one that was registered as observed");
        says(try_start(77, "{}"), "no job has number 77");
        says(try_start(job.id, "{\"profile\": ["), "options not understood: EOF");
        says(try_start(job.id, "{\"times\": 1}"), "found option \"times\", expected profile or keep");
        // SAFETY: null is an argument to be refused.
        assert_eq!(unsafe { profiling::mosaic_observe_start(job.id, std::ptr::null()) }, -1);
        assert!(last_error().contains("options: found a null pointer"), "{}", last_error());
        says(try_stop().map(drop), "no observation is going on: call mosaic_observe_start first");
        start(job, json!({}));
        says(try_start(job.id, "{}"), "an observation is going on: end it with mosaic_observe_stop first");
        assert_eq!(stop(), [] as [Value; 0]);

        let name = c("all");
        // SAFETY: nul-terminated.
        assert_eq!(unsafe { capi::mosaic_process_role(3, name.as_ptr(), 0.0) }, -1);
        assert!(last_error().contains("only a job can be observed"), "{}", last_error());
        // SAFETY: nul-terminated.
        assert_eq!(unsafe { capi::mosaic_job_register(name.as_ptr(), 4, 0, 1.0, 0) }, -1);
        assert_eq!(last_error(), "role: found 4, expected 1 (high priority), 2 (best effort) or 3 (observed)");
        let long = c(&"n".repeat(64));
        // SAFETY: nul-terminated.
        assert_eq!(unsafe { capi::mosaic_job_register(long.as_ptr(), 3, 0, 0.0, 0) }, -1);
        assert_eq!(last_error(), "name: found 64 bytes, expected at most 63");
        assert_eq!(capi::mosaic_request_open(job.id, 0), -1);
        assert!(last_error().contains("\"profiled\" is not high priority"), "{}", last_error());
    });
}

/// Fault: where launches do not come through a detour, an observation starts and stays empty.
#[test]
fn without_the_detour_nothing_can_be_observed() {
    alone(&[("MOSAIC_HOOK", "sections")], || {
        fake();
        let e = try_start(observed().id, "{}").unwrap_err();
        assert!(e.contains("only through the detour") && e.contains("SectionsOnly"), "{e}");
    });
}

/// Fault: counters in another unit than their name says, or a table that cannot be read and gives no reason.
#[test]
fn nsight_computes_table_comes_in_plain_units() {
    let read = |path: &std::path::Path| {
        let path = c(path.to_str().expect("a path of ours"));
        // SAFETY: nul-terminated.
        owned_text(unsafe { profiling::mosaic_ncu_json(path.as_ptr()) })
    };
    alone(&[], || {
        let path = std::env::temp_dir().join(format!("mosaic-ncu-{}.csv", std::process::id()));
        let table = "\"ID\",\"Kernel Name\",\"Block Size\",\"Grid Size\",\"gpu__time_duration.sum\"\n\
             \"\",\"\",\"\",\"\",\"usecond\"\n\"0\",\"_Z1av\",\"(32, 1, 1)\",\"(4, 1, 1)\",\"1,000.50\"\n";
        std::fs::write(&path, table).unwrap();
        let text = read(&path).unwrap();
        let expected = json!({"id": 0, "name": "_Z1av", "grid": [4, 1, 1], "block": [32, 1, 1],
                              "metrics": {"duration_ns": 1_000_500.0}});
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
        std::fs::write(&path, "==ERROR== ERR_NVGPUCTRPERM - no\n").unwrap();
        let refused = read(&path).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert!(refused.contains("NVreg_RestrictProfilingToAdminUsers=0"), "{refused}");
        assert!(read(&path).unwrap_err().contains("cannot be read"));

        let asked: Vec<String> = serde_json::from_str(&owned_text(profiling::mosaic_ncu_metrics()).unwrap()).unwrap();
        assert!(asked.iter().any(|name| name == "gpu__time_duration.sum"));
    });
}
