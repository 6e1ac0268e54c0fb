//! Flags of whoever calls.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use client::{ConnectOptions, Secret};
use tonic::transport::{ClientTlsConfig, Uri};

use crate::{pem, token};

/// The scheduler that is called unless told otherwise.
pub const DEFAULT_SCHEDULER: &str = "http://127.0.0.1:7878";

/// Which schedulers to call, and how.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Connection", about = None, long_about = None)]
pub struct ConnectArgs {
    /// Schedulers to call, http:// or https://, separated by commas. Any of them will do.
    #[arg(long, env = "FENCEPOST_SCHEDULER", default_value = DEFAULT_SCHEDULER, value_delimiter = ',', value_name = "URL")]
    pub scheduler: Vec<String>,

    /// Authorities of the schedulers' certificates, PEM. The system's unless set.
    #[arg(long, env = "FENCEPOST_TLS_CA", value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,

    /// Certificate to present, PEM.
    #[arg(long, env = "FENCEPOST_TLS_CLIENT_CERT", value_name = "FILE")]
    pub tls_client_cert: Option<PathBuf>,

    /// Key of that certificate, PEM.
    #[arg(long, env = "FENCEPOST_TLS_CLIENT_KEY", value_name = "FILE")]
    pub tls_client_key: Option<PathBuf>,

    /// Name that the schedulers' certificates must have. The host of the URL unless set.
    #[arg(long, env = "FENCEPOST_TLS_DOMAIN", value_name = "NAME")]
    pub tls_domain: Option<String>,

    /// File with the token to send. Without it the variable FENCEPOST_TOKEN, if set.
    #[arg(long, env = "FENCEPOST_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

impl ConnectArgs {
    /// The options of a client, checked; files are read now.
    pub fn options(&self) -> anyhow::Result<ConnectOptions> {
        let addresses = self.addresses()?;
        let token = self.token()?;
        let plain = addresses.iter().any(|address| !is_secure(address));
        if plain && token.is_some() && !addresses.iter().all(|address| is_loopback(address)) {
            tracing::warn!("calling schedulers without TLS: the token and all payloads can be read on the way");
        }
        Ok(ConnectOptions::new(addresses).with_token(token).with_tls(self.client_tls()?))
    }

    /// The addresses, checked: at least one, each with a host, all http or all https.
    pub fn addresses(&self) -> anyhow::Result<Vec<String>> {
        let addresses: Vec<_> =
            self.scheduler.iter().map(|address| address.trim()).filter(|address| !address.is_empty()).collect();
        ensure!(!addresses.is_empty(), "--scheduler names no address");
        for address in &addresses {
            check_address(address)?;
        }
        let secure = addresses.iter().filter(|address| is_secure(address)).count();
        ensure!(secure == 0 || secure == addresses.len(), "--scheduler mixes http:// and https:// addresses");
        Ok(addresses.into_iter().map(str::to_owned).collect())
    }

    /// The TLS of the calls; none if the addresses are http.
    pub fn client_tls(&self) -> anyhow::Result<Option<ClientTlsConfig>> {
        if !self.addresses()?.iter().all(|address| is_secure(address)) {
            return match self.tls_flag() {
                Some(flag) => bail!("{flag} is given, but --scheduler is not https://"),
                None => Ok(None),
            };
        }
        let mut tls = match &self.tls_ca {
            Some(ca) => ClientTlsConfig::new().ca_certificate(pem::certificates("--tls-ca", ca)?),
            None => ClientTlsConfig::new().with_enabled_roots(),
        };
        tls = match (&self.tls_client_cert, &self.tls_client_key) {
            (Some(cert), Some(key)) => {
                tls.identity(pem::identity(("--tls-client-cert", cert), ("--tls-client-key", key))?)
            }
            (None, None) => tls,
            (Some(_), None) => bail!("--tls-client-cert needs --tls-client-key"),
            (None, Some(_)) => bail!("--tls-client-key needs --tls-client-cert"),
        };
        Ok(Some(match &self.tls_domain {
            Some(domain) => tls.domain_name(domain),
            None => tls,
        }))
    }

    /// The token to send, if there is one.
    pub fn token(&self) -> anyhow::Result<Option<Secret>> {
        token::configured(self.token_file.as_deref())
    }

    /// The first flag given that only makes sense with TLS.
    fn tls_flag(&self) -> Option<&'static str> {
        [
            ("--tls-ca", self.tls_ca.is_some()),
            ("--tls-client-cert", self.tls_client_cert.is_some()),
            ("--tls-client-key", self.tls_client_key.is_some()),
            ("--tls-domain", self.tls_domain.is_some()),
        ]
        .into_iter()
        .find_map(|(flag, given)| given.then_some(flag))
    }
}

/// The error does not repeat an address with a password in it.
fn check_address(address: &str) -> anyhow::Result<()> {
    ensure!(!address.contains('@'), "--scheduler holds a user or password: put the token into --token-file");
    let uri: Uri = address.parse().with_context(|| format!("parse --scheduler `{address}`"))?;
    let known = matches!(uri.scheme_str(), Some("http" | "https"));
    ensure!(
        known && uri.host().is_some_and(|host| !host.is_empty()),
        "--scheduler `{address}` is not http:// or https://"
    );
    Ok(())
}

fn is_secure(address: &str) -> bool {
    address.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://"))
}

fn is_loopback(address: &str) -> bool {
    let Ok(uri) = address.parse::<Uri>() else { return false };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}
