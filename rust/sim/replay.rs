//! The event loop: an HP job with given arrivals and a closed-loop BE job on one GPU, under one policy.

use std::collections::{HashMap, VecDeque};

use super::{
    gpu::{Gpu, Role, Sharing},
    trace::{Trace, TraceKernel},
};
use crate::{
    kernel::KernelId,
    sched::{Admit, Candidate, Decision, Policy, Snapshot},
};

/// What the host and the driver cost. The defaults are of the size measured on an H200.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// From the launch call to the instant at which an idle GPU begins the kernel.
    pub launch_latency_ns: u64,
    /// Until a held launch sees that the ledger has changed.
    pub poll_ns: u64,
    /// What kernels that run side by side do to each other.
    pub sharing: Sharing,
}

impl Default for Model {
    fn default() -> Self {
        Model { launch_latency_ns: 6_000, poll_ns: 1_000, sharing: Sharing::EQUAL }
    }
}

/// One launch of a job, with the host's time before it.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// Host time since the last launch (or the request's begin), or since the GPU was done with it: see `after_sync`.
    host_ns: u64,
    after_sync: bool,
    alone_ns: u64,
    /// What admission expects: the mean of this kernel's recorded times.
    predicted_ns: u64,
}

/// A trace made ready to replay.
#[derive(Clone, Debug)]
pub struct Job {
    requests: Vec<Vec<Step>>,
    gpu_gap_ns: u64,
    service_ns: Vec<u64>,
}

impl Job {
    /// Splits recorded launch times into host work and waiting for the GPU.
    pub fn new(trace: &Trace, model: &Model) -> Self {
        let mut sums: HashMap<KernelId, (u64, u64)> = HashMap::new();
        for k in trace.kernels() {
            let (sum_ns, count) = sums.entry(k.id).or_default();
            *sum_ns += k.duration_ns;
            *count += 1;
        }
        let predicted_ns = |k: &TraceKernel| sums.get(&k.id).map_or(k.duration_ns, |(sum, count)| sum / count);

        let gpu_gap_ns = trace.provenance.gpu_gap_ns;
        let mut requests = Vec::new();
        let mut service_ns = Vec::new();
        for kernels in &trace.requests {
            let mut steps = Vec::new();
            // Host and GPU clocks of the isolated request, as the replay will run it.
            let (mut launched_ns, mut recorded_ns, mut drained_ns, mut free_ns) = (0, 0, 0, 0);
            for k in kernels {
                // What the recorded host did after its last launch, or after it had waited for the GPU.
                let host_ns = if k.after_sync {
                    k.start_offset_ns.saturating_sub(drained_ns)
                } else {
                    k.start_offset_ns - recorded_ns
                };
                recorded_ns = k.start_offset_ns;
                launched_ns = if k.after_sync { drained_ns.max(launched_ns) } else { launched_ns } + host_ns;
                drained_ns = (launched_ns + model.launch_latency_ns).max(free_ns) + k.duration_ns;
                free_ns = drained_ns + gpu_gap_ns;
                steps.push(Step {
                    host_ns,
                    after_sync: k.after_sync,
                    alone_ns: k.duration_ns,
                    predicted_ns: predicted_ns(k),
                });
            }
            requests.push(steps);
            service_ns.push(drained_ns);
        }
        Job { requests, gpu_gap_ns, service_ns }
    }

    /// Isolated service time of each recorded request.
    pub fn service_ns(&self) -> &[u64] {
        &self.service_ns
    }

    /// Their mean.
    pub fn mean_service_ns(&self) -> f64 {
        self.service_ns.iter().map(|ns| *ns as f64).sum::<f64>() / self.service_ns.len().max(1) as f64
    }

    /// T_iso: their p50.
    pub fn t_iso_ns(&self) -> u64 {
        super::quantile_ns(&self.service_ns, 0.5)
    }

    /// Launches of one request, on average.
    pub fn mean_launches(&self) -> f64 {
        self.requests.iter().map(Vec::len).sum::<usize>() as f64 / self.requests.len().max(1) as f64
    }

