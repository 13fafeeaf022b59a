//! Which launches the hook sees, and as whose: streams, captures, graphs, copies, devices, drivers; on the double.
#![cfg(feature = "cuda")]

mod common;

use common::fake::{Fake, Handle, call};
use common::hooked::*;
use mosaic::clock::now_ns;
use mosaic::hook::job::{self, Role};
use mosaic::hook::{Mechanism, api, capi, device};
use std::ffi::{c_char, c_uint, c_void};
use std::sync::atomic::Ordering;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;
const PER_THREAD: Handle = 2;
const GLOBAL: c_uint = 0;
const THREAD_LOCAL: c_uint = 1;

fn launch_ptsz(fake: &Fake, kernel: Handle, stream: Handle) -> i32 {
    call!(fake, cuLaunchKernel_ptsz(kernel => Handle, 1 => c_uint, 1 => c_uint, 1 => c_uint, 32 => c_uint, 1 => c_uint,
        1 => c_uint, 0 => c_uint, stream => Handle, 0 => Handle, 0 => Handle))
}

/// Starts `f`, expects it to be held by an active request, ends the request, and expects it to be let go.
#[track_caller]
fn held_by_a_request(hp: &job::Job, f: impl FnOnce(&'static Fake) + Send + 'static) {
    let id = capi::mosaic_request_open(hp.id, 0);
    assert!(id > 0);
    let held = task(f);
    held.is_held();
    assert_eq!(capi::mosaic_request_close(id), 0);
    held.join();
}

// ---- streams ----

/// Fault: an unmodified BE program escapes on a default stream, by another entry point, or on a stream made later.
#[test]
fn a_whole_best_effort_process_is_held_on_every_stream() {
    alone(&[], || {
        let fake = hooked();
        let name = c("train.py");
        // SAFETY: nul-terminated.
        assert_eq!(unsafe { capi::mosaic_process_role(2, name.as_ptr(), 0.0) }, 0);
        let hp = job("hp", Role::Hp);
        let k = kernel(fake, "be_5us");
        let own = fake.stream(0);
        type Launch = fn(&'static Fake, Handle, Handle) -> i32;
        let plain: Launch = |fake, k, s| launch(fake, k, s);
        let ptsz: Launch = |fake, k, s| launch_ptsz(fake, k, s);
        let cases: [(Launch, Handle); 7] =
            [(plain, 0), (plain, 1), (plain, PER_THREAD), (ptsz, 0), (ptsz, 1), (plain, own), (ptsz, own)];
        for (launch, stream) in cases {
            held_by_a_request(hp, move |fake| assert_eq!(launch(fake, k, stream), 0));
            fake.advance_ns(MS);
        }
        let cooperative = move |fake: &'static Fake| {
            let r = call!(fake, cuLaunchCooperativeKernel(k => Handle, 1 => c_uint, 1 => c_uint, 1 => c_uint,
                32 => c_uint, 1 => c_uint, 1 => c_uint, 0 => c_uint, own => Handle, 0 => Handle));
            assert_eq!(r, 0);
        };
        held_by_a_request(hp, cooperative);
        fake.advance_ns(MS);
        held_by_a_request(hp, move |fake| {
            #[repr(C)]
            struct Config([c_uint; 7], Handle, Handle, c_uint);
            let config = Config([1, 1, 1, 32, 1, 1, 0], own, 0, 0);
            let r = call!(fake, cuLaunchKernelEx(&config => *const Config, k => Handle, 0 => Handle, 0 => Handle));
            assert_eq!(r, 0);
        });
        fake.advance_ns(MS);
        let jobs = stats()["jobs"].as_array().unwrap().clone();
        let be = jobs.iter().find(|j| j["name"] == "train.py").expect("one job for the process");
        assert_eq!((&be["role"], &be["kernels"]), (&"be".into(), &9.into()));
        assert_eq!((&be["be"]["held"], &be["be"]["escaped"]), (&9.into(), &0.into()));
        // HP's own streams keep their role, and what HP launches on them never waits for itself.
        request(hp, |s| assert_eq!(launch(fake, k, s), 0));
    });
}

/// Fault: a process whose role cannot be applied runs unheld and nobody is told; or each of its launches tries again.
#[test]
fn a_process_role_that_is_refused_is_said_once() {
    alone(&[], || {
        let fake = hooked();
        // Not a directory of ours: no ledger can be opened there.
        // SAFETY: no other thread reads the environment now.
        unsafe { std::env::set_var("MOSAIC_LEDGER_DIR", "/proc/nowhere") };
        let name = c("train.py");
        // SAFETY: nul-terminated.
        assert_eq!(unsafe { capi::mosaic_process_role(2, name.as_ptr(), 0.0) }, 0);
        let k = kernel(fake, "be_5us");
        (0..100).for_each(|_| assert_eq!(launch(fake, k, 0), 0));
        let problems = stats()["problems"].as_array().unwrap().clone();
        assert_eq!(problems.len(), 1, "{problems:?}");
        let said = problems[0].as_str().unwrap();
        assert!(said.contains("WITHOUT its role on GPU 0") && said.contains("/proc/nowhere"), "{said}");
    });
}

/// Fault: a job that has ended still holds the launches of streams that it was given.
#[test]
fn the_streams_of_an_ended_job_have_no_role() {
    alone(&[], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let (k, given) = (kernel(fake, "be_5us"), fake.stream(0));
        assert_eq!(capi::mosaic_stream_set_role(given as *mut c_void, be.id), 0);
        held_by_a_request(hp, move |fake| assert_eq!(launch(fake, k, given), 0));
        assert_eq!(capi::mosaic_job_unregister(be.id), 0);
        let open = capi::mosaic_request_open(hp.id, 0);
        assert!(open > 0);
        assert_eq!(launch(fake, k, given), 0);
        assert_eq!(capi::mosaic_request_close(open), 0);
    });
}

