//! A histogram of times that many threads fill without a lock; quantiles within 6 %.

use std::sync::atomic::{AtomicU64, Ordering};

/// Sub-buckets of a power of two: their width bounds the error of a quantile.
const SUB: usize = 16;
const BUCKETS: usize = 64 * SUB;

/// Times in nanoseconds, in buckets of 1/16 of a power of two.
pub struct Histogram {
    counts: [AtomicU64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: [const { AtomicU64::new(0) }; BUCKETS] }
    }
}

fn bucket(ns: u64) -> usize {
    if ns < SUB as u64 {
        return ns as usize;
    }
    let log = 63 - ns.leading_zeros() as usize;
    let sub = (ns >> (log - 4)) as usize & (SUB - 1);
    (log - 3) * SUB + sub
}

/// Upper edge of a bucket, so that a quantile is never understated.
fn upper_ns(bucket: usize) -> u64 {
    if bucket < SUB {
        return bucket as u64;
    }
    let (log, sub) = (bucket / SUB + 3, (bucket % SUB) as u64);
    // The last bucket ends beyond the largest number.
    ((SUB as u128 + u128::from(sub) + 1) << (log - 4)).min(1 << 64).wrapping_sub(1) as u64
}

impl Histogram {
    /// Counts one time.
    #[inline]
    pub fn add(&self, ns: u64) {
        self.counts[bucket(ns)].fetch_add(1, Ordering::Relaxed);
    }

    /// How many times were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|c| c.load(Ordering::Relaxed)).sum()
    }

    /// The smallest edge that at least the fraction `q` of the times do not exceed; `None` while empty.
    pub fn quantile_ns(&self, q: f64) -> Option<u64> {
        let total = self.count();
        let want = ((q * total as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (i, c) in self.counts.iter().enumerate() {
            seen += c.load(Ordering::Relaxed);
            if seen >= want {
                return Some(upper_ns(i));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_sixteenth_and_never_understated() {
        let h = Histogram::default();
        assert_eq!(h.quantile_ns(0.5), None);
        for ns in 1..=100_000u64 {
            h.add(ns * 37);
        }
        for (q, exact) in [(0.5, 50_000 * 37), (0.99, 99_000 * 37), (1.0, 100_000 * 37)] {
            let got = h.quantile_ns(q).unwrap();
            assert!(got >= exact && got <= exact + exact / 15, "q={q}: {got} for {exact}");
        }
    }

    #[test]
    fn every_time_has_a_bucket_whose_edge_covers_it() {
        for ns in (0..64).map(|s| 1u64 << s).chain([0, u64::MAX, 12_345]) {
            assert!(bucket(ns) < BUCKETS && upper_ns(bucket(ns)) >= ns, "{ns}");
        }
    }
}
