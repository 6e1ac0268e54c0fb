//! TLS, mutual TLS and the token over loopback sockets.

use clap::Parser;
use lifecycle::{ConnectArgs, ListenArgs};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::service::InterceptorLayer;
use tonic::transport::{Endpoint, Server};
use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::pki::Pki;

#[derive(Parser)]
struct Serving {
    #[command(flatten)]
    listen: ListenArgs,
}

#[derive(Parser)]
struct Calling {
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Serves health checks as a scheduler would serve its services; returns the port.
async fn serve(arguments: &[&str]) -> u16 {
    let args = Serving::parse_from([&["test"], arguments].concat()).listen;
    args.validate().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut server = Server::builder();
    if let Some(tls) = args.server_tls().unwrap() {
        server = server.tls_config(tls).unwrap();
    }
    let (_, health) = tonic_health::server::health_reporter();
    let router = server.layer(InterceptorLayer::new(args.auth().unwrap())).add_service(health);
    tokio::spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
    port
}

fn calling(port: u16, scheme: &str, arguments: &[&str]) -> ConnectArgs {
    let url = format!("{scheme}://127.0.0.1:{port}");
    Calling::parse_from([&["test", "--scheduler", &url], arguments].concat()).connect
}

/// One health check over one new connection.
async fn call(args: &ConnectArgs) -> Result<(), String> {
    let mut endpoint = Endpoint::from_shared(args.addresses().unwrap().remove(0)).unwrap();
    if let Some(tls) = args.client_tls().unwrap() {
        endpoint = endpoint.tls_config(tls).unwrap();
    }
    let channel = endpoint.connect().await.map_err(|error| format!("connect: {error:?}"))?;
    let mut request = Request::new(HealthCheckRequest::default());
    if let Some(token) = args.token().unwrap() {
        let header = format!("Bearer {}", token.expose()).parse().unwrap();
        request.metadata_mut().insert("authorization", header);
    }
    match HealthClient::new(channel).check(request).await {
        Ok(_) => Ok(()),
        Err(status) if status.code() == Code::Unauthenticated => Err(format!("unauthenticated: {}", status.message())),
        Err(status) => Err(format!("call: {status:?}")),
    }
}

#[tokio::test]
async fn a_server_of_the_right_authority_is_trusted_and_another_refused() {
    let pki = Pki::new();
    let port = serve(&["--tls-cert", &pki.file("server.pem"), "--tls-key", &pki.file("server.key")]).await;
    let with = |ca: &str, domain: &str| calling(port, "https", &["--tls-ca", &pki.file(ca), "--tls-domain", domain]);
    assert_eq!(call(&with("ca.pem", "fencepost.test")).await, Ok(()));
    let error = call(&with("other-ca.pem", "fencepost.test")).await.unwrap_err();
    assert!(error.contains("UnknownIssuer") || error.contains("BadSignature"), "{error}");
    let error = call(&with("ca.pem", "elsewhere.test")).await.unwrap_err();
    assert!(error.contains("NotValidForName"), "{error}");
    let system_roots = calling(port, "https", &["--tls-domain", "fencepost.test"]);
    assert!(call(&system_roots).await.is_err(), "the system does not know the test's authority");
}

#[tokio::test]
async fn mutual_tls_lets_only_certificates_of_the_client_authority_in() {
    let pki = Pki::new();
    let (cert, key, ca) = (pki.file("server.pem"), pki.file("server.key"), pki.file("ca.pem"));
    let port = serve(&["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca]).await;
    let anonymous = ["--tls-ca", &ca, "--tls-domain", "fencepost.test"];
    let with = |name: &str| {
        let (cert, key) = (pki.file(&format!("{name}.pem")), pki.file(&format!("{name}.key")));
        calling(port, "https", &[&anonymous[..], &["--tls-client-cert", &cert, "--tls-client-key", &key]].concat())
    };
    assert_eq!(call(&with("client")).await, Ok(()));
    assert!(call(&with("stranger")).await.is_err(), "a certificate of another authority");
    assert!(call(&calling(port, "https", &anonymous)).await.is_err(), "no certificate");
}

#[tokio::test]
async fn a_call_without_the_right_token_is_unauthenticated() {
    let pki = Pki::new();
    let (right, wrong) = (pki.write("right", "right-token"), pki.write("wrong", "wrong-token"));
    let port = serve(&["--token-file", &right]).await;
    assert_eq!(call(&calling(port, "http", &["--token-file", &right])).await, Ok(()));
    let error = call(&calling(port, "http", &["--token-file", &wrong])).await.unwrap_err();
    assert!(error.starts_with("unauthenticated") && !error.contains("right-token"), "{error}");
    let error = call(&calling(port, "http", &[])).await.unwrap_err();
    assert!(error.starts_with("unauthenticated: a token is required"), "{error}");
}

#[test]
fn connection_flags_that_contradict_each_other_are_refused() {
    let parse = |arguments: &[&str]| Calling::parse_from([&["test"], arguments].concat()).connect;
    let refusal = |arguments: &[&str]| parse(arguments).options().map(drop).unwrap_err().to_string();
    assert_eq!(refusal(&["--scheduler", "http://a:1,https://b:2"]), "--scheduler mixes http:// and https:// addresses");
    assert_eq!(refusal(&["--tls-ca", "ca.pem"]), "--tls-ca is given, but --scheduler is not https://");
    assert!(refusal(&["--scheduler", "a:1"]).contains("is not http:// or https://"));
    let error = refusal(&["--scheduler", "http://me:planted@a:1"]);
    assert!(error.contains("--token-file") && !error.contains("planted"), "{error}");
    let options = parse(&["--scheduler", "http://a:1, http://b:2"]).options().unwrap();
    assert_eq!(options.addresses, ["http://a:1", "http://b:2"]);
}
