//! The launch path on the double: each test runs in a process of its own, since a detour is for the life of a process.

use super::fake::{Call, Fake, call};
use mosaic::hook::job::{self, Job, Role};
use mosaic::hook::{Mechanism, api, capi, device};
use std::ffi::{CStr, CString, c_char, c_uint, c_void};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Set in the process that runs a test's body.
const BODY: &str = "MOSAIC_TEST_BODY";
/// The double that it is on.
const DOUBLE: &str = "MOSAIC_TEST_DOUBLE";
/// What that process says last.
const DONE: &str = "the body has run to its end";
/// A thread that hangs is a fault that these tests look for: it ends here.
const LONGEST: Duration = Duration::from_secs(60);

/// A directory that goes with it.
pub struct TempDir(pub PathBuf);

impl TempDir {
    pub fn new(name: &str) -> Self {
        if std::env::var_os(BODY).is_some() {
            // The process that runs the body leaves by exit(): what it needs was made by the one that waits for it.
            return TempDir(PathBuf::new());
        }
        // In memory where that can be: what tests map there must not wait for a disk.
        let memory = PathBuf::from("/dev/shm");
        let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let dir = parent.join(format!("mosaic-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("the temporary directory can be made");
        TempDir(dir)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// This test binary again, for the test `name`: on the double in `double`, with its ledgers in `ledgers`.
pub fn again(name: &str, double: &Path, ledgers: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary has a path"));
    command.args(["--exact", name, "--nocapture", "--test-threads=1", "--include-ignored"]);
    for (inherited, _) in std::env::vars_os() {
        let inherited = inherited.to_string_lossy();
        if inherited.starts_with("MOSAIC_") || inherited.starts_with("FAKECUDA_") {
            command.env_remove(&*inherited);
        }
    }
    command.env("LD_LIBRARY_PATH", double).env("MOSAIC_LEDGER_DIR", ledgers).env(BODY, name);
    command.env(DOUBLE, double.join("libcuda.so.1"));
    command.env("RUST_BACKTRACE", "1").stdin(Stdio::null());
    // Nothing happens by itself: who tests calibration, stalls or the bound of a wait turns it on.
    command.env("FAKECUDA_CLOCK", "manual").env("MOSAIC_CALIBRATION_REQUESTS", "0");
    command.env("MOSAIC_IN_FLIGHT_FRACTION", "0.02");
    command.env("MOSAIC_STALL_MS", "3600000").env("MOSAIC_MAX_WAIT_MS", "3600000");
    command
}

/// Runs `body` in a process of its own, and fails as it fails. `env` goes to that process.
pub fn alone<F: FnOnce()>(env: &[(&str, &str)], body: F) {
    alone_on(super::fakecuda_dir(), env, body);
}

/// The same, on a double of choice.
pub fn alone_on<F: FnOnce()>(double: &Path, env: &[(&str, &str)], body: F) {
    // The closure's type is named after the test that it stands in.
    let name = std::any::type_name::<F>().trim_end_matches("::{{closure}}");
    alone_as(name.split_once("::").map_or(name, |(_, test)| test), double, env, body);
}

/// The same, for the test of that name.
pub fn alone_as<F: FnOnce()>(name: &str, double: &Path, env: &[(&str, &str)], body: F) {
    if std::env::var_os(BODY).is_some() {
        body();
        println!("{DONE}");
        // Once: a test may run its body several times, each time in a process of its own.
        std::process::exit(0);
    }
    let dir = TempDir::new(name);
    let mut command = again(name, double, &dir.0.join("ledgers"));
    command.envs(env.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: only async-signal-safe calls: no body outlives its test.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        })
    };
    let mut child = command.spawn().expect("the test binary starts");
    let (mut out, mut err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    let errors = std::thread::spawn(move || text(&mut err));
    let (said, heard) = mpsc::channel();
    std::thread::spawn(move || said.send(text(&mut out)));
    let out = match heard.recv_timeout(LONGEST) {
        Ok(out) => out,
        Err(_) => {
            child.kill().expect("it can be killed");
            format!("killed: something hung for {LONGEST:?}")
        }
    };
    let status = child.wait().expect("it can be waited for");
    let err = errors.join().expect("its errors are read");
    assert!(status.success() && out.contains(DONE), "{name} in its own process: {status}\n{out}\n{err}");
    // What was skipped is to be seen.
    err.lines().filter(|l| l.starts_with("SKIPPED")).for_each(|l| eprintln!("{l}"));
}

fn text(from: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = from.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The double, with the hook in force.
pub fn hooked() -> &'static Fake {
    let fake = fake();
    let mechanism = mosaic::hook::install().expect("the hook installs");
    assert!(matches!(&mechanism, Mechanism::Detour { missing, .. } if missing.is_empty()), "{mechanism:?}");
    fake
}

/// The double, without the hook; device 0 is current on this thread.
pub fn fake() -> &'static Fake {
    static FAKE: OnceLock<Fake> = OnceLock::new();
    let fake = FAKE.get_or_init(|| {
        let fake = Fake::open_at(Path::new(&std::env::var_os(DOUBLE).expect("set for this process")));
        assert_eq!(call!(fake, cuInit(0 => c_uint)), 0);
        fake
    });
    fake.use_device(0);
    fake
}

/// A job on device 0.
pub fn job(name: &str, role: Role) -> &'static Job {
    job_on(name, role, 0)
}

pub fn job_on(name: &str, role: Role, device: i32) -> &'static Job {
    job::register(name, role, device, 1.1, 0).expect("the job registers")
}

