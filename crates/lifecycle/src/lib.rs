//! Start, shutdown and connections: one way for every binary.
//!
//! [`run`] is the whole `main` of a binary: runtime, telemetry, signals, exit code. [`ListenArgs`] and [`ConnectArgs`]
//! are the flags of whoever serves and whoever calls; [`Auth`] is the check of the bearer token on the serving side.
//!
//! The first SIGTERM or SIGINT asks for a drain, the second stops at once. SIGHUP is logged and ignored: configuration
//! is read at start.

mod auth;
mod check;
mod connect;
mod listen;
mod panics;
mod pem;
mod process;
mod run;
mod shutdown;
mod signals;
mod tasks;
mod token;

pub use auth::Auth;
pub use check::{check_all, check_duration, check_range, duration};
pub use client::Secret;
pub use connect::{ConnectArgs, DEFAULT_SCHEDULER};
pub use listen::{DEFAULT_LISTEN, ListenArgs};
pub use process::process_name;
pub use run::run;
pub use shutdown::Shutdown;
pub use signals::HARD_STOP_BOUND;
pub use tasks::Tasks;
pub use token::{MAX_TOKEN_BYTES, TOKEN_VARIABLE};
