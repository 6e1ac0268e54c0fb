//! Checks `deploy/` and `docs/configuration.md` against the programs that are built here. All of it is in `tests/`.
