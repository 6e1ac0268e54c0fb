//! What a handler's program or server returned, within bounds.

use bytes::Bytes;
use queue_core::{DEFAULT_MAX_PAYLOAD_BYTES, MAX_ERROR_CHARS};
use tokio::io::{AsyncRead, AsyncReadExt};
use worker::{HandlerError, Success};

/// Bytes of a result. The scheduler may allow less, then it refuses the result for good.
pub const MAX_RESULT_BYTES: usize = DEFAULT_MAX_PAYLOAD_BYTES;
/// Bytes of an error text that are kept: every character may take four.
pub const MAX_ERROR_BYTES: usize = MAX_ERROR_CHARS * 4;
const CHUNK: usize = 16 << 10;

/// A result, committed as effect too if so declared. An empty one is none.
pub fn success(result: Vec<u8>, is_effect: bool) -> Success {
    let result = (!result.is_empty()).then(|| Bytes::from(result));
    let effect = if is_effect { Some(result.clone().unwrap_or_default()) } else { None };
    Success { result, effect, follow_ups: Vec::new() }
}

/// The failure of a handler that returned more than is stored: another attempt would return as much.
pub fn too_large() -> HandlerError {
    HandlerError::permanent(
        "result_too_large",
        format!("the result has more than {MAX_RESULT_BYTES} bytes and was thrown away"),
    )
}

/// Reads a result to its end. Fails for good once it is larger than the bound.
pub async fn read_result(mut source: impl AsyncRead + Unpin, result: &mut Vec<u8>) -> Result<(), HandlerError> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = source.read(&mut chunk).await?;
        if read == 0 {
            return Ok(());
        }
        result.extend_from_slice(&chunk[..read]);
        if result.len() > MAX_RESULT_BYTES {
            return Err(too_large());
        }
    }
}

/// Reads to the end and keeps the last part of it.
pub async fn read_tail(mut source: impl AsyncRead + Unpin, tail: &mut Vec<u8>) -> Result<(), HandlerError> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = source.read(&mut chunk).await?;
        if read == 0 {
            return Ok(());
        }
        tail.extend_from_slice(&chunk[..read]);
        let surplus = tail.len().saturating_sub(MAX_ERROR_BYTES);
        tail.drain(..surplus);
    }
}

/// The last characters of an error text, as many as are stored, with what is no UTF-8 replaced.
pub fn tail_text(tail: &[u8]) -> String {
    let text = String::from_utf8_lossy(tail);
    let text = text.trim();
    let surplus = text.chars().count().saturating_sub(MAX_ERROR_CHARS);
    text.chars().skip(surplus).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_result_is_read_up_to_its_bound() {
        let mut result = Vec::new();
        assert!(read_result(&vec![b'x'; MAX_RESULT_BYTES][..], &mut result).await.is_ok());
        assert_eq!(result.len(), MAX_RESULT_BYTES);
        assert_eq!(read_result(&b"x"[..], &mut result).await, Err(too_large()));
    }

    #[tokio::test]
    async fn of_an_error_text_the_end_is_kept_on_a_character_boundary() {
        let mut tail = Vec::new();
        let text = format!("{}\u{20ac}end\n", "\u{20ac}".repeat(100_000));
        read_tail(text.as_bytes(), &mut tail).await.unwrap();
        assert!(tail.len() <= MAX_ERROR_BYTES);
        let kept = tail_text(&tail);
        assert!(kept.ends_with("\u{20ac}end") && kept.chars().count() == MAX_ERROR_CHARS);
        assert_eq!(tail_text(b"a\xe2"), "a\u{fffd}");
    }
}
