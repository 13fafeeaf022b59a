//! Settings, from the environment and from `configure()`, on the double of libcuda.
#![cfg(feature = "cuda")]

mod common;

use common::hooked::*;
use mosaic::hook::capi;

/// Fault: settings of the environment are lost when something is configured before the hook is in force.
#[test]
fn what_is_configured_first_is_put_over_the_environment() {
    alone(&[("MOSAIC_MAX_WAIT_MS", "7")], || {
        let first = c(r#"{"spin_us": 3}"#);
        // SAFETY: nul-terminated.
        assert_eq!(unsafe { capi::mosaic_configure(first.as_ptr()) }, 0);
        hooked();
        let settings = &stats()["settings"];
        assert_eq!((settings["max_wait_ms"].as_f64(), settings["spin_us"].as_f64()), (Some(7.0), Some(3.0)));
    });
}

/// Fault: a typing error in a variable is not said, or not which variable it is.
#[test]
fn a_setting_of_no_use_is_named() {
    alone(&[("MOSAIC_SPIN_US", "junk")], || {
        let e = mosaic::hook::install().expect_err("it is refused").to_string();
        assert!(e.contains("MOSAIC_SPIN_US: found \"junk\", expected a value like 100"), "{e}");
    });
}

/// The same, for the mechanism.
#[test]
fn a_mechanism_of_no_name_is_refused() {
    alone(&[("MOSAIC_HOOK", "cuptii")], || {
        let e = mosaic::hook::install().expect_err("it is refused").to_string();
        assert!(e.contains("MOSAIC_HOOK: found cuptii, expected detour, cupti or sections"), "{e}");
    });
}
