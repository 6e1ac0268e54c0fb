//! What tests stand on: a fresh database each, real processes, bounded waiting. For tests only.
//!
//! ```no_run
//! #[tokio::test]
//! async fn jobs_are_kept() {
//!     testbed::db_test(async |db| {
//!         let mut conn = db.store().enqueue().await.expect("connects");
//!         // … and at the end the audit runs and the database goes, whatever happened.
//!     })
//!     .await;
//! }
//! ```

mod backdate;
mod database;
mod eventually;
mod ports;
mod processes;
mod template;

pub use database::{PATIENCE, TestDatabase, db_test, db_test_alone, server_url};
pub use eventually::eventually;
pub use ports::{free_address, listening};
pub use processes::{Process, Processes};
