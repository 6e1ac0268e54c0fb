//! Worker sessions without workers: streams that say what the protocol asks for and never have a free slot.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use client::{
    ConnectOptions, WorkAddress,
    v1::{self, work_request::Message, work_response},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{interval, sleep, timeout},
};

use crate::{
    jobs::{NOOP, QUEUE},
    stage::Stage,
};

/// Something is sent at least so often, as a worker does.
const PING: Duration = Duration::from_secs(2);

/// A stream must be welcomed within this, as a worker asks for.
const OPEN_BOUND: Duration = Duration::from_secs(4);

/// The pauses before a reconnect grow from the first to the second, as a worker's do; of each a random part is taken.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(3));

/// A killed scheduler's connections are closed at once.
const NOTICE_BOUND: Duration = Duration::from_secs(10);

/// Messages that wait to be sent.
const BUFFER: usize = 4;

/// Largest message that is accepted.
const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// Sessions that keep themselves open; a drop ends them.
#[derive(Debug)]
pub(crate) struct Sessions {
    open: watch::Receiver<usize>,
    wanted: usize,
    _tasks: JoinSet<()>,
}

impl Sessions {
    /// Begins to open so many, each on a connection of its own.
    pub(crate) fn open(options: &ConnectOptions, count: usize) -> anyhow::Result<Self> {
        let address = options.work_addresses()?.into_iter().next().context("start a scheduler first")?;
        let (tell, open) = watch::channel(0);
        let tell = Arc::new(tell);
        let mut tasks = JoinSet::new();
        for _ in 0..count {
            let id = rand::random();
            tasks.spawn(Session { address: address.clone(), id, open: tell.clone() }.keep());
        }
        Ok(Self { open, wanted: count, _tasks: tasks })
    }

    /// Waits until all are welcomed, or an error after that time.
    pub(crate) async fn all_open(&mut self, stage: &mut Stage<'_>, bound: Duration) -> anyhow::Result<()> {
        let wanted = self.wanted;
        let all = timeout(bound, self.open.wait_for(|open| *open >= wanted)).await.map(|open| open.map(drop));
        stage.check()?;
        all.with_context(|| format!("{} of {wanted} sessions are open after {bound:?}", *self.open.borrow()))??;
        Ok(())
    }

    /// Waits until all have noticed that their streams are closed.
    pub(crate) async fn none_open(&mut self) -> anyhow::Result<()> {
        let none = timeout(NOTICE_BOUND, self.open.wait_for(|open| *open == 0)).await;
        none.context("wait for sessions to notice the end of their streams")?.map(drop).context("no session is left")
    }
}

struct Session {
    address: WorkAddress,
    id: [u8; 16],
    open: Arc<watch::Sender<usize>>,
}

impl Session {
    async fn keep(self) {
        let mut failures = 0;
        loop {
            match self.serve().await {
                Ok(()) => failures = 0,
                Err(()) => failures += 1,
            }
            let pause = PAUSES.0.saturating_mul(1 << failures.min(16_u32)).min(PAUSES.1);
            sleep(pause.mul_f64(rand::random())).await;
        }
    }

    /// Opens a stream and keeps it until it ends. An error if it was never welcomed.
    async fn serve(&self) -> Result<(), ()> {
        let (requests, receiver) = mpsc::channel(BUFFER);
        requests.try_send(request(Message::Hello(self.hello()))).map_err(drop)?;
        let opening = async {
            let connection = self.address.connect().await.map_err(drop)?;
            let mut responses = connection.work_stream(receiver, MAX_MESSAGE_BYTES).await.map_err(drop)?;
            let first = responses.message().await.map_err(drop)?.and_then(|response| response.message);
            match first {
                Some(work_response::Message::Welcome(welcome)) => Ok((responses, welcome)),
                _ => Err(()),
            }
        };
        let (mut responses, welcome) = timeout(OPEN_BOUND, opening).await.map_err(drop)??;
        self.open.send_modify(|open| *open += 1);
        let beat = welcome.heartbeat_interval.and_then(|beat| Duration::try_from(beat).ok()).unwrap_or(PING);
        let (mut beats, mut pings) = (interval(beat), interval(PING));
        let mut sequence = 0;
        loop {
            let message = tokio::select! {
                response = responses.message() => match response {
                    Ok(Some(_)) => continue,
                    _ => break,
                },
                _ = beats.tick() => {
                    sequence += 1;
                    Message::Heartbeat(v1::Heartbeat { sequence, leases: Vec::new() })
                }
                _ = pings.tick() => Message::Ping(v1::Ping {}),
            };
            if requests.send(request(message)).await.is_err() {
                break;
            }
        }
        self.open.send_modify(|open| *open -= 1);
        Ok(())
    }

    fn hello(&self) -> v1::Hello {
        v1::Hello {
            worker_name: "bench-session".to_owned(),
            session_id: self.id.to_vec().into(),
            queues: vec![QUEUE.to_owned()],
            kinds: vec![NOOP.to_owned()],
            capacity: 1,
            ..v1::Hello::default()
        }
    }
}

fn request(message: Message) -> v1::WorkRequest {
    v1::WorkRequest { message: Some(message) }
}
