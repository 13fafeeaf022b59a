//! The gate, from the detoured entry points to the GPU's end of a request, on the double of libcuda.
#![cfg(feature = "cuda")]

mod common;

use common::fake::{Clock, Handle, call};
use common::hooked::*;
use mosaic::clock::now_ns;
use mosaic::hook::job::Role;
use mosaic::hook::{api, capi, request};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

/// Fault: HP waits for BE, on the GPU's queue or in the gate. Virtual time stands still: any wait is a hang.
#[test]
fn hp_never_waits() {
    alone(&[("MOSAIC_CALIBRATION_REQUESTS", "10")], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let (theirs, also) = (stream_of(fake, be), stream_of(fake, be));
        let (long, short, hp_kernel) = (kernel(fake, "be_1s"), kernel(fake, "be_10us"), kernel(fake, "hp_5us"));
        assert_eq!(launch(fake, long, theirs), 0);
        let held = launching(short, also);
        held.is_held();
        for _ in 0..20 {
            request(hp, |s| (0..3).for_each(|_| assert_eq!(launch(fake, hp_kernel, s), 0)));
        }
        held.is_held();
        assert_eq!(fake.now_ns(), fake.runs_of("hp_5us")[59].call_ns, "virtual time has moved");
        fake.set_clock(Clock::Auto);
        assert_eq!(fake.synchronize(theirs), 0);
        assert!(fake.runs_of("hp_5us").iter().all(|r| r.priority == -5), "HP streams have the highest priority");
    });
}

/// Fault: BE goes on when HP's code has left its request although the GPU still works on it.
#[test]
fn be_resumes_when_the_gpu_has_finished_the_request_not_the_cpu() {
    alone(&[], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let theirs = stream_of(fake, be);
        let (hp_kernel, be_kernel) = (kernel(fake, "hp_1ms"), kernel(fake, "be_5us"));
        request(hp, |s| (0..2).for_each(|_| assert_eq!(launch(fake, hp_kernel, s), 0)));
        let held = launching(be_kernel, theirs);
        held.is_held();
        fake.advance_ns(1900 * US);
        held.is_held();
        fake.advance_ns(200 * US);
        held.join();
        fake.advance_ns(MS);
        let (end, be_run) = (fake.runs_of("hp_1ms")[1].end_ns, only_run(fake, "be_5us"));
        assert!(be_run.start_ns >= end && end > 0, "BE began at {}, HP ended at {end}", be_run.start_ns);
        assert_eq!(stats()["gpu_writes_request_end"]["0"], true);
        assert_eq!(be.counts.held.load(Ordering::Relaxed), 1);
        assert_eq!(be.counts.escaped.load(Ordering::Relaxed), 0);
    });
}

/// Fault: a race lets BE in beside an active request. In real time, from two BE threads. A launch that was admitted just
/// before the request opened may still be on its way: one a thread.
#[test]
fn in_real_time_best_effort_never_runs_on_into_a_request() {
    alone(&[("FAKECUDA_CLOCK", "real")], || {
        const THREADS: u64 = 2;
        static STOP: AtomicBool = AtomicBool::new(false);
        static LAUNCHED: AtomicU64 = AtomicU64::new(0);
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let theirs: Vec<_> = (0..THREADS).map(|_| stream_of(fake, be)).collect();
        let be_kernel = kernel(fake, "be_20us");
        let tasks: Vec<_> = theirs
            .into_iter()
            .map(|s| {
                task(move |fake| {
                    while !STOP.load(Ordering::Acquire) {
                        assert_eq!(launch(fake, be_kernel, s), 0);
                        LAUNCHED.fetch_add(1, Ordering::AcqRel);
                    }
                })
            })
            .collect();
        let hp_kernel = fake.kernel("hp_100us_id");
        let mut opened = Vec::new();
        let mut random = 7u64;
        for i in 0..60 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let before = LAUNCHED.load(Ordering::Acquire);
            until("best effort runs between requests", || LAUNCHED.load(Ordering::Acquire) > before + (random >> 61));
            request(hp, |s| {
                opened.push(now_ns());
                for _ in 0..1 + (random >> 33) % 4 {
                    assert_eq!(fake.launch_id(hp_kernel, s, i), 0);
                }
            });
        }
        STOP.store(true, Ordering::Release);
        tasks.into_iter().for_each(Task::join);
        let (hp_runs, be_runs) = (fake.runs_of("hp_100us_id"), fake.runs_of("be_20us"));
        for (i, opened) in opened.iter().enumerate() {
            let end = hp_runs.iter().filter(|r| r.id == i as u64).map(|r| r.end_ns).max().unwrap();
            let inside: Vec<_> = be_runs.iter().filter(|r| (*opened..end).contains(&r.call_ns)).collect();
            assert!(inside.len() as u64 <= THREADS, "request {i} from {opened} to {end}: {inside:?}");
        }
        assert_eq!(be.counts.escaped.load(Ordering::Relaxed), 0);
        assert_eq!(be.counts.kernels.load(Ordering::Relaxed), LAUNCHED.load(Ordering::Relaxed));
    });
}

