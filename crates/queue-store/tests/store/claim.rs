//! Claim: never more than the slots, never one job twice, only for whom the claimer serves.

use std::collections::{HashMap, HashSet};

use queue_core::{AttemptEnd, JobId, Priority, Token};
use queue_store::{Claim, ClaimRequest, Claimed, Owner};
use sqlx::Connection;
use testbed::{PATIENCE, db_test, eventually};
use tokio::task::JoinSet;

use crate::fixture::{Desk, MANY_BYTES, ending, hello, holder, job, job_of};

async fn claim(desk: &Desk<'_>, request: &ClaimRequest) -> Claim {
    let mut conn = desk.store.hot().await.expect("connects");
    queue_store::claim(&mut conn, request).await.expect("claims")
}

#[tokio::test]
async fn no_more_than_the_slots_are_granted_and_they_are_dealt_out_in_turn() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(20).await;
        let (a, b) = (desk.session().await, desk.session().await);
        let claim = claim(&desk, &desk.request(&[(a, 5), (b, 2)])).await;
        let held_by = |owner: Owner| claim.jobs.iter().filter(|job| job.session_no == owner.session_no).count();
        assert_eq!((held_by(a), held_by(b)), (5, 2));
        assert!(claim.more);
        let sessions: Vec<_> = claim.jobs.iter().map(|job| job.session_no).collect();
        assert_eq!(sessions[..4], [a.session_no, b.session_no, a.session_no, b.session_no]);
        assert_eq!(db.number("select count(*) from fencepost.lease").await, 7);
    })
    .await;
}

#[tokio::test]
async fn nothing_is_granted_without_slots_or_lanes_or_jobs() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let owner = desk.session().await;
        let empty = claim(&desk, &desk.request(&[(owner, 5)])).await;
        assert!(empty.jobs.is_empty() && !empty.more && empty.now > 0);
        desk.add_many(3).await;
        assert!(claim(&desk, &desk.request(&[(owner, 0)])).await.jobs.is_empty());
        assert!(claim(&desk, &desk.request(&[])).await.jobs.is_empty());
        assert_eq!(desk.claim(&[(owner, 5)]).await.len(), 3);
        assert!(!claim(&desk, &desk.request(&[(owner, 5)])).await.more);
    })
    .await;
}

#[tokio::test]
async fn jobs_of_a_lane_are_granted_in_the_order_of_their_enqueue() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let mut added = Vec::new();
        for _ in 0..5 {
            added.extend(desk.add_many(20).await);
        }
        let owner = desk.session().await;
        let mut granted: Vec<JobId> = Vec::new();
        while granted.len() < added.len() {
            granted.extend(desk.claim(&[(owner, 7)]).await.iter().map(|job| job.job));
        }
        assert_eq!(granted, added);
    })
    .await;
}

#[tokio::test]
async fn claim_takes_only_from_the_lanes_it_names() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let with_priority = |priority| {
            let mut job = job("p");
            job.priority = Priority::try_from(priority).expect("valid");
            job
        };
        let low = desk.add(with_priority(1)).await;
        let high = desk.add(with_priority(9)).await;
        let other_kind = desk.add(job_of("mail", "unknown", "p")).await;
        let owner = desk.session().await;
        let of_priority = |priority| {
            let mut request = desk.request(&[(owner, 10)]);
            request.lanes.retain(|(lane, _)| lane.priority == priority);
            request
        };
        let first = claim(&desk, &of_priority(9)).await;
        assert_eq!(first.jobs.iter().map(|job| job.job).collect::<Vec<_>>(), [high]);
        let second = claim(&desk, &of_priority(1)).await;
        assert_eq!(second.jobs.iter().map(|job| job.job).collect::<Vec<_>>(), [low]);
        assert_eq!(desk.look(other_kind).await.used.attempts, 0);
    })
    .await;
}

#[tokio::test]
async fn claim_over_several_lanes_takes_the_longest_waiting_first() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let mut added = Vec::new();
        for n in 0..12 {
            added.push(desk.add(job_of("mail", if n % 3 == 0 { "send" } else { "sort" }, "p")).await);
        }
        // Of one millisecond and two connections, in any order.
        added.sort_unstable();
        let owner = desk.session().await;
        let granted: Vec<_> = desk.claim(&[(owner, 8)]).await.iter().map(|job| job.job).collect();
        assert_eq!(granted, added[..8]);
    })
    .await;
}

