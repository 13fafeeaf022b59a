//! What concerns a whole process (signal handlers, system call filters, forks) is tested in a forked child.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::{mem, ptr, thread};

use libc::{c_int, c_void, siginfo_t};

use super::{
    CODE, FLAG, Function, bytes_of, code, code_at, flagged, function, plain, protection_of, resume_at_1, resume_at_4,
};
use crate::hook::detour::{DetourError, Reason, install, install_with};

/// Runs `f` in a child; its wait status. A panic ends it with status 101 and its text on stderr.
fn child(f: impl FnOnce()) -> c_int {
    // From here on a fork waits for an installation of another test.
    static FIRST_DETOUR: Once = Once::new();
    FIRST_DETOUR.call_once(|| assert!(detour(code(&CODE)).is_ok()));
    // SAFETY: fork and waitpid with valid arguments; the child leaves by _exit.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0);
        if pid == 0 {
            let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &no_core);
            // A child that hangs fails its test.
            libc::alarm(60);
            let ok = catch_unwind(AssertUnwindSafe(f)).map_err(say).is_ok();
            libc::_exit(if ok { 0 } else { 101 });
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        status
    }
}

fn say(panic: Box<dyn Any + Send>) {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    let text = format!("panic in a child: {}\n", text.unwrap_or("?"));
    // SAFETY: writes a valid buffer.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}

fn passes_in_child(f: impl FnOnce()) {
    assert_eq!(child(f), 0, "wait status");
}

fn detour(target: *const ()) -> Result<*const (), DetourError> {
    // SAFETY: the tests' code is never unmapped; signatures agree.
    unsafe { install(target, flagged as Function as *const (), "f") }.map(|d| d.original)
}

/// Executes an int3 that is nobody's.
fn foreign_int3() {
    // SAFETY: the tests have a handler for it, or mean to die.
    unsafe { std::arch::asm!("int3") };
}

fn raise() {
    // SAFETY: as above.
    unsafe { libc::raise(libc::SIGTRAP) };
}

fn handle(handler: usize, flags: c_int) -> libc::sigaction {
    // SAFETY: zeroed sigactions are valid; the tests pass handlers whose signature fits the flags.
    unsafe {
        let (mut action, mut old): (libc::sigaction, libc::sigaction) = (mem::zeroed(), mem::zeroed());
        (action.sa_sigaction, action.sa_flags) = (handler, flags);
        assert_eq!(libc::sigaction(libc::SIGTRAP, &action, &mut old), 0);
        old
    }
}

static FIRST: AtomicUsize = AtomicUsize::new(0);
static SECOND: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count_first(_: c_int) {
    FIRST.fetch_add(1, Ordering::SeqCst);
}

/// Fault: a trap that is not ours is swallowed, or a plain handler is called with the wrong arguments.
#[test]
fn test_foreign_traps_reach_the_handler_before() {
    passes_in_child(|| {
        handle(count_first as extern "C" fn(c_int) as usize, 0);
        let target = code(&CODE);
        detour(target).unwrap();
        foreign_int3();
        raise();
        assert_eq!(FIRST.load(Ordering::SeqCst), 2);
        assert_eq!((resume_at_1(3, target), resume_at_4(3, target)), (plain(3), plain(3)));
        assert_eq!(FIRST.load(Ordering::SeqCst), 2, "a trap of ours was handed on");
    });
}

/// Fault: two handlers that hand a trap to each other do so for ever, when one was set over ours and chains to it.
#[test]
fn test_handler_set_over_ours_may_chain_back() {
    static OURS: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn count_second_and_chain(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        SECOND.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the address is that of a handler installed with SA_SIGINFO.
        let ours: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
            unsafe { mem::transmute(OURS.load(Ordering::SeqCst)) };
        ours(signal, info, context);
    }
    passes_in_child(|| {
        handle(count_first as extern "C" fn(c_int) as usize, 0);
        let targets = [code(&CODE), code(&CODE)];
        detour(targets[0]).unwrap();
        let second = count_second_and_chain as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
        OURS.store(handle(second, libc::SA_SIGINFO).sa_sigaction, Ordering::SeqCst);
        assert_eq!(resume_at_1(3, targets[0]), plain(3));
        assert_eq!((SECOND.load(Ordering::SeqCst), FIRST.load(Ordering::SeqCst)), (1, 0));

        detour(targets[1]).unwrap();
        foreign_int3();
        assert_eq!((SECOND.load(Ordering::SeqCst), FIRST.load(Ordering::SeqCst)), (2, 1));
        assert!(targets.iter().all(|t| resume_at_4(3, *t) == plain(3)));
        assert_eq!((SECOND.load(Ordering::SeqCst), FIRST.load(Ordering::SeqCst)), (2, 1));
    });
}

/// Fault: a process that should die of a trap lives on past it, or one that ignores the signal dies.
#[test]
fn test_default_and_ignored_actions_are_kept() {
    let dies = |status: c_int| libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGTRAP;
    assert!(dies(child(foreign_int3)));
    assert!(dies(child(raise)));
    let ignore = || {
        handle(libc::SIG_IGN, 0);
        detour(code(&CODE)).unwrap();
    };
    passes_in_child(|| {
        ignore();
        raise();
    });
    assert!(dies(child(|| {
        ignore();
        foreign_int3();
    })));
}

/// Calls `f` with `x` and `y` while the processor traps after each instruction.
#[unsafe(naked)]
extern "C" fn call_in_steps(x: u64, y: *const (), f: *const ()) -> u64 {
    std::arch::naked_asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq", "jmp rdx")
}

static STOP_AT: AtomicUsize = AtomicUsize::new(0);
static STOPPED: AtomicBool = AtomicBool::new(false);
static GO: AtomicBool = AtomicBool::new(false);

/// Stops the stepping thread before the instruction at `STOP_AT` until `GO`; it runs freely from there.
extern "C" fn step(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's context of this signal.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    if registers[libc::REG_RIP as usize] as usize == STOP_AT.load(Ordering::SeqCst) {
        STOPPED.store(true, Ordering::SeqCst);
        while !GO.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        registers[libc::REG_EFL as usize] &= !0x100;
    }
}

