//! queue-store.
