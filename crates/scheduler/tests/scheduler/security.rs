//! Who may call: TLS, mutual TLS, tokens.

use std::fs;
use std::net::SocketAddr;

use queue_proto::v1;
use queue_proto::v1::queue_service_client::QueueServiceClient;
use queue_proto::v1::work_service_client::WorkServiceClient;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::json;
use tempfile::TempDir;
use testbed::db_test;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;

use crate::setup::{Scheduler, job};

const DOMAIN: &str = "fencepost.test";
const TOKEN: &str = "planted-token-1";

/// An authority with a server's and a client's certificate, and a stranger's of another one; as files.
struct Pki(TempDir);

impl Pki {
    fn new() -> Self {
        let pki = Self(TempDir::new().expect("a folder"));
        let authority = pki.authority("ca");
        pki.issue("server", &authority);
        pki.issue("client", &authority);
        let other = pki.authority("other-ca");
        pki.issue("stranger", &other);
        pki
    }

    fn authority(&self, name: &str) -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signs");
        self.write(&format!("{name}.pem"), &authority.pem());
        authority
    }

    fn issue(&self, name: &str, authority: &CertifiedIssuer<'static, KeyPair>) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new([DOMAIN.to_owned()]).expect("parameters");
        let certificate = params.signed_by(&key, authority).expect("signs");
        self.write(&format!("{name}.pem"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    fn file(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    fn write(&self, name: &str, content: &str) -> String {
        fs::write(self.file(name), content).expect("writes");
        self.file(name)
    }

    fn trusting(&self, authority: &str) -> ClientTlsConfig {
        let pem = fs::read(self.file(&format!("{authority}.pem"))).expect("reads");
        ClientTlsConfig::new().domain_name(DOMAIN).ca_certificate(Certificate::from_pem(pem))
    }

    fn identity(&self, name: &str) -> Identity {
        let read = |end| fs::read(self.file(&format!("{name}.{end}"))).expect("reads");
        Identity::from_pem(read("pem"), read("key"))
    }
}

async fn stats_over(address: SocketAddr, tls: Option<ClientTlsConfig>) -> Result<(), Status> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}")).expect("a URL");
    if let Some(tls) = tls {
        endpoint = endpoint.tls_config(tls).expect("a TLS configuration");
    }
    let channel: Channel = endpoint.connect_lazy();
    QueueServiceClient::new(channel).get_queue_stats(v1::GetQueueStatsRequest::default()).await.map(|_| ())
}

#[tokio::test]
async fn with_tls_only_clients_that_verify_it_get_through() {
    db_test(async |db| {
        let pki = Pki::new();
        let (cert, key) = (pki.file("server.pem"), pki.file("server.key"));
        let scheduler = Scheduler::start(&db.url(), &["--tls-cert", &cert, "--tls-key", &key]).await;
        stats_over(scheduler.address, Some(pki.trusting("ca"))).await.expect("it is trusted");
        let wrong_name = pki.trusting("ca").domain_name("other.test");
        for refused in [Some(pki.trusting("other-ca")), Some(wrong_name), None] {
            assert!(stats_over(scheduler.address, refused).await.is_err());
        }
    })
    .await;
}

#[tokio::test]
async fn with_mutual_tls_callers_need_a_certificate_of_the_authority() {
    db_test(async |db| {
        let pki = Pki::new();
        let (cert, key, ca) = (pki.file("server.pem"), pki.file("server.key"), pki.file("ca.pem"));
        let flags = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca];
        let scheduler = Scheduler::start(&db.url(), &flags).await;
        let known = pki.trusting("ca").identity(pki.identity("client"));
        stats_over(scheduler.address, Some(known)).await.expect("it is known");
        let stranger = pki.trusting("ca").identity(pki.identity("stranger"));
        let probe = tokio::net::TcpStream::connect(scheduler.address).await.expect("a connection");
        drop(probe);
        assert_eq!(scheduler.lines("caller refused"), Vec::<serde_json::Value>::new());
        for refused in [pki.trusting("ca"), stranger] {
            assert!(stats_over(scheduler.address, Some(refused)).await.is_err());
        }
        let line = scheduler.says("caller refused", 1).await.remove(0);
        assert_eq!((&line["level"], &line["reason"]), (&json!("WARN"), &json!("the TLS handshake failed")));
        assert!(line["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{line}");
    })
    .await;
}

#[tokio::test]
async fn with_a_token_every_service_but_health_asks_for_it() {
    db_test(async |db| {
        let pki = Pki::new();
        let file = pki.write("token", &format!("{TOKEN}\n"));
        // With a token, listening on every address is allowed.
        let listen = format!("0.0.0.0:{}", testbed::free_address().port());
        let port = listen.rsplit_once(':').expect("a port").1.parse::<u16>().expect("a port");
        let mut scheduler = Scheduler::start(&db.url(), &["--token-file", &file, "--listen", &listen]).await;
        scheduler.address.set_port(port);
        let channel = crate::setup::channel(scheduler.address);
        let with = |given: &'static str| {
            move |mut request: Request<()>| {
                if !given.is_empty() {
                    let value = MetadataValue::try_from(format!("Bearer {given}")).expect("a header");
                    request.metadata_mut().insert("authorization", value);
                }
                Ok(request)
            }
        };
        for given in ["", "planted-token-2", "x"] {
            let mut queue = QueueServiceClient::with_interceptor(channel.clone(), with(given));
            let refused = queue.enqueue(v1::EnqueueRequest { job: Some(job("q", "k")) }).await.expect_err("refused");
            assert_eq!(refused.code(), Code::Unauthenticated);
            let mut work = WorkServiceClient::with_interceptor(channel.clone(), with(given));
            let refused = work.work(tokio_stream::empty::<v1::WorkRequest>()).await.expect_err("refused");
            assert_eq!(refused.code(), Code::Unauthenticated);
            let mut reflection = ServerReflectionClient::with_interceptor(channel.clone(), with(given));
            let refused = reflection.server_reflection_info(tokio_stream::empty()).await.expect_err("refused");
            assert_eq!(refused.code(), Code::Unauthenticated);
        }
        let mut health = HealthClient::new(channel.clone());
        health.check(HealthCheckRequest::default()).await.expect("probes have no token");
        let mut queue = QueueServiceClient::with_interceptor(channel, with(TOKEN));
        queue.enqueue(v1::EnqueueRequest { job: Some(job("q", "k")) }).await.expect("the right token");
        assert_eq!(db.number("select count(*) from fencepost.job").await, 1);
        let line = scheduler.says("caller refused", 1).await.remove(0);
        assert_eq!(
            (&line["level"], &line["reason"]),
            (&json!("WARN"), &json!("a token is required: send `authorization: Bearer <token>`"))
        );
        assert!(line["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{line}");
        assert!(scheduler.lines("caller refused").len() < 9, "a line a second at most");
        assert!(!scheduler.process.log().iter().any(|line| line.contains("planted-token")));
    })
    .await;
}

#[tokio::test]
async fn beyond_loopback_without_protection_it_starts_only_when_told_so() {
    db_test(async |db| {
        let listen = format!("0.0.0.0:{}", testbed::free_address().port());
        let mut scheduler = Scheduler::start(&db.url(), &["--listen", &listen, "--insecure-listen"]).await;
        scheduler.process.logged("listening without TLS and token", crate::setup::PATIENCE).await;
    })
    .await;
}
