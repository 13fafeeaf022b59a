//! Detours of machine code that the tests write themselves, with the very first bytes of libcuda's entry points.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::{mem, ptr, slice, thread};

use super::install::install_towards;
use super::{Reason, install, install_with, maps};

type Function = extern "C" fn(u64) -> u64;

/// `3 * x + 1`, in a frame like that of libcuda's entry points.
#[rustfmt::skip]
const CODE: [u8; 27] = [
    0x55,                          // push rbp
    0x48, 0x89, 0xe5,              // mov rbp, rsp
    0x41, 0x54,                    // push r12
    0x48, 0x83, 0xec, 0x08,        // sub rsp, 8
    0x49, 0x89, 0xfc,              // mov r12, rdi
    0x4b, 0x8d, 0x44, 0x64, 0x01,  // lea rax, [r12 + 2 * r12 + 1]
    0x48, 0x83, 0xc4, 0x08,        // add rsp, 8
    0x41, 0x5c,                    // pop r12
    0x5d,                          // pop rbp
    0xc3,                          // ret
    0xcc,
];
/// Distance of two copies in a page of code.
const STRIDE: usize = 64;
/// A replacement sets it in its result.
const FLAG: u64 = 1 << 63;

fn plain(x: u64) -> u64 {
    3 * x + 1
}

/// Fresh code with `count` copies of `code`, each 64-byte aligned; never unmapped. `near`: where, roughly.
fn code_at(near: usize, code: &[u8], count: usize) -> Vec<*const ()> {
    let bytes = count * STRIDE;
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping, filled within its bounds and then made executable.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start = libc::mmap(ptr::without_provenance_mut(near), bytes, rw, flags, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        let copies: Vec<_> = (0..count).map(|i| start.cast::<u8>().add(i * STRIDE)).collect();
        copies.iter().for_each(|c| ptr::copy_nonoverlapping(code.as_ptr(), *c, code.len()));
        assert_eq!(libc::mprotect(start, bytes, libc::PROT_READ | libc::PROT_EXEC), 0);
        copies.into_iter().map(|c| c.cast_const().cast()).collect()
    }
}

fn code(bytes: &[u8]) -> *const () {
    code_at(0, bytes, 1)[0]
}

fn function(address: *const ()) -> Function {
    // SAFETY: the tests pass only copies of code with this signature, their trampolines and replacements.
    unsafe { mem::transmute(address) }
}

fn bytes_of(target: *const ()) -> Vec<u8> {
    // SAFETY: the tests pass only readable code of at least this length.
    unsafe { slice::from_raw_parts(target.cast::<u8>(), 16) }.to_vec()
}

extern "C" fn flagged(x: u64) -> u64 {
    plain(x) | FLAG
}

/// Fault: the replacement is not called, or the original is damaged.
#[test]
fn test_replacement_and_original() {
    let target = code(&CODE);
    assert_eq!(function(target)(5), plain(5));
    // SAFETY: the code is never unmapped; signatures agree.
    let detour = unsafe { install(target, flagged as Function as *const (), "f") }.unwrap();
    assert_eq!(function(target)(5), plain(5) | FLAG);
    assert_eq!(function(detour.original)(5), plain(5));
    assert!(!detour.text_left_writable);
    let text = maps::read().unwrap();
    let text = maps::holding(&text, target.addr(), 16).unwrap();
    assert_eq!(text.protection, libc::PROT_READ | libc::PROT_EXEC);

    // SAFETY: as above.
    let error = unsafe { install(target, flagged as Function as *const (), "g") }.unwrap_err();
    assert!(matches!(error.reason, Reason::AlreadyInstalled { by: "f" }), "{error}");
    assert_eq!(function(target)(5), plain(5) | FLAG);
}

