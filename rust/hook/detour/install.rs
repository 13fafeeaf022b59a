//! The steps of an installation, in an order in which a refusal leaves everything as it was.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use super::near::{Near, PAGE_BYTES, protect};
use super::{Detour, Reason, maps, patch};
use crate::hook::prologue::{self, LOOK_BYTES, Prologue};
use crate::hook::trap;

const ALIGNMENT: usize = 16;

/// What this process has patched so far.
struct State {
    near: Near,
    installed: Vec<(usize, &'static str)>,
}

static STATE: Mutex<State> = Mutex::new(State { near: Near::new(), installed: Vec::new() });

fn lock() -> MutexGuard<'static, State> {
    // A panic leaves at worst a page that is marked used.
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See [`super::install_with`].
///
/// # Safety
/// As there.
pub(super) unsafe fn install(
    target: *const (),
    replacement: *const (),
    name: &'static str,
    publish: impl FnOnce(*const ()),
) -> Result<Detour, Reason> {
    // SAFETY: passed on to the caller.
    unsafe { install_towards(target, replacement, name, publish, Prologue::top_bytes) }
}

/// The same, with the directions that the jump may take (see [`Prologue::top_bytes`]).
///
/// # Safety
/// As for [`install`].
pub(super) unsafe fn install_towards(
    target: *const (),
    replacement: *const (),
    name: &'static str,
    publish: impl FnOnce(*const ()),
    top_bytes: impl FnOnce(&Prologue) -> Vec<u8>,
) -> Result<Detour, Reason> {
    let address = target.addr();
    if !address.is_multiple_of(ALIGNMENT) {
        return Err(Reason::Unaligned { target: address });
    }
    hold_off_forks();
    let mut state = lock();
    if let Some((_, by)) = state.installed.iter().find(|(a, _)| *a == address) {
        return Err(Reason::AlreadyInstalled { by });
    }

    let maps = maps::read().map_err(Reason::Maps)?;
    let code = libc::PROT_READ | libc::PROT_EXEC;
    let protection = match maps::holding(&maps, address, LOOK_BYTES) {
        // A write to a shared mapping would reach the file.
        Some(m) if m.protection & code == code && !m.shared => m.protection,
        _ => return Err(Reason::NotCode { target: address }),
    };
    // SAFETY: these bytes are mapped and readable, and the caller keeps them so.
    let look: [u8; LOOK_BYTES] = unsafe { target.cast::<[u8; LOOK_BYTES]>().read_volatile() };
    let prologue = prologue::decode(&look).map_err(Reason::Prologue)?;

    trap::ensure_handler().map_err(Reason::Handler)?;
    let tops = top_bytes(&prologue);
    let place = state.near.take(address, &prologue, &tops, &maps).ok_or(Reason::NoRoom { windows: tops.len() })?;
    let moved = prologue.moved_bytes();
    let trampoline = place.fill(replacement.addr(), &look[..moved], address + moved).map_err(Reason::Thunk)?;

    let page = address / PAGE_BYTES * PAGE_BYTES;
    // SAFETY: an access is added, none is taken away.
    unsafe { protect(page, protection | libc::PROT_WRITE) }.map_err(Reason::Text)?;
    // SAFETY: the word is mapped, writable from here to the end, and aligned; all accesses to it are atomic or fetches.
    let word = unsafe { &*target.cast::<AtomicU64>() };
    let old = word.load(Ordering::SeqCst).to_ne_bytes();
    let unchanged = old[..] == look[..8];
    if unchanged {
        state.installed.push((address, name));
        trap::add_site(address, trampoline, place.patch.traps());
        let original = std::ptr::with_exposed_provenance(trampoline);
        publish(original);
        patch::write(word, old, place.patch.over(old));
    }
    // SAFETY: nothing writes to this page any more; whoever made it writable before gets it back so.
    let restored = unsafe { protect(page, protection) };
    if !unchanged {
        return Err(Reason::Changed);
    }
    Ok(Detour { original: std::ptr::with_exposed_provenance(trampoline), text_left_writable: restored.is_err() })
}

/// Makes fork() wait for an installation: a child must not inherit a half-written jump that nobody completes.
fn hold_off_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the three functions stay valid and do nothing but lock and unlock. Without memory for the
        // registration forks are not held off; a child's half-written jump would still lead to the original.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork)) };
    });
}

/// The guard that a forking thread holds, in it and in its child.
struct ForkGuard(UnsafeCell<Option<MutexGuard<'static, State>>>);

// SAFETY: it is touched only by the thread that holds the lock, and, after a fork, by that thread's copy.
unsafe impl Sync for ForkGuard {}

static FORK_GUARD: ForkGuard = ForkGuard(UnsafeCell::new(None));

extern "C" fn before_fork() {
    let guard = lock();
    // SAFETY: this thread holds the lock.
    unsafe { *FORK_GUARD.0.get() = Some(guard) };
}

extern "C" fn after_fork() {
    // SAFETY: this thread, or the one it is a copy of, holds the lock: the guard is its own.
    drop(unsafe { (*FORK_GUARD.0.get()).take() });
}