/// Gives an HP job an isolated time of 10 ms, so that the cap on BE time in flight is 200 us.
fn ten_ms_of_isolated_time(hp: &mosaic::hook::job::Job) {
    hp.hp.as_ref().unwrap().claim.set_t_iso(10 * MS, 11 * MS);
}

/// Launches a BE kernel alone until its time is learnt, also behind others.
fn learn(fake: &common::fake::Fake, kernel: usize, stream: usize, ns: u64) {
    for _ in 0..6 {
        assert_eq!(launch(fake, kernel, stream), 0);
        fake.advance_ns(ns);
    }
    // The books are brought up to date by the next launch.
    assert_eq!(launch(fake, kernel, stream), 0);
    fake.advance_ns(ns);
    assert_eq!(learnt_ns(kernel), Some(ns));
}

/// Fault: many short kernels pile up in front of an arriving request. Virtual time stands still, so the GPU is slower than
/// any prediction: the queue must not grow with real time either.
#[test]
fn many_short_kernels_in_flight_stay_under_the_cap() {
    alone(&[], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let stream = stream_of(fake, be);
        let short = kernel(fake, "be_20us");
        learn(fake, short, stream, 20 * US);
        ten_ms_of_isolated_time(hp);
        fake.clear_calls();
        let many = task(move |fake| (0..100).for_each(|_| assert_eq!(launch(fake, short, stream), 0)));
        many.is_held();
        let first = fake.runs_of("be_20us").len();
        assert!((5..=11).contains(&first), "{first} kernels of 20 us are in flight, the cap is 200 us");
        many.is_held_for(20 * MS);
        let then = fake.runs_of("be_20us").len();
        assert!(then <= 11, "{then} kernels of 20 us are in flight after a while, the cap is 200 us");
        fake.advance_ns(40 * US);
        many.is_held();
        let later = fake.runs_of("be_20us").len();
        assert!(later > first && later <= 13, "{later} launches after 2 of {first} are done");
        fake.set_clock(Clock::Auto);
        fake.advance_ns(100 * MS);
        while !many.finished() {
            fake.advance_ns(20 * US);
        }
        many.join();
    });
}

/// Fault: a kernel longer than the cap never runs, or two of them queue up.
#[test]
fn a_kernel_longer_than_the_cap_goes_alone() {
    alone(&[], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let stream = stream_of(fake, be);
        let (long, short) = (kernel(fake, "be_2000ms"), kernel(fake, "be_20us"));
        learn(fake, long, stream, 2 * S);
        learn(fake, short, stream, 20 * US);
        ten_ms_of_isolated_time(hp);
        fake.clear_calls();
        assert_eq!(launch(fake, long, stream), 0);
        let (next, other) = (launching(long, stream), launching(short, stream));
        next.is_held();
        other.is_held();
        fake.advance_ns(2 * S);
        // Whichever is first keeps the other one out until it is done.
        until("one of them goes", || next.finished() || other.finished());
        while !(next.finished() && other.finished()) {
            fake.advance_ns(MS);
        }
        [next, other].into_iter().for_each(Task::join);
        fake.advance_ns(S);
        let (long_runs, short_run) = (fake.runs_of("be_2000ms"), only_run(fake, "be_20us"));
        assert!(long_runs[1].call_ns >= long_runs[0].end_ns && short_run.call_ns >= long_runs[0].end_ns);
    });
}

