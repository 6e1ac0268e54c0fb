//! Who this process is, for people.

/// Host name and process id, such as `web-1-4711`; characters that a name may not have are replaced.
pub fn process_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '-' };
    let host: String = host.chars().take(MAX_HOST_CHARS).map(allowed).collect();
    format!("{}-{}", if host.is_empty() { "host" } else { &host }, std::process::id())
}

/// Leaves room for the process id within a name.
const MAX_HOST_CHARS: usize = 100;

#[cfg(test)]
mod tests {
    #[test]
    fn it_tells_the_process() {
        assert!(super::process_name().ends_with(&format!("-{}", std::process::id())));
    }
}
