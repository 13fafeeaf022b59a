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
    let mut modes: BTreeMap<PairMode, BTreeMap<(u32, u32), Vec<&Pair>>> = BTreeMap::new();
    for pair in list {
        modes.entry(pair.mode).or_default().entry((pair.a_sms, pair.b_sms)).or_default().push(pair);
    }
    for (mode, splits) in modes {
        slowdowns(out, mode.name(), &splits.values().flatten().copied().collect::<Vec<_>>());
        for ((a_sms, b_sms), pairs) in splits {
            slowdowns(out, &format!("  A {a_sms}, B {b_sms} SMs"), &pairs);
        }
    }
}

fn slowdowns(out: &mut String, label: &str, pairs: &[&Pair]) {
    let noisy = pairs.iter().filter(|p| p.noisy).count();
    let _ = writeln!(out, "{label:<22} {:>8} pairs, {noisy} noisy", pairs.len());
    let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().map(|p| p.slowdowns()).unzip();
    for (name, mut ratios) in [("A", a), ("B", b)] {
        ratios.sort_by(f64::total_cmp);
        let at = |percent: usize| ratios.get((ratios.len() - 1) * percent / 100).copied().unwrap_or_default();
        let (p10, p50, p90, most) = (at(10), at(50), at(90), at(100));
        let _ = writeln!(out, "    slowdown of {name}: p10 {p10:.3}, p50 {p50:.3}, p90 {p90:.3}, most {most:.3}");
    }
}

fn workload(out: &mut String, file: &WorkloadProfile) {
    let launches = file.launches.len();
    let _ = writeln!(out, "{}: {launches} launches of {} kernels", file.name(), file.kernels.len());
    let mut sums: BTreeMap<u32, (usize, f64)> = BTreeMap::new();
    for time in file.launches.iter().flat_map(|launch| &launch.durations) {
        let (count, ns) = sums.entry(time.sms).or_default();
        (*count, *ns) = (*count + 1, *ns + time.median_ns);
    }
    for (sms, (count, ns)) in sums.into_iter().rev() {
        let whole = if sms == file.provenance.sms { " (whole GPU)" } else { "" };
        let _ = writeln!(out, "  {:>10.3} ms on {sms} SMs{whole}, {count} of {launches} launches", ns / 1e6);
    }
}
