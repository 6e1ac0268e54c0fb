//! The table without any link or handler.

use bytes::Bytes;
use queue_core::Success;
use v1::settlement::Outcome as Sent;

use super::*;
use crate::attempt::tests::attempt;

const GRACE: Duration = Duration::from_secs(2);
const T0: Duration = Duration::from_secs(100);

fn table_with(job: i64, token: i64) -> (Table, Arc<Attempt>) {
    let mut table = Table::new(GRACE);
    let attempt = Arc::new(attempt(job, token));
    table.granted(attempt.clone(), T0);
    (table, attempt)
}

fn success() -> Ended {
    Ended::Returned(Outcome::Succeeded(Success::default()))
}

fn sent(table: &mut Table) -> Vec<Sent> {
    table.take_settlements(T0).into_iter().filter_map(|settlement| settlement.outcome).collect()
}

fn code(sent: &Sent) -> (&str, bool) {
    match sent {
        Sent::Failed(failed) => (&failed.code, failed.retryable),
        Sent::Succeeded(_) => ("succeeded", false),
        Sent::Released(released) => (&released.reason, false),
        Sent::Snoozed(_) => ("snoozed", false),
    }
}

#[test]
fn a_result_is_kept_and_listed_until_it_is_acknowledged() {
    let (mut table, attempt) = table_with(1, 1);
    attempt.start(T0);
    table.ended(attempt.lease, success());
    assert_eq!((table.slots_taken(), table.unacknowledged()), (0, 1));
    assert_eq!(sent(&mut table).len(), 1);
    assert_eq!(sent(&mut table).len(), 0, "it is sent once per stream");
    assert_eq!(table.heartbeat().len(), 1, "it is listed as held");
    table.start_over();
    assert_eq!(sent(&mut table).len(), 1, "a new stream gets it again");
    table.acknowledged(attempt.lease);
    assert_eq!(table.leases().count(), 0);
}

#[test]
fn a_lost_lease_stops_its_handler_and_drops_its_result_but_not_its_slot() {
    let (mut table, attempt) = table_with(1, 1);
    attempt.start(T0);
    assert!(table.lost(attempt.lease, T0));
    assert_eq!(attempt.reason(), Some(&CancelReason::LeaseLost));
    assert_eq!((table.leases().count(), table.slots_taken()), (0, 1));
    table.ended(attempt.lease, success());
    assert_eq!((table.unacknowledged(), table.slots_taken()), (0, 0));
}

#[test]
fn a_handler_that_ignores_its_timeout_is_settled_without_it_and_keeps_its_slot() {
    let (mut table, attempt) = table_with(1, 1);
    attempt.start(T0);
    let due = T0 + attempt.timeout;
    table.tick(due);
    assert_eq!(attempt.reason(), Some(&CancelReason::TimedOut));
    assert!(!attempt.abort.is_cancelled() && table.unacknowledged() == 0);
    table.tick(due + GRACE);
    assert!(attempt.abort.is_cancelled());
    assert_eq!(code(&sent(&mut table)[0]), ("timeout", true));
    assert_eq!(table.slots_taken(), 1);
    table.ended(attempt.lease, success());
    assert_eq!((table.slots_taken(), table.unacknowledged()), (0, 1), "what it returned late counts for nothing");
}

#[test]
fn the_timeout_counts_from_the_start_of_the_handler() {
    let (mut table, attempt) = table_with(1, 1);
    table.tick(T0 + attempt.timeout);
    assert_eq!(attempt.reason(), None, "it still waits for a thread");
    let start = T0 + attempt.timeout + Duration::from_secs(1);
    attempt.start(start);
    table.tick((start + attempt.timeout).saturating_sub(Duration::from_millis(1)));
    assert_eq!(attempt.reason(), None);
    table.tick(start + attempt.timeout);
    assert_eq!(attempt.reason(), Some(&CancelReason::TimedOut));
}

#[test]
fn an_interrupted_handler_is_released_and_a_finished_one_counts() {
    let failed = |retryable| Ended::Returned(Outcome::Failed(Failure::new("x", "y", retryable)));
    for (ended, expected) in [
        (success(), ("succeeded", false)),
        (failed(true), ("shutdown", false)),
        (failed(false), ("x", false)),
        (Ended::Dropped, ("shutdown", false)),
        (Ended::Panicked("p".into()), ("panic", true)),
    ] {
        let (mut table, attempt) = table_with(1, 1);
        attempt.start(T0);
        table.stop_all(&CancelReason::ShuttingDown, T0);
        table.ended(attempt.lease, ended);
        assert_eq!(code(&sent(&mut table)[0]), expected);
    }
}

