//! Nothing but tests: each promise of Fencepost, kept by its real processes on a real PostgreSQL.
//!
//! They start the binaries beside the test, so build those first: `cargo build --bins --examples`. The server is the one
//! that `DATABASE_URL` names; `cargo xtask test` sees to both.
