//! launch path
pub mod api;
pub mod capi;