#[test]
fn what_waits_for_a_runner_is_released_and_never_starts() {
    let (mut table, queued) = table_with(1, 1);
    let running = Arc::new(attempt(2, 2));
    running.start(T0);
    table.granted(running.clone(), T0);
    table.release_queued(&CancelReason::ShuttingDown);
    assert!(!queued.start(T0) && running.reason().is_none());
    assert_eq!(code(&sent(&mut table)[0]), ("shutdown", false));
    table.ended(queued.lease, Ended::NotStarted);
    assert_eq!((table.slots_taken(), table.unacknowledged()), (1, 1));
}

#[test]
fn an_oversized_result_fails_the_job_for_good_and_says_so() {
    let (mut table, attempt) = table_with(1, 1);
    table.set_max_payload_bytes(10);
    let result = Some(Bytes::from_static(&[0; 11]));
    let outcome = Outcome::Succeeded(Success { result, ..Success::default() });
    table.ended(attempt.lease, Ended::Returned(outcome));
    let Sent::Failed(failed) = &sent(&mut table)[0] else { panic!("it must fail") };
    assert!(!failed.retryable && failed.message.contains("11 bytes, at most 10"), "{}", failed.message);
}

#[test]
fn follow_ups_that_exceed_one_message_fail_the_job_for_good() {
    let (mut table, attempt) = table_with(1, 1);
    let (queue, kind) = (queue_core::QueueName::new("q").unwrap(), queue_core::KindName::new("k").unwrap());
    let job = queue_core::NewJob::new(queue, kind, Bytes::from(vec![0; 1 << 20]));
    let outcome = Outcome::Succeeded(Success { follow_ups: vec![job; 17], ..Success::default() });
    table.ended(attempt.lease, Ended::Returned(outcome));
    assert_eq!(code(&sent(&mut table)[0]), ("result_refused", false));
}

#[test]
fn a_refused_result_becomes_a_final_failure_once() {
    let (mut table, attempt) = table_with(1, 1);
    table.ended(attempt.lease, success());
    sent(&mut table);
    assert!(table.rejected(attempt.lease, "succeeded.follow_ups[0].queue: is required"));
    assert_eq!(code(&sent(&mut table)[0]), ("result_refused", false));
    assert!(!table.rejected(attempt.lease, "again"), "a refusal of the refusal is not repeated for ever");
    assert_eq!(table.unacknowledged(), 0);
}

#[test]
fn big_results_travel_alone_and_small_ones_together() {
    let mut table = Table::new(GRACE);
    for job in 1..=10 {
        let result = Some(Bytes::from(vec![0; if job <= 2 { 900 << 10 } else { 10 }]));
        let lease = attempt(job, job).lease;
        table.settle(lease, Outcome::Succeeded(Success { result, ..Success::default() }));
    }
    assert_eq!([sent(&mut table).len(), sent(&mut table).len(), sent(&mut table).len()], [1, 9, 0]);
}

#[test]
fn a_result_without_answer_is_repeated_and_the_end_of_the_session_forgets_it() {
    let (mut table, attempt) = table_with(1, 1);
    table.ended(attempt.lease, success());
    sent(&mut table);
    table.repeat_settlements(T0);
    assert_eq!(sent(&mut table).len(), 0, "it was not sent before that time");
    table.repeat_settlements(T0 + Duration::from_secs(1));
    assert_eq!(sent(&mut table).len(), 1);
    table.forget_all(T0);
    table.start_over();
    assert_eq!((sent(&mut table).len(), table.leases().count()), (0, 0));
}

#[test]
fn grants_are_acknowledged_once_per_stream() {
    let (mut table, attempt) = table_with(1, 1);
    assert_eq!(table.take_acknowledgements(10), [attempt.lease]);
    assert!(table.take_acknowledgements(10).is_empty());
    table.start_over();
    assert_eq!(table.take_acknowledgements(10), [attempt.lease]);
}
