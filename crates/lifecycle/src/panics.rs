//! Panics as log lines.

use std::panic::{self, PanicHookInfo};

/// The longest message that is logged, in characters.
const MAX_MESSAGE_CHARS: usize = 1_000;

/// Logs panics as one line like everything else, instead of as free text between the JSON.
pub(crate) fn log() {
    panic::set_hook(Box::new(|info| {
        let location = info.location().map(ToString::to_string).unwrap_or_default();
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed");
        tracing::error!(panic.location = location, panic.thread = name, panic.message = message(info), "panicked");
    }));
}

fn message(info: &PanicHookInfo<'_>) -> String {
    info.payload_as_str().unwrap_or("no message").chars().take(MAX_MESSAGE_CHARS).collect()
}
