//! What is fitted on measured pairs: the formulas' coefficients here, trees by XGBoost on the rows that are made here.
//!
//! Nothing unseen takes part: see [`seen`].

use super::features::{INTER, INTRA, inter};
use super::model::Coefficients;
use super::samples::{Sample, Samples};
use super::{Models, Parts, Predictor, Sharing};

/// Fitted rates are within these.
const RATES: std::ops::RangeInclusive<f64> = 0.03..=1.05;
/// A duration says something of a slowdown if a slowdown of half would change it by this part.
const SENSITIVE: f64 = 0.03;
/// Of the errors that coefficients are fitted to: more counts as this (logarithm of a ratio).
const WORST: f64 = 1.0;
/// Weight of a row whose two kernels hardly overlap.
const LEAST_WEIGHT: f64 = 0.02;

/// What models may be fitted on: both kernels seen, quiet, and of no family that is left out.
pub fn seen<'a>(samples: &'a Samples, without: &'a [String]) -> impl Iterator<Item = &'a Sample> + Clone {
    let left_out = |family: &str| without.iter().any(|w| w == family);
    samples.list.iter().filter(move |s| s.unseen == 0 && !s.noisy && !samples.families(s).into_iter().any(left_out))
}

/// One row of a model: features, what it should say, and how much that counts.
#[derive(Clone, Debug)]
pub struct Row<const N: usize> {
    /// Features.
    pub features: [f32; N],
    /// Target.
    pub target: f64,
    /// Weight, 0 to 1.
    pub weight: f64,
}

/// §4.3: rates of kernels on SMs of their own.
///
/// A kernel that runs at a rate r while it overlaps, and at 1 else, takes alone + (1 - r) · overlap.
pub fn inter_rows(samples: &Samples, without: &[String]) -> Vec<Row<INTER>> {
    let separate = seen(samples, without).filter(|s| s.sharing == Sharing::Separate && s.overlap_ns > 0.0);
    let rows = separate.flat_map(|s| {
        let m = samples.meeting(s);
        [(m.a, m.b, s.taken_ns[0]), (m.b, m.a, s.taken_ns[1])].map(|(own, other, taken_ns)| Row {
            features: inter(&own, &other),
            target: rate(1.0 - (taken_ns - own.alone_ns) / s.overlap_ns),
            weight: (s.overlap_ns / taken_ns).min(1.0) + LEAST_WEIGHT,
        })
    });
    rows.collect()
}

fn rate(r: f64) -> f64 {
    r.clamp(*RATES.start(), *RATES.end())
}

/// §4.4: what is to be added to the rates by the formulas, on the same SMs.
pub fn intra_rows(samples: &Samples, predictor: &Predictor, without: &[String]) -> Vec<Row<INTRA>> {
    let shared = seen(samples, without).filter(|s| s.sharing != Sharing::Separate && s.overlap_ns > 0.0);
    let rows = shared.flat_map(|s| {
        let m = samples.meeting(s);
        let later = s.later();
        let [first, last] = if later == 1 { [m.a, m.b] } else { [m.b, m.a] };
        let timeline = |slowdowns| predictor.timeline(&m, [first, last], slowdowns);
        let plain = timeline([1.0, 1.0]);
        let taken_ns = s.taken_ns[1 - later];
        let first_rate = rate(1.0 - (taken_ns - first.alone_ns - plain.displaced_ns) / s.overlap_ns);
        // The later one's time follows from its slowdown only through the timeline.
        let later_ns = |slowdown| timeline([1.0 / first_rate.min(1.0), slowdown]).later_end_ns - s.offset_ns;
        let moved = (later_ns(1.5) - later_ns(1.0)) / s.taken_ns[later];
        let later_rate = if moved > SENSITIVE { slowdown_of(s.taken_ns[later], later_ns).recip() } else { 1.0 };
        let weights =
            [(s.overlap_ns / taken_ns).min(1.0), if moved > SENSITIVE { (2.0 * moved).min(1.0) } else { 0.0 }];
        let rows = predictor.rows(&m, [&first, &last]);
        std::array::from_fn::<_, 2, _>(|i| Row {
            features: rows[i].0,
            target: [first_rate, rate(later_rate)][i] - rows[i].1,
            weight: weights[i] + LEAST_WEIGHT,
        })
    });
    rows.collect()
}

