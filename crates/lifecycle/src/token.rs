//! The bearer token: where it comes from and what it may be.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use client::Secret;

/// The variable that may hold the token instead of a file.
pub const TOKEN_VARIABLE: &str = "FENCEPOST_TOKEN";

/// The longest token, in bytes: it travels in a header.
pub const MAX_TOKEN_BYTES: usize = 4_096;

/// The token of the file, else of the environment, if there is one. Read anew at each call.
pub(crate) fn configured(file: Option<&Path>) -> anyhow::Result<Option<Secret>> {
    match file {
        Some(path) => from_file(path).map(Some),
        // Not a flag, because everybody can see the flags of a process.
        None => from_variable(std::env::var_os(TOKEN_VARIABLE)),
    }
}

fn from_file(path: &Path) -> anyhow::Result<Secret> {
    let describe = || format!("read --token-file {}", path.display());
    let mut text = String::new();
    // One byte more than allowed shows that it is too long, however long it is.
    let bound = MAX_TOKEN_BYTES as u64 + 1;
    File::open(path).and_then(|file| file.take(bound).read_to_string(&mut text)).with_context(describe)?;
    parse(&text).with_context(describe)
}

/// An empty variable is none: that is how deployments leave it out.
fn from_variable(value: Option<OsString>) -> anyhow::Result<Option<Secret>> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
    let Ok(text) = value.into_string() else { bail!("{TOKEN_VARIABLE} is not UTF-8") };
    parse(&text).with_context(|| format!("read {TOKEN_VARIABLE}")).map(Some)
}

/// 1 to [`MAX_TOKEN_BYTES`] visible ASCII characters; white space around them is cut off. Errors never tell the text.
fn parse(text: &str) -> anyhow::Result<Secret> {
    let token = text.trim();
    ensure!(!token.is_empty(), "the token is empty");
    ensure!(token.len() <= MAX_TOKEN_BYTES, "the token is longer than {MAX_TOKEN_BYTES} bytes");
    ensure!(token.bytes().all(|byte| byte.is_ascii_graphic()), "the token has characters other than visible ASCII");
    Ok(Secret::new(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLANTED: &str = "planted-secret-7f3a";

    #[test]
    fn a_token_never_shows_in_debug_display_or_errors() {
        let secret = parse(PLANTED).unwrap();
        assert_eq!(format!("{secret} {secret:?} {:?}", Some(&secret)), "*** *** Some(***)");
        let error = parse(&format!("{PLANTED}\u{7}{PLANTED}")).unwrap_err();
        assert!(!format!("{error:?}").contains(PLANTED));
        assert_eq!(secret.expose(), PLANTED);
    }

    #[test]
    fn a_token_is_trimmed_and_bounded() {
        assert_eq!(parse(" abc\r\n").unwrap().expose(), "abc");
        assert!(parse("").is_err());
        assert!(parse("a b").is_err());
        assert!(parse(&"a".repeat(MAX_TOKEN_BYTES + 1)).is_err());
    }

    #[test]
    fn an_empty_variable_is_no_token() {
        assert_eq!(from_variable(None).unwrap(), None);
        assert_eq!(from_variable(Some(OsString::new())).unwrap(), None);
        assert_eq!(from_variable(Some("abc".into())).unwrap().unwrap().expose(), "abc");
    }
}
