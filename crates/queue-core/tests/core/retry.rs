//! Back-off: exact without jitter, and within its bounds whatever the numbers.

use std::time::Duration;

use proptest::prelude::*;
use queue_core::{MAX_ATTEMPTS_BOUND, MAX_BACKOFF_FACTOR, MAX_WAIT, RetryOverrides, RetryPolicy};

fn seconds(policy: &RetryPolicy, attempts: std::ops::RangeInclusive<u32>) -> Vec<f64> {
    attempts.map(|attempt| policy.delay(attempt, 0.9).as_secs_f64()).collect()
}

fn exact() -> RetryPolicy {
    RetryPolicy { jitter: 0.0, ..RetryPolicy::default() }
}

#[test]
fn default_is_exactly_1_2_4_up_to_64_seconds_with_jitter_0() {
    assert_eq!(seconds(&exact(), 1..=9), [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0, 64.0]);
}

#[test]
fn base_2_cap_60_is_exactly_2_4_8_16_32_60_60_seconds() {
    let policy = RetryPolicy { backoff_base: Duration::from_secs(2), backoff_cap: Duration::from_mins(1), ..exact() };
    assert_eq!(seconds(&policy, 1..=7), [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]);
}

#[test]
fn factor_1_waits_the_same_each_time() {
    let policy = RetryPolicy { backoff_factor: 1.0, ..exact() };
    assert_eq!(seconds(&policy, 1..=3), [1.0; 3]);
    assert_eq!(policy.delay(u32::MAX, 0.0), Duration::from_secs(1));
}

#[test]
fn base_above_the_cap_waits_the_cap() {
    let policy = RetryPolicy { backoff_base: Duration::from_mins(5), ..exact() };
    assert_eq!(seconds(&policy, 1..=2), [64.0; 2]);
}

#[test]
fn zero_base_or_cap_does_not_wait() {
    for policy in [
        RetryPolicy { backoff_base: Duration::ZERO, ..exact() },
        RetryPolicy { backoff_cap: Duration::ZERO, ..exact() },
    ] {
        for attempt in [0, 1, 5_000, u32::MAX] {
            assert_eq!(policy.delay(attempt, 0.0), Duration::ZERO);
        }
    }
}

#[test]
fn full_jitter_is_anything_from_nothing_to_the_whole_delay() {
    let policy = RetryPolicy::default();
    assert_eq!(policy.delay(3, 0.0), Duration::from_secs(4));
    assert_eq!(policy.delay(3, 0.5), Duration::from_secs(2));
    assert_eq!(policy.delay(3, 1.0), Duration::ZERO);
}

#[test]
fn overrides_are_refused_outside_of_their_bounds_with_the_field() {
    let refused = [
        ("max_attempts", RetryOverrides { max_attempts: Some(0), ..RetryOverrides::default() }),
        ("max_attempts", RetryOverrides { max_attempts: Some(MAX_ATTEMPTS_BOUND + 1), ..RetryOverrides::default() }),
        ("max_lease_losses", RetryOverrides { max_lease_losses: Some(0), ..RetryOverrides::default() }),
        (
            "backoff_base",
            RetryOverrides { backoff_base: Some(MAX_WAIT + Duration::from_nanos(1)), ..RetryOverrides::default() },
        ),
        ("backoff_cap", RetryOverrides { backoff_cap: Some(Duration::MAX), ..RetryOverrides::default() }),
        ("backoff_factor", RetryOverrides { backoff_factor: Some(0.99), ..RetryOverrides::default() }),
        ("backoff_factor", RetryOverrides { backoff_factor: Some(f64::NAN), ..RetryOverrides::default() }),
        ("backoff_factor", RetryOverrides { backoff_factor: Some(f64::INFINITY), ..RetryOverrides::default() }),
        ("jitter", RetryOverrides { jitter: Some(-0.1), ..RetryOverrides::default() }),
        ("jitter", RetryOverrides { jitter: Some(1.1), ..RetryOverrides::default() }),
        ("jitter", RetryOverrides { jitter: Some(f64::NAN), ..RetryOverrides::default() }),
    ];
    for (field, overrides) in refused {
        assert_eq!(overrides.checked().expect_err(field).field, field);
    }
    assert!(RetryOverrides::default().checked().is_ok());
}

#[test]
fn what_is_not_overridden_follows_the_base() {
    let base = RetryPolicy { max_attempts: 9, ..RetryPolicy::default() };
    let overrides = RetryOverrides { jitter: Some(0.0), ..RetryOverrides::default() };
    assert_eq!(overrides.over(&base), RetryPolicy { jitter: 0.0, ..base });
    assert_eq!(RetryOverrides::default().over(&base), base);
}

prop_compose! {
    fn any_policy()(
        base in 0..=MAX_WAIT.as_secs() * 1_000,
        cap in 0..=MAX_WAIT.as_secs() * 1_000,
        factor in 1.0..=MAX_BACKOFF_FACTOR,
        jitter in 0.0..=1.0,
    ) -> RetryPolicy {
        RetryPolicy {
            backoff_base: Duration::from_millis(base),
            backoff_cap: Duration::from_millis(cap),
            backoff_factor: factor,
            jitter,
            ..RetryPolicy::default()
        }
    }
}

/// Small ones as often as large ones.
fn any_attempt() -> impl Strategy<Value = u32> {
    prop_oneof![0..20_u32, 1..=MAX_ATTEMPTS_BOUND, any::<u32>(), Just(u32::MAX)]
}

proptest! {
    /// A delay that is negative, infinite or no number would panic.
    #[test]
    fn no_valid_policy_overflows_or_exceeds_its_cap(policy in any_policy(), attempt in any_attempt(), chance in 0.0..=1.0) {
        prop_assert!(policy.delay(attempt, chance) <= policy.backoff_cap + Duration::from_micros(1));
    }

    #[test]
    fn chance_outside_of_its_range_does_no_harm(policy in any_policy(), attempt in any_attempt(), chance in any::<f64>()) {
        prop_assert!(policy.delay(attempt, chance) <= policy.backoff_cap + Duration::from_micros(1));
    }

    #[test]
    fn delay_never_shrinks_from_one_attempt_to_the_next(policy in any_policy(), attempt in any_attempt(), chance in 0.0..=1.0) {
        prop_assert!(policy.delay(attempt, chance) <= policy.delay(attempt.saturating_add(1), chance));
    }

    #[test]
    fn jitter_only_takes_off_and_never_more_than_its_part(policy in any_policy(), attempt in any_attempt(), chance in 0.0..=1.0) {
        let full = RetryPolicy { jitter: 0.0, ..policy }.delay(attempt, chance);
        let jittered = policy.delay(attempt, chance);
        let least = full.as_secs_f64() * (1.0 - policy.jitter);
        prop_assert!(jittered <= full + Duration::from_micros(1));
        prop_assert!(jittered.as_secs_f64() >= least - 1e-6 * full.as_secs_f64() - 1e-6);
    }

    #[test]
    fn jitter_0_ignores_the_chance(policy in any_policy(), attempt in any_attempt(), chance in any::<f64>()) {
        let exact = RetryPolicy { jitter: 0.0, ..policy };
        prop_assert_eq!(exact.delay(attempt, chance), exact.delay(attempt, 0.0));
    }
}
