//! The scheduler as its clients see it: the real binary on a real PostgreSQL, named by `DATABASE_URL`, and workers driven by
//! hand. Every test has a database and a scheduler of its own and ends with the audit.

#[path = "scheduler/hand.rs"]
mod hand;
#[path = "scheduler/proxy.rs"]
mod proxy;
#[path = "scheduler/setup.rs"]
mod setup;
#[path = "scheduler/wire.rs"]
mod wire;

#[path = "scheduler/credits.rs"]
mod credits;
#[path = "scheduler/delivery.rs"]
mod delivery;
#[path = "scheduler/enqueue.rs"]
mod enqueue;
#[path = "scheduler/follow_ups.rs"]
mod follow_ups;
#[path = "scheduler/handshake.rs"]
mod handshake;
#[path = "scheduler/inspect.rs"]
mod inspect;
#[path = "scheduler/keys.rs"]
mod keys;
#[path = "scheduler/liveness.rs"]
mod liveness;
#[path = "scheduler/maintenance.rs"]
mod maintenance;
#[path = "scheduler/outage.rs"]
mod outage;
#[path = "scheduler/reconnect.rs"]
mod reconnect;
#[path = "scheduler/security.rs"]
mod security;
#[path = "scheduler/services.rs"]
mod services;
#[path = "scheduler/settle.rs"]
mod settle;
#[path = "scheduler/startup.rs"]
mod startup;
#[path = "scheduler/two.rs"]
mod two;
#[path = "scheduler/validation.rs"]
mod validation;
