//! private-postgres.