    /// Its recorded requests are served in turn.
    fn steps(&self, request: usize) -> &[Step] {
        self.requests.get(request % self.requests.len().max(1)).map_or(&[], Vec::as_slice)
    }
}

/// One job's host thread.
struct Host<'a> {
    job: &'a Job,
    /// Requests begun.
    begun: usize,
    active: bool,
    next_step: usize,
    /// When the next launch call comes; `None` while the host waits for the GPU.
    next_launch_ns: Option<u64>,
    /// Launched and not done.
    outstanding: usize,
    /// GPU time done in this request, alone.
    done_ns: u64,
    in_flight: VecDeque<u64>,
}

impl<'a> Host<'a> {
    fn new(job: &'a Job) -> Self {
        Host {
            job,
            begun: 0,
            active: false,
            next_step: 0,
            next_launch_ns: None,
            outstanding: 0,
            done_ns: 0,
            in_flight: VecDeque::new(),
        }
    }

    fn steps(&self) -> &'a [Step] {
        self.job.steps(self.begun.saturating_sub(1))
    }

    fn begin(&mut self, now_ns: u64) {
        self.begun += 1;
        self.active = true;
        self.next_step = 0;
        self.done_ns = 0;
        self.schedule(now_ns);
    }

    fn schedule(&mut self, now_ns: u64) {
        self.next_launch_ns = match self.steps().get(self.next_step) {
            Some(step) if !step.after_sync || self.outstanding == 0 => Some(now_ns + step.host_ns),
            _ => None,
        };
    }

    /// The launch that is due, if any.
    fn due(&self, now_ns: u64) -> Option<Step> {
        self.next_launch_ns.filter(|at_ns| *at_ns <= now_ns)?;
        self.steps().get(self.next_step).copied()
    }

    fn launched(&mut self, step: &Step, now_ns: u64) {
        self.outstanding += 1;
        self.in_flight.push_back(step.alone_ns);
        self.next_step += 1;
        self.schedule(now_ns);
    }

    /// A kernel is done; true if the request is too.
    fn kernel_done(&mut self, now_ns: u64) -> bool {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.done_ns += self.in_flight.pop_front().unwrap_or(0);
        if self.outstanding == 0 && self.next_launch_ns.is_none() {
            self.schedule(now_ns);
        }
        let ended = self.outstanding == 0 && self.next_step == self.steps().len();
        if ended {
            self.active = false;
        }
        ended
    }

    /// Requests done, with the part of the one that is running.
    fn progress(&self) -> f64 {
        if !self.active {
            return self.begun as f64;
        }
        let all_ns: u64 = self.steps().iter().map(|s| s.alone_ns).sum();
        (self.begun - 1) as f64 + self.done_ns as f64 / all_ns.max(1) as f64
    }
}

/// What a replay runs.
pub struct Scenario<'a> {
    /// The HP job.
    pub hp: &'a Job,
    /// Its arrivals, rising. Requests are served one at a time, in order.
    pub arrivals_ns: &'a [u64],
    /// The BE job: the next request begins when the last one is done.
    pub be: Option<&'a Job>,
    /// Runs until all HP requests are done, and at least until here.
    pub until_ns: u64,
    /// Decides on every BE launch.
    pub policy: &'a dyn Policy,
    /// The machine.
    pub model: Model,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// From arrival to completion, in the order of arrival.
    pub hp_latency_ns: Vec<u64>,
    /// Time during which an HP request was being served.
    pub hp_busy_ns: u64,
    /// BE requests done, with the part of the last one.
    pub be_requests: f64,
    /// Length of the replay.
    pub end_ns: u64,
    /// BE launches admitted.
    pub be_admitted: u64,
    /// BE launches that waited before.
    pub be_held: u64,
    /// BE launches admitted while an HP request was active.
    pub be_beside_hp: u64,
    /// BE launches admitted because their longest wait was over.
    pub be_wait_bound: u64,
}