/// Fault: an unmodified HP program has no requests, so nothing holds BE while its kernels run.
#[test]
fn a_whole_high_priority_process_holds_best_effort_while_its_kernels_run() {
    alone(&[("MOSAIC_STALL_MS", "2")], || {
        let fake = hooked();
        let name = c("serve.py");
        // SAFETY: nul-terminated.
        assert_eq!(unsafe { capi::mosaic_process_role(1, name.as_ptr(), 1.2) }, 0);
        let be = job("be", Role::Be);
        let theirs = stream_of(fake, be);
        let (hp_kernel, be_kernel) = (kernel(fake, "hp_1s"), kernel(fake, "be_5us"));
        for stream in [0, 1, PER_THREAD, fake.stream(0)] {
            assert_eq!(launch(fake, hp_kernel, stream), 0);
            let held = launching(be_kernel, theirs);
            held.is_held_for(10 * MS);
            fake.advance_ns(S - MS);
            held.is_held();
            fake.advance_ns(MS);
            held.join();
            fake.advance_ns(MS);
        }
        assert_eq!(be.counts.admitted_hp_stalled.load(Ordering::Relaxed), 0);
        assert_eq!(be.counts.admitted.load(Ordering::Relaxed), 4);
    });
}

/// Fault: a handle that is given out again keeps the role of the stream that it was; or what ran on a destroyed HP stream
/// holds BE for ever, or no more.
#[test]
fn a_destroyed_stream_loses_its_role_and_ends_with_its_last_work() {
    alone(&[], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let (hp_kernel, be_kernel) = (kernel(fake, "hp_1ms"), kernel(fake, "be_5us"));
        let destroy = |s| assert_eq!(call!(fake, cuStreamDestroy_v2(s => Handle)), 0);
        let theirs = stream_of(fake, be);
        let theirs_too = stream_of(fake, be);
        assert_eq!(launch(fake, be_kernel, theirs), 0);
        destroy(theirs);
        assert!(job::of_stream(theirs as *mut c_void, false).is_none());
        fake.advance_ns(MS);
        let again = fake.stream(0);
        let id = capi::mosaic_request_open(hp.id, 0);
        assert_eq!(launch(fake, be_kernel, again), 0, "a stranger's stream is not held");
        assert_eq!(capi::mosaic_request_close(id), 0);
        fake.advance_ns(MS);
        assert_eq!(again, theirs, "the double gives handles out again");

        // Work outside requests, and work of an engine's request; the streams go while it runs.
        let outside = stream_of(fake, hp);
        assert_eq!(launch(fake, hp_kernel, outside), 0);
        destroy(outside);
        let held = launching(be_kernel, theirs_too);
        held.is_held();
        fake.advance_ns(MS);
        held.join();
        fake.advance_ns(MS);
        let engine = fake.stream(0);
        let id = capi::mosaic_request_begin(hp.id, 0, engine as *mut c_void);
        assert_eq!(launch(fake, hp_kernel, engine), 0);
        destroy(engine);
        let held = launching(be_kernel, theirs_too);
        held.is_held();
        assert_eq!(capi::mosaic_request_end(id), 0);
        fake.advance_ns(MS);
        held.join();
    });
}