/// Fault: a thread that calls the function while it is being patched crashes, computes nonsense, is counted twice or
/// not at all, or still runs the old code after the installation.
#[test]
fn test_patched_under_fire() {
    const THREADS: usize = 4;
    const CYCLES: usize = 3000;
    static ORIGINAL: AtomicUsize = AtomicUsize::new(0);
    static REPLACED: AtomicUsize = AtomicUsize::new(0);
    static CURRENT: AtomicUsize = AtomicUsize::new(0);
    static LIVE: AtomicUsize = AtomicUsize::new(0);
    static DONE: AtomicBool = AtomicBool::new(false);
    extern "C" fn counted(x: u64) -> u64 {
        REPLACED.fetch_add(1, Ordering::Relaxed);
        function(ptr::with_exposed_provenance(ORIGINAL.load(Ordering::Acquire)))(x) | FLAG
    }
    /// The function that the thread last saw in its old and in its new state.
    #[derive(Default)]
    struct Seen {
        old: AtomicUsize,
        new: AtomicUsize,
    }

    let targets = code_at(0, &CODE, CYCLES);
    let seen: [Seen; THREADS] = Default::default();
    CURRENT.store(targets[0].expose_provenance(), Ordering::SeqCst);
    let counts: usize = thread::scope(|scope| {
        let fire = |seen: &Seen| {
            let mut count = 0;
            for x in 0.. {
                if DONE.load(Ordering::Relaxed) {
                    break;
                }
                let (live, current) = (LIVE.load(Ordering::SeqCst), CURRENT.load(Ordering::SeqCst));
                let y = function(ptr::with_exposed_provenance(current))(x);
                assert_eq!(y & !FLAG, plain(x));
                if y & FLAG != 0 {
                    count += 1;
                    seen.new.store(current, Ordering::Relaxed);
                } else {
                    assert_ne!(live, current, "old code after the installation");
                    seen.old.store(current, Ordering::Relaxed);
                }
                if x % 64 == 0 {
                    thread::yield_now();
                }
            }
            count
        };
        let threads: Vec<_> = seen.iter().map(|seen| scope.spawn(move || fire(seen))).collect();
        // A thread that failed must not leave the others waiting.
        let wait = |reached: &dyn Fn(&Seen) -> bool| {
            while !seen.iter().all(reached) && !threads.iter().any(|t| t.is_finished()) {
                thread::yield_now();
            }
        };
        for target in &targets {
            CURRENT.store(target.addr(), Ordering::SeqCst);
            wait(&|s| s.old.load(Ordering::Relaxed) == target.addr());
            let publish = |p: *const ()| ORIGINAL.store(p.expose_provenance(), Ordering::Release);
            // SAFETY: the code is never unmapped; signatures agree.
            unsafe { install_with(*target, counted as Function as *const (), "fire", publish) }.unwrap();
            LIVE.store(target.addr(), Ordering::SeqCst);
            wait(&|s| s.new.load(Ordering::Relaxed) == target.addr());
        }
        DONE.store(true, Ordering::Relaxed);
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert_eq!(counts, REPLACED.load(Ordering::Relaxed));
    assert!(counts >= THREADS * CYCLES);
}

/// Calls `f`'s instruction at offset 1 with `x`, as if the call had been stopped behind `push rbp`.
#[unsafe(naked)]
extern "C" fn resume_at_1(x: u64, f: *const ()) -> u64 {
    std::arch::naked_asm!("push rbp", "lea rax, [rsi + 1]", "jmp rax")
}

/// Calls `f`'s instruction at offset 4 with `x`, as if the call had been stopped behind `mov rbp, rsp`.
#[unsafe(naked)]
extern "C" fn resume_at_4(x: u64, f: *const ()) -> u64 {
    std::arch::naked_asm!("push rbp", "mov rbp, rsp", "lea rax, [rsi + 4]", "jmp rax")
}

/// Fault: a thread that stood inside the old instructions runs bytes of the jump. For each direction that the jump
/// may take.
#[test]
fn test_resume_at_each_boundary() {
    // Far from everything, so that all directions are free.
    let target = code_at(0x1234_0000_0000, &CODE, 64);
    let mut seen = Vec::new();
    for target in target {
        let mut direction = None;
        let next = |p: &crate::hook::prologue::Prologue| {
            direction = p.top_bytes().into_iter().find(|top| !seen.contains(top));
            direction.into_iter().collect()
        };
        // SAFETY: the code is never unmapped; signatures agree.
        let result = unsafe { install_towards(target, flagged as Function as *const (), "f", |_| {}, next) };
        let Some(direction) = direction else {
            assert!(matches!(result, Err(Reason::NoRoom { windows: 0 })));
            break;
        };
        result.unwrap();
        seen.push(direction);
        assert_eq!(bytes_of(target)[4], direction);
        assert_eq!(function(target)(7), plain(7) | FLAG, "direction {direction:02x}");
        assert_eq!(resume_at_1(7, target), plain(7), "direction {direction:02x}");
        assert_eq!(resume_at_4(7, target), plain(7), "direction {direction:02x}");
    }
    assert_eq!(seen.len(), 24);
}
