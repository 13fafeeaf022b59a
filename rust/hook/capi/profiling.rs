//! The section "profiling" of the C ABI: observed launches, kept launches, streams and partitions of choice.

use super::{argument, guarded_in_parent, owned, text};
use crate::hook::{device, doctor, kept, observe};
use crate::profile::{NCU_METRICS, ProfileFile, ncu};
use crate::streams::{self, numbered};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

/// Starts to observe a job's launches.
///
/// # Safety
/// `options_json` is nul-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mosaic_observe_start(job: i64, options_json: *const c_char) -> c_int {
    guarded_in_parent(-1, || {
        // SAFETY: the caller's promise.
        let options = unsafe { argument("options", options_json) }?;
        observe::start(job, options).map(|()| 0).map_err(text)
    })
}

/// Ends the observation: JSON lines, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_observe_stop() -> *mut c_char {
    guarded_in_parent(null_mut(), || observe::stop().map(owned).map_err(text))
}

/// Makes a kept launch's fills again.
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_kept_fill(number: i64, stream: *mut c_void) -> c_int {
    guarded_in_parent(-1, || kept::fill(number, stream as usize).map(|()| 0).map_err(text))
}

/// Launches a kept launch again.
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_kept_launch(number: i64, stream: *mut c_void) -> c_int {
    guarded_in_parent(-1, || kept::launch(number, stream as usize).map(|()| 0).map_err(text))
}

/// Drops the kept launches.
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_kept_clear() -> c_int {
    guarded_in_parent(-1, || {
        kept::clear();
        Ok(0)
    })
}

/// What one GPU has, as JSON, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_device_json(device: c_int) -> *mut c_char {
    guarded_in_parent(null_mut(), || doctor::device(device).map(|found| owned(found.to_string())))
}

/// A new stream of the device's primary context.
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_stream_create(device: c_int, priority: c_int) -> i64 {
    guarded_in_parent(-1, || {
        let device = device::get(device).map_err(text)?;
        streams::create(device, priority).map(|stream| stream as i64).map_err(text)
    })
}

/// Splits a GPU's SMs: numbers as JSON, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_partition(device: c_int, sms: c_int) -> *mut c_char {
    guarded_in_parent(null_mut(), || {
        let device = device::get(device).map_err(text)?;
        let sms = u32::try_from(sms).map_err(|_| format!("sms: found {sms}, expected at least 1"))?;
        let split = numbered::open(device, sms).map_err(text)?;
        serde_json::to_string(&split).map(owned).map_err(text)
    })
}

/// A new stream on a partition, or on the rest.
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_partition_stream(partition: i64, rest: c_int, priority: c_int) -> i64 {
    guarded_in_parent(-1, || numbered::stream(partition, rest != 0, priority).map(|s| s as i64).map_err(text))
}

/// Destroys a partition, the rest, and their streams.
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_partition_close(partition: i64) -> c_int {
    guarded_in_parent(-1, || numbered::close(partition).map(|()| 0).map_err(text))
}

/// The counters that Nsight Compute is to be asked for: a JSON list, to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn mosaic_ncu_metrics() -> *mut c_char {
    guarded_in_parent(null_mut(), || serde_json::to_string(NCU_METRICS).map(owned).map_err(text))
}

/// Nsight Compute's table in a file, as JSON lines to be freed.
///
/// # Safety
/// `path` is nul-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mosaic_ncu_json(path: *const c_char) -> *mut c_char {
    guarded_in_parent(null_mut(), || {
        // SAFETY: the caller's promise.
        let path = unsafe { argument("path", path) }?;
        let table = std::fs::read_to_string(path).map_err(|e| format!("{path} cannot be read: {e}"))?;
        let launches = ncu::read(&table).map_err(|e| format!("{path}: {e}"))?;
        let lines: Result<Vec<String>, _> = launches.iter().map(serde_json::to_string).collect();
        lines.map(|lines| owned(lines.join("\n"))).map_err(text)
    })
}

/// Checks a file of any of the formats of profiles/README.md: what it holds, as a JSON object to be freed.
///
/// # Safety
/// `path` is nul-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mosaic_profile_check(path: *const c_char) -> *mut c_char {
    guarded_in_parent(null_mut(), || {
        // SAFETY: the caller's promise.
        let path = unsafe { argument("path", path) }?;
        let file = ProfileFile::read(path.as_ref()).map_err(text)?;
        serde_json::to_string(&file.summary()).map(owned).map_err(text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hook::capi::{mosaic_free, mosaic_last_error};
    use crate::profile::testing;
    use std::ffi::{CStr, CString};

    /// Fault: a damaged profile passes, or is refused without the file, the line and the reason.
    #[test]
    fn a_profile_is_summed_up_or_refused_by_line() {
        let path = std::env::temp_dir().join(format!("mosaic-check-{}.jsonl", std::process::id()));
        let c_path = CString::new(path.to_str().unwrap()).unwrap();
        let check = |content: &str| {
            std::fs::write(&path, content).unwrap();
            // SAFETY: nul-terminated.
            let found = unsafe { mosaic_profile_check(c_path.as_ptr()) };
            if found.is_null() {
                // SAFETY: nul-terminated, and this thread calls nothing before it is copied.
                return Err(unsafe { CStr::from_ptr(mosaic_last_error()) }.to_str().unwrap().to_owned());
            }
            // SAFETY: nul-terminated and ours until it is freed.
            let json = unsafe { CStr::from_ptr(found) }.to_str().unwrap().to_owned();
            // SAFETY: returned by the call above, and freed once.
            unsafe { mosaic_free(found) };
            Ok(serde_json::from_str::<serde_json::Value>(&json).unwrap())
        };
        let summaries =
            [testing::kernels(), testing::pairs(), testing::workload(), testing::physics()].map(|t| check(&t));
        let refused = check(&testing::pairs().replacen("\"noisy\":false", "\"noisy\":true", 1)).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        let found =
            summaries.map(|s| s.map(|s| (s["format"].as_str().unwrap().to_owned(), s["records"].as_u64().unwrap())));
        let expected = [("mosaic-kernels", 3), ("mosaic-pairs", 5), ("mosaic-workload", 5), ("mosaic-physics", 2)];
        assert_eq!(found, expected.map(|(format, records)| Ok((format.to_owned(), records))));
        let says = format!("{}: line 2: noisy is true, expected false by the four durations", path.display());
        assert_eq!(refused, says);
        // SAFETY: null is an argument to be refused.
        assert!(unsafe { mosaic_profile_check(std::ptr::null()) }.is_null());
    }
}
