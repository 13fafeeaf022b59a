//! Processes that die, on one double with a shared engine and one ledger: whatever dies, and wherever it stands, the
//! others go on.
#![cfg(feature = "cuda")]

mod common;

use common::fake::Fake;
use common::hooked::*;
use mosaic::clock::now_ns;
use mosaic::hook::job::{Job, Role};
use mosaic::hook::{api, capi, device};
use mosaic::ledger::Entry;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering;

const MS: u64 = 1_000_000;
/// What README promises.
const RESUMES_WITHIN_NS: u64 = 100 * MS;

/// The second process: this binary again, told what to do line by line.
struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

fn peer_command() -> Command {
    let env = |name| std::env::var_os(name).expect("set for this process");
    let ledgers = env("MOSAIC_LEDGER_DIR");
    let mut command = again("peer_main", common::fakecuda_dir(), Path::new(&ledgers));
    for (name, value) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("FAKECUDA_")) {
        command.env(name, value);
    }
    for name in ["MOSAIC_MAX_WAIT_MS", "MOSAIC_STALL_MS"] {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

impl Peer {
    fn start() -> Peer {
        let mut command = peer_command();
        // SAFETY: only an async-signal-safe call: a failed test leaves no peer.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            })
        };
        Self::from(command).expect("the peer starts")
    }

    fn from(mut command: Command) -> std::io::Result<Peer> {
        let mut child = command.spawn()?;
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Ok(Peer { child, input, output: BufReader::new(output) })
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the peer listens");
    }

    /// The next answer; `None` when the peer is gone.
    fn hear(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.output.read_line(&mut line).is_ok_and(|n| n > 0) {
            // The test harness may have begun the line.
            if let Some((_, answer)) = line.split_once('@') {
                return Some(answer.trim_end().to_owned());
            }
            line.clear();
        }
        None
    }

    fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.hear().unwrap_or_else(|| panic!("the peer died at {line:?}"))
    }

    /// Kills, and leaves the zombie.
    fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
    }

    fn state(&self) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        stat.rsplit_once(')')?.1.trim_start().chars().next()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test: what the peer runs.
