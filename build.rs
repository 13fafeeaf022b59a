//! Builds the PyTorch extension's C++ half when the feature `torch` is on, and names the library when it is off.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "torch")]
    extension::build();
    // Without torch, the library is what engines outside Python link with; they find it at run time by this name.
    #[cfg(not(feature = "torch"))]
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo::rustc-link-arg-cdylib=-Wl,-soname,libmosaic_engine.so");
    }
}

#[cfg(feature = "torch")]
mod extension {
    use std::{env, path::PathBuf};

    pub fn build() {
        for path in ["cpp", "rust/bridge.rs"] {
            println!("cargo::rerun-if-changed={path}");
        }
        println!("cargo::rerun-if-env-changed=MOSAIC_WERROR");
        // Only generates; CMake compiles what it wrote under OUT_DIR/cxxbridge.
        let _generated = cxx_build::bridge("rust/bridge.rs");
        let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
        let bridge = out.join("cxxbridge");
        let werror = env::var("MOSAIC_WERROR").is_ok_and(|value| value == "1");
        cmake::Config::new("cpp")
            .define("MOSAIC_BRIDGE_INCLUDE", bridge.join("include"))
            .define("MOSAIC_BRIDGE_SOURCE", bridge.join("sources/mosaic-torch/rust/bridge.rs.cc"))
            .define("MOSAIC_WERROR", if werror { "ON" } else { "OFF" })
            .profile("Release")
            .build();

        // Arguments of the cdylib alone, not rustc-link-lib: the command `mosaic` and the tests must not need torch.
        let arg = |arg: &str| println!("cargo::rustc-link-arg-cdylib={arg}");
        // Nothing calls the ops' static registrations, so without --whole-archive they would silently be left out.
        arg("-Wl,--whole-archive");
        arg(&out.join("lib/libmosaic_cpp.a").display().to_string());
        arg("-Wl,--no-whole-archive");
        // cxx's C++ half stands before these arguments on the command line, where a linker that reads left to right
        // (GNU ld) would pass it over; naming one of its symbols makes it take the object.
        arg("-Wl,-u,cxxbridge1$cxx_string$init");
        arg("-Wl,--push-state,--no-as-needed");
        arg(&out.join("stub/libtorch.so").display().to_string());
        arg("-Wl,--pop-state");
        arg("-lstdc++");
    }
}
