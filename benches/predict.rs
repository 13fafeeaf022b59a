//! A pair's prediction: `cargo bench --no-default-features --bench predict`, on any CPU, with the committed models.
//!
//! Inter-SM is one slowdown between SMs with its interval; full GPU is both durations of a pair on the same SMs with
//! their intervals, so half of it is one direction's. Kernels are prepared before. Warm is the time per pair of 16
//! different ones in turn, cold the time of one after a walk through 96 MB, clock included; a pair comes again after
//! 3,000 others. Variants alternate in one process.

use mosaic::predict::interval;
use mosaic::predict::samples::{Sample, Samples};
use mosaic::predict::{Meeting, Models, Predictor, Sharing};
use mosaic::profile::DataSet;
use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

const BLOCK: usize = 16;
const PASSES: usize = 40;
const PAIRS: usize = 3_200;
const COLD_CALLS: usize = 300;
const WALK_BYTES: usize = 96 << 20;

/// Its name, the prediction of pair i, and of how many directions that is.
type Case<'a> = (&'a str, &'a dyn Fn(usize) -> f64, f64);

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let samples = Samples::new(&DataSet::open(&root.join("profiles/h200"))?)?;
    let models = Models::open(&root.join("models/h200"), samples.spec, true)?;
    let predictor = Predictor::new(samples.spec, models);
    let of = |keep: fn(&&Sample) -> bool| -> Vec<Meeting> {
        let all: Vec<_> = samples.list.iter().filter(keep).map(|s| samples.meeting(s)).collect();
        // Neighbours in a file have nothing in common; a stride that shares no factor keeps it so.
        (0..PAIRS).map(|i| all[i * 7_919 % all.len()]).collect()
    };
    let separate = of(|s| s.sharing == Sharing::Separate);
    let full = of(|s| !matches!(s.sharing, Sharing::Separate | Sharing::Confined));
    let inter = |i: usize| {
        let m = &separate[i];
        let slowdown = predictor.inter_sm(&m.a, &m.b);
        slowdown * predictor.models.residuals[interval::class(Sharing::Separate, false, 1.0)].p95
    };
    let both = |i: usize| {
        let p = predictor.predict(&full[i]);
        p.a.interval_ns().1 + p.b.interval_ns().1
    };
    let apart = |i: usize| {
        let p = predictor.predict(&separate[i]);
        p.a.interval_ns().1 + p.b.interval_ns().1
    };
    let cases: [Case; 3] =
        [("inter_sm", &inter, 1.0), ("separate, one of both directions", &apart, 2.0), ("full_gpu", &both, 2.0)];
    println!("case,metric,p50_ns,p99_ns,n");
    let mut warm: Vec<Vec<f64>> = vec![Vec::new(); cases.len()];
    for pass in 0..PASSES {
        for first in (0..PAIRS).step_by(BLOCK) {
            for (times, (_, predict, share)) in warm.iter_mut().zip(&cases) {
                let begin = Instant::now();
                (first..first + BLOCK).for_each(|i| _ = black_box(predict(i)));
                if pass > 0 {
                    times.push(begin.elapsed().as_nanos() as f64 / BLOCK as f64 / share);
                }
            }
        }
    }
    let mut walked = vec![1_u8; WALK_BYTES];
    let mut cold: Vec<Vec<f64>> = vec![Vec::new(); cases.len()];
    for call in 0..COLD_CALLS {
        for (times, (_, predict, share)) in cold.iter_mut().zip(&cases) {
            walked.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
            let begin = Instant::now();
            black_box(predict(call * 7 % PAIRS));
            times.push(begin.elapsed().as_nanos() as f64 / share);
        }
    }
    for (metric, all) in [("warm", warm), ("cold", cold)] {
        for ((case, ..), mut times) in cases.iter().zip(all) {
            times.sort_by(f64::total_cmp);
            let at = |q: f64| times[(q * (times.len() - 1) as f64) as usize];
            println!("{case},{metric},{:.0},{:.0},{}", at(0.5), at(0.99), times.len());
        }
    }
    Ok(())
}
