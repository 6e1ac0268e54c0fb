//! Outcomes that a worker reports, and the text forms that are stored.

use std::time::Duration;

use bytes::Bytes;
use queue_core::{
    AttemptEnd, Failure, JobState, KindName, MAX_FOLLOW_UPS, MAX_WAIT, NewJob, Outcome, QueueName, Success,
};

fn refused(outcome: Outcome) -> String {
    outcome.checked(10).expect_err("refused").field
}

#[test]
fn outcome_outside_of_a_bound_is_refused_with_the_field() {
    let bytes = |count| Some(Bytes::from(vec![0; count]));
    assert_eq!(refused(Outcome::Succeeded(Success { result: bytes(11), ..Success::default() })), "succeeded.result");
    assert_eq!(refused(Outcome::Succeeded(Success { effect: bytes(11), ..Success::default() })), "succeeded.effect");
    let job = NewJob::new(QueueName::new("q").expect("a name"), KindName::new("k").expect("a name"), "");
    let many = Success { follow_ups: vec![job; MAX_FOLLOW_UPS + 1], ..Success::default() };
    assert_eq!(refused(Outcome::Succeeded(many)), "succeeded.follow_ups");
    let long = MAX_WAIT + Duration::from_nanos(1);
    assert_eq!(refused(Outcome::Snoozed(long)), "snoozed.duration");
    let failure = Failure { retry_after: Some(long), ..Failure::new("c", "m", true) };
    assert_eq!(refused(Outcome::Failed(failure)), "failed.retry_after");
    let largest = Success { result: bytes(10), effect: bytes(10), follow_ups: Vec::new() };
    assert!(Outcome::Succeeded(largest).checked(10).is_ok());
}

#[test]
fn text_forms_of_ends_and_states_read_back() {
    use AttemptEnd::{Failed, Lost, Released, Snoozed, Succeeded, TimedOut, Undelivered};
    for end in [Succeeded, Failed, Lost, Released, Snoozed, Undelivered, TimedOut] {
        assert_eq!(AttemptEnd::parse(end.as_str()), Some(end));
    }
    for state in [
        JobState::Scheduled,
        JobState::Ready,
        JobState::Leased,
        JobState::Succeeded,
        JobState::Dead,
        JobState::Cancelled,
    ] {
        assert_eq!(JobState::parse(state.as_str()), Some(state));
    }
    assert_eq!((AttemptEnd::parse(""), JobState::parse("")), (None, None));
}

#[test]
fn only_what_the_holder_reported_is_a_settlement() {
    use AttemptEnd::{Failed, Lost, Released, Snoozed, Succeeded, TimedOut, Undelivered};
    assert!([Succeeded, Failed, Released, Snoozed].iter().all(|end| end.is_settlement()));
    assert!(![Lost, Undelivered, TimedOut].iter().any(|end| end.is_settlement()));
}
