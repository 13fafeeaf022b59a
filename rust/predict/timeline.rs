//! §4.5: when two kernels overlap, and when each ends.
//!
//! [`apart`]: each on SMs of its own; both slow down while both run. [`shared`]: the later one gets what the first
//! leaves it. There blocks count: those of the later one start where the first one's have ended, a few at a time, and a
//! wave of it that comes late ends late.

use super::features::Placed;
use super::placement::{Waves, room};
use super::{Kernel, Packing};
use crate::gpu::GpuSpec;
use serde::{Deserialize, Serialize};

/// Groups of SMs that the first kernel leaves one after the other.
pub const GROUPS: usize = 8;
/// Beyond so many waves, blocks no longer end together: progress is smooth.
const SMOOTH_WAVES: f64 = 4.0;

/// How SMs become free, fitted for each GPU (§4.1, observation 3).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// Part of a wave's time that passes between its first end of a block and its last, at least.
    pub spread: f64,
    /// What each wave before it adds to that part.
    pub drift: f64,
}

/// One kernel of a timeline.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// Which.
    pub kernel: &'a Kernel,
    /// Its time alone on its SMs.
    pub alone_ns: f64,
    /// SMs that it may use.
    pub sms: u32,
    /// How much slower it runs while the other one does.
    pub slowdown: f64,
}

impl<'a> Side<'a> {
    /// A kernel where it runs.
    pub fn new(p: Placed<'a>, slowdown: f64) -> Side<'a> {
        Side { kernel: p.kernel, alone_ns: p.alone_ns, sms: p.sms, slowdown }
    }
}

/// What happens, from the first one's start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timeline {
    /// When the first one ends.
    pub first_end_ns: f64,
    /// When the later one's first block starts.
    pub later_start_ns: f64,
    /// When the later one ends.
    pub later_end_ns: f64,
    /// Time taken from the first one by blocks of the later that went before its own.
    pub displaced_ns: f64,
    /// A wave of the later one over the same alone: its blocks are packed where room was first.
    pub packed: f64,
    /// Of the later one's blocks that run at once alone, how many find room at its start.
    pub room_at_start: f64,
}

impl Timeline {
    /// Time during which both run.
    pub fn overlap_ns(&self) -> f64 {
        (self.first_end_ns.min(self.later_end_ns) - self.later_start_ns).max(0.0)
    }
}

/// Each on its own SMs: both run from their release on.
pub fn apart(first: Side, later: Side, offset_ns: f64) -> Timeline {
    let mut t = Timeline { later_start_ns: offset_ns, packed: 1.0, room_at_start: 1.0, ..Timeline::default() };
    let left_ns = first.alone_ns - offset_ns;
    if left_ns <= 0.0 {
        (t.first_end_ns, t.later_end_ns) = (first.alone_ns, offset_ns + later.alone_ns);
        return t;
    }
    let (first_ns, later_ns) = (left_ns * first.slowdown, later.alone_ns * later.slowdown);
    let both_ns = first_ns.min(later_ns);
    let rest_ns = |side: Side, ns: f64| ns - both_ns / side.slowdown;
    t.first_end_ns = offset_ns + both_ns + rest_ns(first, left_ns);
    t.later_end_ns = offset_ns + both_ns + rest_ns(later, later.alone_ns);
    t
}

/// Where the later one finds room.
struct Rooms {
    /// Its blocks that fit from its start on.
    at_once: f64,
    /// SMs that those are on.
    at_once_sms: f64,
    /// When each group of the first one's SMs is left.
    left_at_ns: [f64; GROUPS],
    /// Further blocks that fit there then.
    then: f64,
    /// SMs of a group.
    group_sms: f64,
    /// No block of it starts before.
    not_before_ns: f64,
}