/// Fault: a kernel whose length nobody knows joins others, or is joined: nothing bounds what HP would meet.
#[test]
fn unknown_kernels_go_alone() {
    alone(&[], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let stream = stream_of(fake, be);
        let (known, one, two) = (kernel(fake, "be_20us"), kernel(fake, "one_20us"), kernel(fake, "two_20us"));
        learn(fake, known, stream, 20 * US);
        ten_ms_of_isolated_time(hp);
        assert_eq!(launch(fake, known, stream), 0);
        assert_eq!(launch(fake, known, stream), 0, "known ones go together");
        let first = launching(one, stream);
        first.is_held();
        fake.advance_ns(40 * US);
        first.join();
        let (second, third) = (launching(two, stream), launching(known, stream));
        second.is_held();
        third.is_held();
        fake.advance_ns(20 * US);
        until("one of them goes", || second.finished() || third.finished());
        while !(second.finished() && third.finished()) {
            fake.advance_ns(20 * US);
        }
        [second, third].into_iter().for_each(Task::join);
        fake.advance_ns(MS);
        let (one, two) = (only_run(fake, "one_20us"), only_run(fake, "two_20us"));
        assert!(two.call_ns >= one.end_ns);
        assert_eq!(be.counts.unknown.load(Ordering::Relaxed), 3, "each kernel was unknown once");
        let last = fake.runs_of("be_20us").pop().unwrap();
        assert!(last.call_ns >= one.end_ns && (last.call_ns >= two.end_ns || two.call_ns >= last.end_ns));
    });
}

/// Fault: times are learnt wrong, or under an identity that does not tell launches of other sizes apart.
#[test]
fn a_kernels_time_is_learnt_from_its_events() {
    alone(&[], || {
        let fake = hooked();
        let be = job("be", Role::Be);
        let stream = stream_of(fake, be);
        for (name, ns) in [("a_7us", 7 * US), ("b_1300us", 1300 * US)] {
            let k = kernel(fake, name);
            assert_eq!(learnt_ns(k), None);
            learn(fake, k, stream, ns);
        }
        assert_eq!(be.counts.unknown.load(Ordering::Relaxed), 2);
        assert_eq!(stats()["jobs"][0]["be"]["known_kernels"], 2);
        // The same function in another grid is another kernel.
        let k = kernel(fake, "a_7us");
        let null = std::ptr::null_mut::<Handle>();
        let r = call!(fake, cuLaunchKernel(k => Handle, 2 => u32, 1 => u32, 1 => u32, 32 => u32, 1 => u32, 1 => u32,
            0 => u32, stream => Handle, null => *mut Handle, null => *mut Handle));
        assert_eq!(r, 0);
        assert_eq!(be.counts.unknown.load(Ordering::Relaxed), 3);
    });
}

/// Fault: a launch waits for ever, or a flood goes once the first has waited for long enough.
#[test]
fn at_the_wait_bound_one_kernel_goes_and_is_counted() {
    alone(&[("MOSAIC_MAX_WAIT_MS", "30")], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let stream = stream_of(fake, be);
        let (hp_kernel, be_kernel) = (kernel(fake, "hp_1s"), kernel(fake, "be_10us"));
        request(hp, |s| assert_eq!(launch(fake, hp_kernel, s), 0));
        let began = now_ns();
        let tasks = [launching(be_kernel, stream), launching(be_kernel, stream)];
        until("one of them goes at the bound", || tasks.iter().any(Task::finished));
        assert!(now_ns() - began >= 30 * MS);
        let bound = || be.counts.admitted_wait_bound.load(Ordering::Relaxed);
        assert_eq!(bound(), 1);
        let waiting = tasks.iter().find(|t| !t.finished()).expect("one at a time");
        waiting.is_held_for(60 * MS);
        assert_eq!(bound(), 1);
        fake.advance_ns(2 * S);
        tasks.into_iter().for_each(Task::join);
        let waits = &stats()["jobs"][1]["be"]["waits"];
        assert!(waits["count"] == 2 && waits["max_ns"].as_u64().unwrap() >= 30 * MS, "{waits}");
    });
}

