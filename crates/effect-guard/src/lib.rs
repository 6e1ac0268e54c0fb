//! effect-guard.
