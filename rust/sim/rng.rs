//! Seeded random numbers that are the same on every machine and in every version.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator of its own for each seed.
    pub const fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// 64 uniform bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in (0, 1].
    pub fn unit(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Exponentially distributed.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -self.unit().ln() * mean
    }
}

/// Arrival instants of a Poisson process, from 0 on.
pub fn poisson_arrivals_ns(requests: usize, mean_gap_ns: f64, seed: u64) -> Vec<u64> {
    let mut rng = Rng::new(seed);
    let mut at_ns = 0.0;
    let arrivals = (0..requests).map(|_| {
        at_ns += rng.exponential(mean_gap_ns);
        at_ns as u64
    });
    arrivals.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_exponential_and_seeded() {
        // Guards against a wrong rate (every ratio of a replay would be off) and against a constant gap.
        let a = poisson_arrivals_ns(200_000, 1000.0, 1);
        let gaps: Vec<f64> = a.windows(2).map(|w| (w[1] - w[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let deviation = (gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!((mean / 1000.0 - 1.0).abs() < 0.01, "mean {mean}");
        assert!((deviation / 1000.0 - 1.0).abs() < 0.02, "deviation {deviation}");
        assert_eq!(a, poisson_arrivals_ns(200_000, 1000.0, 1));
        assert_ne!(a, poisson_arrivals_ns(200_000, 1000.0, 2));
    }
}
