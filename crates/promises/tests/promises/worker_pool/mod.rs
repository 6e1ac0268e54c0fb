//! The reliable PostgreSQL worker pool.

mod attempts;
mod bounds;
mod drain;
mod effects;
mod exec;
mod http;
mod lease;
mod observe;
mod reaper;
mod secure;
mod states;
