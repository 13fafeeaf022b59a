//! Rows of the learned models: one kernel beside another. Names and order are one list, which models have to match.

use super::kernel::KERNEL_FEATURES;
use super::{Kernel, Timeline};

/// A kernel's bandwidths (Table 2) follow from its bytes and its time on the SMs that it has.
const RATES: [&str; 5] = ["sms", "l2_read_gb_per_s", "l2_write_gb_per_s", "dram_read_gb_per_s", "dram_write_gb_per_s"];
const BOTH: [&str; 3] = ["both_l2_gb_per_s", "both_dram_gb_per_s", "both_log2_working_set"];
const PIPES: [&str; 6] = ["alu", "fma", "fp64", "xu", "lsu", "tensor"];
const PLACES: [&str; 9] = [
    "own_blocks_per_sm",
    "other_blocks_per_sm",
    "other_over_own_sms",
    "room_at_start",
    "overlap_of_own",
    "later",
    "preempts",
    "log_own_over_other_ns",
    "analytic_rate",
];

const KERNEL: usize = RATES.len() + KERNEL_FEATURES.len();
/// Features of §4.3's model.
pub const INTER: usize = 2 * KERNEL + BOTH.len();
/// Features of §4.4's model: those, places and pipes.
pub const INTRA: usize = INTER + PLACES.len() + 3 * PIPES.len();

/// A kernel where it runs.
#[derive(Clone, Copy, Debug)]
pub struct Placed<'a> {
    /// Which.
    pub kernel: &'a Kernel,
    /// SMs that it may use.
    pub sms: u32,
    /// Its time alone there.
    pub alone_ns: f64,
}

impl Placed<'_> {
    /// Its blocks on an SM, on average over those that have any.
    pub fn blocks_per_sm(&self) -> f64 {
        let even = f64::from(self.kernel.blocks) / f64::from(self.sms);
        even.clamp(1.0, f64::from(self.kernel.per_sm))
    }

    fn write(&self, row: &mut [f32]) {
        let (rates, rest) = row.split_at_mut(RATES.len());
        rates[0] = self.sms as f32;
        for (cell, bytes) in rates[1..].iter_mut().zip(self.kernel.bytes) {
            *cell = (bytes / self.alone_ns) as f32;
        }
        rest.copy_from_slice(&self.kernel.counters);
    }
}

/// Names of [`inter`]'s row.
pub fn inter_names() -> Vec<String> {
    let of = |who: &str| RATES.iter().chain(&KERNEL_FEATURES).map(move |n| format!("{who}_{n}")).collect::<Vec<_>>();
    [of("own"), of("other"), BOTH.map(str::to_owned).to_vec()].concat()
}

/// Names of [`intra`]'s row.
pub fn intra_names() -> Vec<String> {
    let pipes = |who: &str| PIPES.map(|n| format!("{who}_{n}")).to_vec();
    [inter_names(), PLACES.map(str::to_owned).to_vec(), pipes("own"), pipes("other"), pipes("both")].concat()
}

/// §4.3: what one asks of the memory, what the other does, and how well it bears waiting.
pub fn inter(own: &Placed, other: &Placed) -> [f32; INTER] {
    let mut row = [0.0; INTER];
    own.write(&mut row[..KERNEL]);
    other.write(&mut row[KERNEL..2 * KERNEL]);
    let rate = |i: usize| row[i] + row[KERNEL + i];
    let both = [rate(1) + rate(2), rate(3) + rate(4)];
    row[2 * KERNEL] = both[0];
    row[2 * KERNEL + 1] = both[1];
    row[2 * KERNEL + 2] = (own.kernel.working_set_bytes + other.kernel.working_set_bytes + 1.0).log2() as f32;
    row
}

/// Where [`intra`]'s kernel stands.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// It comes later.
    pub later: bool,
    /// The later one's blocks go first.
    pub preempts: bool,
    /// Rate beside the other by the other mechanisms.
    pub analytic_rate: f64,
}

/// §4.4: the same, and who shares an SM with whom by the timeline without slowdowns.
pub fn intra(inter: &[f32; INTER], own: &Placed, other: &Placed, place: Place, t: &Timeline) -> [f32; INTRA] {
    let mut row = [0.0; INTRA];
    row[..INTER].copy_from_slice(inter);
    let places = [
        own.blocks_per_sm(),
        other.blocks_per_sm(),
        f64::from(other.sms) / f64::from(own.sms),
        t.room_at_start.min(1.0),
        (t.overlap_ns() / own.alone_ns).min(4.0),
        f64::from(u8::from(place.later)),
        f64::from(u8::from(place.preempts)),
        (own.alone_ns / other.alone_ns).ln(),
        place.analytic_rate,
    ];
    let (x, y) = (own.kernel.pipes, other.kernel.pipes);
    let pipes = x.iter().copied().chain(y).chain(x.iter().zip(y).map(|(x, y)| x + y));
    for (cell, value) in row[INTER..].iter_mut().zip(places.into_iter().chain(pipes)) {
        *cell = value as f32;
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_has_a_name_of_its_own() {
        for (names, count) in [(inter_names(), INTER), (intra_names(), INTRA)] {
            let distinct: std::collections::HashSet<_> = names.iter().collect();
            assert_eq!((names.len(), distinct.len()), (count, count));
        }
    }
}
