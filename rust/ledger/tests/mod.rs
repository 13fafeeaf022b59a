//! Tests of the ledger, on real files and real processes.

mod claims;
mod keeper;
mod naive;
mod open;
mod peer;
mod process;
mod versions;

use super::{HpInfo, Ledger};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const GPU: [u8; 16] = *b"\x01\x23\x45\x67\x89\xab\xcd\xef\x00\x11\x22\x33\x44\x55\x66\x77";
const GPU_FILE: &str = "01234567-89ab-cdef-0011-223344556677.ledger";
const OTHER_GPU: [u8; 16] = [0xee; 16];
const MS: u64 = 1_000_000;

/// Kill points still to be passed before the process kills itself; negative: never.
static KILL_AFTER: AtomicI64 = AtomicI64::new(-1);

/// A ledger, and what is active in it at each kill point that any claim passes.
static WATCHED: Mutex<Option<(Arc<Ledger>, Vec<u32>)>> = Mutex::new(None);

pub(super) fn kill_point() {
    if let Some((ledger, seen)) = WATCHED.lock().unwrap().as_mut() {
        seen.push(ledger.snapshot(0, 0).hp_active);
    }
    if KILL_AFTER.load(SeqCst) >= 0 && KILL_AFTER.fetch_sub(1, SeqCst) == 0 {
        kill_myself();
    }
}

fn kill_myself() -> ! {
    loop {
        // SAFETY: a signal to this very process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}

/// A fresh directory of mode 0700, removed at the end.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> TempDir {
        Self::new_in(&std::env::temp_dir())
    }

    fn new_in(parent: &Path) -> TempDir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("mosaic-ledger-test-{}-{}", std::process::id(), COUNT.fetch_add(1, SeqCst));
        let path = parent.join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(&path).unwrap();
        TempDir(path)
    }

    fn ledger(&self) -> Arc<Ledger> {
        Ledger::open(&self.0, GPU).unwrap()
    }

    fn file(&self) -> PathBuf {
        self.0.join(GPU_FILE)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn info(name: &str) -> HpInfo {
    HpInfo { name: name.into(), fingerprint: 7, slo_ratio: 1.1 }
}

/// Waits for a condition that another process brings about; false after 10 s.
fn eventually(condition: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if start.elapsed() > Duration::from_secs(10) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// xorshift64*: the same numbers from the same seed, everywhere.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}
