//! The command `mosaic`.

fn main() {}
