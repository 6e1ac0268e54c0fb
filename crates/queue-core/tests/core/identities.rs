//! Identities: positive where they are numbers, and never shown where they are secret.

use queue_core::{JobId, SessionId, Token};

#[test]
fn ids_and_tokens_are_positive() {
    for number in [0, -1, i64::MIN] {
        assert_eq!(JobId::try_from(number).expect_err("refused").field, "job_id");
        assert_eq!(Token::try_from(number).expect_err("refused").field, "token");
    }
    assert_eq!(JobId::try_from(i64::MAX).expect("positive").get(), i64::MAX);
    assert_eq!(Token::try_from(1).expect("positive").to_string(), "1");
}

#[test]
fn session_id_is_16_bytes_and_not_all_zero() {
    assert!(SessionId::try_from(&[1_u8; 16][..]).is_ok());
    for bytes in [&[][..], &[1; 15], &[1; 17], &[0; 16]] {
        assert_eq!(SessionId::try_from(bytes).expect_err("refused").field, "session_id");
    }
}

#[test]
fn shown_session_id_is_too_little_to_settle_with() {
    let id = SessionId([0xab; 16]);
    assert_eq!(id.to_string(), "abababab");
}
