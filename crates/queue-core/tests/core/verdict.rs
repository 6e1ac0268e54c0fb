//! Where a job goes: the table of decisions, and what holds for every row of it.

use std::time::Duration;

use proptest::prelude::*;
use queue_core::{AttemptEnd, Counters, DeadReason, MAX_UNDELIVERED, Next, RetryPolicy, after};

const POLICY: RetryPolicy = RetryPolicy {
    max_attempts: 3,
    max_lease_losses: 2,
    backoff_base: Duration::from_secs(1),
    backoff_factor: 2.0,
    backoff_cap: Duration::from_secs(64),
    jitter: 0.0,
};
const WAIT: Option<Duration> = Some(Duration::from_secs(7));

fn used(attempts: u32, lease_losses: u32, undelivered: u32) -> Counters {
    Counters { attempts, lease_losses, undelivered }
}

fn wait(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn every_ending_goes_where_the_table_says() {
    use AttemptEnd::{Failed, Lost, Released, Snoozed, TimedOut, Undelivered};
    use Next::{Dead, Ready, Scheduled};
    let last_undelivered = MAX_UNDELIVERED - 1;
    let table = [
        // Failures use one attempt and wait, until there is none left.
        (Failed, used(0, 0, 0), true, None, Scheduled(used(1, 0, 0), wait(1))),
        (Failed, used(1, 0, 0), true, None, Scheduled(used(2, 0, 0), wait(2))),
        (Failed, used(1, 1, 4), true, None, Scheduled(used(2, 1, 0), wait(2))),
        (Failed, used(1, 0, 0), true, WAIT, Scheduled(used(2, 0, 0), wait(7))),
        (Failed, used(0, 0, 0), true, Some(Duration::ZERO), Scheduled(used(1, 0, 0), wait(0))),
        (Failed, used(2, 0, 0), true, WAIT, Dead(used(3, 0, 0), DeadReason::AttemptsExhausted)),
        (Failed, used(0, 0, 0), false, WAIT, Dead(used(1, 0, 0), DeadReason::Final)),
        (Failed, used(2, 0, 0), false, None, Dead(used(3, 0, 0), DeadReason::Final)),
        // As a failure that may be tried again.
        (TimedOut, used(0, 0, 0), true, None, Scheduled(used(1, 0, 0), wait(1))),
        (TimedOut, used(2, 0, 0), true, None, Dead(used(3, 0, 0), DeadReason::AttemptsExhausted)),
        // Lost leases use one of both budgets and go back at once.
        (Lost, used(0, 0, 3), true, None, Ready(used(1, 1, 0))),
        (Lost, used(0, 1, 0), true, None, Dead(used(1, 2, 0), DeadReason::LeaseLossesExhausted)),
        (Lost, used(2, 0, 0), true, None, Dead(used(3, 1, 0), DeadReason::AttemptsExhausted)),
        (Lost, used(2, 1, 0), true, None, Dead(used(3, 2, 0), DeadReason::LeaseLossesExhausted)),
        (Lost, used(0, 0, 0), false, None, Ready(used(1, 1, 0))),
        // What uses nothing, also with nothing left.
        (Released, used(2, 1, 5), true, WAIT, Ready(used(2, 1, 0))),
        (Snoozed, used(2, 1, 5), true, WAIT, Scheduled(used(2, 1, 0), wait(7))),
        (Snoozed, used(0, 0, 0), true, None, Scheduled(used(0, 0, 0), wait(0))),
        // Grants that never arrived are bounded in a row.
        (Undelivered, used(2, 1, 0), true, None, Ready(used(2, 1, 1))),
        (Undelivered, used(0, 0, last_undelivered - 1), true, None, Ready(used(0, 0, last_undelivered))),
        (
            Undelivered,
            used(0, 0, last_undelivered),
            true,
            None,
            Dead(used(0, 0, MAX_UNDELIVERED), DeadReason::Undeliverable),
        ),
    ];
    for (end, before, retryable, wait, expected) in table {
        assert_eq!(
            after(end, before, &POLICY, retryable, wait, 0.5),
            expected,
            "{end:?} {before:?} {retryable} {wait:?}"
        );
    }
}

fn any_end() -> impl Strategy<Value = AttemptEnd> {
    prop_oneof![
        Just(AttemptEnd::Failed),
        Just(AttemptEnd::Lost),
        Just(AttemptEnd::Released),
        Just(AttemptEnd::Snoozed),
        Just(AttemptEnd::Undelivered),
        Just(AttemptEnd::TimedOut),
    ]
}

prop_compose! {
    fn any_counters()(attempts in any::<u32>(), losses in any::<u32>(), undelivered in any::<u32>()) -> Counters {
        used(attempts.max(losses), losses.min(attempts), undelivered)
    }
}

fn counters(next: Next) -> Counters {
    match next {
        Next::Ready(used) | Next::Scheduled(used, _) | Next::Dead(used, _) => used,
    }
}

proptest! {
    #[test]
    fn budgets_are_never_given_back_and_losses_never_exceed_attempts(
        end in any_end(), before in any_counters(), retryable in any::<bool>(), chance in 0.0..=1.0,
    ) {
        let now = counters(after(end, before, &POLICY, retryable, None, chance));
        prop_assert!(now.attempts >= before.attempts && now.attempts - before.attempts <= 1);
        prop_assert!(now.lease_losses >= before.lease_losses && now.lease_losses - before.lease_losses <= 1);
        prop_assert!(now.lease_losses <= now.attempts);
    }

    #[test]
    fn what_is_not_dead_has_attempts_and_losses_left_if_it_used_one(
        end in any_end(), before in any_counters(), retryable in any::<bool>(),
    ) {
        let next = after(end, before, &POLICY, retryable, None, 0.0);
        let now = counters(next);
        if !matches!(next, Next::Dead(..)) {
            prop_assert!(now.attempts == before.attempts || now.attempts < POLICY.max_attempts);
            prop_assert!(now.lease_losses == before.lease_losses || now.lease_losses < POLICY.max_lease_losses);
            prop_assert!(now.undelivered < MAX_UNDELIVERED);
        }
    }

    #[test]
    fn a_job_that_always_ends_badly_is_dead_within_its_budgets(ends in prop::collection::vec(
        prop_oneof![Just(AttemptEnd::Failed), Just(AttemptEnd::Lost), Just(AttemptEnd::TimedOut)], 3..10,
    )) {
        let mut now = Counters::default();
        let mut runs = 0;
        for end in ends {
            runs += 1;
            match after(end, now, &POLICY, true, None, 0.0) {
                Next::Ready(used) | Next::Scheduled(used, _) => now = used,
                Next::Dead(..) => break,
            }
        }
        prop_assert!(runs <= POLICY.max_attempts);
    }
}