/// Fault: HP waits on the CPU for what a held BE thread owns, and both wait until the bound.
#[test]
fn a_silent_request_on_an_idle_gpu_lets_best_effort_on_one_kernel_at_a_time() {
    alone(&[("MOSAIC_STALL_MS", "5")], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let stream = stream_of(fake, be);
        let (hp_kernel, be_kernel) = (kernel(fake, "hp_1ms"), kernel(fake, "be_1ms"));
        request(hp, |s| {
            assert_eq!(launch(fake, hp_kernel, s), 0);
            fake.advance_ns(MS);
            // From here on HP is silent, and its GPU side idle.
            launching(be_kernel, stream).join();
            let second = launching(be_kernel, stream);
            second.is_held_for(15 * MS);
            fake.advance_ns(MS);
            second.join();
            fake.advance_ns(MS);
            // HP moves: BE is held again.
            assert_eq!(launch(fake, hp_kernel, s), 0);
            let third = launching(be_kernel, stream);
            third.is_held_for(15 * MS);
            assert_eq!(be.counts.admitted_hp_stalled.load(Ordering::Relaxed), 2);
            third
        })
        .is_held();
        fake.advance_ns(5 * MS);
        until("the third goes by the rule", || be.counts.admitted.load(Ordering::Relaxed) == 1);
    });
}

/// Fault: HP needs a lock that a held BE owns, and neither ever goes on.
#[test]
fn hp_gets_a_lock_that_a_held_best_effort_thread_owns() {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    alone(&[("MOSAIC_STALL_MS", "5")], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let stream = stream_of(fake, be);
        let (hp_kernel, be_kernel) = (kernel(fake, "hp_1ms"), kernel(fake, "be_1ms"));
        request(hp, |s| {
            assert_eq!(launch(fake, hp_kernel, s), 0);
            let owner = task(move |fake| {
                let _owned = LOCK.lock();
                assert_eq!(launch(fake, be_kernel, stream), 0);
            });
            owner.is_held();
            fake.advance_ns(MS);
            drop(LOCK.lock());
            owner.join();
            assert_eq!(launch(fake, hp_kernel, s), 0);
        });
        assert_eq!(be.counts.admitted_hp_stalled.load(Ordering::Relaxed), 1);
        assert_eq!(be.counts.admitted_wait_bound.load(Ordering::Relaxed), 0);
    });
}

/// Fault: a request that has launched all it had and only waits for the GPU is taken for a stalled one.
#[test]
fn a_request_whose_gpu_side_is_busy_is_not_stalled() {
    alone(&[("MOSAIC_STALL_MS", "2")], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let stream = stream_of(fake, be);
        let (hp_kernel, be_kernel) = (kernel(fake, "hp_1s"), kernel(fake, "be_1us"));
        let held_until_the_end = |how: &str| {
            let held = launching(be_kernel, stream);
            held.is_held_for(20 * MS);
            assert_eq!(be.counts.admitted_hp_stalled.load(Ordering::Relaxed), 0, "{how}");
            fake.advance_ns(S);
            held.join();
            fake.advance_ns(MS);
        };
        let id = request(hp, |s| {
            assert_eq!(launch(fake, hp_kernel, s), 0);
            let held = launching(be_kernel, stream);
            held.is_held_for(20 * MS);
            held
        });
        fake.advance_ns(S);
        id.join();
        fake.advance_ns(MS);
        assert_eq!(be.counts.admitted_hp_stalled.load(Ordering::Relaxed), 0, "an open request");

        request(hp, |s| assert_eq!(launch(fake, hp_kernel, s), 0));
        held_until_the_end("a request that its code has left");

        let own = fake.stream(0);
        let id = capi::mosaic_request_begin(hp.id, 0, own as *mut c_void);
        assert!(id > 0);
        assert_eq!(launch(fake, hp_kernel, own), 0);
        let held = launching(be_kernel, stream);
        held.is_held_for(20 * MS);
        assert_eq!(be.counts.admitted_hp_stalled.load(Ordering::Relaxed), 0, "an engine's own stream");
        assert_eq!(capi::mosaic_request_end(id), 0);
        fake.advance_ns(S);
        held.join();
        fake.advance_ns(MS);

        let outside = stream_of(fake, hp);
        assert_eq!(launch(fake, hp_kernel, outside), 0);
        held_until_the_end("HP work outside requests");
    });
}

