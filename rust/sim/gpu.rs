//! A GPU with one HP and one BE stream, in virtual time.
//!
//! Each stream runs its kernels one after the other. Alone, a kernel takes its recorded time; while both streams have a
//! kernel running, each is slowed by a constant ratio ([`Sharing`]). Nothing is preempted.

use std::collections::VecDeque;

/// How much slower the two streams' kernels run while both have one on the GPU; 1 is "not at all".
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sharing {
    /// HP's colocated over isolated time.
    pub hp_slowdown_ratio: f64,
    /// BE's colocated over isolated time.
    pub be_slowdown_ratio: f64,
}

impl Sharing {
    /// Equal processor sharing: each gets half of the GPU.
    pub const EQUAL: Sharing = Sharing { hp_slowdown_ratio: 2.0, be_slowdown_ratio: 2.0 };
    /// Two GPUs: neither notices the other.
    pub const NONE: Sharing = Sharing { hp_slowdown_ratio: 1.0, be_slowdown_ratio: 1.0 };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Hp,
    Be,
}

/// One stream.
#[derive(Debug, Default)]
struct Stream {
    /// Launched and not begun: when the launch reaches the GPU, and its time alone.
    queue: VecDeque<(u64, u64)>,
    /// What is left of the running kernel, in nanoseconds alone.
    remaining_ns: Option<f64>,
    /// The next kernel may not begin before.
    free_at_ns: u64,
    /// Idle time between back-to-back kernels.
    gap_ns: u64,
}

impl Stream {
    fn start(&mut self, now_ns: u64) {
        if self.remaining_ns.is_none()
            && let Some(&(ready_ns, alone_ns)) = self.queue.front()
            && ready_ns.max(self.free_at_ns) <= now_ns
        {
            self.queue.pop_front();
            self.remaining_ns = Some(alone_ns as f64);
        }
    }

    fn next_event_ns(&self, now_ns: u64, slowdown_ratio: f64) -> Option<u64> {
        match self.remaining_ns {
            // Rounded up: at that instant the kernel is done, whatever the rounding of its share.
            Some(left) => Some(now_ns + ((left * slowdown_ratio).ceil() as u64).max(1)),
            None => self.queue.front().map(|&(ready_ns, _)| ready_ns.max(self.free_at_ns)),
        }
    }

    /// True if the running kernel is done at `now_ns`.
    fn advance(&mut self, elapsed_ns: u64, slowdown_ratio: f64, now_ns: u64) -> bool {
        let Some(left) = self.remaining_ns.as_mut() else { return false };
        *left -= elapsed_ns as f64 / slowdown_ratio;
        // A billionth of a nanosecond and the like are rounding.
        let done = *left < 1e-3;
        if done {
            self.remaining_ns = None;
            self.free_at_ns = now_ns + self.gap_ns;
        }
        done
    }
}

#[derive(Debug)]
pub(super) struct Gpu {
    now_ns: u64,
    sharing: Sharing,
    hp: Stream,
    be: Stream,
}

impl Gpu {
    pub(super) fn new(sharing: Sharing, hp_gap_ns: u64, be_gap_ns: u64) -> Self {
        let stream = |gap_ns| Stream { gap_ns, ..Stream::default() };
        Gpu { now_ns: 0, sharing, hp: stream(hp_gap_ns), be: stream(be_gap_ns) }
    }

    /// Queues a kernel that reaches the GPU at `ready_ns`.
    pub(super) fn launch(&mut self, role: Role, ready_ns: u64, alone_ns: u64) {
        let stream = match role {
            Role::Hp => &mut self.hp,
            Role::Be => &mut self.be,
        };
        stream.queue.push_back((ready_ns, alone_ns));
        stream.start(self.now_ns);
    }

    /// When something begins or ends next; `None` on an empty GPU.
    pub(super) fn next_event_ns(&self) -> Option<u64> {
        let (hp_ratio, be_ratio) = self.slowdown_ratios();
        let events = [self.hp.next_event_ns(self.now_ns, hp_ratio), self.be.next_event_ns(self.now_ns, be_ratio)];
        events.into_iter().flatten().min()
    }

    /// Goes to `now_ns`, which is not behind the next event; says which streams' kernels ended then.
    pub(super) fn advance(&mut self, now_ns: u64) -> (bool, bool) {
        let (hp_ratio, be_ratio) = self.slowdown_ratios();
        let elapsed_ns = now_ns.saturating_sub(self.now_ns);
        self.now_ns = now_ns;
        let done = (self.hp.advance(elapsed_ns, hp_ratio, now_ns), self.be.advance(elapsed_ns, be_ratio, now_ns));
        self.hp.start(now_ns);
        self.be.start(now_ns);
        done
    }

    fn slowdown_ratios(&self) -> (f64, f64) {
        if self.hp.remaining_ns.is_some() && self.be.remaining_ns.is_some() {
            (self.sharing.hp_slowdown_ratio, self.sharing.be_slowdown_ratio)
        } else {
            (1.0, 1.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs until the GPU is empty; (role, end) of each kernel.
    fn run(gpu: &mut Gpu) -> Vec<(Role, u64)> {
        let mut ends = Vec::new();
        while let Some(at_ns) = gpu.next_event_ns() {
            let (hp, be) = gpu.advance(at_ns);
            ends.extend(hp.then_some((Role::Hp, at_ns)));
            ends.extend(be.then_some((Role::Be, at_ns)));
        }
        ends
    }

    #[test]
    fn alone_a_stream_runs_in_order_with_its_gap() {
        // Guards against kernels of one stream that overlap, and against a gap before an idle stream's kernel.
        let mut gpu = Gpu::new(Sharing::EQUAL, 10, 0);
        gpu.launch(Role::Hp, 100, 50);
        gpu.launch(Role::Hp, 100, 20);
        gpu.launch(Role::Hp, 500, 5);
        assert_eq!(run(&mut gpu), [(Role::Hp, 150), (Role::Hp, 180), (Role::Hp, 505)]);
    }

    #[test]
    fn only_the_time_together_is_slowed() {
        // HP 0..100 alone. BE arrives at 40: HP has 60 left, at half speed until 160. BE has then done 60 of 80.
        let mut gpu = Gpu::new(Sharing::EQUAL, 0, 0);
        gpu.launch(Role::Hp, 0, 100);
        gpu.launch(Role::Be, 40, 80);
        assert_eq!(run(&mut gpu), [(Role::Hp, 160), (Role::Be, 180)]);
    }

    #[test]
    fn unequal_shares_and_fractions_of_a_nanosecond_end() {
        // Guards against a remainder below the clock's step that never reaches zero.
        let mut gpu = Gpu::new(Sharing { hp_slowdown_ratio: 1.7, be_slowdown_ratio: 2.3 }, 3, 1);
        for i in 0..1000 {
            gpu.launch(Role::Hp, i * 7, 1 + i % 13);
            gpu.launch(Role::Be, i * 5, 1 + i % 11);
        }
        assert_eq!(run(&mut gpu).len(), 2000);
    }
}
