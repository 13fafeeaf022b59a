//! What the integration tests share: the double of libcuda, built once.

// Each test crate uses its own part of this.
#![allow(dead_code)]

pub mod fake;
#[cfg(feature = "cuda")]
pub mod hooked;

use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
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

/// A library that stands before the double under its name; the double's path is `FAKECUDA_BEHIND`.
pub fn front_dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| build("fakecuda-front", Some("front")))
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

/// Runs the body of a test in a process of its own: a process has one driver, one virtual clock, and detours stay.
///
/// `test` is the test's full path (`module::name`), `env` goes to the child.
pub fn isolated(test: &str, env: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var("MOSAIC_TEST_ISOLATED").is_ok_and(|t| t == test) {
        body();
        return;
    }
    let out = isolated_command(test, env).output().expect("the test binary starts");
    assert!(
        out.status.success(),
        "{test} failed in its process ({}):\n{}\n{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
}

/// A command that runs one test of this binary as [`isolated`] would; for tests that need several processes.
pub fn isolated_command(test: &str, env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary has a path"));
    command.args([test, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"]);
    command.env("MOSAIC_TEST_ISOLATED", test).envs(env.iter().copied());
    // SAFETY: prctl is async-signal-safe; a test that fails must not leave its processes behind.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    command
}