/// Fault: BE disturbs the measurement between its requests, or T_iso is wrong.
#[test]
fn calibration_holds_best_effort_between_requests_too_and_gives_t_iso() {
    alone(&[("MOSAIC_CALIBRATION_REQUESTS", "20"), ("MOSAIC_CALIBRATION_MAX_S", "3600")], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let stream = stream_of(fake, be);
        let (warm, fast, slow) = (kernel(fake, "hp_50ms"), kernel(fake, "hp_2ms"), kernel(fake, "hp_3ms"));
        let be_kernel = kernel(fake, "be_1us");
        assert_eq!(launch(fake, be_kernel, stream), 0, "nothing is held before the first request");
        fake.advance_ns(MS);
        let one = |k, ns| {
            request(hp, |s| assert_eq!(launch(fake, k, s), 0));
            fake.advance_ns(ns);
        };
        (0..5).for_each(|_| one(warm, 50 * MS));
        let held = launching(be_kernel, stream);
        held.is_held();
        (0..18).for_each(|_| one(fast, 2 * MS));
        one(slow, 3 * MS);
        held.is_held();
        assert_eq!(stats()["jobs"][0]["hp"]["calibrating"], true);
        one(slow, 3 * MS);
        held.join();
        let hp_stats = &stats()["jobs"][0]["hp"];
        let isolated = &hp_stats["isolated"];
        assert_eq!(isolated["requests"], 20);
        assert_eq!((&isolated["p50_ns"], &isolated["p99_ns"]), (&(2 * MS).into(), &(3 * MS).into()), "{isolated}");
        assert_eq!((&hp_stats["calibrating"], &hp_stats["requests"]), (&false.into(), &25.into()));
        assert_eq!(hp.device.ledger.snapshot(now_ns(), 0).min_t_iso_ns, Some(2 * MS));
    });
}

/// Fault: the first of several requests to end lets BE in.
#[test]
fn of_many_requests_in_flight_from_many_threads_the_last_one_counts() {
    alone(&[], || {
        const REQUESTS: u64 = 20;
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let theirs = stream_of(fake, be);
        let (hp_kernel, be_kernel) = (fake.kernel("hp_1ms_id"), kernel(fake, "be_5us"));
        let tasks: Vec<_> = (0..REQUESTS)
            .map(|i| {
                task(move |fake| {
                    request(hp, |s| assert_eq!(fake.launch_id(hp_kernel, s, i), 0));
                })
            })
            .collect();
        tasks.into_iter().for_each(Task::join);
        let held = launching(be_kernel, theirs);
        held.is_held();
        let snapshot = hp.device.ledger.snapshot(now_ns(), S);
        assert!(snapshot.hp_active == 16 && !snapshot.hp_stalled, "{snapshot:?}");
        while !held.finished() {
            fake.advance_ns(100 * US);
        }
        held.join();
        fake.advance_ns(MS);
        let end = fake.runs_of("hp_1ms_id").iter().map(|r| r.end_ns).max().unwrap();
        assert!(only_run(fake, "be_5us").start_ns >= end, "{end}");
    });
}

