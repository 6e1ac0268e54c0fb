//! How a stream begins.

use std::time::Duration;

use queue_proto::millis;
use queue_proto::v1::work_request::Message as Request;
use queue_proto::v1::{self, work_response};
use tokio::time::timeout;
use tonic::Code;

use crate::hand::{Hand, hello, raw};
use crate::setup::{PATIENCE, job, with_scheduler};

fn good() -> v1::Hello {
    hello(&["q"], &["k"])
}

#[tokio::test]
async fn hello_must_be_the_first_message() {
    with_scheduler(async |db, scheduler| {
        let firsts = [
            Request::Credit(v1::Credit { total: 1 }),
            Request::Heartbeat(v1::Heartbeat::default()),
            Request::Settle(v1::Settle::default()),
            Request::Ping(v1::Ping {}),
            Request::Bye(v1::Bye {}),
        ];
        for first in firsts {
            let refused = raw(scheduler, vec![first]).await.expect_err("refused");
            assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
            assert!(refused.message().starts_with("hello: "), "{refused}");
        }
        // A worker that goes without a word.
        let mut client = scheduler.work();
        let refused = client.work(tokio_stream::empty::<v1::WorkRequest>()).await.expect_err("refused");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        let nothing = v1::WorkRequest { message: None };
        let refused = client.work(tokio_stream::iter([nothing])).await.expect_err("refused");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert_eq!(db.number("select count(*) from fencepost.worker").await, 0);
    })
    .await;
}

#[tokio::test]
async fn every_malformed_field_of_hello_is_refused_by_name() {
    with_scheduler(async |db, scheduler| {
        let names = |count: usize| (0..count).map(|n| format!("n{n}")).collect::<Vec<_>>();
        let lease = |job_id, token| vec![v1::LeaseRef { job_id, token }];
        let cases = [
            ("worker_name", v1::Hello { worker_name: String::new(), ..good() }),
            ("worker_name", v1::Hello { worker_name: "x".repeat(129), ..good() }),
            ("worker_name", v1::Hello { worker_name: "a\0b".to_owned(), ..good() }),
            ("session_id", v1::Hello { session_id: Vec::new().into(), ..good() }),
            ("session_id", v1::Hello { session_id: vec![1; 15].into(), ..good() }),
            ("session_id", v1::Hello { session_id: vec![1; 17].into(), ..good() }),
            ("session_id", v1::Hello { session_id: vec![0; 16].into(), ..good() }),
            ("queues", v1::Hello { queues: Vec::new(), ..good() }),
            ("queues", v1::Hello { queues: names(65), ..good() }),
            ("queues[1]", v1::Hello { queues: vec!["a".to_owned(), "a b".to_owned()], ..good() }),
            ("queues[1]", v1::Hello { queues: vec!["a".to_owned(), "a".to_owned()], ..good() }),
            ("kinds", v1::Hello { kinds: Vec::new(), ..good() }),
            ("kinds", v1::Hello { kinds: names(257), ..good() }),
            ("kinds[0]", v1::Hello { kinds: vec![String::new()], ..good() }),
            ("kinds[0]", v1::Hello { kinds: vec!["a\0".to_owned()], ..good() }),
            ("capacity", v1::Hello { capacity: 0, ..good() }),
            ("capacity", v1::Hello { capacity: 10_001, ..good() }),
            ("max_message_bytes", v1::Hello { max_message_bytes: Some(0), ..good() }),
            ("max_message_bytes", v1::Hello { max_message_bytes: Some((2 << 20) - 1), ..good() }),
            ("build", v1::Hello { build: "a\0".to_owned(), ..good() }),
            ("build", v1::Hello { build: "x".repeat(129), ..good() }),
            ("leases[0].job_id", v1::Hello { leases: lease(0, 1), ..good() }),
            ("leases[0].token", v1::Hello { leases: lease(1, 0), ..good() }),
            ("leases[0].token", v1::Hello { leases: lease(1, -1), ..good() }),
            (
                "leases",
                v1::Hello { leases: (1..=10_001).map(|n| v1::LeaseRef { job_id: n, token: n }).collect(), ..good() },
            ),
        ];
        for (field, hello) in cases {
            let refused = Hand::with(scheduler, hello).await.err().unwrap_or_else(|| panic!("{field} is refused"));
            assert_eq!(refused.code(), Code::InvalidArgument, "{field}: {refused}");
            assert!(refused.message().starts_with(&format!("hello.{field}: ")), "{field}: {refused}");
        }
        assert_eq!(db.number("select count(*) from fencepost.worker").await, 0);
        let bounds = v1::Hello {
            queues: names(64),
            kinds: names(256),
            capacity: 10_000,
            max_message_bytes: Some(u32::MAX),
            ..good()
        };
        Hand::with(scheduler, bounds).await.expect("values at their bounds are taken");
    })
    .await;
}

