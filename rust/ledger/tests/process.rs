//! Death, forks and competition of real processes.

use super::peer::{Peer, command};
use super::*;
use crate::ledger::{Entry, HpClaim, LedgerError};
use std::collections::HashSet;
use std::os::unix::process::{CommandExt, ExitStatusExt};

fn state_of(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

fn is_clean(ledger: &Ledger) -> bool {
    ledger.snapshot(0, 0) == Default::default() && ledger.describe().is_empty()
}

/// Nobody reaps the peer: a check by process id would still find it.
#[test]
fn a_kill_in_mid_request_is_noticed_while_the_process_is_a_zombie() {
    let dir = TempDir::new();
    let ledger = dir.ledger();
    let mut peer = Peer::start(&dir.0);
    peer.ask("hp a");
    peer.ask("open 0");
    peer.ask("calibrating");
    peer.ask("be b");
    peer.ask("in-flight 2 1000000000");
    let s = ledger.snapshot(0, 0);
    assert_eq!((s.hp_active, s.hp_calibrating, s.be_in_flight), (1, true, 2));
    peer.kill();
    // The first thread can be a zombie while the keeper is still dying.
    assert!(eventually(|| state_of(peer.pid()) == Some('Z') && is_clean(&ledger)), "{:?}", ledger.describe());
    assert_eq!(state_of(peer.pid()), Some('Z'));
}

/// The owner's TID means nothing here: only the kernel can tell that it died.
#[test]
fn a_kill_is_noticed_from_outside_its_pid_namespace() {
    let dir = TempDir::new();
    let ledger = dir.ledger();
    let mut command = command(&dir.0);
    // SAFETY: only async-signal-safe calls. The process that goes on to exec is the first of a new PID namespace;
    // the one between keeps nothing open but the pipes, so that `spawn` returns, and takes the peer with it.
    unsafe {
        command.pre_exec(|| {
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
    let mut peer = match Peer::from(command) {
        Ok(peer) => peer,
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
            eprintln!("SKIPPED: a new PID namespace is refused here ({e}); run as root to test deaths in containers");
            return;
        }
        Err(e) => panic!("{e}"),
    };
    peer.ask("hp a");
    peer.ask("open 0");
    let Entry::Hp(entry) = ledger.describe().remove(0) else { panic!("no HP entry") };
    assert_eq!((entry.pid, ledger.snapshot(0, 0).hp_active), (1, 1), "the peer is in no namespace of its own");
    peer.kill();
    assert!(eventually(|| is_clean(&ledger)), "{:?}", ledger.describe());
}

/// The most treacherous instants are between taking a slot and linking it, and between unlinking and giving it back.
#[test]
fn a_kill_at_every_step_of_a_life_leaves_nothing_claimed() {
    let dir = TempDir::new();
    let ledger = dir.ledger();
    for step in 0.. {
        let mut peer = Peer::start(&dir.0);
        peer.tell(&format!("life {step}"));
        if peer.hear().is_some() {
            assert!(step > 50, "only {step} kill points");
            break;
        }
        assert_eq!(peer.wait().signal(), Some(libc::SIGKILL), "step {step}");
        assert!(is_clean(&ledger), "step {step}: {:?}", ledger.describe());
        let (hp, be) = (ledger.claim_hp(&info("a")), ledger.claim_be("b"));
        let lane = hp.as_ref().unwrap().open_lane(1).unwrap();
        be.unwrap().set_in_flight(1, 10, false);
        assert_eq!(ledger.snapshot(0, 0).hp_active, 1, "step {step}");
        hp.unwrap().close_lane(lane);
    }
    all_slots_are_free(&ledger);
}

#[test]
fn a_hundred_kills_at_seeded_instants_leave_nothing_claimed() {
    let dir = TempDir::new();
    let ledger = dir.ledger();
    for seed in 0..100 {
        let mut peer = Peer::start(&dir.0);
        assert_eq!(peer.ask(&format!("churn {seed}")), "churning");
        let instant = Instant::now() + Duration::from_nanos(Random::new(seed).below(3 * MS));
        while Instant::now() < instant {
            std::hint::spin_loop();
        }
        peer.kill_and_wait();
        assert!(is_clean(&ledger), "seed {seed}: {:?}", ledger.describe());
    }
    all_slots_are_free(&ledger);
}

/// Not one slot is lost, once those with an open request have rested.
fn all_slots_are_free(ledger: &Arc<Ledger>) {
    let claim_all = || (0..64).map(|_| ledger.claim_hp(&info("a"))).collect::<Result<Vec<HpClaim>, _>>();
    assert!(eventually(|| claim_all().is_ok()), "an HP slot is lost: {:?}", claim_all().err());
    let be: Result<Vec<_>, _> = (0..64).map(|_| ledger.claim_be("b")).collect();
    assert!(be.is_ok(), "a BE slot is lost: {:?}", be.err());
}

#[test]
fn a_dead_slot_is_taken_again_at_once_unless_a_request_was_open() {
    let dir = TempDir::new();
    let ledger = dir.ledger();
    let mut peer = Peer::start(&dir.0);
    assert_eq!(peer.ask("hp a"), "0");
    assert_eq!(peer.ask("hp a"), "1");
    peer.ask("open 0");
    peer.kill_and_wait();
    assert_eq!(ledger.claim_hp(&info("b")).unwrap().slot(), 1);
}

#[test]
fn a_clean_exit_without_a_drop_frees_the_slots() {
    let dir = TempDir::new();
    let ledger = dir.ledger();
    let mut peer = Peer::start(&dir.0);
    peer.ask("hp a");
    peer.ask("open 0");
    peer.ask("exec");
    // The process lives on as another program: its claims do not.
    assert!(eventually(|| is_clean(&ledger)), "{:?}", ledger.describe());
    // Eventually: in the exec of a process with threads its first thread is a zombie for a moment.
    assert!(eventually(|| state_of(peer.pid()).is_some_and(|state| state != 'Z')));
}

/// A DataLoader worker must neither end its parent's request nor keep its claim alive.
#[test]
fn a_forked_child_touches_nothing_of_its_parent_and_claims_for_itself() {
    let dir = TempDir::new();
    let ledger = dir.ledger();
    let mut peer = Peer::start(&dir.0);
    assert_eq!(peer.ask("hp parent"), "0");
    assert_eq!(peer.ask("open 0"), "0");
    peer.tell("fork");
    let answers = [peer.hear().unwrap(), peer.hear().unwrap()];
    let of_child = answers.iter().find(|a| a.starts_with("child")).unwrap();
    let child: i32 = answers.iter().find_map(|a| a.parse().ok()).unwrap();
    assert_eq!(of_child, "child opened=false slot=1 lane=true");
    let s = ledger.snapshot(0, 0);
    assert_eq!((s.hp_active, s.hp_calibrating), (2, false));
    // SAFETY: a signal to a process that this test made and that nobody else reaps.
    unsafe { libc::kill(child, libc::SIGKILL) };
    assert!(eventually(|| ledger.snapshot(0, 0).hp_active == 1), "the child's own claim outlives it");
    assert_eq!(peer.ask("open 0"), "1", "the parent lost its claim");
    peer.kill();
    assert!(eventually(|| is_clean(&ledger)));
}

/// The parent dies first: its slot must not live on in the child, which inherited the mapping.
#[test]
fn a_forked_child_does_not_keep_its_dead_parent_alive() {
    let dir = TempDir::new();
    let ledger = dir.ledger();
    let mut peer = Peer::start(&dir.0);
    peer.ask("hp parent");
    peer.ask("open 0");
    peer.tell("fork");
    let answers = [peer.hear().unwrap(), peer.hear().unwrap()];
    let child: i32 = answers.iter().find_map(|a| a.parse().ok()).unwrap();
    peer.kill_and_wait();
    let left = ledger.describe();
    // SAFETY: as above.
    unsafe { libc::kill(child, libc::SIGKILL) };
    assert!(matches!(&left[..], [Entry::Hp(hp)] if hp.name == "child"), "{left:?}");
}

#[test]
fn claims_from_many_threads_of_many_processes_are_distinct_and_all_counted() {
    let dir = TempDir::new();
    // Nobody has made the file yet: the makers race too.
    let mut peers: Vec<Peer> = (0..4).map(|_| Peer::start(&dir.0)).collect();
    for peer in &mut peers {
        peer.tell("claim-threads 8");
    }
    let answers: Vec<String> = peers.iter_mut().map(|peer| peer.hear().unwrap()).collect();
    let slots: HashSet<usize> = answers.iter().flat_map(|a| a.split(' ')).map(|s| s.parse().unwrap()).collect();
    assert_eq!(slots.len(), 32, "{answers:?}");
    for peer in &mut peers {
        (0..8).for_each(|claim| drop(peer.ask(&format!("open {claim}"))));
    }
    let ledger = dir.ledger();
    assert_eq!(ledger.snapshot(0, 0).hp_active, 32);
    peers[0].kill_and_wait();
    assert_eq!(ledger.snapshot(0, 0).hp_active, 24);
    let expected = std::iter::once(GPU_FILE.to_owned()).collect::<Vec<_>>();
    let files: Vec<String> =
        std::fs::read_dir(&dir.0).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(files, expected, "makers left something behind");
}

/// One GPU's HP must not hold another GPU's BE; one death must clear both.
#[test]
fn several_gpus_are_apart_and_a_death_clears_all() {
    let dir = TempDir::new();
    let (one, other) = (dir.ledger(), Ledger::open(&dir.0, OTHER_GPU).unwrap());
    let mut peer = Peer::start(&dir.0);
    peer.ask("hp a");
    peer.ask("hp a other-gpu");
    peer.ask("open 1");
    assert_eq!((one.snapshot(0, 0).hp_active, other.snapshot(0, 0).hp_active), (0, 1));
    peer.ask("open 0");
    peer.kill_and_wait();
    assert!(is_clean(&one) && is_clean(&other));
}

#[test]
fn a_full_ledger_is_an_error_in_every_process() {
    let dir = TempDir::new();
    let ledger = dir.ledger();
    let claims: Vec<_> = (0..64).map(|_| ledger.claim_hp(&info("a")).unwrap()).collect();
    let answer = Peer::start(&dir.0).ask("hp b");
    assert!(answer.contains("no free HP slot: 64 taken"), "{answer}");
    drop(claims);
    assert!(!matches!(ledger.claim_hp(&info("a")), Err(LedgerError::Full { .. })));
}
