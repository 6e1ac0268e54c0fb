//! A throw-away PostgreSQL server of one's own, for tests and demonstrations.
//!
//! [`PrivatePostgres::start`] makes a fresh cluster and starts it on a free port of 127.0.0.1 with a random password; it works
//! for root too, by running the server as an unprivileged account. Dropping the value stops the server and removes the
//! cluster, and a [`Guard`] does both when this process is killed.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! let server = private_postgres::PrivatePostgres::start("target".as_ref(), &private_postgres::Options::default())?;
//! println!("{}", server.url("postgres"));
//! # Ok(()) }
//! ```

mod account;
mod binaries;
mod command;
mod guard;
mod patience;
mod place;
mod server;

pub use binaries::{Binaries, INSTALL_HINT, OLDEST_MAJOR};
pub use command::forget_client_settings;
pub use guard::Guard;
pub use server::{Halt, Options, PrivatePostgres, SUPERUSER};
