//! What ends a child process when its parent was killed.

use std::{
    io,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::Context as _;

/// Blocks on a pipe whose other end only the parent holds; the kernel closes it however the parent ends. Then: the polite
/// signal, ten seconds, the hard one, and the folder. `$1` pid, `$2` signal, `$3` folder or nothing.
const SCRIPT: &str = r#"
read -r _
kill -s "$2" "$1" 2>/dev/null
tries=100
while kill -0 "$1" 2>/dev/null && [ "$tries" -gt 0 ]; do tries=$((tries - 1)); sleep 0.1; done
kill -s KILL "$1" 2>/dev/null
[ -z "$3" ] || rm -rf -- "$3"
"#;

/// Ends a child of this process should this process die, by SIGKILL too.
///
/// A parent-death signal would need code between fork and exec, which is unsafe; a small shell that holds the reading end of
/// a pipe needs none. Drop the guard after the child was waited for: before that its process id cannot be reused.
#[derive(Debug)]
pub struct Guard {
    shell: Child,
}

impl Guard {
    /// Watches over the child with this process id: at this process's death sends it `signal` (a name such as `INT`), ten seconds
    /// later `KILL`, and removes `folder`.
    pub fn over(child: u32, signal: &str, folder: Option<&Path>) -> anyhow::Result<Self> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT, "guard", &child.to_string(), signal]).arg(folder.unwrap_or(Path::new("")));
        // A group of its own: Ctrl-C in the terminal must not end the guard before what it guards.
        command.process_group(0).current_dir("/").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self { shell: command.spawn().context("start the guard of a child process")? })
    }

    fn dismiss(&mut self) -> io::Result<()> {
        // Killed before `wait` closes the pipe, so that the script never gets to act.
        self.shell.kill()?;
        self.shell.wait().map(drop)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Err(error) = self.dismiss() {
            tracing::warn!(%error, "could not dismiss the guard of a child process");
        }
    }
}
