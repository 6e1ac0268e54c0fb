//! Checks `deploy/`, `docs/`, `examples/` and the README against the programs that are built here. All of it is in
//! `tests/`.
//!
//! Also compiles `examples/rust`, which uses the crates `client`, `queue_core`, `worker`, `lifecycle`, `telemetry` and
//! `tokio`, as a program of a user does.
