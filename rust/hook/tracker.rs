//! What best-effort work of this process is on the GPU, and how long each kernel takes.
//!
//! Every admitted launch is followed by an event. A kernel's time is learnt from two timed events around it, a few
//! times at first and now and then later; best from a launch that queued behind other work, since then no launch
//! latency lies between the events.

use super::device::Device;
use super::driver::{self, Handle};
use crate::ledger::BeClaim;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64};

/// What an unknown kernel is taken for until it is done; its length is flagged as unknown beside.
const UNKNOWN_GUESS_NS: u64 = 50_000;
/// With this much work before it, a kernel waits on the GPU for its turn rather than the GPU for the kernel.
const QUEUED_NS: u64 = 6_000;
/// Bound on the memory of learnt times.
const MAX_LEARNT: usize = 100_000;

/// The best-effort side of a process on one device.
pub struct BestEffort {
    /// Its place in the ledger.
    pub claim: BeClaim,
    /// Its work in flight.
    pub tracker: Mutex<Tracker>,
    /// When one of its launches last saw an HP request active; 0: never.
    pub hp_seen_ns: AtomicU64,
    /// The keeper looks at it from time to time.
    pub watched: AtomicBool,
    /// It had nothing in flight when the keeper looked last.
    pub quiet: AtomicBool,
}

impl BestEffort {
    /// With nothing in flight.
    pub fn new(claim: BeClaim) -> Self {
        BestEffort {
            claim,
            tracker: Mutex::new(Tracker::default()),
            hp_seen_ns: AtomicU64::new(0),
            watched: AtomicBool::new(false),
            quiet: AtomicBool::new(false),
        }
    }
}

/// A launch in flight.
struct Flight {
    id: u64,
    /// 0 until the launch has been made.
    event: usize,
    predicted_ns: u64,
    unknown: bool,
    /// Timed event before the kernel; `event` is timed too then.
    start: Option<usize>,
    key: u64,
    queued: bool,
}

/// What is known of one kernel's time.
#[derive(Clone, Copy, Debug, Default)]
struct Learnt {
    duration_ns: u64,
    queued_samples: u8,
    idle_samples: u8,
    launches: u32,
}

impl Learnt {
    fn wants_sample(&self, queued: bool) -> bool {
        let learning = match queued {
            true => self.queued_samples < 4,
            false => self.queued_samples == 0 && self.idle_samples < 4,
        };
        learning || self.launches.is_multiple_of(256)
    }

    fn learn(&mut self, ns: u64, queued: bool) {
        if queued {
            self.duration_ns = match self.queued_samples {
                0 => ns,
                _ => (3 * self.duration_ns + ns) / 4,
            };
            self.queued_samples = self.queued_samples.saturating_add(1);
        } else if self.queued_samples == 0 {
            // Holds the launch latency too: the smallest is nearest the truth.
            self.duration_ns = if self.idle_samples == 0 { ns } else { self.duration_ns.min(ns) };
            self.idle_samples = self.idle_samples.saturating_add(1);
        }
    }
}

/// Keys are hashes already.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.0 = self.0.rotate_left(8) ^ u64::from(*b));
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The launches in flight of one process, in stream order.
#[derive(Default)]
pub struct Tracker {
    queues: Vec<(usize, VecDeque<Flight>)>,
    learnt: HashMap<u64, Learnt, BuildHasherDefault<Hashed>>,
    next_id: u64,
    in_flight: u32,
    unknown: u32,
    drained_at_ns: u64,
}

/// A place among the launches in flight, taken before the launch.
pub struct Ticket {
    id: u64,
    stream: usize,
    /// Timed event to record before the kernel.
    pub start: Option<usize>,
}

impl Tracker {
    /// Launches in flight, the predicted instant at which they are done, and whether one's time is unknown.
    pub fn state(&self) -> (u32, u64, bool) {
        (self.in_flight, self.drained_at_ns, self.unknown > 0)
    }

    /// How many kernels' times are known.
    pub fn known_kernels(&self) -> usize {
        self.learnt.len()
    }

    /// The learnt time of a kernel.
    pub fn duration_ns(&self, key: u64) -> Option<u64> {
        self.learnt.get(&key).map(|l| l.duration_ns)
    }

