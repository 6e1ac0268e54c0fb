//! What the link says, and in which order.

use std::time::Duration;

use queue_core::MAX_BATCH;
use queue_proto::{lease_ref, v1};
use tokio::sync::mpsc::error::TrySendError;
use v1::work_request::Message;

use crate::link::Link;
use crate::stream::{Stream, request};

impl Link {
    /// Says what there is to say, as far as the connection takes it.
    pub(crate) fn flush(&mut self, now: Duration) {
        self.blocked = false;
        while let Some(requests) = self.stream.as_ref().map(|stream| stream.requests.clone()) {
            match requests.try_reserve() {
                Ok(room) => {
                    let Some(message) = self.next_message(now) else { return };
                    room.send(request(message));
                }
                Err(TrySendError::Full(())) => {
                    self.blocked = true;
                    return;
                }
                // The stream is ending; reading it tells why.
                Err(TrySendError::Closed(())) => return,
            }
        }
    }

    /// The most urgent message, if any is due.
    fn next_message(&mut self, now: Duration) -> Option<Message> {
        let message = self
            .lease_ack()
            .or_else(|| self.heartbeat(now))
            .or_else(|| self.settle(now))
            .or_else(|| self.draining())
            .or_else(|| self.credit(now))
            .or_else(|| self.ping(now))?;
        if let Some(stream) = &mut self.stream {
            stream.spoke = now;
        }
        Some(message)
    }

    fn lease_ack(&mut self) -> Option<Message> {
        let leases = self.table.take_acknowledgements(MAX_BATCH);
        let leases: Vec<_> = leases.into_iter().map(lease_ref).collect();
        (!leases.is_empty()).then_some(Message::LeaseAck(v1::LeaseAck { leases }))
    }

    fn heartbeat(&mut self, now: Duration) -> Option<Message> {
        let stream = self.stream.as_mut().filter(|stream| now >= stream.next_heartbeat)?;
        let sequence = stream.beat(now);
        Some(Message::Heartbeat(v1::Heartbeat { sequence, leases: self.table.heartbeat() }))
    }

    fn settle(&mut self, now: Duration) -> Option<Message> {
        let settlements = self.table.take_settlements(now);
        (!settlements.is_empty()).then_some(Message::Settle(v1::Settle { settlements }))
    }

    fn draining(&mut self) -> Option<Message> {
        self.drain.as_ref()?;
        let stream = self.stream.as_mut().filter(|stream| !stream.said_draining)?;
        stream.said_draining = true;
        Some(Message::Draining(v1::Draining {}))
    }

    fn credit(&mut self, now: Duration) -> Option<Message> {
        let slots = self.free_slots(now);
        let stream = self.stream.as_mut().filter(|_| slots > 0)?;
        Some(Message::Credit(v1::Credit { total: stream.promise(slots) }))
    }

    fn ping(&mut self, now: Duration) -> Option<Message> {
        let quiet = now.saturating_sub(self.stream.as_ref()?.spoke);
        (quiet >= self.settings.timing.ping).then_some(Message::Ping(v1::Ping {}))
    }
}

/// Closes the session and waits until the scheduler has closed the stream.
pub(crate) async fn farewell(stream: Stream) {
    let Stream { requests, mut responses, .. } = stream;
    if requests.send(request(Message::Bye(v1::Bye {}))).await.is_ok() {
        drop(requests);
        while let Ok(Some(_)) = responses.message().await {}
    }
}