/// Fault: a thread that was really stopped at an old boundary during the whole installation runs bytes of the jump
/// afterwards. With SA_NODEFER SIGTRAP is not blocked while it is stopped, so that the installation takes the steps with
/// an int3; without, it takes the single store.
#[test]
fn test_thread_stopped_at_each_boundary() {
    for flags in [libc::SA_NODEFER, 0] {
        passes_in_child(|| {
            handle(step as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize, libc::SA_SIGINFO | flags);
            for (offset, expected) in [(0, plain(4) | FLAG), (1, plain(4)), (4, plain(4)), (6, plain(4))] {
                let target = code(&CODE);
                STOP_AT.store(target.addr() + offset, Ordering::SeqCst);
                STOPPED.store(false, Ordering::SeqCst);
                GO.store(false, Ordering::SeqCst);
                let address = target.expose_provenance();
                let thread =
                    thread::spawn(move || call_in_steps(4, ptr::null(), ptr::with_exposed_provenance(address)));
                while !STOPPED.load(Ordering::SeqCst) {
                    assert!(!thread.is_finished(), "not stopped at offset {offset}");
                    thread::yield_now();
                }
                detour(target).unwrap();
                GO.store(true, Ordering::SeqCst);
                assert_eq!(thread.join().unwrap(), expected, "stopped at offset {offset}, flags {flags}");
                assert_eq!(function(target)(4), plain(4) | FLAG);
            }
        });
    }
}

