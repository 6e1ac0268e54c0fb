//! The rules, one function each.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    Kind, State, Violation,
    state::{EndedAttempt, Policy},
};
use crate::history::{Event, History, How};

/// A rule: what it finds is wrong.
type Rule = fn(&History, &State) -> Vec<Violation>;

/// Those that hold at any time.
pub(super) const ALL: [Rule; 14] = [
    acknowledged_jobs_are_kept,
    one_job_per_key,
    one_place_per_job,
    tokens_increase,
    leases_do_not_overlap,
    every_start_has_its_lease,
    no_start_after_the_end,
    one_start_per_token,
    success_is_what_its_handler_returned,
    one_effect_per_key,
    budgets_hold,
    backoff_is_respected,
    workers_keep_to_their_slots,
    counts_agree_with_rows,
];

/// How far the clocks of the database and of the machine may seem apart, in nanoseconds: the time it takes to ask.
const CLOCK_SLACK: i128 = 20_000_000;

/// Rounding of times that are stored in microseconds and delays that are kept in milliseconds.
const DELAY_SLACK_MICROS: f64 = 2_000.0;

/// How attempts end that use one up.
const USED_UP: [&str; 3] = ["failed", "lost", "timed_out"];

fn violation(rule: &'static str, job: impl Into<Option<i64>>, text: String) -> Violation {
    Violation { rule, job: job.into(), text }
}

/// An acknowledged enqueue is never lost.
fn acknowledged_jobs_are_kept(history: &History, state: &State) -> Vec<Violation> {
    let wrong = |key: &str, job: i64| match state.jobs.get(&job) {
        None => Some("acknowledged, but it is gone".to_owned()),
        Some(stored) if stored.key.as_deref() != Some(key) => {
            Some(format!("acknowledged for key {key}, but it is stored under {:?}", stored.key))
        }
        Some(stored) if stored.places.is_empty() => Some("acknowledged, but it is nowhere".to_owned()),
        Some(_) => None,
    };
    let found = history.acknowledged().filter_map(|(key, job)| Some((job, wrong(key, job)?)));
    found.map(|(job, text)| violation("an acknowledged job is kept", job, text)).collect()
}

/// In the end every acknowledged job has ended.
pub(super) fn acknowledged_jobs_have_ended(history: &History, state: &State) -> Vec<Violation> {
    let open = |job: &i64| {
        let places = state.jobs.get(job).map(|job| &job.places)?;
        places.iter().find(|place| !place.kind.is_final()).map(|place| place.kind)
    };
    let jobs: BTreeSet<i64> = history.acknowledged().map(|(_, job)| job).collect();
    let found = jobs.into_iter().filter_map(|job| Some((job, open(&job)?)));
    found.map(|(job, kind)| violation("every job ends", job, format!("it is still {kind:?}"))).collect()
}

/// All enqueues under one key are one job, and only one of them is told that it made it.
fn one_job_per_key(history: &History, state: &State) -> Vec<Violation> {
    const RULE: &str = "a key is one job";
    let mut found = Vec::new();
    let mut told: HashMap<&str, i64> = HashMap::new();
    let mut made: BTreeSet<&str> = BTreeSet::new();
    for entry in &history.entries {
        let Event::Acknowledged { key, job, duplicate } = &entry.event else { continue };
        let key = key.as_str();
        let first = *told.entry(key).or_insert(*job);
        if first != *job {
            found.push(violation(RULE, *job, format!("key {key} was acknowledged as job {first} before")));
        }
        if !duplicate && !made.insert(key) {
            found.push(violation(RULE, *job, format!("key {key} was acknowledged as new twice")));
        }
    }
    let mut stored: HashMap<&str, i64> = HashMap::new();
    for (&id, job) in &state.jobs {
        if let Some(other) = job.key.as_deref().and_then(|key| stored.insert(key, id)) {
            found.push(violation(RULE, id, format!("has the key of job {other}")));
        }
    }
    found
}

