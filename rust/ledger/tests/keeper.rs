//! The keeper's thread, in processes of its own: there is one keeper per process.

use super::peer::Peer;
use super::*;

/// A tick that gives up a claim would wait for itself if jobs always went through the mailbox.
#[test]
fn a_tick_may_claim_and_release() {
    let dir = TempDir::new();
    assert_eq!(Peer::start(&dir.0).ask("tick claims"), "true");
}

#[test]
fn a_tick_that_panics_is_not_called_again_and_claims_go_on() {
    let dir = TempDir::new();
    assert_eq!(Peer::start(&dir.0).ask("tick panics"), "true");
}

/// A wake between the tick's end and the sleep must not get lost.
#[test]
fn no_wake_is_lost() {
    let dir = TempDir::new();
    assert_eq!(Peer::start(&dir.0).ask("tick wakes"), "true");
}

/// A user's signal handler must not run on the keeper; a blocked SIGTRAP would kill the process at the hook's patch.
#[test]
fn the_keeper_blocks_all_signals_but_faults() {
    let dir = TempDir::new();
    let mask = u64::from_str_radix(&Peer::start(&dir.0).ask("signals"), 16).unwrap();
    let blocked = |signal: i32| mask >> (signal - 1) & 1 == 1;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGCHLD, libc::SIGALRM, libc::SIGUSR1, libc::SIGPROF] {
        assert!(blocked(signal), "signal {signal} reaches the keeper");
    }
    for signal in [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGSYS] {
        assert!(!blocked(signal), "fault {signal} is blocked");
    }
}
