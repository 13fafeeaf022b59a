//! Partitions of the SMs, on the double of libcuda.
#![cfg(feature = "cuda")]

mod common;

use common::hooked::*;
use mosaic::hook::job::Role;
use mosaic::streams::{self, PartitionError};

/// Fault: partitions that share SMs, are smaller than asked for, or whose streams run elsewhere.
#[test]
fn two_partitions_of_one_split_run_side_by_side() {
    alone(&[], || {
        let fake = hooked();
        let device = job("observed", Role::Observed).device;
        for (asked, got) in [(8, 8), (30, 32), (64, 64), (124, 128)] {
            let (part, rest) = streams::split(device, asked).unwrap();
            assert_eq!((part.sms(), rest.sms()), (got, 132 - got));
            let names = [format!("part{asked}_100us"), format!("rest{asked}_100us")];
            for (partition, name) in [&part, &rest].into_iter().zip(&names) {
                let stream = partition.stream(-5).unwrap();
                assert_eq!(launch(fake, kernel(fake, name), stream), 0);
            }
            fake.advance_ns(100_000_000);
            let runs = names.map(|name| only_run(fake, &name));
            assert!(runs[0].start_ns < runs[1].end_ns && runs[1].start_ns < runs[0].end_ns, "one after the other");
            let whole_ns = 100_000 * 132;
            assert_eq!(runs[0].end_ns - runs[0].start_ns, whole_ns / u64::from(got), "on {got} SMs");
        }
    });
}

/// Fault: a size that leaves nothing for one of the two is an error of the driver's that says nothing, or a crash.
#[test]
fn sizes_that_leave_nothing_are_refused() {
    alone(&[], || {
        hooked();
        let device = job("observed", Role::Observed).device;
        for asked in [0, 132, 133, u32::MAX, 130] {
            let e = streams::split(device, asked).unwrap_err();
            assert!(matches!(e, PartitionError::Size { found, sms: 132 } if found == asked), "{asked}: {e}");
            assert!(e.to_string().contains(&format!("found a partition of {asked} SMs, expected 1 to 131")), "{e}");
        }
    });
}
