//! The thread that holds this process's claims, and the one that runs the hook's periodic work.
//!
//! They are two: the first has a robust list of ours in place of glibc's, so a robust mutex that it took in somebody
//! else's code, the driver's say, would stay locked when the process is killed.

use super::error::LedgerError;
use super::robust::RobustList;
use super::sys;
use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

/// One thread per process: robust futexes belong to a thread, and this one lives as long as the process.
///
/// It uses std's locks, not parking_lot's: a child of a fork must find no table locked that it shares with nobody.
pub struct Keeper {
    claims: Rest,
    ticks: Rest,
    jobs: Mutex<Vec<Job>>,
    /// 0 or 1 function: `fn() -> Option<Duration>`.
    tick: Mutex<Option<Tick>>,
    quit: AtomicBool,
}

type Tick = fn() -> Option<Duration>;
type Job = Box<dyn FnOnce(&mut RobustList) + Send>;

/// Where one of the threads sleeps.
#[derive(Default)]
struct Rest(AtomicU32);

impl Rest {
    /// To be called before a round: a wake from now on is for the next one.
    fn begin_round(&self) {
        self.0.swap(RUNNING, AcqRel);
    }

    /// Sleeps for so long, or until woken, unless woken since the round began.
    fn sleep(&self, limit: Option<Duration>) {
        let state = if limit.is_some() { DOZING } else { SLEEPING };
        if limit != Some(Duration::ZERO) && self.0.compare_exchange(RUNNING, state, AcqRel, Acquire).is_ok() {
            sys::futex_wait(&self.0, state, limit);
        }
    }

    #[inline]
    fn wake(&self) {
        // Always a swap, never a look first: what was written before must be visible to the round.
        if self.0.swap(NOTIFIED, AcqRel) == SLEEPING {
            sys::futex_wake(&self.0);
        }
    }
}

/// States of a thread.
const RUNNING: u32 = 0;
const NOTIFIED: u32 = 1;
const SLEEPING: u32 = 2;
/// Sleeps for a limited time, which [`Rest::wake`] leaves it: waking a thread costs the waker tens of microseconds, on the
/// path of an HP request, and more on a virtual machine.
const DOZING: u32 = 3;

/// The keeper of this process; null before the first use, and again in the child of a fork.
static CURRENT: AtomicPtr<Keeper> = AtomicPtr::new(ptr::null_mut());
/// Counts the forks between the first process and this one: a claim of another epoch belongs to an ancestor.
static EPOCH: AtomicU32 = AtomicU32::new(0);
/// The fork handler is registered; twice would do no harm.
static AT_FORK: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// On the thread of a keeper's claims: whose.
    static SERVES: Cell<*const Keeper> = const { Cell::new(ptr::null()) };
    static LIST: RefCell<Option<RobustList>> = const { RefCell::new(None) };
}

/// Only atomics: it runs between fork and whatever the child does next.
unsafe extern "C" fn in_forked_child() {
    CURRENT.store(ptr::null_mut(), Release);
    EPOCH.fetch_add(1, AcqRel);
}

/// The epoch of this process.
#[inline]
pub(super) fn epoch() -> u32 {
    EPOCH.load(Relaxed)
}