    /// Takes what the GPU has finished out of the books. The caller's thread must be in relaxed capture mode, with the
    /// device's context current.
    pub fn poll(&mut self, device: &Device, now_ns: u64) {
        let before = self.in_flight;
        for (_, queue) in &mut self.queues {
            while let Some(flight) = queue.front() {
                if flight.event == 0 {
                    break;
                }
                // SAFETY: an event of our own pool.
                let done = unsafe { driver::cuEventQuery(flight.event as Handle) };
                if done == driver::NOT_READY {
                    break;
                }
                let Some(flight) = queue.pop_front() else { break };
                self.in_flight -= 1;
                self.unknown -= u32::from(flight.unknown);
                if let Some(start) = flight.start {
                    let mut ms = 0f32;
                    // SAFETY: both events are ours and timed.
                    let timed = unsafe { driver::cuEventElapsedTime(&mut ms, start as Handle, flight.event as Handle) };
                    if done == driver::SUCCESS && timed == driver::SUCCESS && ms.is_finite() && ms >= 0.0 {
                        if self.learnt.len() >= MAX_LEARNT {
                            self.learnt.clear();
                        }
                        self.learnt.entry(flight.key).or_default().learn((ms * 1e6) as u64, flight.queued);
                    }
                    device.recycle(start, true);
                }
                device.recycle(flight.event, flight.start.is_some());
            }
        }
        if self.in_flight == 0 {
            self.drained_at_ns = now_ns;
            return;
        }
        let all =
            |skip| self.queues.iter().flat_map(move |(_, q)| q.iter().skip(skip)).map(|f| f.predicted_ns).sum::<u64>();
        if self.in_flight < before {
            // The next one began at about the time the last one ended.
            self.drained_at_ns = now_ns + all(0);
        } else {
            // However late the GPU is: what stands behind the first of a stream has not begun.
            self.drained_at_ns = self.drained_at_ns.max(now_ns + all(1));
        }
    }

    /// Books a launch that has been admitted.
    pub fn reserve(&mut self, device: &Device, stream: usize, key: u64, now_ns: u64) -> Ticket {
        let left_ns = self.drained_at_ns.saturating_sub(now_ns);
        let queued = left_ns > QUEUED_NS;
        let known = self.learnt.get_mut(&key).map(|l| {
            l.launches = l.launches.wrapping_add(1);
            *l
        });
        let start = match known {
            Some(l) if !l.wants_sample(queued) => None,
            _ => device.event(true),
        };
        let predicted_ns = known.map_or(UNKNOWN_GUESS_NS, |l| l.duration_ns);
        self.next_id += 1;
        let flight = Flight { id: self.next_id, event: 0, predicted_ns, unknown: known.is_none(), start, key, queued };
        self.in_flight += 1;
        self.unknown += u32::from(flight.unknown);
        self.drained_at_ns = self.drained_at_ns.max(now_ns) + predicted_ns;
        match self.queues.iter_mut().find(|(s, _)| *s == stream) {
            Some((_, queue)) => queue.push_back(flight),
            None => self.queues.push((stream, VecDeque::from([flight]))),
        }
        Ticket { id: self.next_id, stream, start }
    }

    /// The launch was made: `event` follows it on its stream.
    pub fn launched(&mut self, ticket: &Ticket, event: usize) {
        if let Some(flight) = self.find(ticket) {
            flight.event = event;
        }
    }

    /// The launch failed, or no event could follow it: it is not waited for.
    pub fn cancel(&mut self, device: &Device, ticket: &Ticket) {
        for (_, queue) in self.queues.iter_mut().filter(|(s, _)| *s == ticket.stream) {
            if let Some(at) = queue.iter().position(|f| f.id == ticket.id)
                && let Some(flight) = queue.remove(at)
            {
                self.in_flight -= 1;
                self.unknown -= u32::from(flight.unknown);
                self.drained_at_ns = self.drained_at_ns.saturating_sub(flight.predicted_ns);
                if let Some(start) = flight.start {
                    device.recycle(start, true);
                }
            }
        }
    }

    fn find(&mut self, ticket: &Ticket) -> Option<&mut Flight> {
        let (_, queue) = self.queues.iter_mut().find(|(s, _)| *s == ticket.stream)?;
        queue.iter_mut().rev().find(|f| f.id == ticket.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queued_sample_replaces_what_idle_ones_overstated() {
        let mut l = Learnt::default();
        l.learn(9_000, false);
        l.learn(8_000, false);
        l.learn(9_500, false);
        assert_eq!(l.duration_ns, 8_000);
        l.learn(4_000, true);
        assert_eq!(l.duration_ns, 4_000);
        l.learn(8_000, false);
        assert_eq!(l.duration_ns, 4_000, "an idle sample must not undo it");
        l.learn(8_000, true);
        assert_eq!(l.duration_ns, 5_000);
    }

    #[test]
    fn sampling_stops_once_known_and_comes_back_now_and_then() {
        let mut l = Learnt { launches: 1, ..Default::default() };
        assert!(l.wants_sample(true) && l.wants_sample(false));
        for _ in 0..4 {
            l.learn(4_000, true);
        }
        assert!(!l.wants_sample(true) && !l.wants_sample(false));
        l.launches = 512;
        assert!(l.wants_sample(true) && l.wants_sample(false));
    }
}
