//! The store on a real PostgreSQL, named by `DATABASE_URL`. Every test has a database of its own and ends with the audit.

#[path = "store/fixture.rs"]
mod fixture;

#[path = "store/audit.rs"]
mod audit;
#[path = "store/claim.rs"]
mod claim;
#[path = "store/constraints.rs"]
mod constraints;
#[path = "store/cost.rs"]
mod cost;
#[path = "store/direct.rs"]
mod direct;
#[path = "store/endings.rs"]
mod endings;
#[path = "store/enqueue.rs"]
mod enqueue;
#[path = "store/failover.rs"]
mod failover;
#[path = "store/hints.rs"]
mod hints;
#[path = "store/inspect.rs"]
mod inspect;
#[path = "store/lookout.rs"]
mod lookout;
#[path = "store/plans.rs"]
mod plans;
#[path = "store/promote.rs"]
mod promote;
#[path = "store/reap.rs"]
mod reap;
#[path = "store/role.rs"]
mod role;
#[path = "store/schema.rs"]
mod schema;
#[path = "store/session.rs"]
mod session;
#[path = "store/settle.rs"]
mod settle;
#[path = "store/take_back.rs"]
mod take_back;
#[path = "store/tidy.rs"]
mod tidy;
