//! Payloads: a fixed size, and in their first bytes when they were made, if that is measured.

use bytes::Bytes;

use crate::clock;

/// Bytes of every payload.
pub(crate) const BYTES: usize = 128;

/// Bytes of the stamp.
const STAMP: usize = size_of::<u64>();

/// What follows the stamp.
const FILLER: u8 = b'x';

/// A payload without a time. Clones share its bytes.
pub(crate) fn plain() -> Bytes {
    with_stamp(0)
}

/// A payload that says when it was made.
pub(crate) fn stamped() -> Bytes {
    with_stamp(clock::nanos())
}

fn with_stamp(nanos: u64) -> Bytes {
    let mut payload = [FILLER; BYTES];
    payload[..STAMP].copy_from_slice(&nanos.to_le_bytes());
    Bytes::copy_from_slice(&payload)
}

/// Nanoseconds since the payload was made, if it says when.
pub(crate) fn age(payload: &[u8]) -> Option<u64> {
    let stamp = u64::from_le_bytes(payload.get(..STAMP)?.try_into().ok()?);
    (stamp != 0).then(|| clock::nanos().saturating_sub(stamp))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_stamped_payload_has_an_age() {
        assert_eq!(age(&plain()), None);
        assert_eq!(age(b"short"), None);
        assert!(age(&stamped()).is_some_and(|nanos| nanos < 60_000_000_000));
        assert_eq!(stamped().len(), BYTES);
    }
}