/// A job is in one place.
fn one_place_per_job(_: &History, state: &State) -> Vec<Violation> {
    let several = state.jobs.iter().filter(|(_, job)| job.places.len() > 1);
    let kinds = |places: &[super::state::Place]| places.iter().map(|place| place.kind).collect::<Vec<_>>();
    several.map(|(&id, job)| violation("a job is in one place", id, format!("{:?}", kinds(&job.places)))).collect()
}

/// A lease, from its grant to its end.
#[derive(Debug, Clone, Copy)]
struct Lease {
    token: i64,
    number: i64,
    started: i64,
    // None while it is held.
    ended: Option<i64>,
    undelivered: bool,
}

/// The leases of each job, by grant.
fn leases(state: &State) -> BTreeMap<i64, Vec<Lease>> {
    let mut leases: BTreeMap<i64, Vec<Lease>> = BTreeMap::new();
    for &EndedAttempt { job, token, number, started, ended, ref how } in &state.attempts {
        let undelivered = how == "undelivered";
        leases.entry(job).or_default().push(Lease { token, number, started, ended: Some(ended), undelivered });
    }
    for (&id, job) in &state.jobs {
        for place in &job.places {
            let (Kind::Succeeded | Kind::Leased, Some(token), Some(started)) = (place.kind, place.token, place.started)
            else {
                continue;
            };
            let number = place.attempts + 1;
            leases.entry(id).or_default().push(Lease {
                token,
                number,
                started,
                ended: place.ended,
                undelivered: false,
            });
        }
    }
    for leases in leases.values_mut() {
        leases.sort_by_key(|lease| (lease.started, lease.token));
    }
    leases
}

/// Tokens of a job strictly increase, and no token is used twice anywhere.
fn tokens_increase(_: &History, state: &State) -> Vec<Violation> {
    const RULE: &str = "tokens increase";
    let mut found = Vec::new();
    let mut owners: HashMap<i64, i64> = HashMap::new();
    for (job, leases) in leases(state) {
        for pair in leases.windows(2) {
            if pair[1].token <= pair[0].token {
                found.push(violation(RULE, job, format!("{} after {}", pair[1].token, pair[0].token)));
            }
        }
        for lease in leases {
            if lease.token <= 0 {
                found.push(violation(RULE, job, format!("a lease has the token {}", lease.token)));
            }
            if let Some(other) = owners.insert(lease.token, job).filter(|&other| other != job) {
                found.push(violation(RULE, job, format!("{} was used for job {other}, too", lease.token)));
            }
        }
    }
    found
}

/// At most one lease of a job at any instant of the database, and none after the job's end.
fn leases_do_not_overlap(_: &History, state: &State) -> Vec<Violation> {
    const RULE: &str = "one lease at a time";
    let mut found = Vec::new();
    for (job, leases) in leases(state) {
        for pair in leases.windows(2) {
            if pair[0].ended.is_none_or(|ended| pair[1].started < ended) {
                found.push(violation(
                    RULE,
                    job,
                    format!("{} was granted while {} was held", pair[1].token, pair[0].token),
                ));
            }
        }
        let places = state.jobs.get(&job).map_or(&[][..], |job| job.places.as_slice());
        let ended = places.iter().filter(|place| place.kind.is_final()).find_map(|place| place.ended);
        let after = ended.and_then(|ended| leases.iter().find(|lease| lease.started > ended));
        if let Some(after) = after {
            found.push(violation("a job ends once", job, format!("{} was granted after its end", after.token)));
        }
    }
    found
}