impl Scenario<'_> {
    /// Replays it.
    pub fn run(&self) -> Outcome {
        let be = self.be.map(Host::new);
        let be_gap_ns = self.be.map_or(0, |j| j.gpu_gap_ns);
        Replay {
            scenario: self,
            gpu: Gpu::new(self.model.sharing, self.hp.gpu_gap_ns, be_gap_ns),
            hp: Host::new(self.hp),
            be,
            t_iso_ns: self.hp.t_iso_ns(),
            arrived: 0,
            hp_begun_ns: 0,
            hp_done_ns: None,
            waiting_since_ns: None,
            next_ask_ns: None,
            be_drained_ns: 0,
            out: Outcome::default(),
        }
        .run()
    }
}

struct Replay<'a> {
    scenario: &'a Scenario<'a>,
    gpu: Gpu,
    hp: Host<'a>,
    be: Option<Host<'a>>,
    t_iso_ns: u64,
    /// HP requests that have arrived.
    arrived: usize,
    hp_begun_ns: u64,
    /// When its last request ended.
    hp_done_ns: Option<u64>,
    /// Since when the BE launch at the gate has waited.
    waiting_since_ns: Option<u64>,
    /// When it asks again.
    next_ask_ns: Option<u64>,
    /// When the GPU is predicted to be done with BE's kernels in flight.
    be_drained_ns: u64,
    out: Outcome,
}

