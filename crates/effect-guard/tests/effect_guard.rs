//! The guard on a real PostgreSQL, named by `DATABASE_URL`. Every test works in a schema of its own.

#[path = "effect_guard/schema.rs"]
mod schema;

#[path = "effect_guard/fence.rs"]
mod fence;
#[path = "effect_guard/once.rs"]
mod once;
#[path = "effect_guard/race.rs"]
mod race;
