//! launch path
