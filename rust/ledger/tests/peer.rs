//! A second process: the test binary again, told what to do line by line.

use super::*;
use crate::ledger::{BeClaim, HpClaim, Keeper, LaneId};
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

const DIR: &str = "MOSAIC_LEDGER_TEST_PEER_DIR";

pub(super) struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

pub(super) fn command(dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "ledger::tests::peer::peer_main", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(DIR, dir).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

impl Peer {
    pub fn start(dir: &Path) -> Peer {
        Self::from(command(dir)).unwrap()
    }

    pub fn from(mut command: Command) -> std::io::Result<Peer> {
        let mut child = command.spawn()?;
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Ok(Peer { child, input, output })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a line without waiting.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// The next answer; `None` when the peer is gone.
    pub fn hear(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.output.read_line(&mut line).is_ok_and(|n| n > 0) {
            // The test harness may have begun the line.
            if let Some((_, answer)) = line.split_once('@') {
                return Some(answer.trim_end().to_owned());
            }
            line.clear();
        }
        None
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.hear().unwrap_or_else(|| panic!("the peer died at {line:?}"))
    }

    /// Kills without reaping.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    pub fn kill_and_wait(&mut self) {
        self.kill();
        self.wait();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test: what the peer runs. Without its variable, as in a plain `--ignored` run, it has nothing to do.
#[test]
#[ignore = "the other side of the process tests"]
fn peer_main() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let mut state = State { dir: dir.into(), hp: Vec::new(), be: Vec::new(), lanes: Vec::new() };
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let answer = state.obey(words[0], &words[1..]);
        say(&answer);
    }
}

fn say(answer: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "@{answer}").unwrap();
    out.flush().unwrap();
}

struct State {
    dir: PathBuf,
    hp: Vec<HpClaim>,
    be: Vec<BeClaim>,
    lanes: Vec<(usize, LaneId)>,
}

thread_local! {
    /// A claim that the tick is to drop, on the keeper's thread.
    static CLAIM_OF_TICK: RefCell<Option<HpClaim>> = const { RefCell::new(None) };
}
static DIR_OF_TICK: std::sync::Mutex<Option<PathBuf>> = std::sync::Mutex::new(None);
static TICKS: AtomicU32 = AtomicU32::new(0);
static TICK_STATE: AtomicU32 = AtomicU32::new(0);

/// Claims in one tick and releases in the next, on the keeper's own thread.
fn claiming_tick() -> Option<Duration> {
    let tick = TICKS.fetch_add(1, SeqCst);
    if tick == 0 {
        let dir = DIR_OF_TICK.lock().unwrap().clone().unwrap();
        let claim = Ledger::open(&dir, GPU).unwrap().claim_hp(&info("tick")).unwrap();
        CLAIM_OF_TICK.set(Some(claim));
        TICK_STATE.store(1, SeqCst);
    } else if CLAIM_OF_TICK.take().is_some() {
        TICK_STATE.store(2, SeqCst);
    }
    Some(Duration::from_micros(100))
}

fn panicking_tick() -> Option<Duration> {
    TICKS.fetch_add(1, SeqCst);
    panic!("a tick that fails")
}

impl State {
    fn ledger(&self) -> Arc<Ledger> {
        Ledger::open(&self.dir, GPU).unwrap()
    }

    fn obey(&mut self, what: &str, args: &[&str]) -> String {
        let number = |i: usize| args[i].parse::<u64>().unwrap();
        match what {
            "hp" => {
                let ledger = match args.get(1) {
                    Some(_) => Ledger::open(&self.dir, OTHER_GPU).unwrap(),
                    None => self.ledger(),
                };
                match ledger.claim_hp(&info(args[0])) {
                    Ok(claim) => {
                        self.hp.push(claim);
                        self.hp.last().unwrap().slot().to_string()
                    }
                    Err(e) => e.to_string(),
                }
            }
            "be" => {
                self.be.push(self.ledger().claim_be(args[0]).unwrap());
                self.be.last().unwrap().slot().to_string()
            }
            "open" => {
                let claim = number(0) as usize;
                let lane = self.hp[claim].open_lane(crate::clock::now_ns()).unwrap();
                self.lanes.push((claim, lane));
                lane.index().to_string()
            }
            "close" => {
                let (claim, lane) = self.lanes.pop().unwrap();
                self.hp[claim].close_lane(lane);
                self.hp[claim].free_lane(lane);
                "closed".into()
            }
            "in-flight" => {
                self.be[0].set_in_flight(number(0) as u32, crate::clock::now_ns() + number(1), false);
                "set".into()
            }
            "calibrating" => {
                self.hp[0].set_calibrating(true);
                "set".into()
            }
            "drop" => {
                self.lanes.clear();
                self.hp.clear();
                self.be.clear();
                "dropped".into()
            }
            "life" => {
                KILL_AFTER.store(number(0) as i64, SeqCst);
                self.life();
                KILL_AFTER.store(-1, SeqCst);
                "lived".into()
            }
            "churn" => {
                say("churning");
                self.churn(number(0))
            }
            "claim-threads" => self.claim_from_threads(number(0) as usize),
            "fork" => self.fork(),
            "exec" => {
                say("exec");
                Command::new("sleep").arg("1000").exec().to_string()
            }
            "default-dir" => crate::ledger::default_dir().display().to_string(),
            "umask" => {
                // SAFETY: a plain number.
                unsafe { libc::umask(number(0) as libc::mode_t) };
                "set".into()
            }
            "signals" => blocked_signals(),
            "tick" => self.tick(args[0]),
            _ => panic!("unknown command {what:?}"),
        }
    }

