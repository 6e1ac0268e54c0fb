//! Names of queues, kinds and workers.

use proptest::prelude::*;
use queue_core::{KindName, QueueName, WorkerName};

#[test]
fn allowed_characters_make_a_name() {
    let every = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/-";
    assert_eq!(QueueName::new(every).expect("allowed").as_str(), every);
    assert_eq!(KindName::new("a").expect("allowed").to_string(), "a");
    assert!(WorkerName::new(&"x".repeat(128)).is_ok());
}

#[test]
fn empty_long_and_foreign_names_are_refused_with_the_field() {
    for name in ["", "a b", "ä", "a\0", "a\n", "a*", "\u{1F980}", &"x".repeat(129)] {
        assert_eq!(QueueName::new(name).expect_err(name).field, "queue");
        assert_eq!(KindName::new(name).expect_err(name).field, "kind");
        assert_eq!(WorkerName::new(name).expect_err(name).field, "worker_name");
    }
}

#[test]
fn refusal_says_what_would_be_right() {
    let refused = QueueName::new("a b").expect_err("a space");
    assert_eq!(refused.to_string(), "queue: has the character ' '; allowed are a-z A-Z 0-9 _ . : / -");
    assert_eq!(refused.within("jobs[3]").field, "jobs[3].queue");
}

proptest! {
    #[test]
    fn whatever_is_accepted_reads_back_and_fits_the_constraint(name in ".{0,140}") {
        if let Ok(accepted) = QueueName::new(&name) {
            prop_assert_eq!(accepted.as_str(), &name);
            prop_assert!((1..=128).contains(&name.len()));
            prop_assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.:/-".contains(&b)));
        }
    }
}
