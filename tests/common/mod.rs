//! What the integration tests share: the double of libcuda, built once.

// Each test crate uses its own part of this.
#![allow(dead_code)]

pub mod fake;

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The directory that holds the double, `libcuda.so.1` (for LD_LIBRARY_PATH); built on first use.
pub fn fakecuda_dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| build("fakecuda", None))
}

/// The double itself.
pub fn fakecuda_path() -> PathBuf {
    fakecuda_dir().join("libcuda.so.1")
}

/// A double whose entry points begin with an instruction that no detour may move.
pub fn odd_fakecuda_dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| build("fakecuda-odd", Some("odd")))
}

fn build(name: &str, variant: Option<&str>) -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&out).expect("the target's tmp directory can be written");
    // Several test binaries start at once: one builds, the others wait for it.
    let lock = std::fs::File::create(out.join("lock")).expect("the lock file can be made");
    // SAFETY: a plain flock on a descriptor that we own; it is given up when `lock` is closed.
    assert_eq!(unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) }, 0, "{}", std::io::Error::last_os_error());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fakecuda/build.sh");
    let built = Command::new(&script).arg(&out).args(variant).output().expect("build.sh runs");
    assert!(built.status.success(), "{} failed:\n{}", script.display(), String::from_utf8_lossy(&built.stderr));
    out
}
