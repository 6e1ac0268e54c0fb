//! The worker against a scheduler that the test plays, over real sockets; the stock binary as a real process.

mod drain;
mod fake;
mod lease;
mod reconnect;
mod setup;
mod stock;
mod stock_guard;
mod stock_http;