#[test]
fn peer_main() {
    if !std::env::var("MOSAIC_TEST_BODY").is_ok_and(|name| name == "peer_main") {
        return;
    }
    let fake = hooked();
    let mut peer: Option<(&'static Job, usize)> = None;
    for line in std::io::stdin().lines() {
        let line = line.expect("the test speaks UTF-8");
        let words: Vec<_> = line.split(' ').collect();
        let on = |role| {
            let job = job("peer", role);
            (job, stream_of(fake, job))
        };
        let (job, stream) = *peer.get_or_insert_with(|| on(if words[0] == "hp" { Role::Hp } else { Role::Be }));
        match &words[..] {
            // A request with this kernel in it, left open or closed.
            ["hp", kernel_name, close] => {
                let k = kernel(fake, kernel_name);
                let entered = api::enter(job.id, 0, 0, 0).expect("the request is entered");
                assert_eq!(launch(fake, k, entered.stream as usize), 0);
                if *close == "close" {
                    api::leave(entered.ctx, true).expect("the request is left");
                }
                println!("@{}", std::process::id());
            }
            // Launches until it is killed, saying so before each.
            ["be", kernel_name, count] => {
                let k = kernel(fake, kernel_name);
                for i in 0..count.parse().expect("a number") {
                    println!("@{i}");
                    assert_eq!(launch(fake, k, stream), 0);
                }
                println!("@launched");
            }
            // Dies between the gate's word and the launch: the driver's own entry is not reached.
            ["be-dies-at-launch"] => {
                let k = kernel(fake, "lost_1us");
                mosaic::hook::gate::launch(
                    mosaic::hook::job::of_stream(stream as *mut _, false).unwrap(),
                    || k as u64,
                    || {
                        println!("@admitted");
                        // SAFETY: this process dies here.
                        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
                        0
                    },
                );
            }
            // Seeded work of both kinds, until it is killed.
            ["churn", role, seed] => {
                let mut random: u64 = seed.parse().expect("a number");
                let k = kernel(fake, "peer_3us");
                println!("@churning {role}");
                loop {
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    match *role {
                        "hp" => request(job, |s| {
                            (0..random >> 62).for_each(|_| assert_eq!(launch(fake, k, s), 0));
                        }),
                        _ => assert_eq!(launch(fake, k, stream), 0),
                    }
                }
            }
            other => panic!("not understood: {other:?}"),
        }
    }
}

/// Runs `body` in a process of its own, with one engine and one ledger for it and its peers.
fn together<F: FnOnce(&'static Fake)>(name: &str, body: F) {
    let dir = TempDir::new(&format!("engine-{name}"));
    let shared = dir.0.join("engine");
    let env = [
        ("FAKECUDA_SHM", shared.to_str().expect("a path in UTF-8")),
        ("FAKECUDA_CLOCK", "real"),
        ("MOSAIC_MAX_WAIT_MS", "3600000"),
        ("MOSAIC_STALL_MS", "3600000"),
    ];
    alone_as(name, common::fakecuda_dir(), &env, || body(hooked()));
}

/// Nothing in the ledger but what this process has itself.
fn others() -> Vec<Entry> {
    let mut all = device::get(0).expect("device 0").ledger.describe();
    all.retain(|e| match e {
        Entry::Hp(hp) => hp.pid != std::process::id(),
        Entry::Be(be) => be.pid != std::process::id(),
        _ => true,
    });
    all
}

fn killed_in_mid_request(name: &str, start: fn() -> Option<Peer>, zombie: bool) {
    together(name, |fake| {
        let be = job("be", Role::Be);
        let stream = stream_of(fake, be);
        let k = kernel(fake, "be_5us");
        let Some(mut peer) = start() else { return };
        peer.ask("hp hp_3600s open");
        let held = launching(k, stream);
        held.is_held();
        let killed_at = now_ns();
        peer.kill();
        held.join();
        let resumed_after = only_run(fake, "be_5us").call_ns - killed_at;
        assert!(resumed_after < RESUMES_WITHIN_NS, "BE ran again {resumed_after} ns after HP's death");
        if zombie {
            until("the peer is a zombie", || peer.state() == Some('Z'));
        }
        until("the GPU is done with the next kernel", || only_run(fake, "be_5us").end_ns > 0);
        assert_eq!(others(), []);
        assert_eq!(be.counts.admitted.load(Ordering::Relaxed), 1);
    });
}

/// Fault: a dead HP holds BE for ever. Its process stays a zombie: a look at process ids would find it alive.
#[test]
fn hp_killed_in_mid_request_lets_best_effort_on_even_as_a_zombie() {
    killed_in_mid_request(
        "hp_killed_in_mid_request_lets_best_effort_on_even_as_a_zombie",
        || Some(Peer::start()),
        true,
    );
}

/// Fault: the same, where HP's process id means nothing to BE.
#[test]
fn hp_killed_in_another_pid_namespace_lets_best_effort_on() {
    fn start() -> Option<Peer> {
        let mut command = peer_command();
        // SAFETY: only async-signal-safe calls. The process that goes on to exec is the first of a new PID namespace;
        // the one between keeps nothing open but the pipes, so that `spawn` returns, and takes the peer with it.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::unshare(libc::CLONE_NEWPID) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                match libc::fork() {
                    -1 => Err(std::io::Error::last_os_error()),
                    0 => {
                        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                        Ok(())
                    }
                    _ => {
                        libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
                        let mut status = 0;
                        libc::wait(&mut status);
                        libc::_exit(0)
                    }
                }
            })
        };
        match Peer::from(command) {
            Ok(mut peer) => {
                assert_eq!(peer.ask("hp hp_1us close"), "1", "the peer is in no namespace of its own");
                Some(peer)
            }
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
                eprintln!(
                    "SKIPPED: a new PID namespace is refused here ({e}); run as root to test deaths in containers"
                );
                None
            }
            Err(e) => panic!("{e}"),
        }
    }
    killed_in_mid_request("hp_killed_in_another_pid_namespace_lets_best_effort_on", start, false);
}

/// Fault: what HP has launched and will never run counts as active, or what its code had left ends with it too early.
#[test]
fn hp_killed_after_its_request_but_before_the_gpus_end_lets_best_effort_on() {
    together("hp_killed_after_its_request_but_before_the_gpus_end_lets_best_effort_on", |fake| {
        let be = job("be", Role::Be);
        let stream = stream_of(fake, be);
        let k = kernel(fake, "be_5us");
        let mut peer = Peer::start();
        peer.ask("hp hp_3600s close");
        let held = launching(k, stream);
        held.is_held();
        peer.kill();
        held.join();
        until("the GPU is done with the next kernel", || only_run(fake, "be_5us").end_ns > 0);
        assert_eq!(others(), []);
    });
}

