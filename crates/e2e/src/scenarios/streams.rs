//! Streams that a worker would not open.

use std::time::Duration;

use anyhow::ensure;
use client::v1;
use futures::future::try_join_all;
use queue_core::NewJob;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    io::AsyncWriteExt as _,
    net::TcpStream,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use v1::{settlement::Outcome, work_request::Message as Request};

use super::{LOAD, RATE, plain, soon};
use crate::{
    bare::{Bare, hello},
    proxy::Way,
    world::{TTL, World},
};

/// Sessions whose jobs are settled at the edge of their expiry.
const EDGE_SESSIONS: u32 = 100;

/// Jobs of each.
const EDGE_JOBS: u32 = 100;

/// How far before and after the expiry settlements go out.
const EDGE: Duration = Duration::from_millis(400);

pub(super) async fn expiry_edge(world: &mut World) -> anyhow::Result<()> {
    for _ in 0..2 {
        world.add_scheduler().await?;
    }
    world.add_reaper(Duration::from_millis(50));
    world.producer()?.enqueue(EDGE_SESSIONS * EDGE_JOBS, |_| plain(1), soon).await?;
    world.fault("settlements at the edge of expiry");
    let mut sessions = JoinSet::new();
    for number in 0..EDGE_SESSIONS {
        let log = world.log(&format!("edge-{number}"))?;
        let url = world.urls()[number as usize % 2].clone();
        let mut rng = StdRng::seed_from_u64(world.rng.random());
        sessions.spawn(async move {
            let mut bare = Bare::open(&url, hello("edge", EDGE_JOBS), log).await?;
            let jobs = bare.take(EDGE_JOBS as usize).await?;
            bare.beat(1, &jobs).await?;
            let begin = Instant::now() + TTL - EDGE;
            let mut moments: Vec<Duration> = jobs.iter().map(|_| (EDGE * 2).mul_f64(rng.random())).collect();
            moments.sort_unstable();
            for (job, moment) in jobs.iter().zip(moments) {
                sleep_until(begin + moment).await;
                bare.succeed(&[*job]).await;
            }
            anyhow::Ok(bare.verdicts(jobs.len()).await.len())
        });
    }
    while let Some(ended) = sessions.join_next().await {
        ended??;
    }
    world.healed("settlements at the edge of expiry");
    let mut conn = world.connect().await?;
    let count = "select (select count(*) from fencepost.finished), (select count(*) from fencepost.attempt_log where ended = 'lost')";
    let (in_time, late): (i64, i64) = sqlx::query_as(count).fetch_one(&mut conn).await?;
    ensure!(in_time > 0 && late > 0, "nothing raced: {in_time} were settled in time, {late} leases were lost");
    for _ in 0..3 {
        world.add_worker(64);
    }
    Ok(())
}

pub(super) async fn grants_lost(world: &mut World) -> anyhow::Result<()> {
    // Longer than the silence, so that no session dies of it.
    world.ttl = Duration::from_secs(15);
    world.populate(1, 2, 4).await?;
    let producer = world.direct_producer(0)?;
    producer.enqueue(8, |_| plain(1), |job| job).await?;
    world.rest(Duration::from_secs(10)).await?;
    world.fault("grants lost on the way");
    world.schedulers[0].front.silence(Way::Down);
    producer.enqueue(50, |_| plain(50), |job| job).await?;
    // Workers notice the silence after six seconds and open other streams, which are silent, too.
    sleep(Duration::from_secs(9)).await;
    world.schedulers[0].front.heal();
    world.healed("grants lost on the way");
    world.rest(Duration::from_secs(20)).await?;
    let mut conn = world.connect().await?;
    let ends = "select count(*) filter (where ended = 'undelivered'), count(*) filter (where ended <> 'undelivered')
        from fencepost.attempt_log";
    let (undelivered, others): (i64, i64) = sqlx::query_as(ends).fetch_one(&mut conn).await?;
    ensure!(undelivered > 0, "no grant was lost");
    ensure!(others == 0, "{others} attempts were used up by grants that were lost");
    Ok(())
}

/// Connections that say nothing, or nothing that makes sense.
const STRAY_CONNECTIONS: u32 = 600;

/// Workers that lie.
const LIARS: u32 = 4;

pub(super) async fn hostile(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 3, 8).await?;
    world.fault("hostile workers and connections");
    let mut strays = Vec::new();
    for number in 0..STRAY_CONNECTIONS {
        let address = world.schedulers[number as usize % 2].address;
        let Ok(mut stray) = TcpStream::connect(address).await else { continue };
        let bytes: Vec<u8> = match number % 3 {
            0 => Vec::new(),
            1 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            _ => (0..200).map(|_| world.rng.random()).collect(),
        };
        // It may have been closed already.
        let _ = stray.write_all(&bytes).await;
        strays.push(stray);
    }
    let end = Instant::now() + LOAD;
    let mut liars = Vec::new();
    for number in 0..LIARS {
        let (url, log) = (world.urls()[number as usize % 2].clone(), world.log(&format!("liar-{number}"))?);
        let rng = StdRng::seed_from_u64(world.rng.random());
        let database = world.connect().await?;
        liars.push(tokio::spawn(async move {
            let mut liar = Liar { url, log, rng, database };
            while Instant::now() < end {
                liar.lie().await?;
            }
            anyhow::Ok(())
        }));
    }
    let producer = world.producer()?;
    producer.enqueue_paced(RATE, LOAD, plain(50)).await?;
    for liar in try_join_all(liars).await? {
        liar?;
    }
    drop(strays);
    world.healed("hostile workers and connections");
    Ok(())
}

