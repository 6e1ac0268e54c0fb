//! When a failed attempt is tried again: a pure function of the attempt, the policy and one random number.

use std::time::Duration;

use crate::{Invalid, MAX_ATTEMPTS_BOUND, MAX_BACKOFF_FACTOR, MAX_WAIT};

/// The complete retry policy of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetryPolicy {
    /// Attempts before the job is dead.
    pub max_attempts: u32,
    /// Lease losses before the job is dead.
    pub max_lease_losses: u32,
    /// Delay after the first failure.
    pub backoff_base: Duration,
    /// Growth of the delay from one failure to the next.
    pub backoff_factor: f64,
    /// The delay never exceeds this.
    pub backoff_cap: Duration,
    /// Part of the delay that chance may take off, 0 to 1.
    pub jitter: f64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 5,
            max_lease_losses: 3,
            backoff_base: Duration::from_secs(1),
            backoff_factor: 2.0,
            backoff_cap: Duration::from_secs(64),
            jitter: 1.0,
        }
    }
}

impl RetryPolicy {
    /// The delay before the next attempt, after `attempts_used` of them.
    ///
    /// `chance` is uniform in 0..1. Never longer than the cap, at any attempt number; exact with jitter 0.
    pub fn delay(&self, attempts_used: u32, chance: f64) -> Duration {
        let steps = i32::try_from(attempts_used.saturating_sub(1)).unwrap_or(i32::MAX);
        let cap = self.backoff_cap.as_secs_f64();
        let base = self.backoff_base.as_secs_f64();
        // A power that overflows is infinite, and 0 × infinity is no number: then the cap, or nothing, is meant.
        let grown = if base == 0.0 { 0.0 } else { (base * self.backoff_factor.powi(steps)).min(cap) };
        Duration::from_secs_f64((grown * (1.0 - self.jitter * chance.clamp(0.0, 1.0))).max(0.0))
    }
}

/// What a job or a queue sets of its retry policy; the rest follows the queue, then the defaults.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RetryOverrides {
    /// 1 to 10,000.
    pub max_attempts: Option<u32>,
    /// 1 to 10,000.
    pub max_lease_losses: Option<u32>,
    /// 0 to 30 days.
    pub backoff_base: Option<Duration>,
    /// 1 to 100.
    pub backoff_factor: Option<f64>,
    /// 0 to 30 days.
    pub backoff_cap: Option<Duration>,
    /// 0 to 1.
    pub jitter: Option<f64>,
}

impl RetryOverrides {
    /// Refuses values outside of their bounds, naming the field.
    pub fn checked(self) -> Result<Self, Invalid> {
        count("max_attempts", self.max_attempts)?;
        count("max_lease_losses", self.max_lease_losses)?;
        wait("backoff_base", self.backoff_base)?;
        wait("backoff_cap", self.backoff_cap)?;
        number("backoff_factor", self.backoff_factor, 1.0, MAX_BACKOFF_FACTOR)?;
        number("jitter", self.jitter, 0.0, 1.0)?;
        Ok(self)
    }

    /// The policy that results where `self` wins over `base`.
    #[must_use]
    pub fn over(&self, base: &RetryPolicy) -> RetryPolicy {
        RetryPolicy {
            max_attempts: self.max_attempts.unwrap_or(base.max_attempts),
            max_lease_losses: self.max_lease_losses.unwrap_or(base.max_lease_losses),
            backoff_base: self.backoff_base.unwrap_or(base.backoff_base),
            backoff_factor: self.backoff_factor.unwrap_or(base.backoff_factor),
            backoff_cap: self.backoff_cap.unwrap_or(base.backoff_cap),
            jitter: self.jitter.unwrap_or(base.jitter),
        }
    }
}

fn count(field: &str, value: Option<u32>) -> Result<(), Invalid> {
    match value {
        Some(n) if n == 0 || n > MAX_ATTEMPTS_BOUND => {
            Err(Invalid::new(field, format!("must be 1 to {MAX_ATTEMPTS_BOUND}, is {n}")))
        }
        _ => Ok(()),
    }
}

fn wait(field: &str, value: Option<Duration>) -> Result<(), Invalid> {
    match value {
        Some(d) if d > MAX_WAIT => Err(Invalid::new(field, "must be at most 30 days")),
        _ => Ok(()),
    }
}

fn number(field: &str, value: Option<f64>, min: f64, max: f64) -> Result<(), Invalid> {
    match value {
        // Written so that NaN is refused too.
        Some(x) if !(min..=max).contains(&x) => Err(Invalid::new(field, format!("must be {min} to {max}, is {x}"))),
        _ => Ok(()),
    }
}
