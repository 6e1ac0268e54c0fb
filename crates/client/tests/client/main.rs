//! The client against a scheduler that the test plays, over real sockets.

mod calls;
mod tls;