/// A worker that knows what others hold, and says whatever it likes of it.
struct Liar {
    url: String,
    log: crate::history::Log,
    rng: StdRng,
    database: sqlx::PgConnection,
}

impl Liar {
    /// Opens a stream and lies until it is thrown out or has enough.
    async fn lie(&mut self) -> anyhow::Result<()> {
        let Ok(mut bare) = Bare::open(&self.url, hello("liar", 10), self.log.clone()).await else {
            // It has been refused: that is fine.
            sleep(Duration::from_millis(100)).await;
            return Ok(());
        };
        for _ in 0..20 {
            let held = "select job_id, token from fencepost.lease join fencepost.worker using (session_no)
                where name <> 'liar' limit 50";
            let others: Vec<(i64, i64)> = sqlx::query_as(held).fetch_all(&mut self.database).await?;
            for message in self.lies(&others) {
                bare.say(message).await;
            }
            if tokio::time::timeout(Duration::from_millis(20), bare.hear()).await.is_ok_and(|heard| heard.is_err()) {
                break;
            }
        }
        Ok(())
    }

    fn lies(&mut self, others: &[(i64, i64)]) -> Vec<Request> {
        let lease = |&(job_id, token): &(i64, i64)| v1::LeaseRef { job_id, token };
        let theirs = |outcome: &dyn Fn() -> Outcome| {
            let settle = |&(job_id, token): &(i64, i64)| v1::Settlement { job_id, token, outcome: Some(outcome()) };
            Request::Settle(v1::Settle { settlements: others.iter().map(settle).collect() })
        };
        let big = vec![b'x'; 2 << 20];
        match self.rng.random_range(0..10) {
            0 => vec![theirs(&|| Outcome::Succeeded(v1::Succeeded::default()))],
            1 => vec![theirs(&|| Outcome::Released(v1::Released { reason: "liar".to_owned() }))],
            2 => vec![theirs(&|| {
                Outcome::Failed(v1::Failed {
                    code: "liar".to_owned(),
                    message: "no".to_owned(),
                    ..v1::Failed::default()
                })
            })],
            3 => vec![theirs(&|| Outcome::Snoozed(v1::Snoozed::default()))],
            4 => vec![Request::LeaseAck(v1::LeaseAck { leases: others.iter().map(lease).collect() })],
            5 => {
                let held = |&(job_id, token): &(i64, i64)| v1::HeldLease { job_id, token, progress: Some(f64::NAN) };
                let leases = others.iter().map(held).collect();
                vec![Request::Heartbeat(v1::Heartbeat { sequence: self.rng.random(), leases })]
            }
            6 => vec![Request::Credit(v1::Credit { total: self.rng.random_range(0..3) }); 3],
            7 => vec![Request::Hello(hello("liar", 10))],
            8 => {
                let outcome =
                    Outcome::Succeeded(v1::Succeeded { result: Some(big.into()), ..v1::Succeeded::default() });
                let settlement =
                    v1::Settlement { job_id: self.rng.random(), token: self.rng.random(), outcome: Some(outcome) };
                vec![Request::Settle(v1::Settle { settlements: vec![settlement] })]
            }
            _ => vec![Request::Draining(v1::Draining {}), Request::Bye(v1::Bye {}), Request::Ping(v1::Ping {})],
        }
    }
}

/// Bytes of a large payload.
const LARGE: usize = 100_000;

/// Workers that read nothing.
const UNREADING: u32 = 3;

pub(super) async fn large_payloads(world: &mut World) -> anyhow::Result<()> {
    world.populate(2, 1, 10).await?;
    world.fault("workers that read nothing");
    let mut idle = Vec::new();
    for number in 0..UNREADING {
        let (url, log) = (world.urls()[number as usize % 2].clone(), world.log(&format!("unreading-{number}"))?);
        let bare = Bare::open(&url, hello("unreading", 10_000), log).await?;
        idle.push(tokio::spawn(async move {
            // It lives, and has room for everything.
            loop {
                bare.say(Request::Credit(v1::Credit { total: 10_000 })).await;
                bare.say(Request::Ping(v1::Ping {})).await;
                sleep(Duration::from_secs(1)).await;
            }
        }));
    }
    let large = |job: NewJob| {
        let mut job = soon(job);
        let mut payload = job.payload.to_vec();
        // Blanks after it change nothing.
        payload.resize(LARGE, b' ');
        job.payload = payload.into();
        job
    };
    world.producer()?.enqueue(1_000, |_| plain(20), large).await?;
    world.rest(Duration::from_secs(40)).await?;
    idle.iter().for_each(tokio::task::JoinHandle::abort);
    world.healed("workers that read nothing");
    Ok(())
}