/// A handler starts only what was leased, under the number of that attempt, and never what counts as not delivered.
fn every_start_has_its_lease(history: &History, state: &State) -> Vec<Violation> {
    const RULE: &str = "a start has its lease";
    let leases = leases(state);
    let mut found = Vec::new();
    for (_, start) in history.starts() {
        let lease = leases.get(&start.job).and_then(|leases| leases.iter().find(|lease| lease.token == start.token));
        let text = match lease {
            None => format!("{} was started and never leased", start.token),
            Some(lease) if lease.number != i64::from(start.number) => {
                format!("{} was started as attempt {} and is number {}", start.token, start.number, lease.number)
            }
            Some(lease) if lease.undelivered => format!("{} was started and counts as not delivered", start.token),
            Some(_) => continue,
        };
        found.push(violation(RULE, start.job, text));
    }
    found
}

/// No handler starts under a lease that has ended.
fn no_start_after_the_end(history: &History, state: &State) -> Vec<Violation> {
    let ended: HashMap<(i64, i64), i64> =
        state.attempts.iter().map(|attempt| ((attempt.job, attempt.token), attempt.ended)).collect();
    let late = |at: u64, key: (i64, i64)| {
        let by = i128::from(at) - state.nanos(*ended.get(&key)?);
        (by > CLOCK_SLACK).then_some(by / 1_000_000)
    };
    let found = history.starts().filter_map(|(at, start)| Some((start, late(at, (start.job, start.token))?)));
    let text = |token, by| format!("{token} was started {by} ms after the lease had ended");
    found.map(|(start, by)| violation("no start after the end", start.job, text(start.token, by))).collect()
}

/// A lease starts one handler.
fn one_start_per_token(history: &History, _: &State) -> Vec<Violation> {
    let mut seen = BTreeSet::new();
    let again = history.starts().filter(|(_, start)| !seen.insert((start.job, start.token)));
    again
        .map(|(_, start)| violation("one start per lease", start.job, format!("{} was started twice", start.token)))
        .collect()
}

/// A job that succeeded did so under a token whose handler said so, and has the result of that one.
fn success_is_what_its_handler_returned(history: &History, state: &State) -> Vec<Violation> {
    const RULE: &str = "a success is its handler's";
    let ends = history.ends();
    let mut found = Vec::new();
    for (&id, job) in &state.jobs {
        for place in job.places.iter().filter(|place| place.kind == Kind::Succeeded) {
            let token = place.token.unwrap_or_default();
            if ends.get(&(id, token)) != Some(&How::Succeeded) {
                let text = format!("{token} succeeded, but its handler says {:?}", ends.get(&(id, token)));
                found.push(violation(RULE, id, text));
            } else if place.result.as_deref() != Some(&token.to_string()) {
                found.push(violation(RULE, id, format!("{token} succeeded with the result {:?}", place.result)));
            }
        }
    }
    found
}

/// The effect of a key is there once, and is that of the attempt that succeeded.
fn one_effect_per_key(_: &History, state: &State) -> Vec<Violation> {
    const RULE: &str = "one effect per key";
    let mut found = Vec::new();
    let mut keys = BTreeSet::new();
    for effect in &state.effects {
        if !keys.insert(&effect.key) {
            found.push(violation(RULE, effect.job, format!("key {} has several", effect.key)));
        }
        if effect.text != effect.token.to_string() {
            let text = format!("committed under {}, but it is that of {}", effect.token, effect.text);
            found.push(violation(RULE, effect.job, text));
        }
        let succeeded = state.jobs.get(&effect.job).is_some_and(|job| {
            job.places.iter().any(|place| place.kind == Kind::Succeeded && place.token == Some(effect.token))
        });
        if !succeeded {
            let text = format!("committed under {}, which did not succeed", effect.token);
            found.push(violation(RULE, effect.job, text));
        }
    }
    for (&id, job) in &state.jobs {
        let succeeded = job.places.iter().any(|place| place.kind == Kind::Succeeded);
        if succeeded && !job.key.as_ref().is_some_and(|key| keys.contains(key)) {
            found.push(violation(RULE, id, "it succeeded and has none".to_owned()));
        }
    }
    found
}

