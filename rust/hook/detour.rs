//! An in-process detour: a function's first instructions are replaced by a jump, while other threads may run them.
//!
//! ```text
//!   target:      jmp thunk ─────────►  thunk:       jmp [replacement]
//!   target + n:  …  ◄───────────────┐
//!                                   └─ trampoline:  the n bytes that were moved; jmp [target + n]
//! ```
//!
//! - Only prologues that [`prologue`] knows are touched; everything else is refused by name, with nothing changed.
//! - The displacement of the jump is chosen such that a thread that stood inside the old instructions traps and is led
//!   to the same instruction in the trampoline (by the SIGTRAP handler in `trap`).
//! - Text is writable only while the jump is stored, and executable all the time. Thunk pages are never both.
//! - A detour stays for good: a thread may be inside a thunk or trampoline at any time.
//!
//! No exception or panic may unwind through a detour: the trampoline has no unwind tables.
//!
//! [`prologue`]: super::prologue

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod install;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod maps;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod near;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod patch;
#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod tests;

use std::{fmt, io};

use super::prologue::PrologueError;

/// A detour in force.
#[derive(Debug)]
#[non_exhaustive]
pub struct Detour {
    /// The trampoline: callable with the target's signature, does what the target did before.
    pub original: *const (),
    /// The target's page could not be made read-only again (never seen; the detour works all the same).
    pub text_left_writable: bool,
}

/// A detour could not be installed. Nothing was changed.
#[derive(Debug)]
#[non_exhaustive]
pub struct DetourError {
    /// The name that was given to [`install`].
    pub name: &'static str,
    /// What was in the way.
    pub reason: Reason,
}

/// What was in the way of a detour.
#[derive(Debug)]
#[non_exhaustive]
pub enum Reason {
    /// No detour exists for this processor or operating system.
    Architecture,
    /// The target's address is not a multiple of 16.
    Unaligned {
        /// The address.
        target: usize,
    },
    /// This module has already patched the target.
    AlreadyInstalled {
        /// The name that was given then.
        by: &'static str,
    },
    /// The target does not lie in readable, executable, private memory.
    NotCode {
        /// The address.
        target: usize,
    },
    /// The target's first instructions can't be moved.
    Prologue(PrologueError),
    /// The process's mappings could not be read.
    Maps(io::Error),
    /// The SIGTRAP handler could not be set.
    Handler(io::Error),
    /// All addresses to which a safe jump could lead are taken.
    NoRoom {
        /// How many windows of 16 MiB were tried.
        windows: usize,
    },
    /// The thunk's page was not allowed to become writable, or executable.
    Thunk(io::Error),
    /// The target's page was not allowed to become writable.
    Text(io::Error),
    /// The target's first bytes changed during the installation: someone else patches it.
    Changed,
}

impl fmt::Display for DetourError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name;
        match &self.reason {
            Reason::Architecture => write!(
                f,
                "no detour of {name} on {} {}: only x86_64 linux is supported; use the CUPTI fallback",
                std::env::consts::ARCH,
                std::env::consts::OS
            ),
            Reason::Unaligned { target } => write!(f, "{name} begins at {target:#x}: expected a multiple of 16"),
            Reason::AlreadyInstalled { by } => write!(f, "{name} already has a detour, installed for {by}"),
            Reason::NotCode { target } => {
                write!(f, "{name} at {target:#x} does not lie in readable, executable, private memory")
            }
            Reason::Prologue(e) => write!(f, "{name} can't be detoured: {e}"),
            Reason::Maps(e) => write!(f, "no detour of {name}: /proc/self/maps can't be read: {e}"),
            Reason::Handler(e) => write!(f, "no detour of {name}: the SIGTRAP handler can't be set: {e}"),
            Reason::NoRoom { windows } => {
                write!(f, "no detour of {name}: no free page in the {windows} 16 MiB windows that a safe jump reaches")
            }
            Reason::Thunk(e) => write!(
                f,
                "no detour of {name}: mprotect refused to make a new page executable ({e}); \
                 allow it (SELinux execmem, seccomp) or use the CUPTI fallback"
            ),
            Reason::Text(e) => write!(
                f,
                "no detour of {name}: mprotect refused to make its page writable ({e}); \
                 allow it (SELinux execmod/execmem, seccomp) or use the CUPTI fallback"
            ),
            Reason::Changed => {
                write!(f, "no detour of {name}: its first bytes changed meanwhile; is there another hook?")
            }
        }
    }
}

impl std::error::Error for DetourError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.reason {
            Reason::Prologue(e) => Some(e),
            Reason::Maps(e) | Reason::Handler(e) | Reason::Thunk(e) | Reason::Text(e) => Some(e),
            _ => None,
        }
    }
}

/// Makes every call of `target` run `replacement` instead.
///
/// Other threads may call `replacement` before this returns: one that needs the original must get it by
/// [`install_with`].
///
/// # Safety
/// As for [`install_with`].
pub unsafe fn install(target: *const (), replacement: *const (), name: &'static str) -> Result<Detour, DetourError> {
    // SAFETY: passed on to the caller.
    unsafe { install_with(target, replacement, name, |_| {}) }
}

/// Like [`install`], and hands the original to `publish` just before the detour goes live, when nothing can fail any
/// more. `publish` must not install a detour or fork.
///
/// # Safety
/// `target` is the start of a function that is never unmapped. `replacement` is a function of the same signature and
/// calling convention that never unwinds and never goes away.
pub unsafe fn install_with(
    target: *const (),
    replacement: *const (),
    name: &'static str,
    publish: impl FnOnce(*const ()),
) -> Result<Detour, DetourError> {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    // SAFETY: passed on to the caller.
    let result = unsafe { install::install(target, replacement, name, publish) };
    #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
    let result = {
        let _ = (target, replacement, publish);
        Err(Reason::Architecture)
    };
    result.map_err(|reason| DetourError { name, reason })
}
