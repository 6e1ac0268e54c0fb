//! The domain's rules, by example and by property.

#[path = "core/identities.rs"]
mod identities;
#[path = "core/jobs.rs"]
mod jobs;
#[path = "core/names.rs"]
mod names;
#[path = "core/outcomes.rs"]
mod outcomes;
#[path = "core/retry.rs"]
mod retry;
#[path = "core/texts.rs"]
mod texts;
#[path = "core/verdict.rs"]
mod verdict;
