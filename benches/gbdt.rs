//! A prediction's time: `cargo bench --no-default-features --bench gbdt`, on any CPU.
//!
//! `-- --tl2cgen FOLDER` puts the same model compiled to C beside it; benches/gbdt_tl2cgen.py makes the folder. Both
//! alternate in one process, and no row comes again before 4,000 others: a branch predictor learns a row that does.
//! Warm is the time per row of 16 rows in turn, cold the time of one call after a walk through 96 MB, clock included.
//! `-- --model MODEL.json --rows ROWS.f32 --out OUT.f32` evaluates rows instead (little-endian, one after the other).

use mosaic::gbdt::Model;
use mosaic::sim::Rng;
use std::collections::HashMap;
use std::error::Error;
use std::ffi::c_int;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

const ROWS: usize = 4_000;
const BLOCK: usize = 16;
const PASSES: usize = 40;
const COLD_CALLS: usize = 200;
const WALK_BYTES: usize = 96 << 20;
const MISSING: [f64; 2] = [0.0, 0.1];

fn main() -> Result<(), Box<dyn Error>> {
    let mut options = HashMap::new();
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        options.insert(name, value);
    }
    let option = |name| options.get(name).map(String::as_str);
    match (option("--model"), option("--rows"), option("--out"), option("--tl2cgen")) {
        (Some(model), Some(rows), Some(out), None) => evaluate(model, rows, out),
        (None, None, None, Some(folder)) => {
            let folder = Path::new(folder);
            // SAFETY: made of C without initialisers.
            let library = unsafe { libloading::Library::new(folder.join("model.so")) }?;
            // SAFETY: its header.h has this signature.
            let compiled = *unsafe { library.get::<Compiled>(b"predict") }?;
            let model = load(folder.join("model.json"))?;
            let rows = read_rows(folder.join("rows.f32"), &model)?;
            time(&model, rows, Some(compiled));
            Ok(())
        }
        (None, None, None, None) => {
            let model = load(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gbdt/model.json"))?;
            let mut rng = Rng::new(1);
            let mut row = || (0..model.features()).map(|_| (4.0 * rng.unit() - 2.0) as f32).collect();
            let rows = (0..ROWS).map(|_| row()).collect();
            time(&model, rows, None);
            Ok(())
        }
        _ => Err("expected --model, --rows and --out, or --tl2cgen, or none of them".into()),
    }
}

/// With whatever features it has.
fn load(path: impl AsRef<Path>) -> Result<Model, Box<dyn Error>> {
    let json = std::fs::read(path)?;
    let file: serde_json::Value = serde_json::from_slice(&json)?;
    let names = file["learner"]["feature_names"].as_array().ok_or("no feature_names")?;
    let names: Option<Vec<&str>> = names.iter().map(|name| name.as_str()).collect();
    Ok(Model::parse(&json, &names.ok_or("feature_names are not text")?)?)
}

fn read_rows(path: impl AsRef<Path>, model: &Model) -> Result<Vec<Vec<f32>>, Box<dyn Error>> {
    let bytes = std::fs::read(path)?;
    let (numbers, rest) = bytes.as_chunks();
    if !rest.is_empty() || numbers.len() % model.features() != 0 {
        return Err(format!("found {} bytes, expected rows of {} floats", bytes.len(), model.features()).into());
    }
    let numbers: Vec<f32> = numbers.iter().map(|x| f32::from_le_bytes(*x)).collect();
    Ok(numbers.chunks(model.features()).map(<[f32]>::to_vec).collect())
}

fn evaluate(model: &str, rows: &str, out: &str) -> Result<(), Box<dyn Error>> {
    let model = load(model)?;
    let bytes: Vec<u8> = read_rows(rows, &model)?.iter().flat_map(|row| model.predict(row).to_le_bytes()).collect();
    Ok(std::fs::write(out, bytes)?)
}

/// What tl2cgen compiles: the row, no post-processing, the sum to add to.
type Compiled = unsafe extern "C" fn(*mut Entry, c_int, *mut f32);

