//! worker.
fn main() {}
