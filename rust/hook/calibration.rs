//! T_iso: an HP job's service time alone, from its first requests while BE is held in every process.

use parking_lot::Mutex;

/// The first requests build plans and load modules: they are not counted.
const WARM_UP: usize = 5;
/// Fewer samples than this say nothing.
const MIN_SAMPLES: usize = 10;

/// The measurement of one HP job.
#[derive(Default)]
pub struct Calibration {
    state: Mutex<State>,
}

#[derive(Default)]
enum State {
    #[default]
    NotBegun,
    Running {
        since_ns: u64,
        samples: Vec<u64>,
    },
    Done(Option<Isolated>),
}

/// The result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Isolated {
    /// Median service time.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Requests measured.
    pub requests: usize,
}

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Measuring: BE is to be held, between requests too.
    Begun,
    /// Measured, or given up.
    Ended(Option<Isolated>),
}

impl Calibration {
    /// A request begins.
    pub fn request_begins(&self, now_ns: u64, wanted: u32) -> Option<Change> {
        let mut state = self.state.lock();
        match *state {
            State::NotBegun if wanted == 0 => {
                *state = State::Done(None);
                None
            }
            State::NotBegun => {
                *state = State::Running { since_ns: now_ns, samples: Vec::new() };
                Some(Change::Begun)
            }
            _ => None,
        }
    }

    /// A request took `service_ns`; also called without one, so that time can run out.
    pub fn step(&self, service_ns: Option<u64>, now_ns: u64, wanted: u32, max_ns: u64) -> Option<Change> {
        let mut state = self.state.lock();
        let State::Running { since_ns, samples } = &mut *state else { return None };
        samples.extend(service_ns);
        // None may be wanted any more: settings change meanwhile.
        if wanted > 0 && samples.len() < wanted as usize + WARM_UP && now_ns.saturating_sub(*since_ns) < max_ns {
            return None;
        }
        let mut counted = samples.split_off(WARM_UP.min(samples.len()));
        let result = (counted.len() >= MIN_SAMPLES.min(wanted as usize).max(1)).then(|| {
            counted.sort_unstable();
            let n = counted.len();
            Isolated { p50_ns: counted[n / 2], p99_ns: counted[n * 99 / 100], requests: n }
        });
        *state = State::Done(result);
        Some(Change::Ended(result))
    }

    /// Whether it is going on.
    pub fn is_running(&self) -> bool {
        matches!(*self.state.lock(), State::Running { .. })
    }

    /// The result, once there is one.
    pub fn result(&self) -> Option<Isolated> {
        match *self.state.lock() {
            State::Done(result) => result,
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_when_no_request_is_wanted_any_more() {
        for samples in [0, WARM_UP, WARM_UP + 1] {
            let c = Calibration::default();
            assert_eq!(c.request_begins(0, 100), Some(Change::Begun));
            for _ in 0..samples {
                assert_eq!(c.step(Some(5), 1, 100, 1_000_000), None);
            }
            let Some(Change::Ended(result)) = c.step(None, 2, 0, 1_000_000) else { panic!("it goes on") };
            assert_eq!(result.is_some(), samples > WARM_UP);
        }
    }

    #[test]
    fn warm_up_is_not_counted() {
        let c = Calibration::default();
        assert_eq!(c.request_begins(0, 100), Some(Change::Begun));
        assert_eq!(c.request_begins(1, 100), None);
        for _ in 0..WARM_UP {
            assert_eq!(c.step(Some(900_000), 10, 100, 1_000_000), None);
        }
        for i in 1..100 {
            assert_eq!(c.step(Some(i), 10, 100, 1_000_000), None);
        }
        let want = Isolated { p50_ns: 51, p99_ns: 100, requests: 100 };
        assert_eq!(c.step(Some(100), 10, 100, 1_000_000), Some(Change::Ended(Some(want))));
        assert_eq!(c.result(), Some(want));
    }

    #[test]
    fn time_runs_out_without_requests() {
        let c = Calibration::default();
        c.request_begins(0, 200);
        assert_eq!(c.step(None, 999, 200, 1_000), None);
        assert_eq!(c.step(None, 1_000, 200, 1_000), Some(Change::Ended(None)), "a handful of samples says nothing");
        assert!(!c.is_running() && c.result().is_none());
    }

    #[test]
    fn zero_requests_means_no_calibration() {
        let c = Calibration::default();
        assert_eq!(c.request_begins(0, 0), None);
        assert!(!c.is_running());
    }
}
