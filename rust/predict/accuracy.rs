//! How far off predictions are on pairs with unseen kernels, beside rivals and without single mechanisms.

use super::features::Placed;
use super::model::{self, Models};
use super::rivals::{Rivals, share};
use super::samples::{Sample, Samples};
use super::timeline::{Side, apart};
use super::{Parts, PredictError, Prediction, Predictor, Sharing};
use std::collections::BTreeMap;
use std::path::Path;

/// Errors of one variant on some durations.
#[derive(Clone, Debug, PartialEq)]
pub struct Errors {
    /// Which pairs.
    pub case: String,
    /// Which predictor.
    pub variant: &'static str,
    /// Durations.
    pub n: usize,
    /// Median of |predicted - measured| / measured, percent.
    pub p50_pct: f64,
    /// Its 95th percentile.
    pub p95_pct: f64,
    /// 95th percentile of (measured - predicted) / measured where that is above 0, else 0: the unsafe side.
    pub p95_under_pct: f64,
}

/// One duration: measured, and what a prediction says.
#[derive(Clone, Copy, Debug)]
struct Pair {
    measured_ns: f64,
    predicted_ns: f64,
}

impl Pair {
    fn error(&self) -> f64 {
        (self.predicted_ns - self.measured_ns) / self.measured_ns
    }
}

/// The value below which a part `q` of a sorted list lies, between its two neighbours.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = q * last as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

fn errors(case: &str, variant: &'static str, pairs: &[Pair]) -> Errors {
    let of = |f: fn(f64) -> f64| {
        let mut list: Vec<f64> = pairs.iter().map(|p| 100.0 * f(p.error())).collect();
        list.sort_by(f64::total_cmp);
        list
    };
    let (abs, under) = (of(f64::abs), of(|e| (-e).max(0.0)));
    Errors {
        case: case.to_owned(),
        variant,
        n: pairs.len(),
        p50_pct: quantile(&abs, 0.5),
        p95_pct: quantile(&abs, 0.95),
        p95_under_pct: quantile(&under, 0.95),
    }
}