#[tokio::test]
async fn claim_is_bounded_by_bytes_but_always_takes_one() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let owner = desk.session().await;
        desk.enqueue(&[job(&"a".repeat(100)), job(&"b".repeat(100)), job(&"c".repeat(100)), job("d")]).await;
        let bounded = |max_bytes| ClaimRequest { max_bytes, ..desk.request(&[(owner, 10)]) };
        assert_eq!(claim(&desk, &bounded(250)).await.jobs.len(), 2);
        let one = claim(&desk, &bounded(0)).await;
        assert_eq!(one.jobs.len(), 1);
        assert!(one.more, "the bound and not the lane ended the claim");
        assert_eq!(claim(&desk, &bounded(1)).await.jobs.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn rows_below_the_low_mark_are_not_seen() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(3).await;
        let owner = desk.session().await;
        let mut request = desk.request(&[(owner, 10)]);
        request.lanes[0].1 = i64::MAX;
        assert!(claim(&desk, &request).await.jobs.is_empty());
        request.lanes[0].1 = 0;
        assert_eq!(claim(&desk, &request).await.jobs.len(), 3);
    })
    .await;
}

#[tokio::test]
async fn concurrent_claimers_never_hold_the_same_lease() {
    const JOBS: usize = 4_000;
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(JOBS).await;
        let mut claimers = JoinSet::new();
        for n in 0..8_u32 {
            let owner = desk.session().await;
            // Some believe that they are alone.
            let (store, alone) = (desk.store.clone(), n % 3 == 0);
            let request = ClaimRequest { alone, ..desk.request(&[(owner, 5 + 7 * n)]) };
            claimers.spawn(async move {
                let mut conn = store.hot().await.expect("connects");
                let mut granted: Vec<Claimed> = Vec::new();
                loop {
                    let claim = queue_store::claim(&mut conn, &request).await.expect("claims");
                    assert!(claim.jobs.len() <= request.slots[0].slots as usize, "no more than the slots");
                    if claim.jobs.is_empty() && !claim.more {
                        return granted;
                    }
                    granted.extend(claim.jobs);
                }
            });
        }
        let granted: Vec<Claimed> = claimers.join_all().await.concat();
        let jobs: HashSet<_> = granted.iter().map(|job| job.job).collect();
        let tokens: HashSet<_> = granted.iter().map(|job| job.token).collect();
        assert_eq!((granted.len(), jobs.len(), tokens.len()), (JOBS, JOBS, JOBS));
    })
    .await;
}

#[tokio::test]
async fn claimer_that_wrongly_believes_to_be_alone_waits_and_takes_what_is_left() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(5).await;
        let owner = desk.session().await;
        let mut conn = desk.store.hot().await.expect("connects");
        let mut tx = conn.begin().await.expect("begins");
        let request = ClaimRequest { alone: true, ..desk.request(&[(owner, 3)]) };
        let first = queue_store::claim(&mut tx, &request).await.expect("claims").jobs;
        let second = async {
            let mut claims = vec![claim(&desk, &request).await];
            while claims.last().is_some_and(|claim| claim.more) {
                claims.push(claim(&desk, &request).await);
            }
            claims.into_iter().flat_map(|claim| claim.jobs).collect::<Vec<_>>()
        };
        let commit = async {
            eventually(PATIENCE, "the other waits", async || {
                db.number("select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'").await == 1
            })
            .await;
            tx.commit().await.expect("commits");
        };
        let (second, ()) = tokio::join!(second, commit);
        let jobs: HashSet<_> = first.iter().chain(&second).map(|job| job.job).collect();
        assert_eq!((first.len(), second.len(), jobs.len()), (3, 2, 5));
    })
    .await;
}