/// Fault: a job that has ended still holds BE, or its number still works.
#[test]
fn an_ended_job_holds_nobody() {
    alone(&[], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let stream = stream_of(fake, be);
        let k = kernel(fake, "be_5us");
        assert!(capi::mosaic_request_open(hp.id, 0) > 0);
        let held = launching(k, stream);
        held.is_held();
        assert_eq!(capi::mosaic_job_unregister(hp.id), 0);
        held.join();
        assert_eq!(capi::mosaic_job_unregister(hp.id), -1);
        assert_eq!(capi::mosaic_request_open(hp.id, 0), -1);
    });
}

/// Fault: a thread without a context is taken for done with everything, waits for ever, or crashes.
#[test]
fn a_thread_without_a_context_gets_the_drivers_own_error() {
    alone(&[], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let stream = stream_of(fake, be);
        let k = kernel(fake, "be_1s");
        assert_eq!(launch(fake, k, stream), 0);
        let bare = std::thread::spawn(move || (launch(fake, k, 0), launch_ptsz(fake, k, 0)));
        assert_eq!(bare.join().unwrap(), (201, 201));
        // A request from such a thread is one all the same: the extension enters the job's own context.
        let id = std::thread::spawn(|| capi::mosaic_request_open(hp.id, 0)).join().unwrap();
        let other = launching(k, stream);
        other.is_held();
        let closed = std::thread::spawn(move || capi::mosaic_request_close(id)).join().unwrap();
        assert_eq!(closed, 0);
        other.is_held();
        fake.advance_ns(S);
        other.join();
    });
}

// ---- captures ----

fn begin_capture(fake: &Fake, stream: Handle, mode: c_uint) {
    assert_eq!(call!(fake, cuStreamBeginCapture_v2(stream => Handle, mode => c_uint)), 0);
}

#[track_caller]
fn end_capture(fake: &Fake, stream: Handle) -> Handle {
    let mut graph: Handle = 0;
    assert_eq!(call!(fake, cuStreamEndCapture(stream => Handle, &mut graph => *mut Handle)), 0, "the capture broke");
    graph
}

fn instantiate(fake: &Fake, graph: Handle) -> Handle {
    let mut exec: Handle = 0;
    let r = call!(fake, cuGraphInstantiateWithFlags(&mut exec => *mut Handle, graph => Handle, 0 => u64));
    assert_eq!(r, 0);
    exec
}

fn nodes(fake: &Fake, graph: Handle) -> usize {
    let mut n = 0usize;
    assert_eq!(call!(fake, cuGraphGetNodes(graph => Handle, 0 => Handle, &mut n => *mut usize)), 0);
    n
}

/// Fault: a BE launch blocks in a capture, or the gate's events go into the graph.
#[test]
fn a_capture_on_a_best_effort_stream_is_neither_held_nor_changed() {
    alone(&[], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let stream = stream_of(fake, be);
        let k = kernel(fake, "be_5us");
        for mode in [GLOBAL, THREAD_LOCAL] {
            let id = capi::mosaic_request_open(hp.id, 0);
            begin_capture(fake, stream, mode);
            (0..3).for_each(|_| assert_eq!(launch(fake, k, stream), 0));
            let graph = end_capture(fake, stream);
            assert_eq!(nodes(fake, graph), 3);
            let exec = instantiate(fake, graph);
            assert_eq!(capi::mosaic_request_close(id), 0);
            // The replay is one launch of three kernels, and is held as such.
            held_by_a_request(hp, move |fake| {
                assert_eq!(call!(fake, cuGraphLaunch(exec => Handle, stream => Handle)), 0)
            });
            fake.advance_ns(MS);
        }
        assert_eq!(be.counts.captured.load(Ordering::Relaxed), 6);
        assert_eq!((be.counts.held.load(Ordering::Relaxed), be.counts.graphs.load(Ordering::Relaxed)), (2, 2));
    });
}

