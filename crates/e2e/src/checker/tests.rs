//! Histories in which one thing is wrong, each of which must be found.

use super::{
    End, Kind, State, Violation, check,
    state::{Effect, EndedAttempt, Job, Place, Policy},
};
use crate::history::{Attempt, Entry, Event, History, How};

const POLICY: Policy = Policy {
    max_attempts: 3,
    max_lease_losses: 2,
    backoff_base_ms: 1_000,
    backoff_cap_ms: 60_000,
    backoff_factor: 2.0,
    jitter: 0.5,
};

/// A job that failed once, was lost once, and succeeded under its third token. Times are seconds.
struct Run {
    history: History,
    state: State,
}

const JOB: i64 = 7;

fn place(kind: Kind, token: i64, started: i64, ended: i64) -> Place {
    let (started, ended) = (Some(started * 1_000_000), Some(ended * 1_000_000));
    let (attempts, lease_losses, result) = (2, 1, Some(token.to_string()));
    Place { kind, token: Some(token), started, ended, attempts, lease_losses, result }
}

fn ended(token: i64, number: i64, started: i64, ended: i64, how: &str) -> EndedAttempt {
    EndedAttempt {
        job: JOB,
        token,
        number,
        started: started * 1_000_000,
        ended: ended * 1_000_000,
        how: how.to_owned(),
    }
}

fn attempt(token: i64, number: u32) -> Attempt {
    Attempt { job: JOB, token, number }
}

fn acknowledged(job: i64, key: &str, duplicate: bool) -> Event {
    Event::Acknowledged { key: key.to_owned(), job, duplicate }
}

impl Run {
    fn healthy() -> Self {
        let mut run = Self { history: History::default(), state: State::default() };
        run.tell(0, Event::Opened { slots: 1 });
        run.tell(1, acknowledged(JOB, "k", false));
        run.tell(2, Event::Started(attempt(10, 1)));
        run.tell(3, Event::Ended { attempt: attempt(10, 1), how: How::Failed });
        run.tell(5, Event::Started(attempt(11, 2)));
        run.tell(6, Event::Ended { attempt: attempt(11, 2), how: How::Stopped });
        run.tell(21, Event::Started(attempt(12, 3)));
        run.tell(22, Event::Ended { attempt: attempt(12, 3), how: How::Succeeded });
        let places = vec![place(Kind::Succeeded, 12, 20, 22)];
        run.state.jobs.insert(JOB, Job { key: Some("k".to_owned()), policy: POLICY, places });
        run.state.attempts = vec![ended(10, 1, 2, 3, "failed"), ended(11, 2, 5, 20, "lost")];
        let (key, text) = ("k".to_owned(), "12".to_owned());
        run.state.effects = vec![Effect { key, job: JOB, token: 12, text }];
        run
    }

    fn tell(&mut self, seconds: u64, event: Event) {
        let entry = Entry { at: seconds * 1_000_000_000, by: "worker".to_owned(), event };
        self.history.entries.push(entry);
        self.history.entries.sort_by_key(|entry| entry.at);
    }

    fn job(&mut self) -> &mut Job {
        self.state.jobs.get_mut(&JOB).expect("the job is there")
    }

    fn place(&mut self) -> &mut Place {
        &mut self.job().places[0]
    }

    fn check(&self) -> Vec<Violation> {
        check(&self.history, &self.state, End::AtRest)
    }
}

/// Plants one fault; this rule, and it may be others, must find it.
fn found(rule: &str, plant: impl FnOnce(&mut Run)) {
    let mut run = Run::healthy();
    plant(&mut run);
    let found = run.check();
    assert!(found.iter().any(|violation| violation.rule == rule), "{rule}: {found:?}");
}

#[test]
fn a_healthy_history_is_accepted() {
    assert_eq!(Run::healthy().check(), []);
}

#[test]
fn a_lost_job_is_found() {
    const RULE: &str = "an acknowledged job is kept";
    found(RULE, |run| run.state.jobs.clear());
    found(RULE, |run| run.job().places.clear());
    found(RULE, |run| run.job().key = Some("other".to_owned()));
    found("every job ends", |run| run.place().kind = Kind::Ready);
    found("every job ends", |run| run.place().kind = Kind::Leased);
}