/// What predicts.
enum Variant<'a> {
    Mosaic(&'a Predictor),
    Kace(&'a [Rivals]),
    GpuPool(&'a [Rivals]),
    Share,
    None,
}

impl Variant<'_> {
    /// A's and B's time from release to end.
    fn taken_ns(&self, samples: &Samples, s: &Sample) -> [f64; 2] {
        let m = samples.meeting(s);
        let by = |slowdown: &dyn Fn(&Placed, &Placed) -> f64| {
            [m.a.alone_ns * slowdown(&m.a, &m.b), m.b.alone_ns * slowdown(&m.b, &m.a)]
        };
        match self {
            Variant::Mosaic(predictor) => {
                let p = predictor.predict(&m);
                [p.a.ns, p.b.ns]
            }
            Variant::Kace(rivals) => by(&|own, other| rivals[s.sharing.index()].kace(samples.spec, own, other)),
            Variant::GpuPool(rivals) => by(&|own, other| rivals[s.sharing.index()].gpupool(own, other)),
            Variant::Share => {
                let (first, later) = if s.sharing.b_first() { (m.b, m.a) } else { (m.a, m.b) };
                let slowdown = |own, other| share(samples.spec, s.sharing, own, other);
                let sides = [Side::new(first, slowdown(&first, &later)), Side::new(later, slowdown(&later, &first))];
                let t = apart(sides[0], sides[1], s.offset_ns);
                let taken = [t.first_end_ns, t.later_end_ns - s.offset_ns];
                if s.sharing.b_first() { [taken[1], taken[0]] } else { taken }
            }
            Variant::None => by(&|_, _| 1.0),
        }
    }
}

/// All that `mosaic accuracy` prints.
pub struct Accuracy {
    /// Every table's lines.
    pub errors: Vec<Errors>,
    /// Of durations, by (case, group): named groups of the whole predictor's errors.
    pub groups: Vec<(&'static str, Vec<Errors>)>,
    /// Of each case: durations within their 5 to 95 % interval, as a part of all.
    pub coverage: Vec<(String, f64, usize)>,
    /// The worst, with what went into them.
    pub worst: Vec<String>,
}

/// Which pairs a case has.
fn cases(samples: &Samples) -> Vec<(String, Vec<&Sample>)> {
    let mut cases = Vec::new();
    for sharing in Sharing::ALL {
        for (unseen, name) in [(2, "both"), (1, "one")] {
            let list = samples.list.iter().filter(|s| s.sharing == sharing && s.unseen == unseen && !s.noisy);
            cases.push((format!("{} unseen={name}", sharing.name()), list.collect()));
        }
    }
    cases
}

/// Predicts every pair that has an unseen kernel, all variants.
pub fn accuracy(samples: &Samples, folder: &Path) -> Result<Accuracy, PredictError> {
    let models = Models::open(folder, samples.spec, true)?;
    let whole = Predictor::new(samples.spec, models);
    let with = |parts: Parts| Predictor { parts, ..whole.clone() };
    let without_footprint = |name: &str| -> Result<Predictor, PredictError> {
        let mut other = whole.clone();
        other.models.inter = Some(model::trees(&folder.join("ablations").join(name), &super::features::inter_names())?);
        Ok(other)
    };
    let rivals_folder = folder.join("rivals");
    let rivals = Sharing::ALL.iter().map(|s| Rivals::open(&rivals_folder, *s)).collect::<Result<Vec<_>, _>>()?;
    let placement = with(Parts::PLACEMENT);
    let packing = with(Parts { packing: true, ..Parts::PLACEMENT });
    let no_pipes = with(Parts { contention: false, ..Parts::ALL });
    let no_memory = with(Parts { residual: false, ..Parts::ALL });
    let bandwidth = without_footprint("inter_sm_bandwidth.json")?;
    let no_footprint = without_footprint("inter_sm_no_footprint.json")?;
    let everywhere: [(&'static str, Variant); 5] = [
        ("mosaic", Variant::Mosaic(&whole)),
        ("kace", Variant::Kace(&rivals)),
        ("gpupool", Variant::GpuPool(&rivals)),
        ("share", Variant::Share),
        ("none", Variant::None),
    ];
    let shared: [(&'static str, Variant); 4] = [
        ("placement", Variant::Mosaic(&placement)),
        ("placement+packing", Variant::Mosaic(&packing)),
        ("no pipe/ipc", Variant::Mosaic(&no_pipes)),
        ("no residual", Variant::Mosaic(&no_memory)),
    ];
    let separate: [(&'static str, Variant); 2] =
        [("bandwidth only", Variant::Mosaic(&bandwidth)), ("no footprint", Variant::Mosaic(&no_footprint))];

    let mut found = Accuracy { errors: vec![], groups: vec![], coverage: vec![], worst: vec![] };
    for (case, list) in cases(samples) {
        let is_separate = list.first().is_some_and(|s| s.sharing == Sharing::Separate);
        let ablations: &[_] = if is_separate { &separate } else { &shared };
        for (variant, predictor) in everywhere.iter().chain(ablations) {
            let each: Vec<_> = list.iter().map(|s| (*s, predictor.taken_ns(samples, s))).collect();
            let of = |keep: &dyn Fn(&Sample, usize) -> bool| pairs(&each, keep);
            found.errors.push(errors(&case, variant, &of(&|_, _| true)));
            found.errors.push(errors(&format!("{case} meets"), variant, &of(&|s, _| s.meets())));
            if list.first().is_some_and(|s| !s.is_hp(1)) {
                found.errors.push(errors(&format!("{case} hp"), variant, &of(&|s, i| s.is_hp(i))));
            }
        }
    }
    let unseen: Vec<(&Sample, Prediction)> = samples
        .list
        .iter()
        .filter(|s| s.unseen > 0 && !s.noisy)
        .map(|s| (s, whole.predict(&samples.meeting(s))))
        .collect();
    found.coverage = coverage(&unseen);
    found.groups = groups(samples, &unseen);
    found.worst = worst(samples, &unseen);
    Ok(found)
}

fn pairs(each: &[(&Sample, [f64; 2])], keep: &dyn Fn(&Sample, usize) -> bool) -> Vec<Pair> {
    let of = |(s, predicted): &(&Sample, [f64; 2])| {
        let kept = [0, 1].into_iter().filter(|i| keep(s, *i));
        kept.map(|i| Pair { measured_ns: s.taken_ns[i], predicted_ns: predicted[i] }).collect::<Vec<_>>()
    };
    each.iter().flat_map(of).collect()
}

fn coverage(unseen: &[(&Sample, Prediction)]) -> Vec<(String, f64, usize)> {
    let mut of: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    for (s, p) in unseen {
        for (e, taken_ns) in [(p.a, s.taken_ns[0]), (p.b, s.taken_ns[1])] {
            let (low, high) = e.interval_ns();
            let entry = of.entry(s.sharing.index()).or_default();
            entry.0 += usize::from((low..=high).contains(&taken_ns));
            entry.1 += 1;
        }
    }
    of.into_iter().map(|(i, (within, n))| (Sharing::ALL[i].name().to_owned(), within as f64 / n as f64, n)).collect()
}

/// What a kernel does most of.
fn bottleneck(p: &Placed) -> &'static str {
    let k = p.kernel;
    match () {
        () if k.compute >= 0.6 => "compute",
        () if k.memory >= 0.4 => "memory",
        () if k.counters[1] > 4.0 => "latency",
        () => "other",
    }
}

fn groups(samples: &Samples, unseen: &[(&Sample, Prediction)]) -> Vec<(&'static str, Vec<Errors>)> {
    type Key = fn(&Samples, &Sample, usize) -> String;
    let keys: [(&'static str, Key); 3] = [
        ("family of the kernel, family of the other", |samples, s, i| {
            let families = samples.families(s);
            format!("{} | {}", families[i], families[1 - i])
        }),
        ("bottleneck of the kernel, of the other", |samples, s, i| {
            let m = samples.meeting(s);
            let both = [bottleneck(&m.a), bottleneck(&m.b)];
            format!("{} | {}", both[i], both[1 - i])
        }),
        ("measured slowdown", |_, s, i| {
            let slowdown = s.taken_ns[i] / s.kernels[i].2;
            let bounds = [1.05, 1.25, 1.5, 2.0, 4.0];
            let bin = bounds.iter().filter(|b| slowdown >= **b).count();
            let name = |i: usize| bounds.get(i).map_or("more".to_owned(), f64::to_string);
            if bin == 0 { format!("below {}", bounds[0]) } else { format!("{} to {}", bounds[bin - 1], name(bin)) }
        }),
    ];
    let table = |key: Key| {
        let mut by: BTreeMap<String, Vec<Pair>> = BTreeMap::new();
        for (s, p) in unseen {
            for (i, e) in [p.a, p.b].into_iter().enumerate() {
                let pair = Pair { measured_ns: s.taken_ns[i], predicted_ns: e.ns };
                by.entry(key(samples, s, i)).or_default().push(pair);
            }
        }
        by.iter().map(|(name, pairs)| errors(name, "mosaic", pairs)).collect()
    };
    keys.map(|(name, key)| (name, table(key))).into()
}

/// The ten durations that are furthest off by ratio.
fn worst(samples: &Samples, unseen: &[(&Sample, Prediction)]) -> Vec<String> {
    let mut all: Vec<(f64, String)> = Vec::new();
    for (s, p) in unseen {
        for (i, e) in [p.a, p.b].into_iter().enumerate() {
            let off = (e.ns / s.taken_ns[i]).ln();
            let m = samples.meeting(s);
            let (own, other) = if i == 0 { (m.a, m.b) } else { (m.b, m.a) };
            let us = |ns: f64| format!("{:.1}", ns / 1e3);
            let text = format!(
                "{:+.0} %: {} beside {} ({}, {}): {} us alone, the other {}, released {} us after the first; took {}, \
                 predicted {}; {} and {}; wave packed {:.2}x, slowdown beside {:.2}x",
                100.0 * (off.exp() - 1.0),
                own.kernel.key,
                other.kernel.key,
                s.sharing.name(),
                if i == s.later() { "later" } else { "first" },
                us(own.alone_ns),
                us(other.alone_ns),
                us(s.offset_ns),
                us(s.taken_ns[i]),
                us(e.ns),
                bottleneck(&own),
                bottleneck(&other),
                p.timeline.packed,
                e.beside,
            );
            all.push((off.abs(), text));
        }
    }
    all.sort_by(|x, y| y.0.total_cmp(&x.0).then_with(|| x.1.cmp(&y.1)));
    all.into_iter().take(10).map(|(_, text)| text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_of_the_measured_time_and_the_unsafe_side_stands_apart() {
        let pair = |measured_ns, predicted_ns| Pair { measured_ns, predicted_ns };
        let e = errors("case", "mosaic", &[pair(100.0, 110.0), pair(100.0, 50.0), pair(200.0, 200.0)]);
        assert_eq!((e.n, e.p50_pct), (3, 10.0));
        assert!((e.p95_pct - 46.0).abs() < 1e-9 && (e.p95_under_pct - 45.0).abs() < 1e-9, "{e:?}");
    }
}
