//! Every promise is a test that carries it in its name: real schedulers, workers and reapers, a real PostgreSQL, and at
//! the end of each the audit of the storage.

#[path = "promises/jobs.rs"]
mod jobs;
#[path = "promises/locks.rs"]
mod locks;
#[path = "promises/metrics.rs"]
mod metrics;
#[path = "promises/stream.rs"]
mod stream;
#[path = "promises/system.rs"]
mod system;

#[path = "promises/checklist.rs"]
mod checklist;
#[path = "promises/durable_source/mod.rs"]
mod durable_source;
#[path = "promises/in_process_pool.rs"]
mod in_process_pool;
#[path = "promises/worker_pool/mod.rs"]
mod worker_pool;