#[test]
fn a_key_with_two_jobs_is_found() {
    const RULE: &str = "a key is one job";
    found(RULE, |run| run.tell(4, acknowledged(8, "k", true)));
    found(RULE, |run| run.tell(4, acknowledged(JOB, "k", false)));
    found(RULE, |run| {
        let twin = run.job().clone();
        run.state.jobs.insert(8, twin);
    });
}

#[test]
fn a_job_in_two_places_is_found() {
    found("a job is in one place", |run| {
        let twice = place(Kind::Dead, 11, 5, 20);
        run.job().places.push(twice);
    });
}

#[test]
fn tokens_that_do_not_increase_are_found() {
    const RULE: &str = "tokens increase";
    found(RULE, |run| run.place().token = Some(9));
    found(RULE, |run| run.place().token = Some(11));
    found(RULE, |run| run.state.attempts[0].token = 0);
    found(RULE, |run| {
        let mut other = ended(12, 1, 2, 3, "failed");
        other.job = 8;
        run.state.attempts.push(other);
    });
}

#[test]
fn two_leases_at_a_time_are_found() {
    const RULE: &str = "one lease at a time";
    found(RULE, |run| run.place().started = Some(19_999_999));
    found(RULE, |run| run.state.attempts[0].ended = 6_000_000);
    found("a job ends once", |run| run.state.attempts.push(ended(13, 3, 23, 24, "released")));
}

#[test]
fn a_start_without_its_lease_is_found() {
    const RULE: &str = "a start has its lease";
    found(RULE, |run| run.tell(23, Event::Started(attempt(13, 3))));
    found(RULE, |run| run.tell(4, Event::Started(Attempt { job: 8, token: 10, number: 1 })));
    found(RULE, |run| run.state.attempts[1].number = 1);
    found(RULE, |run| "undelivered".clone_into(&mut run.state.attempts[1].how));
    found("one start per lease", |run| run.tell(4, Event::Started(attempt(10, 1))));
}

#[test]
fn a_start_after_the_end_of_its_lease_is_found() {
    found("no start after the end", |run| {
        run.history.entries.retain(|entry| entry.event != Event::Started(attempt(11, 2)));
        run.tell(21, Event::Started(attempt(11, 2)));
    });
}

#[test]
fn a_success_that_no_handler_made_is_found() {
    const RULE: &str = "a success is its handler's";
    found(RULE, |run| run.place().result = Some("11".to_owned()));
    found(RULE, |run| run.place().result = None);
    found(RULE, |run| run.history.entries.retain(|entry| entry.at != 22_000_000_000));
}

#[test]
fn effects_that_are_not_once_are_found() {
    const RULE: &str = "one effect per key";
    found(RULE, |run| run.state.effects.clear());
    found(RULE, |run| run.state.effects[0].token = 11);
    found(RULE, |run| "11".clone_into(&mut run.state.effects[0].text));
    found(RULE, |run| {
        let again = run.state.effects[0].clone();
        run.state.effects.push(again);
    });
    found(RULE, |run| run.place().kind = Kind::Dead);
}

#[test]
fn budgets_that_are_exceeded_or_miscounted_are_found() {
    const RULE: &str = "budgets hold";
    found(RULE, |run| run.job().policy.max_attempts = 1);
    found(RULE, |run| run.job().policy.max_lease_losses = 0);
    found(RULE, |run| run.place().attempts = 1);
    found(RULE, |run| run.place().lease_losses = 0);
    found(RULE, |run| "released".clone_into(&mut run.state.attempts[1].how));
}

#[test]
fn a_retry_that_comes_too_early_is_found() {
    const RULE: &str = "backoff is respected";
    found(RULE, |run| run.state.attempts[1].started = 3_400_000);
    found(RULE, |run| run.job().policy.backoff_base_ms = 5_000);
    found(RULE, |run| {
        run.job().policy.jitter = 0.0;
        run.state.attempts[1].started = 3_900_000;
    });
}

#[test]
fn a_worker_with_too_many_jobs_is_found() {
    found("workers keep to their slots", |run| {
        run.tell(2, Event::Started(Attempt { job: 8, token: 14, number: 1 }));
    });
}

#[test]
fn counts_that_are_wrong_are_found() {
    found("counts agree with rows", |run| run.state.miscounted.push("queue q: 1 jobs are ready, not 2".to_owned()));
}
