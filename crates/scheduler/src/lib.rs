//! The scheduler: the one part of Fencepost that talks to PostgreSQL.
//!
//! Stateless: any number of replicas may run on one database, which arbitrates between them. In a replica, one writer per
//! kind of transition turns what arrived while its previous commit was in flight into one statement (`batch`), and one
//! dispatcher matches free slots with lanes that hold jobs (`dispatcher`).

mod args;
mod batch;
mod cause;
mod claimer;
mod database;
mod dispatcher;
mod doorman;
mod enqueue_writer;
mod grants;
mod handshake;
mod hints;
mod lanes;
mod lines;
mod lookout;
mod maintenance_service;
mod metrics;
mod obituary;
mod profile;
mod promoter;
mod pulse;
mod queue_service;
mod ready;
mod reaping;
mod renew_writer;
mod seat;
mod serve;
mod server;
mod session;
mod settle_writer;
mod stand_in;
mod status;
mod take_back;
mod timing;
mod work_service;

pub use args::{Args, Command, MigrateArgs, ServeArgs};
pub use serve::{migrate, serve};
