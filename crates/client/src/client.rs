//! The connection to the schedulers, and how one call is made over it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use crate::options::Bearer;
use crate::reason::{advised_reason, unconnected};
use crate::repeat::{MAX_TRIES, Repeat, Verdict, judge, pause};
use crate::{ConnectOptions, Error};

/// Bound on an answer: a job with payload, result and effect of 16 MiB each, and its history.
pub(crate) const MAX_ANSWER_BYTES: usize = 64 << 20;

/// How a call travels: over one connection, with the token.
pub(crate) type Transport = InterceptedService<Channel, Bearer>;

/// A producer's or operator's connection. Cheap to clone; clones share the connections.
#[derive(Clone, Debug)]
pub struct Client(Arc<Inner>);

struct Inner {
    // With their addresses; at least one.
    transports: Vec<(String, Transport)>,
    // Where the last call succeeded, modulo the number of addresses.
    current: AtomicUsize,
    call_timeout: Duration,
}

impl Client {
    /// Connects to the first address that answers.
    ///
    /// Errors: [`Error::Options`], or [`Error::Unavailable`] if none answers.
    pub async fn connect(options: &ConnectOptions) -> Result<Self, Error> {
        let client = Self::lazy(options)?;
        let mut last = String::new();
        for (at, endpoint) in options.endpoints()?.into_iter().enumerate() {
            match endpoint.connect().await {
                Ok(_) => {
                    client.0.current.store(at, Ordering::Relaxed);
                    return Ok(client);
                }
                Err(error) => {
                    let address = &options.addresses[at];
                    last = format!("{address}: {}", unconnected(address, &error));
                }
            }
        }
        Err(Error::Unavailable(format!("no scheduler answers, the last one tried was {last}")))
    }

    /// Connects with the first call. Must be called within a tokio runtime.
    ///
    /// Errors: [`Error::Options`].
    pub fn lazy(options: &ConnectOptions) -> Result<Self, Error> {
        let bearer = options.bearer()?;
        let transport = |endpoint: Endpoint| InterceptedService::new(endpoint.connect_lazy(), bearer.clone());
        let endpoints = options.endpoints()?.into_iter().map(transport);
        let transports = options.addresses.iter().cloned().zip(endpoints).collect();
        Ok(Self(Arc::new(Inner { transports, current: AtomicUsize::new(0), call_timeout: options.call_timeout })))
    }

    /// Makes a call, over another address and after a pause where it failed and may be repeated.
    pub(crate) async fn call<T, F>(&self, repeat: Repeat, send: impl Fn(Transport) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut tries = 1;
        loop {
            let at = self.0.current.load(Ordering::Relaxed);
            let (address, transport) = &self.0.transports[at % self.0.transports.len()];
            let answer = send(transport.clone());
            let status = match tokio::time::timeout(self.0.call_timeout, answer).await {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded(format!("no answer within {:?}", self.0.call_timeout)),
            };
            match judge(&status, repeat) {
                Verdict::Answered => return Err(status.into()),
                Verdict::Unknown => return Err(Error::OutcomeUnknown(advised_reason(address, &status))),
                Verdict::Again if tries == MAX_TRIES => {
                    return Err(Error::Unavailable(advised_reason(address, &status)));
                }
                Verdict::Again => self.leave(at),
            }
            tokio::time::sleep(pause(tries, rand::random())).await;
            tries += 1;
        }
    }

    /// Moves to the next address, unless another call already did.
    fn leave(&self, at: usize) {
        // A failed exchange means that another call moved on.
        let _ = self.0.current.compare_exchange(at, at.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("addresses", &self.transports.len()).finish_non_exhaustive()
    }
}
