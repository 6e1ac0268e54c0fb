//! Jobs: every bound, and the field that the refusal names.

use std::collections::BTreeMap;
use std::time::Duration;

use queue_core::{
    Headers, IdempotencyKey, Invalid, KindName, MAX_START_DELAY, MAX_WAIT, NewJob, Priority, QueueName, RetryOverrides,
    Start, is_traceparent,
};

type Change = fn(&mut NewJob);

fn job() -> NewJob {
    NewJob::new(QueueName::new("q").expect("a name"), KindName::new("k").expect("a name"), "payload")
}

fn headers(entries: &[(&str, &str)]) -> Result<Headers, Invalid> {
    Headers::new(entries.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
}

#[test]
fn key_has_1_to_256_characters_and_no_nul() {
    for key in ["a", " ", &"\u{1F980}".repeat(256)] {
        assert_eq!(IdempotencyKey::new(key).expect("allowed").as_str(), key);
    }
    for key in ["", "a\0", &"x".repeat(257)] {
        assert_eq!(IdempotencyKey::new(key).expect_err("refused").field, "idempotency_key");
    }
}

#[test]
fn headers_are_bounded_in_number_and_bytes() {
    let many = |count| (0..count).map(|n: usize| (format!("h{n}"), String::new())).collect::<BTreeMap<_, _>>();
    assert!(Headers::new(many(64)).is_ok());
    assert!(Headers::new(many(65)).is_err());
    assert!(headers(&[("n", &"x".repeat(16 * 1024 - 1))]).is_ok());
    assert!(headers(&[("n", &"x".repeat(16 * 1024))]).is_err());
}

#[test]
fn header_names_are_printable_ascii_and_values_anything_but_nul() {
    assert!(headers(&[("X-Any!", "wörth \u{1F980}\n")]).is_ok());
    for name in ["", "a b", "ä", "a\0", &"x".repeat(129)] {
        assert_eq!(headers(&[(name, "v")]).expect_err("refused").field, "headers");
    }
    assert!(headers(&[("n", "a\0b")]).is_err());
}

#[test]
fn priority_is_0_to_9() {
    assert_eq!(Priority::default().get(), 4);
    for priority in 0..=9 {
        assert!(Priority::try_from(priority).is_ok());
    }
    for priority in [-1, 10, 256, i32::MIN, i32::MAX] {
        assert_eq!(Priority::try_from(priority).expect_err("refused").field, "priority");
    }
}

#[test]
fn job_outside_of_a_bound_is_refused_with_the_field() {
    let with = |change: Change| {
        let mut job = job();
        change(&mut job);
        job.checked(10)
    };
    assert!(with(|_| ()).is_ok());
    let refused: [(&str, Change); 6] = [
        ("payload", |job| job.payload = vec![0; 11].into()),
        ("delay", |job| job.start = Start::After(MAX_START_DELAY + Duration::from_nanos(1))),
        ("timeout", |job| job.timeout = Some(Duration::ZERO)),
        ("timeout", |job| job.timeout = Some(MAX_WAIT + Duration::from_nanos(1))),
        ("traceparent", |job| job.traceparent = Some("own".to_owned())),
        ("retry.jitter", |job| job.retry = RetryOverrides { jitter: Some(2.0), ..RetryOverrides::default() }),
    ];
    for (field, change) in refused {
        assert_eq!(with(change).expect_err(field).field, field);
    }
}

#[test]
fn largest_allowed_values_are_accepted() {
    let mut largest = job();
    largest.payload = vec![0; 10].into();
    largest.start = Start::After(MAX_START_DELAY);
    largest.timeout = Some(MAX_WAIT);
    largest.traceparent = Some(format!("01-{}-{}-00-{}", "a".repeat(32), "b".repeat(16), "x".repeat(72)));
    assert!(largest.checked(10).is_ok());
}

#[test]
fn only_a_w3c_traceparent_is_one() {
    let [trace, span] = ["4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"];
    let good = format!("00-{trace}-{span}-01");
    let later = format!("01-{trace}-{span}-01-what.comes");
    let longest = format!("{later}{}", "x".repeat(128 - later.len()));
    for text in [&good, &later, &longest] {
        assert!(is_traceparent(text), "{text}");
    }
    let zeros = "0".repeat(32);
    let refused = [
        String::new(),
        "own".to_owned(),
        good.to_uppercase(),
        format!("{good}-more"),
        format!("{good}\0"),
        format!("ff-{trace}-{span}-01"),
        format!("00-{zeros}-{span}-01"),
        format!("00-{trace}-{}-01", &zeros[..16]),
        format!("00-{trace}-{span}-1"),
        format!("00-{trace}-{span}"),
        format!("{later}\0"),
        format!("{longest}x"),
    ];
    for text in refused {
        assert!(!is_traceparent(&text), "{text:?}");
    }
}
