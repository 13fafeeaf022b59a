//! Writes a jump over a function's first bytes while other threads run them.

use std::fs;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// membarrier(2) commands; libc has no names for them.
const REGISTER_PRIVATE_EXPEDITED_SYNC_CORE: i32 = 1 << 6;
const PRIVATE_EXPEDITED_SYNC_CORE: i32 = 1 << 5;

/// Replaces `old` by `new`, which differ in a jump's bytes. Every thread runs either the old instructions, or the jump,
/// or an int3 that the SIGTRAP handler knows.
///
/// The order that Intel and AMD both bless for code that other cores run: an int3 over the first byte, all cores
/// synchronised, the other bytes, synchronised, the first byte. In that time a call traps and takes the trampoline. A
/// thread that blocks SIGTRAP would be killed by such a trap, and a debugger would eat it. So when there is one, or no
/// way to synchronise the cores, the jump is written by its last step alone: one aligned 8-byte store, which lies in a
/// single fetch block, so that a core fetches the old or the new word (AMD documents this; Intel's cores do it). Then
/// only a thread that stands inside the old instructions can trap.
pub(super) fn write(word: &AtomicU64, old: [u8; 8], new: [u8; 8]) {
    let stored = |first: u8, bytes: [u8; 8]| {
        let [_, rest @ ..] = bytes;
        let [a, b, c, d, e, f, g] = rest;
        u64::from_ne_bytes([first, a, b, c, d, e, f, g])
    };
    if *CAN_SYNC && no_thread_minds_a_trap() {
        word.store(stored(0xcc, old), Ordering::SeqCst);
        sync_cores();
        word.store(stored(0xcc, new), Ordering::SeqCst);
        sync_cores();
    }
    word.store(u64::from_ne_bytes(new), Ordering::SeqCst);
    if *CAN_SYNC {
        // From here on no core runs what it fetched before.
        sync_cores();
    }
}

static CAN_SYNC: LazyLock<bool> = LazyLock::new(|| membarrier(REGISTER_PRIVATE_EXPEDITED_SYNC_CORE));

fn sync_cores() -> bool {
    membarrier(PRIVATE_EXPEDITED_SYNC_CORE)
}

fn membarrier(command: i32) -> bool {
    // SAFETY: membarrier takes no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether each thread would get over an int3. A no is remembered: threads with blocked signals are there to stay, and
/// reading hundreds of files for each detour would take longer than the detour.
fn no_thread_minds_a_trap() -> bool {
    static SOME_MIND: AtomicBool = AtomicBool::new(false);
    if SOME_MIND.load(Ordering::Relaxed) {
        return false;
    }
    let none = fs::read_dir("/proc/self/task").is_ok_and(|mut tasks| {
        // A thread that is gone by now minds nothing.
        tasks.all(|t| t.is_ok_and(|t| fs::read_to_string(t.path().join("status")).map_or(true, |s| !minds(&s))))
    });
    SOME_MIND.store(!none, Ordering::Relaxed);
    none
}

/// Whether `/proc/…/status` tells of a blocked SIGTRAP or of a tracer.
fn minds(status: &str) -> bool {
    let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).map(str::trim);
    let blocked = field("SigBlk:").and_then(|s| u64::from_str_radix(s, 16).ok()).unwrap_or(u64::MAX);
    blocked & (1 << (libc::SIGTRAP - 1)) != 0 || field("TracerPid:") != Some("0")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault: a thread is killed by the int3 phase since its blocked SIGTRAP or its tracer is overlooked.
    #[test]
    fn test_threads_that_mind_are_seen() {
        let status = |tracer: &str, blocked: &str| format!("Name:\tx\nTracerPid:\t{tracer}\nSigBlk:\t{blocked}\n");
        assert!(!minds(&status("0", "0000000000000000")));
        assert!(!minds(&status("0", "ffffffffffffffef")));
        assert!(minds(&status("0", "0000000000000010")));
        assert!(minds(&status("7", "0000000000000000")));
        assert!(minds(""), "what can't be read is not trusted");
    }
}
