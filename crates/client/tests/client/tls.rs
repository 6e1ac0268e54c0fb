//! What is said when the two sides do not agree on transport security.

use client::{Client, ConnectOptions, Error, advised_reason, v1};
use queue_core::{KindName, NewJob, QueueName};
use queue_proto::v1::queue_service_server::QueueServiceServer;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Certificate, ClientTlsConfig, Identity, Server, ServerTlsConfig};

use crate::calls::Played;

/// An authority, and a certificate of it for the loopback address.
struct Authority {
    root: Certificate,
    identity: Identity,
}

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    Authority {
        root: Certificate::from_pem(authority.pem()),
        identity: Identity::from_pem(certificate.pem(), key.serialize_pem()),
    }
}

async fn serve(tls: Option<ServerTlsConfig>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = match tls {
        Some(tls) => Server::builder().tls_config(tls).unwrap(),
        None => Server::builder(),
    };
    let services = { server }.add_service(QueueServiceServer::new(Played::default()));
    tokio::spawn(services.serve_with_incoming(TcpListenerStream::new(listener)));
    address
}

/// What a worker and a producer are told, which must be the same advice.
async fn told(options: ConnectOptions) -> [String; 2] {
    let address = options.work_addresses().unwrap().remove(0);
    let worker = match address.connect().await {
        Err(error) => error.to_string(),
        Ok(connection) => {
            let (requests, receiver) = mpsc::channel(1);
            requests.try_send(v1::WorkRequest::default()).unwrap();
            let status = connection.work_stream(receiver, 1 << 20).await.unwrap_err();
            advised_reason(address.url(), &status)
        }
    };
    let job = NewJob::new(QueueName::new("q").unwrap(), KindName::new("k").unwrap(), "payload");
    let producer = Client::lazy(&options).unwrap().enqueue(job).await.unwrap_err();
    assert!(matches!(producer, Error::Unavailable(_) | Error::OutcomeUnknown(_)), "{producer}");
    [worker, producer.to_string()]
}

#[tokio::test]
async fn who_does_not_agree_on_transport_security_is_told_why_and_what_to_check() {
    let (ours, strange) = (authority("ours"), authority("strange"));
    let server = ServerTlsConfig::new().identity(ours.identity.clone());
    let plain = serve(None).await;
    let tls = serve(Some(server.clone())).await;
    let mutual = serve(Some(server.client_ca_root(ours.root.clone()))).await;
    let http = |address: &str| ConnectOptions::new([format!("http://{address}")]);
    let https = |address: &str, tls| ConnectOptions::new([format!("https://{address}")]).with_tls(Some(tls));
    let trusting = |authority: &Authority| ClientTlsConfig::new().ca_certificate(authority.root.clone());
    for (options, why, check) in [
        (https(&mutual, trusting(&ours)), "received fatal alert: CertificateRequired", "check it (--tls-client-cert)"),
        (
            https(&mutual, trusting(&ours).identity(strange.identity.clone())),
            "received fatal alert: ",
            "check it (--tls-client-cert)",
        ),
        (
            https(&tls, trusting(&strange)),
            "invalid peer certificate: ",
            "check its authority (--tls-ca) and name (--tls-domain)",
        ),
        (
            https(&tls, trusting(&ours).domain_name("other")),
            "not valid for name",
            "check its authority (--tls-ca) and name (--tls-domain)",
        ),
        (https(&plain, trusting(&ours)), "InvalidContentType", "check whether its address is http://"),
        (http(&tls), "", "its address is https://"),
        (http(&mutual), "", "its address is https://"),
    ] {
        for line in told(options).await {
            assert!(line.contains(why) && line.ends_with(check), "{why}: {line}");
            assert_eq!(line.matches("transport error").count(), 1, "{line}");
        }
    }
}