impl Keeper {
    /// The keeper of this process; its thread starts at the first use, and anew in the child of a fork.
    pub fn get() -> Result<&'static Keeper, LedgerError> {
        // SAFETY: null, or a keeper that was leaked on purpose.
        match unsafe { CURRENT.load(Acquire).as_ref() } {
            Some(keeper) => Ok(keeper),
            None => Self::start(),
        }
    }

    /// Lock-free against other starters: a lock could be held by a thread that a fork leaves behind.
    fn start() -> Result<&'static Keeper, LedgerError> {
        let failed = |what| move |source| LedgerError::Keeper { what, source };
        if !AT_FORK.load(Acquire) {
            sys::at_fork_in_child(in_forked_child).map_err(failed("register a fork handler"))?;
            AT_FORK.store(true, Release);
        }
        let keeper: &'static Keeper = Box::leak(Box::new(Keeper {
            claims: Rest::default(),
            ticks: Rest::default(),
            jobs: Mutex::default(),
            tick: Mutex::default(),
            quit: AtomicBool::new(false),
        }));
        let (ready, started) = mpsc::sync_channel(1);
        sys::with_signals_blocked(|| {
            std::thread::Builder::new().name("mosaic-keeper".into()).spawn(move || {
                let list = RobustList::install();
                let ok = list.is_ok();
                // The starter waits for it, so it is there.
                let _ = ready.send(list.as_ref().map(drop).map_err(io::Error::raw_os_error));
                if ok {
                    LIST.set(list.ok());
                    SERVES.set(keeper);
                    keeper.serve_claims();
                }
            })
        })
        .map_err(failed("start a thread"))?;
        match started.recv() {
            Ok(Ok(())) => {}
            Ok(Err(code)) => {
                let source = io::Error::from_raw_os_error(code.unwrap_or(0));
                return Err(failed("set a robust futex list (is set_robust_list allowed here?)")(source));
            }
            Err(e) => return Err(failed("start a thread")(io::Error::other(e))),
        }
        let ticks = || std::thread::Builder::new().name("mosaic-watch".into()).spawn(|| keeper.serve_ticks());
        if let Err(e) = sys::with_signals_blocked(ticks) {
            keeper.end();
            return Err(failed("start a thread")(e));
        }
        match CURRENT.compare_exchange(ptr::null_mut(), ptr::from_ref(keeper).cast_mut(), AcqRel, Acquire) {
            Ok(_) => Ok(keeper),
            Err(other) => {
                keeper.end();
                // SAFETY: not null, and leaked on purpose.
                Ok(unsafe { &*other })
            }
        }
    }

    /// Ends its threads.
    fn end(&self) {
        self.quit.store(true, Release);
        self.claims.wake();
        self.ticks.wake();
    }

    /// Sets the function that the keeper calls, on a thread for this alone, when woken and when the time is over that the
    /// last call returned (`None`: only when woken). It may claim and release. A function that panics is not called again.
    pub fn set_tick(&self, tick: fn() -> Option<Duration>) {
        *self.tick.lock().unwrap_or_else(PoisonError::into_inner) = Some(tick);
        self.wake();
    }

    /// Makes a tick follow: at once if the thread sleeps until woken (one system call), else when its time is over.
    #[inline]
    pub fn wake(&self) {
        self.ticks.wake();
    }

    /// Runs `job` on the keeper's thread and waits for its result; directly if this is that thread.
    pub(super) fn run<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut RobustList) -> R + Send + 'static,
    ) -> Result<R, LedgerError> {
        let gone = |e: Box<dyn std::error::Error + Send + Sync>| LedgerError::Keeper {
            what: "reach the keeper's thread",
            source: io::Error::other(e),
        };
        if ptr::eq(SERVES.get(), self) {
            return LIST.with(|list| match list.try_borrow_mut().as_deref_mut() {
                Ok(Some(list)) => Ok(job(list)),
                _ => Err(gone("it is at work on a claim".into())),
            });
        }
        let (answer, result) = mpsc::sync_channel(1);
        let job: Job = Box::new(move |list| {
            // The asker waits for it, so it is there.
            let _ = answer.send(job(list));
        });
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).push(job);
        self.claims.wake();
        result.recv().map_err(|e| gone(e.into()))
    }

    fn serve_claims(&self) {
        while !self.quit.load(Acquire) {
            self.claims.begin_round();
            let jobs = std::mem::take(&mut *self.jobs.lock().unwrap_or_else(PoisonError::into_inner));
            LIST.with_borrow_mut(|list| {
                if let Some(list) = list {
                    jobs.into_iter().for_each(|job| job(list));
                }
            });
            if !self.quit.load(Acquire) {
                self.claims.sleep(None);
            }
        }
    }

    fn serve_ticks(&self) {
        sys::precise_sleeps();
        while !self.quit.load(Acquire) {
            self.ticks.begin_round();
            let tick = *self.tick.lock().unwrap_or_else(PoisonError::into_inner);
            let sleep = match tick.map(|tick| catch_unwind(AssertUnwindSafe(tick))) {
                None => None,
                Some(Ok(sleep)) => sleep,
                Some(Err(_)) => {
                    tracing::error!("the periodic work of the launch hook panicked; it is not called again");
                    *self.tick.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    None
                }
            };
            if !self.quit.load(Acquire) {
                self.ticks.sleep(sleep);
            }
        }
    }
}
