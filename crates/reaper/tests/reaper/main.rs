//! Passes and the process, against a small maintenance service over real sockets.

mod fake;
mod passes;
mod processes;
