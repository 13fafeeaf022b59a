//! The system calls that std does not offer, as safe functions.

use std::ffi::{CStr, c_void};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

fn check(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

fn retry(mut call: impl FnMut() -> libc::c_int) -> io::Result<libc::c_int> {
    loop {
        match check(call()) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Opens `name` in `dir`; the last component may be no symlink.
pub(super) fn open_at(dir: &File, name: &CStr, flags: libc::c_int) -> io::Result<File> {
    let flags = flags | libc::O_RDWR | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: `name` is a C string; the descriptor is valid while `dir` is borrowed.
    let fd = retry(|| unsafe { libc::openat(dir.as_raw_fd(), name.as_ptr(), flags, 0o600) })?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Renames within `dir`, over what is there.
pub(super) fn rename_at(dir: &File, from: &CStr, to: &CStr) -> io::Result<()> {
    // SAFETY: both are C strings; the descriptor is valid while `dir` is borrowed.
    retry(|| unsafe { libc::renameat(dir.as_raw_fd(), from.as_ptr(), dir.as_raw_fd(), to.as_ptr()) }).map(drop)
}

/// Removes a file of `dir`.
pub(super) fn unlink_at(dir: &File, name: &CStr) -> io::Result<()> {
    // SAFETY: `name` is a C string; the descriptor is valid while `dir` is borrowed.
    check(unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), 0) }).map(drop)
}

/// Reserves the file's space, zero-filled: a later write cannot meet a full file system.
pub(super) fn reserve(file: &File, bytes: usize) -> io::Result<()> {
    let bytes = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
    // SAFETY: plain numbers and a valid descriptor.
    retry(|| unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes) }).map(drop)
}

/// Locks (true) or unlocks a file against other openers; the kernel unlocks at death.
pub(super) fn flock(file: &File, lock: bool) -> io::Result<()> {
    let how = if lock { libc::LOCK_EX } else { libc::LOCK_UN };
    // SAFETY: plain numbers and a valid descriptor.
    retry(|| unsafe { libc::flock(file.as_raw_fd(), how) }).map(drop)
}

/// The file lives in memory: it cannot outlast the kernel that made it.
pub(super) fn in_memory(file: &File) -> io::Result<bool> {
    // SAFETY: `statfs` is plain data, for which zeros are valid.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is valid to write to.
    retry(|| unsafe { libc::fstatfs(file.as_raw_fd(), &mut stat) })?;
    Ok(stat.f_type == libc::TMPFS_MAGIC)
}

/// Effective user id.
pub(super) fn euid() -> u32 {
    // SAFETY: always succeeds.
    unsafe { libc::geteuid() }
}

/// Thread id, in this process's PID namespace.
pub(super) fn tid() -> u32 {
    // SAFETY: always succeeds.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Size of a memory page.
pub(super) fn page_bytes() -> usize {
    // SAFETY: a plain question.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).ok().filter(|b| b.is_power_of_two()).unwrap_or(4096)
}

/// Gives the kernel the head of the calling thread's robust list.
pub(super) fn set_robust_list(head: *const c_void, bytes: usize) -> io::Result<()> {
    // SAFETY: the kernel only stores the address; it checks every access that it makes with it later.
    check(unsafe { libc::syscall(libc::SYS_set_robust_list, head, bytes) } as libc::c_int).map(drop)
}

/// Sleeps while `word` is `expected`, no longer than `limit`.
pub(super) fn futex_wait(word: &AtomicU32, expected: u32, limit: Option<Duration>) {
    let time = limit.map(|d| libc::timespec {
        tv_sec: d.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_nsec: d.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: `word` is a valid futex word and `time` null or a valid timespec. Any return means: look again.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, expected, time) };
}

/// Wakes one sleeper on `word`.
pub(super) fn futex_wake(word: &AtomicU32) {
    // SAFETY: `word` is a valid futex word.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
}

/// Timed sleeps of the calling thread end on time, not up to 50 us late.
pub(super) fn precise_sleeps() {
    // SAFETY: plain numbers; a refusal costs precision only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
}

/// Runs `f` with every signal blocked that can be sent from outside: a thread started in it inherits that.
///
/// Faults stay unblocked: the kernel kills a process that meets a blocked one, and the hook needs its SIGTRAP.
pub(super) fn with_signals_blocked<R>(f: impl FnOnce() -> R) -> R {
    const FAULTS: [libc::c_int; 6] =
        [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSYS];
    // SAFETY: `sigset_t` is plain data, for which zeros are valid; both sets are valid to read and write.
    let old = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut set);
        for signal in FAULTS {
            libc::sigdelset(&mut set, signal);
        }
        (libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut old) == 0).then_some(old)
    };
    let result = f();
    if let Some(old) = old {
        // SAFETY: `old` was filled in by the kernel.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut()) };
    }
    result
}

/// Has `child` called in every child of a fork.
pub(super) fn at_fork_in_child(child: unsafe extern "C" fn()) -> io::Result<()> {
    // SAFETY: `child` is a function of this library, which is never unloaded while handlers are registered.
    match unsafe { libc::pthread_atfork(None, None, Some(child)) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}
