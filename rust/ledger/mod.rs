//! who runs what (stub)