/// Fault: a mark or an event of ours goes into HP's graph, or a look of the keeper's breaks the capture.
#[test]
fn a_capture_on_an_hp_stream_survives_the_keepers_looks() {
    alone(&[("MOSAIC_STALL_MS", "1")], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let theirs = stream_of(fake, be);
        let (k, be_kernel) = (kernel(fake, "hp_5us"), kernel(fake, "be_5us"));
        let own = stream_of(fake, hp);
        for stream in [own, api::enter(hp.id, 0, 0, 0).unwrap().stream as usize] {
            begin_capture(fake, stream, GLOBAL);
            assert_eq!(launch(fake, k, stream), 0);
            // Sections and requests begin and end inside; the stream is silent for long enough to be looked at.
            assert_eq!(api::enter(hp.id, 0, 0, stream).unwrap().ctx, 0, "what is captured stays on its stream");
            let looked = now_ns() + 10 * MS;
            until("the keeper has had time to look", || now_ns() > looked);
            assert_eq!(launch(fake, k, stream), 0);
            assert_eq!(nodes(fake, end_capture(fake, stream)), 2);
        }
        begin_capture(fake, own, GLOBAL);
        let id = capi::mosaic_request_begin(hp.id, 0, own as *mut c_void);
        assert_eq!(launch(fake, k, own), 0);
        assert_eq!(capi::mosaic_request_end(id), 0);
        assert_eq!(nodes(fake, end_capture(fake, own)), 1);
        let _ = (be, theirs, be_kernel);
    });
}

/// Fault: `torch.cuda.graph` captures in global mode: a query, a registration or an allocation of ours in another thread breaks it.
#[test]
fn a_global_capture_survives_a_held_thread_and_requests_of_a_third() {
    for refused in ["", "cuMemHostRegister_v2"] {
        let env = [("FAIL", refused), ("MOSAIC_CALIBRATION_REQUESTS", "10")];
        alone(&env, || {
            let fake = hooked();
            if std::env::var("FAIL").is_ok_and(|f| !f.is_empty()) {
                fake.fail("cuMemHostRegister_v2", 1, 0);
            }
            let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
            let theirs = stream_of(fake, be);
            let (hp_kernel, be_kernel, k) = (kernel(fake, "hp_10us"), kernel(fake, "be_1ms"), kernel(fake, "k_5us"));
            let capturing = fake.stream(0);
            begin_capture(fake, capturing, GLOBAL);
            assert_eq!(launch(fake, k, capturing), 0);
            // In flight, so that the gate has an event to ask about; the second one is held behind it.
            assert_eq!(launch(fake, be_kernel, theirs), 0);
            let held = launching(be_kernel, theirs);
            held.is_held();
            let third = task(move |fake| {
                for _ in 0..30 {
                    request(hp, |s| assert_eq!(launch(fake, hp_kernel, s), 0));
                    fake.advance_ns(10 * US);
                    drop(stats());
                }
            });
            third.join();
            assert_eq!(launch(fake, k, capturing), 0);
            fake.advance_ns(10 * MS);
            until("all requests end", || hp.device.ledger.snapshot(now_ns(), S).hp_active == 0);
            held.join();
            assert_eq!(nodes(fake, end_capture(fake, capturing)), 2);
        });
    }
}

/// Fault: the keeper asks about the legacy stream while a blocking stream of its context captures.
#[test]
fn a_capture_on_a_blocking_stream_survives_hp_work_on_the_default_stream() {
    alone(&[], || {
        let fake = hooked();
        let hp = job("hp", Role::Hp);
        assert_eq!(capi::mosaic_stream_set_role(std::ptr::null_mut(), hp.id), 0);
        let k = kernel(fake, "hp_5us");
        assert_eq!(launch(fake, k, 0), 0);
        fake.advance_ns(MS);
        let mut blocking: Handle = 0;
        assert_eq!(call!(fake, cuStreamCreate(&mut blocking => *mut Handle, 0 => c_uint)), 0);
        begin_capture(fake, blocking, GLOBAL);
        assert_eq!(launch(fake, k, blocking), 0);
        let looked = now_ns() + 10 * MS;
        until("the keeper has had time to look", || now_ns() > looked);
        assert_eq!(nodes(fake, end_capture(fake, blocking)), 1);
        until("the work outside requests ends", || hp.device.ledger.snapshot(now_ns(), S).hp_active == 0);
    });
}

// ---- graphs, modules, copies ----