#[derive(Clone, Copy)]
#[repr(C)]
union Entry {
    missing: c_int,
    value: f32,
}

fn time(model: &Model, mut rows: Vec<Vec<f32>>, compiled: Option<Compiled>) {
    let case = format!("{} trees x {}", model.trees(), model.depth());
    let mut rng = Rng::new(2);
    println!("case,variant,metric,p50_ns,p99_ns,n");
    for missing in MISSING {
        rows.iter_mut().flatten().filter(|_| rng.unit() < missing).for_each(|x| *x = f32::NAN);
        let entry = |x: &f32| if x.is_nan() { Entry { missing: -1 } } else { Entry { value: *x } };
        let entries: Vec<Vec<Entry>> = rows.iter().map(|row| row.iter().map(entry).collect()).collect();
        let ours = |row: usize| model.predict(&rows[row]);
        let theirs = compiled.map(|predict| {
            let entries = &entries;
            move |row: usize| {
                let (entries, mut sum) = (entries[row].as_ptr().cast_mut(), 0.0);
                // SAFETY: an entry for each feature of the model that this was made of, which it only reads.
                unsafe { predict(entries, 1, &mut sum) };
                sum
            }
        });
        let mut variants: Vec<(&str, &dyn Fn(usize) -> f32)> = vec![("mosaic", &ours)];
        if let Some(theirs) = &theirs {
            // It adds in another order: not to the bit.
            let same = (0..rows.len()).all(|row| (ours(row) - theirs(row)).abs() <= 1e-4 * ours(row).abs().max(1.0));
            assert!(same, "tl2cgen predicts something else");
            variants.push(("tl2cgen", theirs));
        }
        let metric = |name: &str| if missing > 0.0 { format!("{name}, {missing} missing") } else { name.to_owned() };
        report(&case, &metric("warm"), &variants, warm(rows.len(), &variants));
        report(&case, &metric("cold"), &variants, cold(rows.len(), &variants));
    }
    let clock = (0..ROWS).map(|_| ns(|| ())).collect();
    report("none", "cold", &[("clock", &|_| 0.0)], vec![clock]);
}

fn warm(rows: usize, variants: &[(&str, &dyn Fn(usize) -> f32)]) -> Vec<Vec<f64>> {
    let mut times = vec![Vec::new(); variants.len()];
    for pass in 0..PASSES {
        for block in 0..rows / BLOCK {
            for turn in 0..variants.len() {
                let variant = (turn + pass + block) % variants.len();
                let predict = variants[variant].1;
                let all = || {
                    (block * BLOCK..(block + 1) * BLOCK).for_each(|row| {
                        black_box(predict(row));
                    });
                };
                times[variant].push(ns(all) / BLOCK as f64);
            }
        }
    }
    times
}

fn cold(rows: usize, variants: &[(&str, &dyn Fn(usize) -> f32)]) -> Vec<Vec<f64>> {
    let mut memory = vec![1_u8; WALK_BYTES];
    let mut times = vec![Vec::new(); variants.len()];
    for call in 0..COLD_CALLS {
        for turn in 0..variants.len() {
            let variant = (turn + call) % variants.len();
            memory.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
            black_box(&mut memory);
            let one = || {
                black_box(variants[variant].1(call % rows));
            };
            times[variant].push(ns(one));
        }
    }
    times
}

fn ns(work: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    work();
    begin.elapsed().as_nanos() as f64
}

fn report(case: &str, metric: &str, variants: &[(&str, &dyn Fn(usize) -> f32)], times: Vec<Vec<f64>>) {
    for ((variant, _), mut times) in variants.iter().zip(times) {
        times.sort_by(f64::total_cmp);
        let quantile = |q: usize| times[(times.len() - 1) * q / 100];
        println!("{case},{variant},\"{metric}\",{:.0},{:.0},{}", quantile(50), quantile(99), times.len());
    }
}