/// On the same SMs (of those that the later one may use). `preempts`: its blocks go before those of the first that have
/// not started.
pub fn shared(
    spec: &GpuSpec,
    packing: &Packing,
    release: &Release,
    [first, later]: [Side; 2],
    offset_ns: f64,
    preempts: bool,
) -> Timeline {
    if offset_ns >= first.alone_ns {
        return apart(first, later, offset_ns);
    }
    let waves = Waves::new(first.kernel, first.sms);
    let preempts = preempts && offset_ns < first.alone_ns * (1.0 - 1.0 / waves.whole);
    let rooms = rooms(spec, release, first, later, &waves, offset_ns, preempts);
    let start = if rooms.at_once > 0.0 { offset_ns } else { rooms.left_at_ns[0] };
    let start = start.max(rooms.not_before_ns);
    let tail_ns = first.alone_ns - start;
    let first_slowed_ns = start + tail_ns * first.slowdown;

    // From here on in the time that the later one would need alone: `own` of the time on the clock.
    let beside_ns = (first_slowed_ns - start) / later.slowdown;
    let clock = |own_ns: f64| {
        let after = (own_ns - beside_ns).max(0.0);
        start + own_ns.min(beside_ns) * later.slowdown + after
    };
    let left_at_own = rooms.left_at_ns.map(|t| (t - start).max(0.0) * first.slowdown / later.slowdown);
    let (own_ns, packed) = finish(packing, later, &rooms, &left_at_own);

    let mut t = Timeline {
        later_start_ns: start,
        later_end_ns: clock(own_ns),
        packed,
        room_at_start: rooms.at_once / at_once_alone(later),
        ..Timeline::default()
    };
    let slowed = |until_ns: f64| (1.0 - 1.0 / first.slowdown) * (until_ns - start).max(0.0);
    if preempts {
        t.displaced_ns = displaced_ns(spec, first, later);
        let end = first.alone_ns + t.displaced_ns;
        t.first_end_ns = end + slowed(t.later_end_ns.min(end));
    } else {
        t.first_end_ns = first_slowed_ns.min(first.alone_ns + slowed(t.later_end_ns));
    }
    t
}

fn at_once_alone(side: Side) -> f64 {
    f64::from(side.kernel.blocks).min(f64::from(side.kernel.per_sm * side.sms))
}

fn rooms(
    spec: &GpuSpec,
    release: &Release,
    first: Side,
    later: Side,
    waves: &Waves,
    offset_ns: f64,
    preempts: bool,
) -> Rooms {
    let wave_ns = first.alone_ns / waves.whole;
    let part_of_wave =
        |before: f64| (first.kernel.release.max(release.spread) + release.drift * before).clamp(0.0, 1.0);
    // The part of the SMs with the most blocks of the first one, and how many those are; others have one less.
    let sms = f64::from(later.sms);
    let (full, per_sm_of_first, first_left) = if preempts {
        (1.0, first.kernel.per_sm, (offset_ns / wave_ns).floor())
    } else {
        (waves.last_full_sms / waves.sms, waves.last_per_sm, waves.whole - 1.0)
    };
    let part = part_of_wave(first_left);
    let left_at_ns = std::array::from_fn(|i| {
        let from_end = part * (1.0 - (i as f64 + 0.5) / GROUPS as f64);
        let t = (first_left + 1.0 - from_end) * wave_ns;
        if preempts && t < offset_ns { t + wave_ns } else { t }
    });
    let mut left_at_ns: [f64; GROUPS] = left_at_ns;
    left_at_ns.sort_by(f64::total_cmp);
    let beside = |count: u32| f64::from(room(spec, later.kernel, first.kernel, count).min(later.kernel.per_sm));
    let groups = [(full * sms, per_sm_of_first), ((1.0 - full) * sms, per_sm_of_first - 1)];
    let sum = |of: &dyn Fn(u32) -> f64| groups.iter().map(|&(sms, count)| sms * of(count)).sum::<f64>();
    let at_once = sum(&beside);
    Rooms {
        at_once,
        at_once_sms: sum(&|count| f64::from(beside(count) > 0.0)),
        left_at_ns,
        then: (sms * f64::from(later.kernel.per_sm) - at_once) / GROUPS as f64,
        group_sms: sum(&|count| f64::from(count > 0)) / GROUPS as f64,
        not_before_ns: if preempts { 0.0 } else { offset_ns.max(first.alone_ns - wave_ns) },
    }
}