/// Fault: requests beyond the ledger's lanes are not seen, or are forgotten, or are taken for stalled.
#[test]
fn requests_beyond_the_number_of_lanes_hold_best_effort_too() {
    alone(&[], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let stream = stream_of(fake, be);
        let (hp_kernel, be_kernel) = (kernel(fake, "hp_1s"), kernel(fake, "be_5us"));
        let mut open: Vec<i64> = (0..20).map(|_| capi::mosaic_request_open(hp.id, 0)).collect();
        assert!(open.iter().all(|id| *id > 0));
        let held = launching(be_kernel, stream);
        held.is_held();
        // The last one has work on the GPU, and stands for itself when all that have a lane are closed.
        section(hp, open[19], |s| assert_eq!(launch(fake, hp_kernel, s), 0));
        let busy = open.pop().unwrap();
        open.into_iter().for_each(|id| assert_eq!(capi::mosaic_request_close(id), 0));
        held.is_held_for(5 * MS);
        configure(r#"{"stall_ms": 3}"#);
        held.is_held_for(20 * MS);
        assert_eq!(capi::mosaic_request_close(busy), 0);
        held.is_held_for(20 * MS);
        fake.advance_ns(S);
        held.join();
        assert_eq!(be.counts.admitted_hp_stalled.load(Ordering::Relaxed), 0);
        assert_eq!(capi::mosaic_request_close(busy), -1, "it is closed");
    });
}

/// Fault: a request that the server has announced but not started does not hold BE.
#[test]
fn a_request_opened_before_its_work_counts_from_its_opening() {
    alone(&[], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let stream = stream_of(fake, be);
        let (hp_kernel, be_kernel) = (kernel(fake, "hp_1ms"), kernel(fake, "be_5us"));
        let id = request::open(hp.id, 0).unwrap();
        let held = launching(be_kernel, stream);
        held.is_held();
        for _ in 0..2 {
            section(hp, id, |s| assert_eq!(launch(fake, hp_kernel, s), 0));
            fake.advance_ns(MS);
        }
        held.is_held();
        request::close(id).unwrap();
        fake.advance_ns(1);
        held.join();
        let other = job("other", Role::Hp);
        let id = request::open(hp.id, 0).unwrap();
        let wrong = api::enter(other.id, id, 0, 0).unwrap_err().to_string();
        assert!(wrong.contains("belongs to job \"hp\""), "{wrong}");
        assert!(api::enter(hp.id, 987, 0, 0).unwrap_err().to_string().contains("not open"));
        request::close(id).unwrap();
    });
}

/// Fault: a request whose code raised goes on for ever.
#[test]
fn a_request_that_failed_ends_and_is_counted() {
    alone(&[], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let stream = stream_of(fake, be);
        let be_kernel = kernel(fake, "be_5us");
        let entered = api::enter(hp.id, 0, 0, 0).unwrap();
        let held = launching(be_kernel, stream);
        held.is_held();
        api::leave(entered.ctx, false).unwrap();
        fake.advance_ns(1);
        held.join();
        assert_eq!(stats()["jobs"][0]["hp"]["failed_requests"], 1);
        assert!(api::leave(entered.ctx, true).is_err(), "it has been left");
    });
}

/// Fault: the C ABI's request is not seen, or ends with the CPU.
#[test]
fn an_engine_outside_python_marks_requests_on_its_own_stream() {
    alone(&[], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let (own, theirs) = (fake.stream(-5), stream_of(fake, be));
        let (hp_kernel, be_kernel) = (kernel(fake, "hp_1ms"), kernel(fake, "be_5us"));
        for round in 0..20 {
            let id = capi::mosaic_request_begin(hp.id, 0, own as *mut c_void);
            assert!(id > 0);
            assert_eq!(launch(fake, hp_kernel, own), 0);
            assert_eq!(capi::mosaic_request_end(id), 0);
            let held = launching(be_kernel, theirs);
            held.is_held();
            fake.advance_ns(MS);
            held.join();
            fake.advance_ns(5 * US);
            let hp_stats = &stats()["jobs"][0];
            assert_eq!((&hp_stats["kernels"], &hp_stats["hp"]["requests"]), (&(round + 1).into(), &(round + 1).into()));
        }
        assert!(capi::mosaic_request_begin(be.id, 0, own as *mut c_void) < 0);
        assert!(capi::mosaic_request_end(12345) < 0);
    });
}
