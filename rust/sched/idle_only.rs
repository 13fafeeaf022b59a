//! Idle-only: BE kernels are launched only while no HP request is active (the first level of knowledge).

use super::{Admit, Candidate, Decision, Limits, Policy, Snapshot, Wait};

/// With no HP job registered there is nobody to protect; but one may come, and has to wait for what is in flight then.
const NO_HP_CAP_NS: u64 = 2_000_000;

/// BE runs only while no HP request is active, with a cap in time on what an arriving HP request can meet.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdleOnly {
    /// The user's limits.
    pub limits: Limits,
}

impl Policy for IdleOnly {
    fn name(&self) -> &'static str {
        "idle-only"
    }

    fn decide(&self, s: &Snapshot, c: &Candidate, now_ns: u64) -> Decision {
        let bound_ns = c.waiting_since_ns.saturating_add(self.limits.max_wait_ns);
        // Never later than the bound, unless that has passed.
        let wait = |why, recheck_ns: u64| Decision::Wait { why, recheck_ns: recheck_ns.min(bound_ns).max(now_ns) };

        // Exceptions to "HP first" go one kernel at a time: none while another is in flight.
        if s.hp_calibrating || s.hp_active > 0 {
            let exception = if now_ns >= bound_ns {
                Some(Admit::WaitBound)
            } else if s.hp_stalled && !s.hp_calibrating {
                Some(Admit::HpStalled)
            } else {
                None
            };
            return match exception {
                Some(why) if s.be_in_flight == 0 => Decision::Admit(why),
                Some(_) => Decision::Wait { why: Wait::InFlight, recheck_ns: now_ns },
                None if s.hp_calibrating => wait(Wait::Calibrating, bound_ns),
                None => wait(Wait::HpActive, s.hp_expected_end_ns.unwrap_or(now_ns)),
            };
        }

        let admit_within = |room_ns: u64| match s.be_in_flight_ns.saturating_sub(room_ns) {
            0 => Decision::Admit(Admit::Rule),
            excess_ns => wait(Wait::InFlight, now_ns.saturating_add(excess_ns)),
        };
        if s.hp_jobs == 0 {
            return admit_within(NO_HP_CAP_NS);
        }
        let settled_ns = s.hp_last_active_ns.map_or(0, |at_ns| at_ns.saturating_add(self.limits.settle_ns));
        if now_ns < settled_ns.min(bound_ns) {
            return wait(Wait::HpSettling, settled_ns);
        }
        if s.be_in_flight == 0 {
            return Decision::Admit(Admit::Rule);
        }
        // How much work may be left for this launch to join it. Unknown lengths go alone: nothing would bound what
        // an arriving HP request meets.
        match (self.limits.cap_ns(s), c.duration_ns) {
            (Some(cap_ns), Some(duration_ns)) if !s.be_in_flight_unknown => {
                admit_within(cap_ns.saturating_sub(duration_ns).max(self.limits.launch_lead_ns))
            }
            _ => wait(Wait::InFlight, now_ns.saturating_add(s.be_in_flight_ns)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const US: u64 = 1_000;

    fn policy() -> IdleOnly {
        IdleOnly {
            limits: Limits {
                in_flight_fraction: 0.02,
                max_wait_ns: 1000 * MS,
                launch_lead_ns: 8 * US,
                settle_ns: 30 * US,
            },
        }
    }

    /// HP alone takes 8 ms, so the cap is 160 us.
    fn idle() -> Snapshot {
        Snapshot { hp_jobs: 1, min_t_iso_ns: Some(8 * MS), ..Default::default() }
    }

    #[test]
    fn table_of_cases() {
        use Decision::Admit as A;
        let known = |us| Candidate { duration_ns: Some(us * US), waiting_since_ns: 0 };
        let unknown = Candidate::default();
        let in_flight = |n, us, unknown| Snapshot {
            be_in_flight: n,
            be_in_flight_ns: us * US,
            be_in_flight_unknown: unknown,
            ..idle()
        };
        let hp = Snapshot { hp_active: 1, ..idle() };
        let hp_be = Snapshot { hp_active: 1, ..in_flight(1, 10, false) };
        let stalled = |s| Snapshot { hp_stalled: true, ..s };
        let ended = |us| Snapshot { hp_last_active_ns: Some(us * US), ..idle() };
        type Case = (&'static str, Snapshot, Candidate, u64, Result<Admit, Wait>);
        let cases: [Case; 24] = [
            ("idle GPU, known kernel", idle(), known(50), 1, Ok(Admit::Rule)),
            ("idle GPU, unknown kernel", idle(), unknown, 1, Ok(Admit::Rule)),
            ("idle GPU, kernel over the cap", idle(), known(9000), 1, Ok(Admit::Rule)),
            ("fits under the cap", in_flight(3, 100, false), known(60), 1, Ok(Admit::Rule)),
            ("over the cap", in_flight(3, 100, false), known(61), 1, Err(Wait::InFlight)),
            ("many short kernels fit", in_flight(39, 156, false), known(4), 1, Ok(Admit::Rule)),
            ("long kernel within the lead", in_flight(1, 8, false), known(900), 1, Ok(Admit::Rule)),
            ("long kernel before the lead", in_flight(1, 9, false), known(900), 1, Err(Wait::InFlight)),
            ("unknown kernel never joins others", in_flight(1, 1, false), unknown, 1, Err(Wait::InFlight)),
            ("nothing joins an unknown kernel", in_flight(1, 1, true), known(4), 1, Err(Wait::InFlight)),
            (
                "no isolated time: one at a time",
                Snapshot { min_t_iso_ns: None, ..in_flight(1, 1, false) },
                known(4),
                1,
                Err(Wait::InFlight),
            ),
            ("no HP job", Snapshot { hp_jobs: 0, ..in_flight(40, 2000, true) }, unknown, 1, Ok(Admit::Rule)),
            (
                "no HP job, far ahead",
                Snapshot { hp_jobs: 0, ..in_flight(40, 2001, false) },
                known(4),
                1,
                Err(Wait::InFlight),
            ),
            ("HP active", hp, known(4), 1, Err(Wait::HpActive)),
            ("HP active a moment ago", ended(100), known(4), 130 * US - 1, Err(Wait::HpSettling)),
            ("HP idle for long enough", ended(100), known(4), 130 * US, Ok(Admit::Rule)),
            ("HP active a moment ago, at the bound", ended(999_990), known(4), 1000 * MS, Ok(Admit::Rule)),
            ("HP gone a moment ago", Snapshot { hp_jobs: 0, ..ended(100) }, known(4), 110 * US, Ok(Admit::Rule)),
            ("HP active up to the bound", hp, known(4), 1000 * MS - 1, Err(Wait::HpActive)),
            ("HP active at the bound", hp, known(4), 1000 * MS, Ok(Admit::WaitBound)),
            ("at the bound, one at a time", hp_be, known(4), 1000 * MS, Err(Wait::InFlight)),
            ("HP stalled", stalled(hp), known(4), 1, Ok(Admit::HpStalled)),
            ("HP stalled, one at a time", stalled(hp_be), known(4), 1, Err(Wait::InFlight)),
            (
                "calibrating between requests",
                Snapshot { hp_calibrating: true, ..idle() },
                known(4),
                1,
                Err(Wait::Calibrating),
            ),
        ];
        for (name, snapshot, candidate, now_ns, want) in cases {
            let got = match policy().decide(&snapshot, &candidate, now_ns) {
                A(a) => Ok(a),
                Decision::Wait { why, .. } => Err(why),
            };
            assert_eq!(got, want, "{name}");
        }
    }

    #[test]
    fn a_wait_never_outlasts_the_bound() {
        let far = Snapshot { hp_active: 1, hp_expected_end_ns: Some(u64::MAX), ..idle() };
        let Decision::Wait { recheck_ns, .. } = policy().decide(&far, &Candidate::default(), 5) else {
            panic!("admitted beside an active HP request")
        };
        assert_eq!(recheck_ns, 1000 * MS);
    }

    #[test]
    fn any_state_gets_an_answer_and_a_recheck_that_is_not_in_the_past() {
        let mut x = 7u64;
        let mut next = |n: u64| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 33) % n
        };
        let times = [0, 1, 5 * US, 160 * US, 8 * MS, 999 * MS, 1000 * MS, 5000 * MS, u64::MAX];
        for _ in 0..100_000 {
            let mut time = |some: bool| some.then(|| times[next(times.len() as u64) as usize]);
            let (end, last, t_iso, left, duration, since, now) =
                (time(true), time(true), time(true), time(true), time(true), time(true), time(true));
            let snapshot = Snapshot {
                hp_jobs: next(3) as u32,
                hp_active: next(3) as u32,
                hp_calibrating: next(4) == 0,
                hp_stalled: next(2) == 0,
                hp_expected_end_ns: end.filter(|_| next(2) == 0),
                hp_last_active_ns: last.filter(|_| next(2) == 0),
                min_t_iso_ns: t_iso.filter(|_| next(3) > 0),
                be_in_flight: next(3) as u32,
                be_in_flight_ns: left.unwrap_or(0),
                be_in_flight_unknown: next(4) == 0,
            };
            let candidate =
                Candidate { duration_ns: duration.filter(|_| next(3) > 0), waiting_since_ns: since.unwrap_or(0) };
            let now_ns = now.unwrap_or(0);
            if let Decision::Wait { recheck_ns, .. } = policy().decide(&snapshot, &candidate, now_ns) {
                assert!(recheck_ns >= now_ns, "{snapshot:?} {candidate:?} {now_ns}");
            } else if snapshot.hp_active > 0 {
                assert_eq!(snapshot.be_in_flight, 0, "exceptions go one at a time");
            }
        }
    }

    #[test]
    fn a_request_late_by_its_expectation_is_rechecked_at_once() {
        let late = Snapshot { hp_active: 1, hp_expected_end_ns: Some(10), ..idle() };
        let Decision::Wait { recheck_ns, .. } = policy().decide(&late, &Candidate::default(), 50) else {
            panic!("admitted beside an active HP request")
        };
        assert_eq!(recheck_ns, 50);
    }
}