/// How long the later one takes in its own time, and how much longer its wave is since it is packed.
fn finish(packing: &Packing, later: Side, rooms: &Rooms, left_at_ns: &[f64; GROUPS]) -> (f64, f64) {
    let kernel = later.kernel;
    let waves = Waves::new(kernel, later.sms);
    if waves.whole > 1.0 {
        let blocks = by_blocks(later, &waves, rooms, left_at_ns, 1.0);
        let gamma = packing.gamma(kernel);
        let smooth = if gamma > 0.0 { by_share(later, rooms, left_at_ns, gamma) } else { blocks };
        return (blocks + gamma * (smooth.min(blocks) - blocks), 1.0);
    }
    // All of it runs at once: its blocks go where room is first, as many as fit.
    let blocks = f64::from(kernel.blocks);
    let mut sms = rooms.at_once_sms;
    let waiting = blocks - rooms.at_once;
    if waiting > 0.0 {
        let groups = (waiting / rooms.then.max(1e-9)).min(GROUPS as f64);
        sms = sms.max(f64::from(later.sms) - GROUPS as f64 * rooms.group_sms + groups * rooms.group_sms);
    }
    let alone = (blocks / f64::from(later.sms)).max(1.0);
    let density = (blocks / sms.max(1.0)).clamp(1.0, f64::from(kernel.per_sm)) / alone;
    let packed = packing.denser(kernel, density);
    (by_blocks(later, &waves, rooms, left_at_ns, packed), packed)
}

/// Each place for blocks ends a wave after the other; the kernel ends with the last block that is needed.
fn by_blocks(later: Side, waves: &Waves, rooms: &Rooms, left_at_ns: &[f64; GROUPS], packed: f64) -> f64 {
    let blocks = f64::from(later.kernel.blocks);
    if waves.whole > SMOOTH_WAVES {
        let wave_ns = later.alone_ns / waves.exact;
        let (mut rate, mut at, mut left) = (rooms.at_once / wave_ns, 0.0, blocks);
        for &next in left_at_ns {
            if rate * (next - at) >= left {
                break;
            }
            left -= rate * (next - at);
            (at, rate) = (next, rate + rooms.then / wave_ns);
        }
        return at + left / rate;
    }
    let wave_ns = later.alone_ns / waves.whole * packed;
    let enough = blocks * (1.0 - 1e-6);
    let (mut done, mut at) = (0.0, 0.0);
    // The next end of a wave: of the places from the start on, and of each group's.
    let mut next: [f64; GROUPS + 1] = std::array::from_fn(|i| if i == 0 { 0.0 } else { left_at_ns[i - 1] } + wave_ns);
    if rooms.at_once <= 0.0 {
        next[0] = f64::INFINITY;
    }
    for _ in 0..(GROUPS + 1) * (SMOOTH_WAVES as usize + 2) {
        let (i, t) = next.iter().copied().enumerate().fold((0, f64::INFINITY), |m, x| if x.1 < m.1 { x } else { m });
        at = t;
        done += if i == 0 { rooms.at_once } else { rooms.then };
        if done >= enough {
            break;
        }
        next[i] += wave_ns;
    }
    at
}

/// Progress by what the memory gives: with a part of its blocks it is more than that part.
fn by_share(later: Side, rooms: &Rooms, left_at_ns: &[f64; GROUPS], gamma: f64) -> f64 {
    let all = at_once_alone(later);
    let rate = |blocks: f64| if blocks > 0.0 { (blocks / all).min(1.0).powf(1.0 - gamma) } else { 0.0 };
    let (mut blocks, mut at, mut left) = (rooms.at_once, 0.0, later.alone_ns);
    for &next in left_at_ns {
        let r = rate(blocks);
        if r * (next - at) >= left {
            break;
        }
        left -= r * (next - at);
        (at, blocks) = (next, blocks + rooms.then);
    }
    at + left / rate(blocks).max(1e-9)
}

/// What the first one's blocks wait for those of the later that go before them.
fn displaced_ns(spec: &GpuSpec, first: Side, later: Side) -> f64 {
    let on_sm = Waves::new(later.kernel, later.sms);
    let per_sm = (f64::from(later.kernel.blocks) / f64::from(later.sms)).ceil() as u32;
    let left = room(spec, first.kernel, later.kernel, per_sm.clamp(1, later.kernel.per_sm));
    let taken = 1.0 - f64::from(left.min(first.kernel.per_sm)) / f64::from(first.kernel.per_sm);
    let sms = if on_sm.whole > 1.0 { f64::from(later.sms) } else { on_sm.last_sms() };
    later.alone_ns * later.slowdown * taken * sms / f64::from(first.sms)
}