/// Fault: a replay counts as one kernel, or those of child graphs are lost.
#[test]
fn a_graph_launch_counts_its_kernel_nodes_those_of_child_graphs_too() {
    alone(&[], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let scratch = fake.stream(0);
        let k = kernel(fake, "k_5us");
        let memory = fake.alloc(4096);
        begin_capture(fake, scratch, THREAD_LOCAL);
        assert_eq!(launch(fake, k, scratch), 0);
        assert_eq!(launch(fake, k, scratch), 0);
        let r = call!(fake, cuMemsetD8Async(memory => u64, 0 => c_uint, 64 => usize, scratch => Handle));
        assert_eq!(r, 0);
        let inner = end_capture(fake, scratch);
        begin_capture(fake, scratch, THREAD_LOCAL);
        assert_eq!(launch(fake, k, scratch), 0);
        let outer = end_capture(fake, scratch);
        let mut node: Handle = 0;
        let add = |node: &mut Handle, into, child| call!(fake, cuGraphAddChildGraphNode(node => *mut Handle, into => Handle, 0 => Handle, 0 => usize, child => Handle));
        assert_eq!(add(&mut node, outer, inner), 0);
        assert_eq!(add(&mut node, outer, inner), 0);
        let exec = instantiate(fake, outer);
        assert_eq!(call!(fake, cuGraphDestroy(outer => Handle)), 0, "the count is taken at instantiation");
        let theirs = stream_of(fake, be);
        request(hp, |s| assert_eq!(call!(fake, cuGraphLaunch(exec => Handle, s => Handle)), 0));
        fake.advance_ns(MS);
        assert_eq!(call!(fake, cuGraphLaunch_ptsz(exec => Handle, theirs => Handle)), 0);
        fake.advance_ns(MS);
        assert_eq!(launch(fake, k, theirs), 0);
        assert_eq!(hp.counts.kernels.load(Ordering::Relaxed), 5);
        assert_eq!(be.counts.kernels.load(Ordering::Relaxed), 6);
        assert_eq!((hp.counts.graphs.load(Ordering::Relaxed), be.counts.graphs.load(Ordering::Relaxed)), (1, 1));
    });
}

/// Fault: a graph gets the time that was learnt for a destroyed one whose handle it has.
#[test]
fn a_graph_at_a_used_handle_is_unknown() {
    alone(&[], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        hp.hp.as_ref().unwrap().claim.set_t_iso(10 * MS, 11 * MS);
        let (scratch, theirs) = (fake.stream(0), stream_of(fake, be));
        let graph_of = |name| {
            let k = kernel(fake, name);
            begin_capture(fake, scratch, THREAD_LOCAL);
            assert_eq!(launch(fake, k, scratch), 0);
            instantiate(fake, end_capture(fake, scratch))
        };
        let run = |exec| {
            assert_eq!(call!(fake, cuGraphLaunch(exec => Handle, theirs => Handle)), 0);
            fake.advance_ns(S);
        };
        let unknown = || be.counts.unknown.load(Ordering::Relaxed);
        let short = graph_of("short_5us");
        (0..8).for_each(|_| run(short));
        assert_eq!(unknown(), 1);
        assert_eq!(call!(fake, cuGraphExecDestroy(short => Handle)), 0);
        let long = graph_of("long_1s");
        assert_eq!(long, short, "the double gives handles out again");
        run(long);
        assert_eq!(unknown(), 2);
    });
}

/// Fault: after an unload a handle is given out again, and its kernel is taken for the one that is gone.
#[test]
fn an_unload_drops_the_names_of_its_handles() {
    alone(&[], || {
        let fake = hooked();
        let be = job("be", Role::Be);
        let theirs = stream_of(fake, be);
        let load = |name: &str| {
            let (mut library, mut k): (Handle, Handle) = (0, 0);
            let r = call!(fake, cuLibraryLoadData(&mut library => *mut Handle, c"image".as_ptr() => *const c_char,
                0 => Handle, 0 => Handle, 0 => c_uint, 0 => Handle, 0 => Handle, 0 => c_uint));
            assert_eq!(r, 0);
            let name = c(name);
            let r = call!(fake, cuLibraryGetKernel(&mut k => *mut Handle, library => Handle,
                name.as_ptr() => *const c_char));
            assert_eq!(r, 0);
            (library, k)
        };
        let (library, first) = load("first_5us");
        assert_eq!(launch(fake, first, theirs), 0);
        fake.advance_ns(S);
        assert_eq!(launch(fake, first, theirs), 0);
        fake.advance_ns(S);
        assert_eq!(learnt_ns(first), Some(5 * US));
        assert_eq!(call!(fake, cuLibraryUnload(library => Handle)), 0);
        let (_, second) = load("second_7us");
        assert_eq!(second, first, "the double gives handles out again");
        assert_eq!(learnt_ns(second), None);
        assert_eq!(&*mosaic::hook::names::of(second).unwrap().name, b"second_7us");
    });
}

