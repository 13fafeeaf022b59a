//! How a process ends, or splits, with the hook in force.
#![cfg(feature = "cuda")]

mod common;

use common::hooked::*;
use mosaic::clock::now_ns;
use mosaic::hook::job::{self, Role};
use mosaic::hook::{api, capi, gate, process, request};
use std::sync::atomic::Ordering;

const S: u64 = 1_000_000_000;

/// Runs `f` in a forked child, and returns what the child exited with: 0 if `f` held.
fn in_child(f: impl FnOnce() -> Result<(), String>) -> i32 {
    // SAFETY: the child runs `f` alone and leaves by `_exit`; what it uses is meant to work after a fork.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        let code = match result {
            Ok(Ok(())) => 0,
            Ok(Err(e)) => {
                eprintln!("in the child: {e}");
                1
            }
            Err(_) => 2,
        };
        // SAFETY: the child's end, without the harness's.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
}

fn expect(what: &str, holds: bool) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.into()) }
}

/// Fault: a DataLoader worker hangs in the gate or ends its parent's request; or CUDA's own error is all that it is told.
#[test]
fn a_child_forked_after_use_passes_through_and_is_told_at_registration() {
    alone(&[], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let theirs = stream_of(fake, be);
        let k = kernel(fake, "be_5us");
        let id = request::open(hp.id, 0).unwrap();
        let held = launching(k, theirs);
        held.is_held();
        let code = in_child(|| {
            expect("it is known as a forked child", process::forked_after_use())?;
            // The driver refuses; the gate does not hold, though the parent's request is open.
            expect("a launch gets the driver's own error", launch(fake, k, theirs) == 3)?;
            let refused = job::register("worker", Role::Hp, 0, 1.1, 0).err().map(|e| e.to_string());
            expect(
                "registration names the fork",
                refused.is_some_and(|e| e.contains("forked") && e.contains("spawn")),
            )?;
            let refused = request::open(hp.id, 0).err().map(|e| e.to_string());
            expect("so does a request of the parent's job", refused.is_some_and(|e| e.contains("forked")))?;
            let refused = api::enter(be.id, 0, 0, 0).err().map(|e| e.to_string());
            expect("so does a call of the parent's model", refused.is_some_and(|e| e.contains("forked")))?;
            let settings = c(r#"{"spin_us": 1}"#);
            // SAFETY: nul-terminated.
            expect("settings are refused", unsafe { capi::mosaic_configure(settings.as_ptr()) } == -1)?;
            expect("so are statistics", capi::mosaic_stats_json().is_null())?;
            expect("so is a stream's role", capi::mosaic_stream_set_role(std::ptr::null_mut(), -1) == -1)?;
            drop(request::close(id));
            capi::mosaic_shutdown();
            Ok(())
        });
        assert_eq!(code, 0);
        assert_eq!(hp.device.ledger.snapshot(now_ns(), S).hp_active, 1, "the child touched its parent's request");
        held.is_held();
        request::close(id).unwrap();
        held.join();
        assert_eq!(be.counts.escaped.load(Ordering::Relaxed), 0);
    });
}

/// Fault: a fork while other threads hold the hook's locks leaves a child that hangs.
#[test]
fn children_forked_in_the_middle_of_launches_do_not_hang() {
    alone(&[("FAKECUDA_CLOCK", "real")], || {
        static STOP: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let theirs = stream_of(fake, be);
        let k = kernel(fake, "k_5us");
        let busy = [
            task(move |fake| {
                while !STOP.load(Ordering::Acquire) {
                    assert_eq!(launch(fake, k, theirs), 0);
                }
            }),
            task(move |fake| {
                while !STOP.load(Ordering::Acquire) {
                    request(hp, |s| assert_eq!(launch(fake, k, s), 0));
                }
            }),
        ];
        for _ in 0..50 {
            let code = in_child(|| {
                let refused = job::register("worker", Role::Be, 0, 1.1, 0).err().map(|e| e.to_string());
                expect("registration names the fork", refused.is_some_and(|e| e.contains("forked")))?;
                expect("a request is refused", capi::mosaic_request_open(hp.id, 0) == -1)?;
                capi::mosaic_shutdown();
                Ok(())
            });
            assert_eq!(code, 0);
        }
        STOP.store(true, Ordering::Release);
        busy.into_iter().for_each(Task::join);
        until("the parent's requests end", || hp.device.ledger.snapshot(now_ns(), S).hp_active == 0);
    });
}

/// Fault: a child forked before any use is refused, though it can use CUDA; or the two do not see each other.
#[test]
fn a_child_forked_before_any_use_has_a_role_of_its_own() {
    let dir = TempDir::new("fork-before-use");
    let shared = dir.0.join("engine");
    let env = [("FAKECUDA_SHM", shared.to_str().unwrap()), ("FAKECUDA_CLOCK", "real")];
    alone(&env, || {
        assert!(mosaic::hook::install().is_ok());
        let code = in_child(|| {
            let fake = hooked();
            let be = job("be", Role::Be);
            let stream = stream_of(fake, be);
            let k = kernel(fake, "be_5us");
            let hp = job("hp", Role::Hp);
            let id = request::open(hp.id, 0).map_err(|e| e.to_string())?;
            let held = launching(k, stream);
            held.is_held();
            request::close(id).map_err(|e| e.to_string())?;
            held.join();
            expect("it was held once", be.counts.held.load(Ordering::Relaxed) == 1)
        });
        assert_eq!(code, 0);
        let hp = {
            hooked();
            job("hp", Role::Hp)
        };
        request(hp, |_| ());
        until("the parent's request ends", || hp.device.ledger.snapshot(now_ns(), S).hp_active == 0);
        assert_eq!(hp.device.ledger.describe().len(), 1, "the child's claims went with it");
    });
}

/// Fault: exit waits for a thread in the gate, or crashes in it.
#[test]
fn exit_with_a_thread_in_the_gate_is_an_exit() {
    alone(&[], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let theirs = stream_of(fake, be);
        let k = kernel(fake, "be_5us");
        request::open(hp.id, 0).unwrap();
        launching(k, theirs).is_held();
        // The body ends, and the process with it: by exit(), the thread still in the gate.
    });
}

/// Fault: shutdown leaves threads in the gate, or closes it again for the next launch.
#[test]
fn shutdown_lets_threads_out_of_the_gate_for_good() {
    alone(&[], || {
        let fake = hooked();
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let theirs = stream_of(fake, be);
        let k = kernel(fake, "be_5us");
        request::open(hp.id, 0).unwrap();
        let tasks: Vec<_> = (0..3).map(|_| launching(k, theirs)).collect();
        tasks.iter().for_each(Task::is_held);
        capi::mosaic_shutdown();
        assert_eq!(gate::held(), 0, "it returned while launches were held");
        tasks.into_iter().for_each(Task::join);
        assert_eq!(launch(fake, k, theirs), 0);
        assert_eq!(be.counts.escaped.load(Ordering::Relaxed), 4);
        assert_eq!(hp.device.ledger.snapshot(now_ns(), S).hp_active, 1, "HP's request is still open");
    });
}