    /// Every operation once: the kill points of a whole life.
    fn life(&self) {
        let ledger = self.ledger();
        let first = ledger.claim_hp(&info("first")).unwrap();
        let be = ledger.claim_be("best-effort").unwrap();
        let second = ledger.claim_hp(&info("second")).unwrap();
        be.set_in_flight(3, u64::MAX, true);
        let lane = first.open_lane(1).unwrap();
        first.set_calibrating(true);
        kill_point();
        let pending = second.open_lane(2).unwrap();
        first.close_lane(lane);
        first.free_lane(lane);
        drop(second);
        drop(be);
        assert!(pending.index() < 16);
        drop(first);
    }

    /// Claims, works and releases for ever.
    fn churn(&self, seed: u64) -> ! {
        let ledger = self.ledger();
        let mut random = Random::new(seed);
        loop {
            let hp = ledger.claim_hp(&info("churn")).unwrap();
            let be = ledger.claim_be("churn").unwrap();
            for _ in 0..random.below(20) {
                let lane = hp.open_lane(crate::clock::now_ns()).unwrap();
                hp.note_launch(lane);
                hp.stamp_launches(lane, crate::clock::now_ns());
                be.set_in_flight(random.below(3) as u32, u64::MAX, random.below(2) == 0);
                hp.close_lane(lane);
                hp.free_lane(lane);
            }
        }
    }

    /// Claims from many threads at once; answers with the slots.
    fn claim_from_threads(&mut self, threads: usize) -> String {
        let claims: Vec<HpClaim> = std::thread::scope(|scope| {
            let claim = || self.ledger().claim_hp(&info("thread")).unwrap();
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(claim)).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let slots: Vec<String> = claims.iter().map(|claim| claim.slot().to_string()).collect();
        self.hp.extend(claims);
        slots.join(" ")
    }

    /// Forks with a claim; the child misuses the copy, then claims for itself and stays until it is killed.
    fn fork(&mut self) -> String {
        let (claim, lane) = (self.lanes[0].0, self.lanes[0].1);
        // SAFETY: the child runs code of this test only, and never returns.
        match unsafe { libc::fork() } {
            0 => {
                let parents = &self.hp[claim];
                let opened = parents.open_lane(1).is_some();
                parents.close_lane(lane);
                parents.free_lane(lane);
                parents.set_calibrating(true);
                self.hp.clear();
                let own = self.ledger().claim_hp(&info("child"));
                let slot = own.as_ref().map_or(usize::MAX, HpClaim::slot);
                let lane = own.as_ref().ok().and_then(|own| own.open_lane(2));
                say(&format!("child opened={opened} slot={slot} lane={}", lane.is_some()));
                // Until it is killed, or the test is gone: then nobody holds the other end of the input.
                let mut input = libc::pollfd { fd: 0, events: 0, revents: 0 };
                // SAFETY: one valid pollfd.
                while unsafe { libc::poll(&mut input, 1, -1) } != 1 {}
                // SAFETY: ends this process, without running what the parent registered.
                unsafe { libc::_exit(0) }
            }
            pid => pid.to_string(),
        }
    }

    fn tick(&self, kind: &str) -> String {
        *DIR_OF_TICK.lock().unwrap() = Some(self.dir.clone());
        let keeper = Keeper::get().unwrap();
        match kind {
            "claims" => {
                keeper.set_tick(claiming_tick);
                format!("{}", eventually(|| TICK_STATE.load(SeqCst) == 2))
            }
            "panics" => {
                keeper.set_tick(panicking_tick);
                let ticked = eventually(|| TICKS.load(SeqCst) == 1);
                // The keeper must still serve, and must not tick again.
                let claimed = self.ledger().claim_hp(&info("after")).is_ok();
                format!("{}", ticked && claimed && TICKS.load(SeqCst) == 1)
            }
            "wakes" => {
                keeper.set_tick(|| {
                    TICKS.fetch_add(1, SeqCst);
                    None
                });
                let woken = (1..1000).all(|n| {
                    let seen = eventually(|| TICKS.load(SeqCst) >= n);
                    keeper.wake();
                    seen && eventually(|| TICKS.load(SeqCst) > n)
                });
                format!("{woken}")
            }
            _ => panic!("unknown tick {kind:?}"),
        }
    }
}

/// The signals that the keeper's thread blocks, as the kernel's hexadecimal mask.
fn blocked_signals() -> String {
    Keeper::get().unwrap();
    let of_task = |task: std::fs::DirEntry| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?.trim().to_owned();
        (name.trim() == "mosaic-keeper").then_some(mask)
    };
    std::fs::read_dir("/proc/self/task").unwrap().flatten().find_map(of_task).unwrap_or_default()
}
