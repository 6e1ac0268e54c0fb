//! Real processes and real sockets.

mod child;
mod listening;
mod metrics;
mod pki;
mod signals;
mod tls;
