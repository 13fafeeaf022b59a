//! What the machine says without CUDA.

use std::{env, path::Path};

use serde::Serialize;

/// The machine.
#[derive(Debug, Serialize)]
pub struct Host {
    pub architecture: &'static str,
    pub kernel: Option<String>,
    /// Version of NVIDIA's kernel module.
    pub driver: Option<String>,
    /// Names of the GPUs that the kernel module lists.
    pub gpus: Vec<String>,
    /// MPS's control daemon listens in its pipe folder.
    pub mps: bool,
}

/// Looks at /proc and /dev.
pub fn host() -> Host {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let mps_dir = env::var("CUDA_MPS_PIPE_DIRECTORY").unwrap_or_else(|_| "/tmp/nvidia-mps".into());
    Host {
        architecture: env::consts::ARCH,
        kernel: read("/proc/sys/kernel/osrelease").map(|s| s.trim().to_owned()),
        driver: read("/proc/driver/nvidia/version").and_then(|text| driver_version(&text)),
        gpus: gpus(Path::new("/proc/driver/nvidia/gpus")),
        mps: Path::new(&mps_dir).join("control").exists(),
    }
}

/// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build ...".
fn driver_version(text: &str) -> Option<String> {
    let is_version = |w: &&str| w.contains('.') && w.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}

fn gpus(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<(std::ffi::OsString, String)> = entries
        .map(|e| {
            let text = std::fs::read_to_string(e.path().join("information")).unwrap_or_default();
            let model = text.lines().find_map(|l| l.strip_prefix("Model:")).map(str::trim);
            (e.file_name(), model.unwrap_or("unknown model").to_owned())
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, model)| model).collect()
}

/// Whether a process could open a GPU here: `demo` then offers the live run.
pub fn has_gpu() -> bool {
    Path::new("/dev/nvidiactl").exists() && (0..16).any(|i| Path::new(&format!("/dev/nvidia{i}")).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_version_is_found_among_the_words() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x@y)\nGCC version: 12.3.0";
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023";
        assert_eq!(driver_version(open).as_deref(), Some("580.159.04"));
        assert_eq!(driver_version(closed).as_deref(), Some("535.54.03"));
        assert_eq!(driver_version("GCC"), None);
        assert_eq!(driver_version(""), None);
    }

    #[test]
    fn gpus_are_read_in_order_and_a_silent_one_is_not_lost() {
        let dir = std::env::temp_dir().join(format!("mosaic-host-{}", std::process::id()));
        for (bus, text) in [("0000:02:00.0", "IRQ: 1\n"), ("0000:01:00.0", "Model: \t\t NVIDIA H200\nIRQ: 2\n")] {
            std::fs::create_dir_all(dir.join(bus)).unwrap();
            std::fs::write(dir.join(bus).join("information"), text).unwrap();
        }
        assert_eq!(gpus(&dir), ["NVIDIA H200", "unknown model"]);
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(gpus(&dir).is_empty());
    }
}
