//! What profiles hold, as text.

use std::{collections::BTreeMap, fmt::Write};

use mosaic::profile::{DataSet, KernelProfile, NCU_METRICS, Pair, PairMode, ProfileFile, Provenance, WorkloadProfile};

/// One file.
pub fn file(file: &ProfileFile) -> String {
    let mut out = String::new();
    provenance(&mut out, file.provenance());
    match file {
        ProfileFile::Kernels(file) => kernels(&mut out, &file.kernels),
        ProfileFile::Pairs(file) => pairs(&mut out, &file.pairs),
        ProfileFile::Workload(file) => {
            workload(&mut out, file);
            kernels(&mut out, &file.kernels);
        }
        // The first line says it all: what the others hold is each experiment's own.
        ProfileFile::Physics(_) => {}
    }
    out
}

/// A folder: each of its files, all pairs together, and how large the whole is.
pub fn data_set(set: &DataSet) -> String {
    let mut out = String::new();
    provenance(&mut out, &set.kernels.provenance);
    kernels(&mut out, &set.kernels.kernels);
    for file in &set.pairs {
        out.push('\n');
        provenance(&mut out, &file.provenance);
    }
    pairs(&mut out, set.pairs.iter().flat_map(|file| &file.pairs));
    for file in &set.workloads {
        out.push('\n');
        provenance(&mut out, &file.provenance);
        workload(&mut out, file);
    }
    out.push_str("\ndataset\n");
    let counts = serde_json::to_value(set.counts()).unwrap_or_default();
    for (name, count) in counts.as_object().into_iter().flatten() {
        let _ = writeln!(out, "  {name:<27} {count:>8}");
    }
    out
}

fn provenance(out: &mut String, p: &Provenance) {
    let Provenance { version, gpu, sms, driver, cuda, torch, command, date, source, records, .. } = p;
    let _ = writeln!(out, "{} version {version}, {records} records", p.format.name());
    let _ = writeln!(out, "{gpu}, {sms} SMs, driver {driver}, CUDA {cuda}, torch {torch}");
    for (what, clock) in [("SM", p.sm_clock_mhz), ("memory", p.memory_clock_mhz)] {
        if let Some([low, high]) = clock {
            let _ = writeln!(out, "{what} clock {low} to {high} MHz");
        }
    }
    let source = source.as_deref().unwrap_or("unknown");
    let _ = writeln!(out, "{date}, source {source}: {command}");
}

fn kernels(out: &mut String, list: &[KernelProfile]) {
    let mut families: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    let mut missing: BTreeMap<&str, usize> = BTreeMap::new();
    for kernel in list {
        for family in &kernel.families {
            families.entry(family).or_default()[usize::from(kernel.unseen)] += 1;
        }
        for name in kernel.metrics.missing() {
            *missing.entry(name).or_default() += 1;
        }
    }
    let unseen = list.iter().filter(|k| k.unseen).count();
    let _ = writeln!(out, "kernels {}: {} seen, {unseen} unseen", list.len(), list.len() - unseen);
    for (family, [seen, unseen]) in families {
        let _ = writeln!(out, "  {family:<28} {seen:>6} seen {unseen:>6} unseen");
    }
    let whole = list.iter().filter(|k| k.metrics.missing().is_empty()).count();
    let _ = writeln!(out, "all {} metrics: {whole} kernels", NCU_METRICS.len());
    for (name, count) in missing {
        let _ = writeln!(out, "  missing in {count:>6}: {name}");
    }
}

fn pairs<'a>(out: &mut String, list: impl IntoIterator<Item = &'a Pair>) {
    let mut splits: BTreeMap<(PairMode, u32, u32), Vec<&Pair>> = BTreeMap::new();
    for pair in list {
        splits.entry((pair.mode, pair.a_sms, pair.b_sms)).or_default().push(pair);
    }
    let noisy = |pairs: &[&Pair]| pairs.iter().filter(|p| p.noisy).count();
    let (all, all_noisy) = splits.values().fold((0, 0), |(n, m), pairs| (n + pairs.len(), m + noisy(pairs)));
    let _ = writeln!(out, "pairs {all}: {all_noisy} noisy");
    let _ = writeln!(
        out,
        "  {:<17}{:>6}{:>6}{:>9}{:>7}{:>24}{:>24}",
        "mode", "A SMs", "B SMs", "pairs", "noisy", "A slower p10 p50 p90", "B slower p10 p50 p90"
    );
    for ((mode, a_sms, b_sms), pairs) in splits {
        let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().map(|p| p.slowdowns()).unzip();
        let (mode, count, noisy, a, b) = (mode.name(), pairs.len(), noisy(&pairs), quantiles(a), quantiles(b));
        let _ = writeln!(out, "  {mode:<17}{a_sms:>6}{b_sms:>6}{count:>9}{noisy:>7}{a}{b}");
    }
}

/// The 10th, 50th and 90th percentile of at least one ratio.
fn quantiles(mut ratios: Vec<f64>) -> String {
    ratios.sort_by(f64::total_cmp);
    let at = |percent: usize| ratios.get((ratios.len() - 1) * percent / 100).copied().unwrap_or_default();
    [10, 50, 90].map(|percent| format!("{:>8.2}", at(percent))).concat()
}

fn workload(out: &mut String, file: &WorkloadProfile) {
    let (launches, kernels) = (file.launches.len(), file.kernels.len());
    let _ = writeln!(out, "workload {}: {launches} launches of {kernels} unique kernels", file.name());
    let mut sums: BTreeMap<u32, (f64, usize)> = BTreeMap::new();
    for time in file.launches.iter().flat_map(|launch| &launch.durations) {
        let (sum_ns, count) = sums.entry(time.sms).or_default();
        *sum_ns += time.median_ns;
        *count += 1;
    }
    for (sms, (sum_ns, count)) in sums.into_iter().rev() {
        let _ = writeln!(out, "  on {sms:>4} SMs {:>12.3} ms in {count} launches", sum_ns / 1e6);
    }
}
