//! Flags of whoever serves.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{bail, ensure};
use clap::builder::FalseyValueParser;
use tonic::transport::ServerTlsConfig;

use crate::{Auth, pem, token};
use client::Secret;

/// Where a scheduler listens unless told otherwise.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:7878";

/// Where to listen, and who may call.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Listening", about = None, long_about = None)]
pub struct ListenArgs {
    /// Address of the gRPC services. Beyond loopback it needs TLS or a token.
    #[arg(long, env = "FENCEPOST_LISTEN", default_value = DEFAULT_LISTEN, value_name = "ADDR:PORT")]
    pub listen: SocketAddr,

    /// Certificate chain, PEM. Turns TLS on.
    #[arg(long, env = "FENCEPOST_TLS_CERT", value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,

    /// Key of the certificate, PEM.
    #[arg(long, env = "FENCEPOST_TLS_KEY", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,

    /// Authorities of client certificates, PEM. Every caller must then present a certificate of theirs.
    #[arg(long, env = "FENCEPOST_TLS_CLIENT_CA", value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,

    /// File with the token that callers must send. Without it the variable FENCEPOST_TOKEN, if set.
    #[arg(long, env = "FENCEPOST_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Listens beyond loopback although everybody who reaches the port may then do everything.
    #[arg(long, env = "FENCEPOST_INSECURE_LISTEN", value_parser = FalseyValueParser::new())]
    pub insecure_listen: bool,
}

impl ListenArgs {
    /// Checks everything that can be checked before listening: flags, files, and who could reach what.
    ///
    /// Refuses an address beyond loopback without TLS or token unless told so. Logs a warning for what is allowed but
    /// rarely meant.
    pub fn validate(&self) -> anyhow::Result<()> {
        let tls = self.server_tls()?.is_some();
        let token = self.token()?.is_some();
        if self.listen.ip().is_loopback() {
            return Ok(());
        }
        ensure!(
            tls || token || self.insecure_listen,
            "refusing to listen on {} without protection: set --tls-cert and --tls-key, or --token-file (FENCEPOST_TOKEN), \
             or say --insecure-listen",
            self.listen
        );
        self.warn(tls, token);
        Ok(())
    }

    fn warn(&self, tls: bool, token: bool) {
        let listen = self.listen;
        if !tls && !token {
            tracing::warn!(%listen, "listening without TLS and token: everybody who reaches the port may do everything");
        } else if !tls {
            tracing::warn!(%listen, "listening without TLS: the token and all payloads can be read on the way");
        } else if !token && self.tls_client_ca.is_none() {
            tracing::warn!(%listen, "listening with TLS but without token and client certificates: everybody may call");
        }
    }

    /// The TLS of the server; none if no certificate is given.
    pub fn server_tls(&self) -> anyhow::Result<Option<ServerTlsConfig>> {
        let (cert, key) = match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => (cert, key),
            (None, None) if self.tls_client_ca.is_none() => return Ok(None),
            (Some(_), None) => bail!("--tls-cert needs --tls-key"),
            (None, Some(_)) => bail!("--tls-key needs --tls-cert"),
            (None, None) => bail!("--tls-client-ca needs --tls-cert and --tls-key"),
        };
        let tls = ServerTlsConfig::new().identity(pem::identity(("--tls-cert", cert), ("--tls-key", key))?);
        Ok(Some(match &self.tls_client_ca {
            Some(ca) => tls.client_ca_root(pem::certificates("--tls-client-ca", ca)?),
            None => tls,
        }))
    }

    /// The token that callers must send, if there is one.
    pub fn token(&self) -> anyhow::Result<Option<Secret>> {
        token::configured(self.token_file.as_deref())
    }

    /// The check of that token.
    pub fn auth(&self) -> anyhow::Result<Auth> {
        self.token().map(Auth::new)
    }
}
