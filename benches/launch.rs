//! What the hook adds to one launch: `cargo bench --bench launch`, on a GPU.
//!
//! The driver's exported entry point (detoured) against its trampoline (the original), alternating in one process:
//! two processes differ by more than what is measured. A launch of a 0-block grid is refused by the driver after its
//! first checks, so that the launch itself (4 us, and as noisy) is left out of the difference.
//! CSV rows as in benches/record: topic,case,variant,metric,value,unit,n.

use mosaic::hook::driver::{self, Handle};
use mosaic::hook::job::{self, Role};
use std::time::Instant;

const ROUNDS: usize = 41;
const LAUNCHES: usize = 20_000;
const PROBE_PTX: &std::ffi::CStr =
    c".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry probe()\n{\n ret;\n}\n";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Err(e) = mosaic::hook::install() {
        println!("skipped: {e}");
        return Ok(());
    }
    // HP's cases come first and give its isolated time: without one, best-effort kernels go one at a time, and their
    // launches would wait for the GPU.
    mosaic::hook::configure(r#"{"calibration_requests": 5}"#)?;
    let hp = match job::register("hp", Role::Hp, 0, 1.1, 0) {
        Ok(job) => job,
        Err(e) => {
            println!("skipped: {e}");
            return Ok(());
        }
    };
    let be = job::register("be", Role::Be, 0, 1.0, 0)?;
    let hooked = driver::exported_launch()?;
    let plain = mosaic::streams::create(hp.device, 0)?;
    hp.device.with_context(|| {
        let (mut module, mut f): (Handle, Handle) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: nul-terminated PTX, handles written; the context is current.
        unsafe {
            driver::check("cuModuleLoadData", driver::cuModuleLoadData(&mut module, PROBE_PTX.as_ptr().cast()))?;
            driver::check("cuModuleGetFunction", driver::cuModuleGetFunction(&mut f, module, c"probe".as_ptr()))?;
        }
        for (case, stream, request) in [
            ("unregistered", plain, false),
            ("hp", hp.stream_of_thread()?.handle, true),
            ("be-idle", be.stream_of_thread()?.handle, false),
        ] {
            for (variant, blocks) in [("refused", 0), ("launched", 1)] {
                compare(case, variant, blocks, f, stream, request.then_some(hp.id), hooked);
            }
        }
        Ok(())
    })?
}

/// Medians over rounds of nanoseconds per launch, original and hooked, and of their difference within a round.
fn compare(
    case: &str,
    variant: &str,
    blocks: u32,
    f: Handle,
    stream: usize,
    hp: Option<i64>,
    hooked: driver::LaunchKernel,
) {
    let (null, stream) = (std::ptr::null_mut(), stream as Handle);
    let run = |launch: &dyn Fn() -> driver::CuResult| {
        let request = hp.and_then(|job| mosaic::hook::request::begin_on(job, 0, stream as usize).ok());
        let begin = Instant::now();
        (0..LAUNCHES).for_each(|_| {
            std::hint::black_box(launch());
        });
        let ns = begin.elapsed().as_nanos() as f64 / LAUNCHES as f64;
        if let Some(request) = request {
            mosaic::hook::request::close(request).expect("the request is open");
        }
        // SAFETY: a stream of ours.
        unsafe { driver::cuStreamSynchronize(stream) };
        ns
    };
    // SAFETY: a kernel without parameters, on a stream of ours.
    let original = || unsafe { driver::cuLaunchKernel(f, blocks, 1, 1, 1, 1, 1, 0, stream, null, null) };
    // SAFETY: as above.
    let detoured = || unsafe { hooked(f, blocks, 1, 1, 1, 1, 1, 0, stream, null, null) };
    let mut times: [Vec<f64>; 3] = Default::default();
    for round in 0..ROUNDS {
        let mut pair = [0.0; 2];
        for side in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            pair[side] = if side == 0 { run(&original) } else { run(&detoured) };
        }
        for (all, value) in times.iter_mut().zip([pair[0], pair[1], pair[1] - pair[0]]) {
            all.push(value);
        }
    }
    for (metric, mut values) in ["ns_per_launch_original", "ns_per_launch", "added_ns_per_launch"].iter().zip(times) {
        values.sort_by(f64::total_cmp);
        println!("overhead,launch {case},{variant},{metric},{:.1},ns,{}", values[ROUNDS / 2], ROUNDS * LAUNCHES);
    }
}