/// Fault: BE's copies and fills run into requests, or HP's are not seen.
#[test]
fn copies_and_fills_are_gated_for_best_effort_and_counted_for_hp() {
    alone(&[], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let theirs = stream_of(fake, be);
        let (a, b) = (fake.alloc(1 << 16), fake.alloc(1 << 16));
        let fill = |s| call!(fake, cuMemsetD8Async(a => u64, 7 => c_uint, 1024 => usize, s => Handle));
        let copy = |s| call!(fake, cuMemcpyDtoDAsync_v2(b => u64, a => u64, 1024 => usize, s => Handle));
        request(hp, |s| {
            assert_eq!((fill(s), copy(s)), (0, 0));
            assert_eq!(call!(fake, cuMemcpyAsync(b => u64, a => u64, 64 => usize, s => Handle)), 0);
        });
        fake.advance_ns(MS);
        assert_eq!(hp.counts.copies.load(Ordering::Relaxed), 3);
        held_by_a_request(hp, move |fake| {
            assert_eq!(call!(fake, cuMemsetD32Async(a => u64, 7 => c_uint, 16 => usize, theirs => Handle)), 0);
        });
        fake.advance_ns(MS);
        held_by_a_request(hp, move |fake| {
            let to = Box::leak(vec![0u8; 64].into_boxed_slice());
            let r = call!(fake, cuMemHostRegister_v2(to.as_mut_ptr() => *mut u8, 64 => usize, 0 => c_uint));
            assert_eq!(r, 0);
            let r =
                call!(fake, cuMemcpyDtoHAsync_v2(to.as_mut_ptr() => *mut u8, a => u64, 64 => usize, theirs => Handle));
            assert_eq!(r, 0);
        });
        fake.advance_ns(MS);
        held_by_a_request(hp, move |fake| {
            let r = call!(fake, cuMemcpyDtoDAsync_v2_ptsz(b => u64, a => u64, 64 => usize, theirs => Handle));
            assert_eq!(r, 0);
        });
        assert_eq!((be.counts.copies.load(Ordering::Relaxed), be.counts.kernels.load(Ordering::Relaxed)), (3, 0));
        assert_eq!(be.counts.held.load(Ordering::Relaxed), 3);
    });
}

// ---- drivers and devices ----

/// Fault: where the GPU may not write the ledger's page, a request never ends, or ends with the CPU.
#[test]
fn a_request_ends_by_an_event_where_the_gpu_cannot_write_the_ledger() {
    for refused in ["cuMemHostRegister_v2", "cuMemHostGetDevicePointer_v2", "cuStreamWriteValue32_v2"] {
        alone(&[("REFUSED", refused)], || {
            let refused = std::env::var("REFUSED").unwrap();
            let fake = hooked();
            let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
            let theirs = stream_of(fake, be);
            let (hp_kernel, be_kernel) = (kernel(fake, "hp_1s"), kernel(fake, "be_5us"));
            for round in 0..20 {
                if round == 0 || refused.starts_with("cuStream") {
                    fake.fail(&refused, 801, 0);
                }
                request(hp, |s| assert_eq!(launch(fake, hp_kernel, s), 0));
                let held = launching(be_kernel, theirs);
                held.is_held_for(5 * MS);
                fake.advance_ns(S);
                held.join();
                fake.advance_ns(MS);
            }
            let writes = &stats()["gpu_writes_request_end"]["0"];
            assert_eq!(*writes, refused.starts_with("cuStream"), "{refused}");
            assert_eq!(stats()["jobs"][0]["hp"]["service"]["count"], 20);
        });
    }
}

