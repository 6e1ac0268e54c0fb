//! reaper.
