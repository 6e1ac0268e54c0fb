//! What child processes get of the worker's environment.

use tokio::process::Command;

/// Variables of the worker that its children do not get: its credentials are among them.
const OWN_VARIABLES: [&str; 2] = ["FENCEPOST_", "OTEL_"];

/// Takes the worker's own variables off what the command will get.
pub fn without_own_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if OWN_VARIABLES.iter().any(|own| name.to_string_lossy().starts_with(own)) {
            command.env_remove(name);
        }
    }
}