/// Fault: HP on one GPU holds BE on another.
#[test]
fn two_gpus_do_not_gate_each_other() {
    alone(&[("FAKECUDA_DEVICES", "2")], || {
        let fake = hooked();
        let (hp, here, there) = (job("hp", Role::Hp), job("here", Role::Be), job_on("there", Role::Be, 1));
        assert_ne!(hp.device.uuid, there.device.uuid);
        let mine = stream_of(fake, here);
        let (hp_kernel, k) = (kernel(fake, "hp_1ms"), kernel(fake, "be_5us"));
        request(hp, |s| assert_eq!(launch(fake, hp_kernel, s), 0));
        let held = launching(k, mine);
        held.is_held();
        let other = task(move |fake| {
            fake.use_device(1);
            let theirs = stream_of(fake, there);
            for _ in 0..3 {
                assert_eq!(launch(fake, k, theirs), 0);
                fake.advance_ns(10 * US);
            }
        });
        other.join();
        held.is_held();
        fake.advance_ns(MS);
        held.join();
        assert_eq!(there.counts.held.load(Ordering::Relaxed), 0);
        let wrong = api::enter(hp.id, 0, 1, 0).unwrap_err().to_string();
        assert!(wrong.contains("on GPU 1") && wrong.contains("on GPU 0"), "{wrong}");
        let missing = job::register("x", Role::Be, 2, 1.0, 0).err().unwrap().to_string();
        assert!(missing.contains("GPU 2 does not exist: this process sees 2"), "{missing}");
    });
}

/// Fault: entry points that no detour may move are patched all the same; or nothing is held, and nobody is told.
#[test]
fn an_unknown_prologue_leaves_sections_that_are_admitted_whole() {
    let path = TempDir::new("no-cupti");
    // A CUPTI of this machine's would speak to a driver that is not there: these are found first.
    let made = path.0.is_dir();
    for name in ["libcupti.so.13", "libcupti.so.12"].iter().filter(|_| made) {
        std::fs::write(path.0.join(name), "not a library").unwrap();
    }
    let library_path = format!("{}:{}", path.0.display(), common::odd_fakecuda_dir().display());
    alone_on(common::odd_fakecuda_dir(), &[("LD_LIBRARY_PATH", &library_path)], || {
        let before = mosaic::hook::mechanism();
        let mechanism = mosaic::hook::install().unwrap();
        let Mechanism::SectionsOnly { because } = &mechanism else { panic!("{mechanism:?}") };
        assert!(before.is_none() && because.contains("cuLaunchKernel") && because.contains("cupti"), "{because}");
        assert_eq!(stats()["hook"]["mechanism"], "sections-only");
        let fake = fake();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let id = capi::mosaic_request_open(hp.id, 0);
        let held = task(move |fake| {
            section(be, 0, |s| assert_eq!(launch(fake, kernel(fake, "be_5us"), s), 0));
        });
        held.is_held();
        assert_eq!(fake.runs_of("be_5us").len(), 0);
        assert_eq!(capi::mosaic_request_close(id), 0);
        held.join();
        fake.advance_ns(MS);
        assert_eq!(fake.runs_of("be_5us").len(), 1);
        assert_eq!(device::get(0).unwrap().ledger.snapshot(now_ns(), S).hp_active, 0);
    });
}

/// Fault: under Nsight Compute the hook takes over functions of the tool's that the runtime's launches never reach; or
/// sees a launch that comes through them twice, or after the tool; or gives all up for one that it cannot take over.
#[test]
fn a_library_that_stands_before_the_drivers_is_passed_by() {
    let double = common::fakecuda_path();
    let double = double.to_str().expect("a path in UTF-8");
    alone_on(common::front_dir(), &[("FAKECUDA_BEHIND", double), ("MOSAIC_TEST_DOUBLE", double)], || {
        // Its name is found first, as under the tool.
        let front = Fake::open_at(&common::front_dir().join("libcuda.so.1"));
        let behind = fake();
        let mechanism = mosaic::hook::install().unwrap();
        let Mechanism::Detour { missing, .. } = &mechanism else { panic!("{mechanism:?}") };
        let [missing] = &missing[..] else { panic!("{missing:?}") };
        assert!(missing.contains("cuLaunchCooperativeKernel") && missing.contains("before libcuda"), "{missing}");
        let be = job("be", Role::Be);
        let k = kernel(behind, "be_5us");
        for (fake, seen) in [(behind, 1), (&front, 2)] {
            section(be, 0, |s| assert_eq!(launch(fake, k, s), 0));
            assert_eq!(be.counts.kernels.load(Ordering::Relaxed), seen);
            behind.advance_ns(MS);
        }
        assert_eq!(behind.runs_of("be_5us").len(), 2);
        // SAFETY: a number of the library's, which only this thread would change.
        assert_eq!(unsafe { *front.symbol::<*const u64>("front_launches") }, 0);
    });
}