/// The slowdown at which a time, which grows with it, is as measured.
fn slowdown_of(taken_ns: f64, time_ns: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (RATES.end().recip(), RATES.start().recip());
    for _ in 0..30 {
        let middle = (low * high).sqrt();
        *(if time_ns(middle) > taken_ns { &mut high } else { &mut low }) = middle;
    }
    low
}

/// Fits all coefficients, one after the other, until no step makes it better.
pub fn coefficients(samples: &Samples, without: &[String]) -> Coefficients {
    let shared = seen(samples, without).filter(|s| s.sharing != Sharing::Separate && s.meets());
    let mut predictor =
        Predictor::new(samples.spec, Models::formulas(Coefficients::start(samples.spec.name, samples.data.clone())));
    let mut cost = |c: &Coefficients, parts: Parts| {
        (predictor.models.coefficients, predictor.parts) = (c.clone(), parts);
        let errors = shared.clone().map(|s| {
            let p = predictor.predict(&samples.meeting(s));
            [p.a.ns / s.taken_ns[0], p.b.ns / s.taken_ns[1]]
                .map(|ratio| ratio.ln().abs().min(WORST))
                .iter()
                .sum::<f64>()
        });
        errors.sum::<f64>()
    };
    let packing = Parts { packing: true, ..Parts::PLACEMENT };
    let mut c = Coefficients::start(samples.spec.name, samples.data.clone());
    let placing: &[(Access, f64, f64)] = &[
        (|c| &mut c.release.spread, 0.1, 1.0),
        (|c| &mut c.release.drift, 0.1, 1.0),
        (|c| &mut c.packing.a, 0.1, 1.0),
        (|c| &mut c.packing.b, 0.2, 1.0),
        (|c| &mut c.packing.c, 0.2, 2.0),
        (|c| &mut c.packing.gamma, 0.2, 1.0),
    ];
    descend(&mut c, placing, |c| cost(c, packing));
    let contending: &[(Access, f64, f64)] = &[
        (|c| &mut c.contention.k, 0.1, 2.0),
        (|c| &mut c.contention.k_sigma, 0.5, 10.0),
        (|c| &mut c.contention.sigma_threshold, 2.0, 100.0),
    ];
    descend(&mut c, contending, |c| cost(c, Parts { contention: true, ..packing }));
    c
}

type Access = fn(&mut Coefficients) -> &mut f64;

/// Coordinate descent from where `c` is: each with its first step, from 0 up to its largest value.
fn descend(c: &mut Coefficients, fields: &[(Access, f64, f64)], mut cost: impl FnMut(&Coefficients) -> f64) {
    let mut best = cost(c);
    let mut steps: Vec<f64> = fields.iter().map(|(_, step, _)| *step).collect();
    for _ in 0..8 {
        for (&(at, _, most), step) in fields.iter().zip(&mut steps) {
            let before = *at(c);
            let mut moved = false;
            for value in [before + *step, before - *step].map(|v| v.clamp(0.0, most)) {
                let held = *at(c);
                *at(c) = value;
                let found = cost(c);
                if found < best {
                    (best, moved) = (found, true);
                } else {
                    *at(c) = held;
                }
            }
            *step *= if moved { 1.3 } else { 0.5 };
        }
    }
}

/// Logarithms of measured over predicted time, each with its class, of pairs that have one of `families`.
pub fn residuals(samples: &Samples, predictor: &Predictor, families: &[String]) -> Vec<(usize, f64)> {
    let held_out = seen(samples, &[]).filter(|s| samples.families(s).iter().any(|f| families.iter().any(|g| g == f)));
    let each = held_out.flat_map(|s| {
        let p = predictor.predict(&samples.meeting(s));
        [(p.a, 0), (p.b, 1)].map(|(e, i)| {
            let class = super::interval::class(s.sharing, i == s.later(), p.timeline.overlap_ns() / e.ns);
            (class, (s.taken_ns[i] / e.ns).ln())
        })
    });
    each.collect()
}
