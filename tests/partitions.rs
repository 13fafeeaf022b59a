//! Partitions of the SMs, on the double of libcuda.
#![cfg(feature = "cuda")]

mod common;

use common::hooked::*;
use mosaic::hook::capi::profiling;
use mosaic::hook::job::{self, Role};
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

/// Fault: at the C ABI a stream is on the other part or of another priority, a closed partition is used, or what closes
/// leaves a role with a handle that the driver gives to another stream.
#[test]
fn partitions_and_streams_by_the_c_abi() {
    alone(&[], || {
        let fake = hooked();
        let parsed =
            |text: Result<String, String>| -> serde_json::Value { serde_json::from_str(&text.unwrap()).unwrap() };
        let found = parsed(owned_text(profiling::mosaic_device_json(0)));
        assert_eq!((&found["sms"], &found["granularity_sms"]), (&132.into(), &8.into()));
        assert_eq!((&found["priority_lowest"], &found["priority_highest"]), (&0.into(), &(-5).into()));
        assert_eq!(found["compute_capability"], "9.0");
        assert_eq!(fake.call_count("cuLaunchKernel"), 0, "asking launches nothing");

        let split = parsed(owned_text(profiling::mosaic_partition(0, 30)));
        assert_eq!((&split["sms"], &split["rest_sms"]), (&32.into(), &100.into()));
        let number = split["partition"].as_i64().unwrap();
        let streams = [0, 1].map(|rest| profiling::mosaic_partition_stream(number, rest, -3) as usize);
        let whole = profiling::mosaic_stream_create(0, -2) as usize;
        let runs = [streams[0], streams[1], whole].map(|stream| {
            fake.clear_calls();
            assert_eq!(launch(fake, kernel(fake, "k_100us"), stream), 0);
            fake.advance_ns(10_000_000);
            only_run(fake, "k_100us")
        });
        assert_eq!(runs.clone().map(|run| run.end_ns - run.start_ns), [412_500, 132_000, 100_000]);
        assert_eq!(runs.map(|run| run.priority), [-3, -3, -2]);

        let observed = job("observed", Role::Observed);
        assert!(job::set_stream_role(streams[0], Some(observed)).unwrap().is_some());
        let destroyed = fake.call_count("cuStreamDestroy_v2");
        assert_eq!(profiling::mosaic_partition_close(number), 0);
        assert!(job::of_stream(streams[0] as *mut std::ffi::c_void, false).is_none());
        assert_eq!(fake.call_count("cuStreamDestroy_v2"), destroyed + 2);
        assert_eq!(fake.call_count("cuGreenCtxDestroy"), 2);

        let closed = format!("no partition has number {number}: it was never made, or was closed");
        assert_eq!((profiling::mosaic_partition_close(number), last_error()), (-1, closed.clone()));
        assert_eq!((profiling::mosaic_partition_stream(number, 0, 0), last_error()), (-1, closed));
        for (device, sms, says) in [
            (0, -1, "sms: found -1, expected at least 1"),
            (0, 132, "found a partition of 132 SMs, expected 1 to 131"),
            (1, 8, "GPU 1 does not exist"),
        ] {
            let e = owned_text(profiling::mosaic_partition(device, sms)).unwrap_err();
            assert!(e.contains(says), "{e}");
        }
        assert!(owned_text(profiling::mosaic_device_json(1)).unwrap_err().contains("GPU 1 does not exist"));
        assert_eq!(profiling::mosaic_stream_create(1, 0), -1);
        assert!(last_error().contains("GPU 1 does not exist"), "{}", last_error());
    });
}
