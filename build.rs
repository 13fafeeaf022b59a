//! Builds the PyTorch extension when the feature `torch` is on.

fn main() {}
