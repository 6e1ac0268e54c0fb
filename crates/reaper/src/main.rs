//! reaper.
fn main() {}
