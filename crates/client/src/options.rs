//! Where the schedulers are and how to reach them.

use std::fmt;
use std::time::Duration;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::transport::{ClientTlsConfig, Endpoint};
use tonic::{Request, Status};

use crate::{Error, Secret};

/// Addresses that one client may be given.
pub const MAX_ADDRESSES: usize = 64;
/// How long one try of one call may take, unless set otherwise.
pub const DEFAULT_CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may take to come about, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A connection is asked for a sign of life so often, also while it is idle.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// A connection that gives none for so long is closed.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// How to reach the schedulers. Any of several addresses will do; the next one is tried when one fails.
#[derive(Clone)]
pub struct ConnectOptions {
    /// URLs such as `http://127.0.0.1:7878` or `https://scheduler:7878`, 1 to [`MAX_ADDRESSES`].
    pub addresses: Vec<String>,
    /// Sent as bearer token with every call.
    pub token: Option<Secret>,
    /// How to check an `https` scheduler's certificate, and the certificate to show. Default for `https`: the roots of the system.
    pub tls: Option<ClientTlsConfig>,
    /// Bound on one try of one call. Default [`DEFAULT_CALL_TIMEOUT`].
    pub call_timeout: Duration,
}

impl ConnectOptions {
    /// Options for these addresses, without token and with the system's roots where an address is `https`.
    pub fn new<A: Into<String>>(addresses: impl IntoIterator<Item = A>) -> Self {
        Self {
            addresses: addresses.into_iter().map(Into::into).collect(),
            token: None,
            tls: None,
            call_timeout: DEFAULT_CALL_TIMEOUT,
        }
    }

    /// Sets the bearer token.
    #[must_use]
    pub fn with_token(self, token: Option<Secret>) -> Self {
        Self { token, ..self }
    }

    /// Sets how TLS is done.
    #[must_use]
    pub fn with_tls(self, tls: Option<ClientTlsConfig>) -> Self {
        Self { tls, ..self }
    }

    pub(crate) fn bearer(&self) -> Result<Bearer, Error> {
        let Some(token) = &self.token else { return Ok(Bearer(None)) };
        let mut value = MetadataValue::try_from(format!("Bearer {}", token.expose()))
            .map_err(|_| Error::Options("the token has characters that a header cannot carry".to_owned()))?;
        value.set_sensitive(true);
        Ok(Bearer(Some(value)))
    }

    pub(crate) fn endpoints(&self) -> Result<Vec<Endpoint>, Error> {
        if self.addresses.is_empty() || self.addresses.len() > MAX_ADDRESSES {
            return Err(Error::Options(format!("1 to {MAX_ADDRESSES} scheduler addresses are needed")));
        }
        self.addresses.iter().map(|address| self.endpoint(address)).collect()
    }

    fn endpoint(&self, address: &str) -> Result<Endpoint, Error> {
        let wrong = |problem: &str| Error::Options(format!("the scheduler address {address:?} {problem}"));
        let endpoint = Endpoint::from_shared(address.to_owned()).map_err(|_| wrong("is not a URL"))?;
        let endpoint = match (endpoint.uri().scheme_str(), &self.tls) {
            // TLS that was asked for and silently left out would be the worst of answers.
            (Some("http"), Some(_)) => return Err(wrong("is http, but TLS options are set; write https")),
            (Some("http"), None) => endpoint,
            (Some("https"), tls) => {
                let tls = tls.clone().unwrap_or_else(|| ClientTlsConfig::new().with_native_roots());
                endpoint.tls_config(tls).map_err(|error| wrong(&format!("cannot use the TLS options: {error:?}")))?
            }
            _ => return Err(wrong("must start with http:// or https://")),
        };
        Ok(endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true))
    }
}

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The TLS configuration holds a private key.
        f.debug_struct("ConnectOptions")
            .field("addresses", &self.addresses)
            .field("token", &self.token)
            .field("tls", &self.tls.is_some())
            .field("call_timeout", &self.call_timeout)
            .finish()
    }
}

/// Adds the bearer token to every call.
#[derive(Clone)]
pub(crate) struct Bearer(Option<MetadataValue<Ascii>>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use tonic::transport::ClientTlsConfig;

    use super::ConnectOptions;
    use crate::Secret;

    #[test]
    fn tls_options_with_a_plain_address_are_refused() {
        let options = ConnectOptions::new(["http://a:1"]).with_tls(Some(ClientTlsConfig::new()));
        assert!(options.endpoints().unwrap_err().to_string().contains("write https"));
    }

    #[test]
    fn addresses_must_be_urls_and_some() {
        for addresses in [vec![], vec!["a:1"], vec!["ftp://a:1"], vec!["http://a b"]] {
            assert!(ConnectOptions::new(addresses.clone()).endpoints().is_err(), "{addresses:?}");
        }
        assert!(ConnectOptions::new(["http://a:1", "http://b:1"]).endpoints().is_ok());
    }

    #[test]
    fn options_print_no_token() {
        let options = ConnectOptions::new(["http://a:1"]).with_token(Some(Secret::new("hunter2")));
        assert!(!format!("{options:?}").contains("hunter2"));
    }

    #[test]
    fn a_token_that_no_header_carries_is_refused_without_showing_it() {
        let options = ConnectOptions::new(["http://a:1"]).with_token(Some(Secret::new("hunter2\n")));
        let error = options.bearer().err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("token") && !error.contains("hunter2"), "{error}");
    }
}
