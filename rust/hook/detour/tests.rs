//! Detours of machine code that the tests write themselves, with the very first bytes of libcuda's entry points.

mod child;

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

fn protection_of(target: *const ()) -> i32 {
    maps::holding(&maps::read().unwrap(), target.addr(), 16).unwrap().protection
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
    assert_eq!(protection_of(target), libc::PROT_READ | libc::PROT_EXEC);

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

/// Fault: a moved prologue does something else, or its end is miscounted.
#[test]
fn test_other_prologues_work() {
    const BODY: [u8; 5] = [0x48, 0x8d, 0x44, 0x7f, 0x01]; // lea rax, [rdi + 2 * rdi + 1]
    let sub_imm32 = [0x48, 0x81, 0xec, 0x08, 0x01, 0x00, 0x00];
    let add_imm32 = [0x48, 0x81, 0xc4, 0x08, 0x01, 0x00, 0x00, 0xc3];
    let endbr64 = [0xf3, 0x0f, 0x1e, 0xfa];
    let cases: [(&[&[u8]], &[u8]); 4] = [
        (&[&sub_imm32], &add_imm32),
        (&[&endbr64, &sub_imm32], &add_imm32),
        (&[&endbr64, &[0x55]], &[0x5d, 0xc3]),
        (&[&[0x41, 0x57, 0x41, 0x56, 0x53]], &[0x5b, 0x41, 0x5e, 0x41, 0x5f, 0xc3]),
    ];
    for (prologue, epilogue) in cases {
        let prologue = prologue.concat();
        // Far from everything: two of them leave a single direction.
        let target = code_at(0x2345_0000_0000, &[&prologue, &BODY[..], epilogue].concat(), 1)[0];
        assert_eq!(function(target)(9), plain(9), "{prologue:02x?}");
        // SAFETY: the code is never unmapped; signatures agree.
        let detour = unsafe { install(target, flagged as Function as *const (), "f") }.unwrap();
        assert_eq!(function(target)(9), plain(9) | FLAG, "{prologue:02x?}");
        assert_eq!(function(detour.original)(9), plain(9), "{prologue:02x?}");
    }
}

/// Fault: something that is not a function's known start is written to, or read though it is not there.
#[test]
fn test_refusals_change_nothing() {
    let refused = |target: *const ()| {
        let published = |_| panic!("published");
        // SAFETY: nothing is installed, which is what is tested.
        unsafe { install_with(target, flagged as Function as *const (), "f", published) }.unwrap_err()
    };
    let lea_rip = code(&[0x48, 0x8d, 0x05, 0, 0, 0, 0, 0xc3]);
    let before = bytes_of(lea_rip);
    let error = refused(lea_rip);
    assert!(matches!(error.reason, Reason::Prologue(_)), "{error}");
    assert!(error.to_string().starts_with("f can't be detoured: unknown instruction at offset 0"), "{error}");
    assert!(error.to_string().contains("48 8d 05"), "{error}");
    assert_eq!(bytes_of(lea_rip), before);

    let unaligned = code_at(0, &[&[0x90; 8], &CODE[..]].concat(), 1)[0].wrapping_byte_add(8);
    assert!(matches!(refused(unaligned).reason, Reason::Unaligned { .. }));
    assert_eq!(function(unaligned)(1), plain(1));

    assert!(matches!(refused(ptr::null()).reason, Reason::NotCode { target: 0 }));
    assert!(matches!(refused(ptr::without_provenance(usize::MAX - 15)).reason, Reason::NotCode { .. }));
    let data = Box::new(0_u128);
    assert!(matches!(refused(ptr::from_ref(&*data).cast()).reason, Reason::NotCode { .. }));
    // SAFETY: a fresh mapping, filled within its bounds.
    let shared = unsafe {
        let rwx = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let p = libc::mmap(ptr::null_mut(), 4096, rwx, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0);
        assert_ne!(p, libc::MAP_FAILED);
        ptr::copy_nonoverlapping(CODE.as_ptr(), p.cast(), CODE.len());
        p.cast_const().cast::<()>()
    };
    assert!(matches!(refused(shared).reason, Reason::NotCode { .. }));
    assert_eq!(function(shared)(1), plain(1));
}

/// Fault: a thunk is mapped over something, or a jump is made that leaves a boundary without a trap, when the places
/// in reach are taken.
#[test]
fn test_taken_window() {
    const WINDOW: usize = 1 << 24;
    let block = |target: *const (), top: u8, bytes: usize| {
        let start = (target.addr() + 5).wrapping_add_signed((top as i8 as isize) * WINDOW as isize);
        let start = ptr::without_provenance_mut(start / 4096 * 4096);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: replaces no mapping.
        assert_eq!(unsafe { libc::mmap(start, bytes, libc::PROT_NONE, flags, -1, 0) }, start);
        start
    };
    let replacement = flagged as Function as *const ();

    // This prologue leaves one direction.
    let single = [0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x8d, 0x44, 0x7f, 0x01, 0x5d, 0xc3];
    let target = code_at(0x3456_0000_0000, &single, 1)[0];
    let before = bytes_of(target);
    let blocked = block(target, 0xcc, WINDOW + 4096);
    // SAFETY: the code is never unmapped; signatures agree.
    let error = unsafe { install(target, replacement, "f") }.unwrap_err();
    assert!(matches!(error.reason, Reason::NoRoom { windows: 1 }), "{error}");
    assert_eq!(bytes_of(target), before);
    // SAFETY: nothing uses the blocking mapping.
    assert_eq!(unsafe { libc::munmap(blocked, WINDOW + 4096) }, 0);
    // SAFETY: as above.
    unsafe { install(target, replacement, "f") }.unwrap();
    assert_eq!(function(target)(2), plain(2) | FLAG);

    // This one has others.
    let target = code_at(0x4567_0000_0000, &CODE, 1)[0];
    block(target, 0xcc, WINDOW + 4096);
    // SAFETY: as above.
    unsafe { install(target, replacement, "f") }.unwrap();
    assert_ne!(bytes_of(target)[4], 0xcc);
    assert_eq!(function(target)(2), plain(2) | FLAG);
    assert_eq!(resume_at_4(2, target), plain(2));
}