/// Fault: the death of a held BE leaves something that HP or another BE stumbles over.
#[test]
fn best_effort_killed_in_the_gate_leaves_hp_alone_and_the_ledger_clean() {
    together("best_effort_killed_in_the_gate_leaves_hp_alone_and_the_ledger_clean", |fake| {
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let (hp_kernel, be_kernel) = (kernel(fake, "hp_5us"), kernel(fake, "be_5us"));
        let mine = stream_of(fake, be);
        let mut peer = Peer::start();
        assert_eq!((peer.ask("be first_1us 1"), peer.hear()), ("0".into(), Some("launched".into())));
        request(hp, |s| {
            assert_eq!(launch(fake, hp_kernel, s), 0);
            // It says so before it knocks; from then on it naps in the gate.
            assert_eq!(peer.ask("be peer_5us 1"), "0");
            until("it sleeps in the gate", || peer.state() == Some('S'));
            peer.kill();
            until("its slot is free", || others().is_empty());
            assert_eq!(launch(fake, hp_kernel, s), 0);
        });
        assert_eq!(launch(fake, be_kernel, mine), 0);
        until("all is done", || only_run(fake, "be_5us").end_ns > 0);
        assert_eq!(fake.runs_of("peer_5us").len(), 0, "it was held");
        assert_eq!(stats()["jobs"][0]["hp"]["requests"], 1);
    });
}

/// Fault: a launch that was booked and never made counts as in flight for ever.
#[test]
fn best_effort_killed_between_admission_and_launch_leaves_nothing_in_flight() {
    together("best_effort_killed_between_admission_and_launch_leaves_nothing_in_flight", |fake| {
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let (hp_kernel, be_kernel) = (kernel(fake, "hp_5us"), kernel(fake, "be_5us"));
        let mine = stream_of(fake, be);
        let mut peer = Peer::start();
        assert_eq!(peer.ask("be-dies-at-launch"), "admitted");
        assert_eq!(peer.hear(), None);
        assert_eq!(launch(fake, be_kernel, mine), 0, "no unknown kernel of a dead process is in the way");
        request(hp, |s| assert_eq!(launch(fake, hp_kernel, s), 0));
        until("all is done", || only_run(fake, "hp_5us").end_ns > 0);
        assert_eq!(others(), []);
        assert_eq!(hp.device.ledger.snapshot(now_ns(), 0).hp_active, 0);
    });
}

/// Fault: a BE process that launched something and went to do other things blocks all other BE processes.
#[test]
fn best_effort_that_pauses_does_not_hold_best_effort_of_another_process() {
    together("best_effort_that_pauses_does_not_hold_best_effort_of_another_process", |fake| {
        let be = job("be", Role::Be);
        let mine = stream_of(fake, be);
        let k = kernel(fake, "be_5us");
        let mut peer = Peer::start();
        assert_eq!((peer.ask("be peer_1us 1"), peer.hear()), ("0".into(), Some("launched".into())));
        // The peer waits for its next line and launches nothing more. Both kernels were unknown: they go one at a time.
        assert_eq!(launch(fake, k, mine), 0);
        assert_eq!(be.counts.admitted_wait_bound.load(Ordering::Relaxed), 0);
        peer.kill();
    });
}

/// Fault: some instant of a life at which a kill leaves HP waiting, BE held, or the ledger dirty.
#[test]
fn a_hundred_seeded_kills_leave_nothing_behind() {
    together("a_hundred_seeded_kills_leave_nothing_behind", |fake| {
        let (hp, be) = (job("hp", Role::Hp), job("be", Role::Be));
        let stream = stream_of(fake, be);
        let (hp_kernel, be_kernel) = (kernel(fake, "hp_2us"), kernel(fake, "be_2us"));
        for seed in 0..100u64 {
            let role = if seed % 2 == 0 { "hp" } else { "be" };
            let mut peer = Peer::start();
            assert_eq!(peer.ask(&format!("churn {role} {seed}")), format!("churning {role}"));
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            random ^= random >> 29;
            let kill_at = now_ns() + random % (3 * MS);
            while now_ns() < kill_at {
                // Both roles of this process go on meanwhile; neither waits for the peer's death.
                request(hp, |s| assert_eq!(launch(fake, hp_kernel, s), 0));
            }
            peer.kill();
            assert_eq!(launch(fake, be_kernel, stream), 0);
            request(hp, |s| assert_eq!(launch(fake, hp_kernel, s), 0));
            until("the dead one's slot is free", || others().is_empty());
        }
        assert_eq!(be.counts.escaped.load(Ordering::Relaxed), 0);
        until("all of HP's requests end", || hp.device.ledger.snapshot(now_ns(), 0).hp_active == 0);
        assert_eq!(capi::mosaic_request_open(be.id, 0), -1);
    });
}