/// Fault: a debugger's or profiler's single step that ends behind an int3 byte is taken for a hit of it.
#[test]
fn test_single_step_is_not_an_int3() {
    passes_in_child(|| {
        handle(step as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize, libc::SA_SIGINFO);
        let target = code(&CODE);
        detour(target).unwrap();
        GO.store(true, Ordering::SeqCst);
        STOP_AT.store(target.addr() + 1, Ordering::SeqCst);
        let f = resume_at_1 as extern "C" fn(u64, *const ()) -> u64 as *const ();
        assert_eq!(call_in_steps(4, target, f), plain(4));
        assert!(STOPPED.load(Ordering::SeqCst), "the step was not handed on");
    });
}

/// Makes mprotect answer EACCES when it is asked for exactly this protection, as a hardened system would.
fn refuse_mprotect(protection: c_int) {
    let op = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |offset: usize| op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset as u32, 0, 0);
    let unless = |k: u32, skip: u8| op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, k, 0, skip);
    let answer = |k: u32| op(libc::BPF_RET | libc::BPF_K, k, 0, 0);
    let mut filter = [
        load(mem::offset_of!(libc::seccomp_data, nr)),
        unless(libc::SYS_mprotect as u32, 3),
        load(mem::offset_of!(libc::seccomp_data, args) + 16),
        unless(protection as u32, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::EACCES as u32),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: a valid program, copied by the kernel.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

/// Fault: a system that forbids the page changes is left with a half-made detour, or with an error that does not say
/// what was forbidden.
#[test]
fn test_refused_page_changes() {
    let (text, thunk) = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC, libc::PROT_READ | libc::PROT_EXEC);
    for protection in [text, thunk] {
        passes_in_child(|| {
            let target = code(&CODE);
            let before = (bytes_of(target), protection_of(target));
            refuse_mprotect(protection);
            // SAFETY: nothing is installed, which is what is tested.
            let error = unsafe { install_with(target, flagged as Function as *const (), "f", |_| panic!("published")) }
                .unwrap_err();
            match &error.reason {
                Reason::Text(e) if protection == text => assert_eq!(e.raw_os_error(), Some(libc::EACCES)),
                Reason::Thunk(e) if protection == thunk => assert_eq!(e.raw_os_error(), Some(libc::EACCES)),
                _ => panic!("protection {protection}: {error}"),
            }
            assert!(error.to_string().contains("mprotect refused"), "{error}");
            assert_eq!((bytes_of(target), protection_of(target)), before);
            assert_eq!(function(target)(8), plain(8));
        });
    }
}

/// Fault: a child that is forked during an installation keeps an int3 or a writable page for good, or can't install
/// anything itself.
#[test]
fn test_fork_sees_whole_detours_only() {
    let targets: Vec<usize> = code_at(0, &CODE, 100).iter().map(|t| t.expose_provenance()).collect();
    let inside = AtomicUsize::new(usize::MAX);
    thread::scope(|scope| {
        let installer = scope.spawn(|| {
            for (i, target) in targets.iter().enumerate() {
                let linger = |_| {
                    inside.store(i, Ordering::SeqCst);
                    (0..100).for_each(|_| thread::yield_now());
                };
                let target = ptr::with_exposed_provenance(*target);
                // SAFETY: the tests' code is never unmapped; signatures agree.
                unsafe { install_with(target, flagged as Function as *const (), "f", linger) }.unwrap();
            }
        });
        while !installer.is_finished() {
            // Most forks are tried when the installer is known to be at work.
            let Some(target) = targets.get(inside.swap(usize::MAX, Ordering::SeqCst)) else {
                thread::yield_now();
                continue;
            };
            passes_in_child(|| {
                let target = ptr::with_exposed_provenance(*target);
                assert_eq!(protection_of(target), libc::PROT_READ | libc::PROT_EXEC);
                assert_eq!(bytes_of(target)[0], 0xe9);
                assert_eq!(function(target)(6), plain(6) | FLAG);
                detour(code(&CODE)).unwrap();
            });
        }
    });
}
