//! scheduler.
fn main() {}
