//! The launch path.
pub mod driver;