#[tokio::test]
async fn welcome_tells_the_intervals_and_bounds() {
    with_scheduler(async |_, scheduler| {
        let welcome = Hand::open(scheduler, &["q"], &["k"]).await.welcome;
        assert_eq!(welcome.lease_ttl, Some(millis(Duration::from_secs(10))));
        let heartbeat = welcome.heartbeat_interval.expect("an interval");
        assert!(heartbeat.seconds == 3 && (300_000_000..400_000_000).contains(&heartbeat.nanos), "a third");
        assert_eq!(welcome.max_payload_bytes, 1 << 20);
        assert!(welcome.server_build.starts_with("scheduler "));
        assert_eq!(welcome.lost, []);
    })
    .await;
}

#[tokio::test]
async fn malformed_messages_end_their_stream_and_no_other() {
    with_scheduler(async |_, scheduler| {
        let mut other = Hand::open(scheduler, &["q"], &["k"]).await;
        let settlements = |count: usize| vec![v1::Settlement { job_id: 1, token: 1, outcome: None }; count];
        let lease = |job_id, token| v1::LeaseRef { job_id, token };
        let held = |job_id, token| v1::HeldLease { job_id, token, progress: None };
        let beat = |leases| Request::Heartbeat(v1::Heartbeat { sequence: 1, leases });
        let cases = [
            ("hello: ", Request::Hello(good())),
            ("lease_ack.leases.job_id: ", Request::LeaseAck(v1::LeaseAck { leases: vec![lease(0, 1)] })),
            ("lease_ack.leases.token: ", Request::LeaseAck(v1::LeaseAck { leases: vec![lease(1, 0)] })),
            ("heartbeat.leases[0].job_id: ", beat(vec![held(-1, 1)])),
            ("heartbeat.leases[1].token: ", beat(vec![held(1, 1), held(1, 0)])),
            ("heartbeat.leases: ", beat((1..=10_001).map(|n| held(n, n)).collect())),
            ("settle.settlements: ", Request::Settle(v1::Settle { settlements: settlements(10_001) })),
        ];
        for (message, request) in cases {
            let mut hand = Hand::open(scheduler, &["q"], &["k"]).await;
            hand.send(request).await;
            let ended = hand.end().await.expect("an error");
            assert_eq!(ended.code(), Code::InvalidArgument, "{message}: {ended}");
            assert!(ended.message().starts_with(message), "{message}: {ended}");
        }
        let id = scheduler.enqueue(job("q", "k")).await;
        assert_eq!(other.take_one().await.job_id, id);
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_says_nothing_is_gone_after_six_seconds_while_pings_keep_another() {
    with_scheduler(async |_, scheduler| {
        let mut silent = Hand::open(scheduler, &["q"], &["k"]).await;
        let (requests, mut responses) = raw(scheduler, vec![Request::Hello(good())]).await.expect("opens");
        let mut ended = Box::pin(silent.end());
        let mut pings = 0;
        // The scheduler pings every 2 s, and each ping is answered.
        let ended = loop {
            tokio::select! {
                ended = &mut ended => break ended,
                message = timeout(PATIENCE, responses.message()) => {
                    let message = message.expect("in time").expect("the stream lives").expect("a message").message;
                    if let Some(work_response::Message::Ping(_)) = message {
                        pings += 1;
                        let ping = Some(Request::Ping(v1::Ping {}));
                        requests.send(v1::WorkRequest { message: ping }).await.expect("the stream lives");
                    }
                }
            }
        };
        assert_eq!(ended.expect("an error").code(), Code::Unavailable);
        assert!(pings >= 3, "{pings} pings in six seconds");
    })
    .await;
}