impl Replay<'_> {
    fn run(mut self) -> Outcome {
        let mut now_ns = 0;
        loop {
            self.completions(now_ns);
            self.hp_side(now_ns);
            self.be_side(now_ns);
            if self.out.hp_latency_ns.len() == self.scenario.arrivals_ns.len() && now_ns >= self.scenario.until_ns {
                break;
            }
            // Whatever could have happened by now has happened: the next event lies ahead.
            match self.next_event_ns(now_ns) {
                Some(at_ns) => now_ns = at_ns.max(now_ns + 1),
                None => break,
            }
        }
        self.out.end_ns = now_ns;
        self.out.be_requests = self.be.as_ref().map_or(0.0, Host::progress);
        self.out
    }

    fn next_event_ns(&self, now_ns: u64) -> Option<u64> {
        let be_ns = match self.waiting_since_ns {
            Some(_) => self.next_ask_ns,
            None => self.be.as_ref().and_then(|be| be.next_launch_ns),
        };
        [self.next_outer_event_ns(now_ns), be_ns].into_iter().flatten().min()
    }

    /// The next event that is not BE's host.
    fn next_outer_event_ns(&self, now_ns: u64) -> Option<u64> {
        let until_ns = Some(self.scenario.until_ns).filter(|t| *t > now_ns);
        let arrival_ns = self.scenario.arrivals_ns.get(self.arrived).copied();
        [self.gpu.next_event_ns(), arrival_ns, self.hp.next_launch_ns, until_ns].into_iter().flatten().min()
    }

    fn completions(&mut self, now_ns: u64) {
        let (hp_done, be_done) = self.gpu.advance(now_ns);
        if hp_done && self.hp.kernel_done(now_ns) {
            let arrival_ns = self.scenario.arrivals_ns.get(self.hp.begun - 1).copied().unwrap_or(now_ns);
            self.out.hp_latency_ns.push(now_ns.saturating_sub(arrival_ns));
            self.out.hp_busy_ns += now_ns - self.hp_begun_ns;
            self.hp_done_ns = Some(now_ns);
            self.wake_be(now_ns);
        }
        if be_done && let Some(be) = &mut self.be {
            be.kernel_done(now_ns);
            self.wake_be(now_ns);
        }
    }

    fn hp_side(&mut self, now_ns: u64) {
        while self.scenario.arrivals_ns.get(self.arrived).is_some_and(|at_ns| *at_ns <= now_ns) {
            self.arrived += 1;
        }
        if !self.hp.active && self.hp.begun < self.arrived {
            self.hp.begin(now_ns);
            self.hp_begun_ns = now_ns;
        }
        while let Some(step) = self.hp.due(now_ns) {
            self.gpu.launch(Role::Hp, now_ns + self.scenario.model.launch_latency_ns, step.alone_ns);
            self.hp.launched(&step, now_ns);
        }
    }

    fn be_side(&mut self, now_ns: u64) {
        let Some(mut be) = self.be.take() else { return };
        if !be.active {
            be.begin(now_ns);
        }
        while let Some(step) = be.due(now_ns) {
            if self.waiting_since_ns.is_some() && self.next_ask_ns.is_some_and(|at_ns| at_ns > now_ns) {
                break;
            }
            let waiting_since_ns = *self.waiting_since_ns.get_or_insert(now_ns);
            let snapshot = self.snapshot(&be, now_ns);
            let candidate = Candidate { duration_ns: Some(step.predicted_ns), waiting_since_ns };
            match self.scenario.policy.decide(&snapshot, &candidate, now_ns) {
                Decision::Admit(why) => {
                    self.out.be_admitted += 1;
                    self.out.be_held += u64::from(waiting_since_ns < now_ns);
                    self.out.be_beside_hp += u64::from(snapshot.hp_active > 0);
                    self.out.be_wait_bound += u64::from(why == Admit::WaitBound);
                    self.waiting_since_ns = None;
                    self.next_ask_ns = None;
                    self.be_drained_ns = self.be_drained_ns.max(now_ns).saturating_add(step.predicted_ns);
                    self.gpu.launch(Role::Be, now_ns + self.scenario.model.launch_latency_ns, step.alone_ns);
                    be.launched(&step, now_ns);
                }
                Decision::Wait { recheck_ns, .. } => {
                    self.next_ask_ns = Some(self.poll(&be, &candidate, now_ns, recheck_ns));
                    break;
                }
            }
        }
        self.be = Some(be);
    }

    /// The poll that is admitted, or else the first at or after the next event. `decide` is pure and nothing but the
    /// clock moves between events, so these polls need no event of their own: a replay is several times faster.
    fn poll(&self, be: &Host, candidate: &Candidate, now_ns: u64, recheck_ns: u64) -> u64 {
        let end_ns = self.next_outer_event_ns(now_ns).unwrap_or(0);
        let mut ask_ns = recheck_ns.max(self.polled_ns(now_ns));
        while ask_ns < end_ns {
            match self.scenario.policy.decide(&self.snapshot(be, ask_ns), candidate, ask_ns) {
                Decision::Admit(_) => break,
                Decision::Wait { recheck_ns, .. } => ask_ns = recheck_ns.max(self.polled_ns(ask_ns)),
            }
        }
        ask_ns
    }

    /// What the ledger would show. HP's times are known (calibrated), and HP never waits for what BE owns.
    fn snapshot(&self, be: &Host, now_ns: u64) -> Snapshot {
        let hp_active = self.arrived - self.out.hp_latency_ns.len();
        let newest_ns = self.arrived.checked_sub(1).and_then(|i| self.scenario.arrivals_ns.get(i));
        let in_flight = be.outstanding > 0;
        Snapshot {
            hp_active: u32::try_from(hp_active).unwrap_or(u32::MAX),
            hp_calibrating: false,
            hp_stalled: false,
            hp_last_active_ns: if hp_active > 0 { Some(now_ns) } else { self.hp_done_ns },
            hp_expected_end_ns: newest_ns.filter(|_| hp_active > 0).map(|at_ns| at_ns + self.t_iso_ns),
            hp_jobs: 1,
            min_t_iso_ns: Some(self.t_iso_ns),
            be_in_flight: u32::try_from(be.outstanding).unwrap_or(u32::MAX),
            be_in_flight_ns: if in_flight { self.be_drained_ns.saturating_sub(now_ns) } else { 0 },
            be_in_flight_unknown: false,
        }
    }

    /// A launch at the gate sees a change of the ledger after one poll.
    fn wake_be(&mut self, now_ns: u64) {
        let polled_ns = self.polled_ns(now_ns);
        if let Some(at_ns) = &mut self.next_ask_ns {
            *at_ns = polled_ns.min(*at_ns);
        }
    }

    fn polled_ns(&self, now_ns: u64) -> u64 {
        now_ns + self.scenario.model.poll_ns.max(1)
    }
}

#[cfg(test)]
mod tests;