#[tokio::test]
async fn tokens_of_a_job_strictly_increase_from_grant_to_grant() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(30).await;
        let owner = desk.session().await;
        let mut last: HashMap<JobId, Token> = HashMap::new();
        for round in 0..8 {
            // Another connection each time: a sequence with a cache would give each of them numbers of its own.
            let store = db.another_store();
            let mut conn = store.hot().await.expect("connects");
            let held = queue_store::claim(&mut conn, &desk.request(&[(owner, 30)])).await.expect("claims").jobs;
            assert_eq!(held.len(), 30);
            for job in &held {
                let before = last.insert(job.job, job.token);
                assert!(before < Some(job.token), "round {round}: {before:?}, {}", job.token);
            }
            let mut ended: Vec<_> = held.iter().map(|job| ending(job, AttemptEnd::Released)).collect();
            ended.sort_by_key(|ending| ending.holder);
            desk.end_all(&ended).await;
        }
    })
    .await;
}

#[tokio::test]
async fn old_owner_claims_nothing_after_it_was_replaced() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let other = Desk::on(db, db.another_store()).await;
        desk.add_many(3).await;
        let worker = hello();
        let old = desk.greet(&worker).await;
        let new = other.greet(&worker).await;
        assert_eq!(old.session_no, new.session_no);
        assert!(desk.claim(&[(old, 10)]).await.is_empty());
        // Nor with a right that is half of each.
        assert!(desk.claim(&[(Owner { epoch: new.epoch, ..old }, 10)]).await.is_empty());
        assert!(desk.claim(&[(Owner { scheduler: new.scheduler, ..old }, 10)]).await.is_empty());
        assert_eq!(desk.claim(&[(old, 10), (new, 10)]).await.len(), 3);
        assert_eq!(db.number("select count(*) from fencepost.lease").await, 3);
    })
    .await;
}

#[tokio::test]
async fn dead_session_is_granted_nothing() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(3).await;
        let owner = desk.session().await;
        let warden = desk.warden().await;
        desk.lose(owner, warden).await;
        assert!(desk.claim(&[(owner, 10)]).await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn lease_is_committed_before_its_job_is_handed_out() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        desk.add_many(1).await;
        let owner = desk.session().await;
        let mut conn = desk.store.hot().await.expect("connects");
        let request = desk.request(&[(owner, 1)]);
        let claimed = queue_store::claim(&mut conn, &request).await.expect("claims").jobs.pop().expect("a job");
        // Seen by another connection while the claiming one has done nothing else: no transaction is open.
        assert_eq!(db.number("select max(token) from fencepost.lease").await, claimed.token.get());
        let open = db
            .number("select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'")
            .await;
        assert_eq!(open, 0);
    })
    .await;
}

#[tokio::test]
async fn claim_that_is_rolled_back_leaves_the_jobs_where_they_were() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        let added = desk.add_many(3).await;
        let owner = desk.session().await;
        let mut conn = desk.store.hot().await.expect("connects");
        let mut tx = conn.begin().await.expect("begins");
        let lost = queue_store::claim(&mut tx, &desk.request(&[(owner, 3)])).await.expect("claims").jobs;
        assert!(desk.claim(&[(owner, 3)]).await.is_empty(), "locked rows are skipped, not waited for");
        tx.rollback().await.expect("rolls back");
        let held = desk.claim(&[(owner, 3)]).await;
        assert_eq!(held.iter().map(|job| job.job).collect::<Vec<_>>(), added);
        let highest = lost.iter().map(|job| job.token).max();
        assert!(held.iter().all(|job| Some(job.token) > highest), "a token that was drawn is never drawn again");
        assert!(desk.succeed(holder(&lost[0])).await.is_none(), "what was never committed settles nothing");
    })
    .await;
}

#[tokio::test]
async fn hundreds_of_lanes_and_sessions_fit_into_one_claim() {
    db_test(async |db| {
        let desk = Desk::open(db).await;
        for n in 0..60 {
            desk.add(job_of("mail", &format!("kind-{n}"), "p")).await;
        }
        let mut slots = Vec::new();
        for _ in 0..20 {
            slots.push((desk.session().await, 3));
        }
        let request = ClaimRequest { max_bytes: MANY_BYTES, ..desk.request(&slots) };
        assert_eq!(claim(&desk, &request).await.jobs.len(), 60);
    })
    .await;
}