/// Attempts and lease losses stay within their budgets, and the counters that travel with a job are those of its history.
fn budgets_hold(_: &History, state: &State) -> Vec<Violation> {
    const RULE: &str = "budgets hold";
    let mut used: HashMap<i64, (i64, i64)> = HashMap::new();
    for attempt in state.attempts.iter().filter(|attempt| USED_UP.contains(&attempt.how.as_str())) {
        let (attempts, losses) = used.entry(attempt.job).or_default();
        *attempts += 1;
        *losses += i64::from(attempt.how == "lost");
    }
    let mut found = Vec::new();
    for (&id, job) in &state.jobs {
        let (attempts, losses) = used.get(&id).copied().unwrap_or_default();
        let Policy { max_attempts, max_lease_losses, .. } = job.policy;
        if attempts > max_attempts || losses > max_lease_losses {
            let text = format!(
                "{attempts} of {max_attempts} attempts and {losses} of {max_lease_losses} lease losses were used"
            );
            found.push(violation(RULE, id, text));
        }
        for place in job.places.iter().filter(|place| (place.attempts, place.lease_losses) != (attempts, losses)) {
            let text = format!(
                "used {attempts} attempts and {losses} lease losses, but counts {} and {}",
                place.attempts, place.lease_losses
            );
            found.push(violation(RULE, id, text));
        }
    }
    found
}

/// A failed attempt is followed by the next one no earlier than its backoff allows.
fn backoff_is_respected(_: &History, state: &State) -> Vec<Violation> {
    let leases = leases(state);
    let mut found = Vec::new();
    for failed in state.attempts.iter().filter(|attempt| attempt.how == "failed") {
        let Some(job) = state.jobs.get(&failed.job) else { continue };
        let next = leases[&failed.job].iter().find(|lease| lease.started >= failed.ended);
        let Some(next) = next else { continue };
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let waited = (next.started - failed.ended) as f64;
        let least = least_delay(job.policy, failed.number) * 1e3;
        if waited + DELAY_SLACK_MICROS < least {
            let text = format!("{} began {waited} µs after {} failed, not {least}", next.token, failed.token);
            found.push(violation("backoff is respected", failed.job, text));
        }
    }
    found
}

/// The shortest wait after an attempt, in milliseconds.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn least_delay(policy: Policy, number: i64) -> f64 {
    let steps = i32::try_from(number - 1).unwrap_or(i32::MAX);
    let grown = policy.backoff_base_ms as f64 * policy.backoff_factor.powi(steps);
    grown.min(policy.backoff_cap_ms as f64) * (1.0 - policy.jitter)
}

/// No worker runs more jobs at once than it has slots.
fn workers_keep_to_their_slots(history: &History, _: &State) -> Vec<Violation> {
    let mut slots: HashMap<&str, usize> = HashMap::new();
    let mut running: HashMap<&str, BTreeSet<(i64, i64)>> = HashMap::new();
    let mut found = Vec::new();
    for entry in &history.entries {
        let by = entry.by.as_str();
        match &entry.event {
            Event::Opened { slots: of } => _ = slots.insert(by, *of),
            Event::Ended { attempt, .. } => _ = running.entry(by).or_default().remove(&(attempt.job, attempt.token)),
            Event::Started(attempt) => {
                let running = running.entry(by).or_default();
                running.insert((attempt.job, attempt.token));
                if slots.get(by).is_some_and(|slots| running.len() > *slots) {
                    let text = format!("{by} runs {} jobs at once", running.len());
                    found.push(violation("workers keep to their slots", attempt.job, text));
                }
            }
            _ => {}
        }
    }
    found
}

/// What the database counts is what it holds.
fn counts_agree_with_rows(_: &History, state: &State) -> Vec<Violation> {
    state.miscounted.iter().map(|text| violation("counts agree with rows", None, text.clone())).collect()
}
