//! stream pools
