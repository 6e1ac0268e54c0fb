//! The testbed keeps its own promises.

#[path = "testbed/databases.rs"]
mod databases;
#[path = "testbed/processes.rs"]
mod processes;
