//! The launch path.
pub mod driver;
pub mod cupti;
pub mod detour;
pub mod prologue;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod trap;