/// A stream of the test's own under a job.
pub fn stream_of(fake: &Fake, job: &Job) -> usize {
    let stream = fake.stream(0);
    assert_eq!(capi::mosaic_stream_set_role(stream as *mut c_void, job.id), 0);
    stream
}

/// A kernel by its name: it takes the time that its name says.
pub fn kernel(fake: &Fake, name: &str) -> usize {
    fake.kernel(name)
}

/// Launches, and says how that went.
pub fn launch(fake: &Fake, kernel: usize, stream: usize) -> i32 {
    fake.launch(kernel, stream)
}

/// One HP request, as the extension makes it: in its section, `f` gets the stream.
pub fn request<R>(hp: &Job, f: impl FnOnce(usize) -> R) -> R {
    section(hp, 0, f)
}

/// A section of a job; `request` 0: an HP job's is a request of its own.
pub fn section<R>(job: &Job, request: i64, f: impl FnOnce(usize) -> R) -> R {
    let entered = api::enter(job.id, request, job.device.ordinal, 0).expect("the section is entered");
    let result = f(entered.stream as usize);
    api::leave(entered.ctx, true).expect("the section is left");
    result
}

/// The text of this thread's last error at the C ABI.
pub fn last_error() -> String {
    // SAFETY: nul-terminated, and read before this thread's next call.
    unsafe { CStr::from_ptr(capi::mosaic_last_error()) }.to_string_lossy().into_owned()
}

/// A text that the C ABI gave, taken over; its error where it gave none.
pub fn owned_text(text: *mut c_char) -> Result<String, String> {
    if text.is_null() {
        return Err(last_error());
    }
    // SAFETY: nul-terminated, and given back once.
    unsafe {
        let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
        capi::mosaic_free(text);
        Ok(copy)
    }
}

/// Changes settings.
pub fn configure(json: &str) {
    mosaic::hook::configure(json).expect("the settings are taken");
}

/// The learnt time of a kernel on device 0, launched as `Fake::launch` does.
pub fn learnt_ns(kernel: usize) -> Option<u64> {
    let config = mosaic::kernel::LaunchConfig { grid: [1; 3], block: [32, 1, 1], ..Default::default() };
    let key = mosaic::hook::names::kernel_id(kernel, &config).0;
    device::get(0).expect("device 0").best_effort_if_claimed()?.tracker.lock().duration_ns(key)
}

/// `stats()`, parsed.
pub fn stats() -> serde_json::Value {
    serde_json::from_str(&mosaic::hook::stats::json()).expect("stats are JSON")
}

/// Returns once `condition` holds; fails with `what` when that takes too long.
#[track_caller]
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let since = Instant::now();
    while !condition() {
        assert!(since.elapsed() < LONGEST / 3, "never: {what}");
        std::thread::yield_now();
    }
}

/// The kernel's runs, once all of what was submitted is in the log.
pub fn only_run(fake: &Fake, name: &str) -> Call {
    let runs = fake.runs_of(name);
    assert_eq!(runs.len(), 1, "{name}: {runs:?}");
    runs[0].clone()
}

/// A thread that may get held in the gate.
pub struct Task<R = ()> {
    tid: Arc<AtomicI32>,
    thread: std::thread::JoinHandle<R>,
}

/// Runs `f` on a thread of its own, where device 0 is current.
pub fn task<R: Send + 'static>(f: impl FnOnce(&'static Fake) -> R + Send + 'static) -> Task<R> {
    let tid = Arc::new(AtomicI32::new(0));
    let mine = Arc::clone(&tid);
    let thread = std::thread::spawn(move || {
        let fake = fake();
        // SAFETY: a plain query.
        mine.store(unsafe { libc::gettid() }, Ordering::Release);
        f(fake)
    });
    Task { tid, thread }
}

/// A launch that may be held.
pub fn launching(kernel: usize, stream: usize) -> Task {
    task(move |fake| assert_eq!(launch(fake, kernel, stream), 0))
}

impl<R> Task<R> {
    /// Returns once the thread has been refused by the gate again and again since now; fails if it ended. A held thread
    /// naps between two questions: its voluntary context switches count them.
    #[track_caller]
    pub fn is_held(&self) {
        const QUESTIONS: u64 = 20;
        until("the thread starts", || self.tid.load(Ordering::Acquire) != 0);
        let status = format!("/proc/self/task/{}/status", self.tid.load(Ordering::Acquire));
        let switches = || {
            let status = std::fs::read_to_string(&status).ok()?;
            status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse::<u64>().ok()
        };
        let before = switches();
        until("the gate is asked again and again", || {
            assert!(!self.thread.is_finished(), "the launch was let through");
            switches().zip(before).is_some_and(|(now, before)| now >= before + QUESTIONS)
        });
    }

    /// Held, also once `ns` have gone by: the gate was asked after that.
    #[track_caller]
    pub fn is_held_for(&self, ns: u64) {
        let end = mosaic::clock::now_ns() + ns;
        until("time goes by", || {
            assert!(!self.thread.is_finished(), "the launch was let through");
            mosaic::clock::now_ns() >= end
        });
        self.is_held();
    }

    /// Whether the thread has ended.
    pub fn finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the thread's end.
    #[track_caller]
    pub fn join(self) -> R {
        until("the thread comes out", || self.thread.is_finished());
        self.thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e))
    }
}

/// A string for the C ABI.
pub fn c(text: &str) -> CString {
    CString::new(text).expect("no NUL in a test's string")
}
