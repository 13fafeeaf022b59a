//! The SIGTRAP handler that takes a thread out of a half-replaced prologue.
//!
//! A detour writes its jump such that every place where a thread may stand in the old instructions holds an int3. The
//! handler moves a thread that hit one to the same instruction in the trampoline. Everything else goes on to the
//! handler that was there before. The handler stays for good: a stopped thread may resume at any time later.
//!
//! The handler itself only reads atomics and leaked records: it allocates nothing and takes no lock.

use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_int, c_void, siginfo_t};

/// si_code of an int3 on Linux x86-64 (SI_KERNEL); other kernels use TRAP_BRKPT.
const SI_KERNEL: c_int = 0x80;
const TRAP_BRKPT: c_int = 1;

/// A detoured function's int3 bytes.
struct Site {
    target: usize,
    trampoline: usize,
    /// (offset of the int3, offset of the old instruction).
    traps: Vec<(u8, u8)>,
    next: *const Site,
}

/// A handler that ours stands in front of.
struct Previous {
    action: libc::sigaction,
    /// What was in front of ours when it was installed the time before.
    older: *const Previous,
}

static SITES: AtomicPtr<Site> = AtomicPtr::new(ptr::null_mut());
static PREVIOUS: AtomicPtr<Previous> = AtomicPtr::new(ptr::null_mut());

/// Puts the handler in front of the present one, unless it stands there already. Calls must not overlap.
pub(super) fn ensure_handler() -> std::io::Result<()> {
    let mut present = current_action()?;
    let ours = handler_address();
    while present.sa_sigaction != ours {
        let older = PREVIOUS.load(Ordering::Relaxed);
        // Published before ours can run, so that ours always has somewhere to hand a foreign trap.
        PREVIOUS.store(Box::leak(Box::new(Previous { action: present, older })), Ordering::Release);
        let mut action = present;
        action.sa_sigaction = ours;
        // The previous mask and SA_NODEFER are kept for the handler that we call; SA_ONSTACK does no harm without an
        // alternate stack, and a thread that has one may need it.
        action.sa_flags =
            libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART | (present.sa_flags & libc::SA_NODEFER);
        // SAFETY: both are valid sigactions; `on_trap` has the signature that SA_SIGINFO asks for.
        let replaced = unsafe {
            let mut replaced: libc::sigaction = mem::zeroed();
            if libc::sigaction(libc::SIGTRAP, &action, &mut replaced) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            replaced
        };
        if replaced.sa_sigaction == present.sa_sigaction {
            break;
        }
        // Another thread set a handler in between: stand in front of that one.
        present = replaced;
    }
    Ok(())
}

/// Tells the handler of a function that is about to be patched. Kept for good.
pub(super) fn add_site(target: usize, trampoline: usize, traps: &[(u8, u8)]) {
    let site =
        Box::leak(Box::new(Site { target, trampoline, traps: traps.to_vec(), next: SITES.load(Ordering::Relaxed) }));
    while let Err(head) = SITES.compare_exchange(site.next.cast_mut(), site, Ordering::Release, Ordering::Relaxed) {
        site.next = head;
    }
}

fn handler_address() -> usize {
    on_trap as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize
}

fn current_action() -> std::io::Result<libc::sigaction> {
    // SAFETY: a zeroed sigaction is a valid one to write to; a null new action only asks.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        if libc::sigaction(libc::SIGTRAP, ptr::null(), &mut action) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(action)
    }
}

/// Where a thread that ran the int3 at `address` goes on.
fn resume_address(address: usize) -> Option<usize> {
    let mut next = SITES.load(Ordering::Acquire).cast_const();
    // SAFETY: sites are leaked and never changed once they are in the list.
    while let Some(site) = unsafe { next.as_ref() } {
        let offset = address.wrapping_sub(site.target);
        if let Some(&(_, resume)) = site.traps.iter().find(|(trap, _)| usize::from(*trap) == offset) {
            return Some(site.trampoline + usize::from(resume));
        }
        next = site.next;
    }
    None
}

extern "C" fn on_trap(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes valid, exclusive pointers of this signal's frame; a handler in front of ours that
    // chains to it passes them on.
    let (info, rip) = unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        (&mut *info, &mut context.uc_mcontext.gregs[libc::REG_RIP as usize])
    };
    // A single step or a signal sent by hand has another code, wherever the thread stands.
    if matches!(info.si_code, SI_KERNEL | TRAP_BRKPT)
        && let Some(address) = resume_address((*rip as usize).wrapping_sub(1))
    {
        *rip = address as libc::greg_t;
        return;
    }
    pass_on(signal, info, context);
}

/// Marks a signal that ours has handed on, with how many times: a handler that was set over ours may chain back to it
/// after ours was set over that one.
const HANDED_ON: c_int = 0x6d6f_7300;
const HANDED_ON_MAX: c_int = 0xff;

fn pass_on(signal: c_int, info: &mut siginfo_t, context: *mut c_void) {
    let unmarked = info.si_errno;
    let depth = match unmarked.wrapping_sub(HANDED_ON) {
        n @ 0..HANDED_ON_MAX => n,
        _ => 0,
    };
    let mut previous = PREVIOUS.load(Ordering::Acquire).cast_const();
    for _ in 0..depth {
        // SAFETY: records are leaked and never changed.
        previous = unsafe { previous.as_ref() }.map_or(ptr::null(), |p| p.older);
    }
    // SAFETY: as above.
    let action = unsafe { previous.as_ref() }.map(|p| &p.action);
    match action {
        Some(a) if a.sa_sigaction == libc::SIG_IGN && info.si_code <= 0 => {}
        Some(a) if a.sa_sigaction != libc::SIG_IGN && a.sa_sigaction != libc::SIG_DFL => {
            info.si_errno = HANDED_ON + depth + 1;
            // SAFETY: the address and its signature are what the program gave to sigaction.
            unsafe {
                if a.sa_flags & libc::SA_SIGINFO != 0 {
                    let f: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = mem::transmute(a.sa_sigaction);
                    f(signal, info, context);
                } else {
                    let f: extern "C" fn(c_int) = mem::transmute(a.sa_sigaction);
                    f(signal);
                }
            }
            info.si_errno = unmarked;
        }
        // The kernel ends a process whose int3 finds the default or an ignored action.
        _ => die_by(signal, info),
    }
}

/// Lets the default action end the process, with the same signal information, as soon as the handler returns.
fn die_by(signal: c_int, info: &siginfo_t) {
    // SAFETY: plain system calls on this thread; `info` is a valid siginfo.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &action, ptr::null_mut());
        let (pid, tid) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
        if libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, ptr::from_ref(info)) != 0 {
            libc::syscall(libc::SYS_tgkill, pid, tid, signal);
        }
    }
}
