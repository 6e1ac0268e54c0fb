//! What is known of a file: the effect of a job of the demo, and the same computed here.

use std::{fmt::Write as _, fs, io, path::Path};

use anyhow::Context as _;
use sha2::{Digest as _, Sha256};

/// SHA-256, size and number of lines of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileDigest {
    /// In small hexadecimal digits.
    pub(crate) sha256: String,
    /// Size.
    pub(crate) bytes: u64,
    /// Newline characters.
    pub(crate) lines: u64,
}

impl FileDigest {
    /// Reads the file.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        fs::read(path).map(|content| Self::of_content(&content))
    }

    fn of_content(content: &[u8]) -> Self {
        // Splitting gives one piece more than there are newlines. A file is never longer than 64 bits can say.
        let lines = content.split(|byte| *byte == b'\n').count() as u64 - 1;
        Self { sha256: hex(&Sha256::digest(content)), bytes: content.len() as u64, lines }
    }

    /// Reads the effect of a job: a JSON object with these three fields.
    pub(crate) fn of_effect(effect: &[u8]) -> anyhow::Result<Self> {
        let json: serde_json::Value = serde_json::from_slice(effect).context("read the effect as JSON")?;
        let number =
            |name| json.get(name).and_then(serde_json::Value::as_u64).with_context(|| format!("no number {name}"));
        let sha256 = json.get("sha256").and_then(serde_json::Value::as_str).context("no text sha256")?;
        Ok(Self { sha256: sha256.to_owned(), bytes: number("bytes")?, lines: number("lines")? })
    }
}

/// Bytes in small hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_of_known_content_is_the_known_one() {
        let digest = FileDigest::of_content(b"abc\n");
        assert_eq!(digest.sha256, "edeaaff3f1774ad2888673770c6d64097e391bc362d7d6fb34982ddf0efd18cb");
        assert_eq!((digest.bytes, digest.lines), (4, 1));
    }

    #[test]
    fn effect_reads_back_as_the_digest_and_nonsense_is_an_error() -> anyhow::Result<()> {
        let digest = FileDigest::of_content(b"two\nlines");
        let effect = format!(r#"{{"sha256":"{}","bytes":{},"lines":{}}}"#, digest.sha256, digest.bytes, digest.lines);
        assert_eq!(FileDigest::of_effect(effect.as_bytes())?, digest);
        assert!(FileDigest::of_effect(b"{}").is_err());
        assert!(FileDigest::of_effect(b"\xff").is_err());
        Ok(())
    }
}
