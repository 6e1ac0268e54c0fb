//! Who may listen where, and that a token is never seen.

use clap::Parser;
use lifecycle::ListenArgs;

use crate::child::Probe;
use crate::pki::Pki;

const PLANTED: &str = "planted-secret-7f3a";

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    listen: ListenArgs,
}

fn parse(arguments: &[&str]) -> ListenArgs {
    Args::parse_from([&["test"], arguments].concat()).listen
}

fn refusal(arguments: &[&str]) -> String {
    format!("{:#}", parse(arguments).validate().unwrap_err())
}

#[test]
fn listening_beyond_loopback_without_tls_or_token_is_refused_in_one_line() {
    for address in ["0.0.0.0:7878", "[::]:7878", "192.0.2.1:7878"] {
        let line = refusal(&["--listen", address]);
        assert!(line.starts_with(&format!("refusing to listen on {address} without protection")), "{line}");
        for flag in ["--tls-cert", "--tls-key", "--token-file", "FENCEPOST_TOKEN", "--insecure-listen"] {
            assert!(line.contains(flag), "{line} names {flag}");
        }
        assert_eq!(line.lines().count(), 1);
    }
}

#[test]
fn loopback_tls_token_or_an_explicit_word_suffice() {
    let pki = Pki::new();
    let (cert, key, token) = (pki.file("server.pem"), pki.file("server.key"), pki.write("token", PLANTED));
    for arguments in [
        vec!["--listen", "127.0.0.1:7878"],
        vec!["--listen", "[::1]:7878"],
        vec!["--listen", "0.0.0.0:7878", "--insecure-listen"],
        vec!["--listen", "0.0.0.0:7878", "--token-file", &token],
        vec!["--listen", "0.0.0.0:7878", "--tls-cert", &cert, "--tls-key", &key],
    ] {
        parse(&arguments).validate().unwrap_or_else(|error| panic!("{arguments:?}: {error:#}"));
    }
}

#[test]
fn incomplete_or_wrong_files_are_refused_naming_the_flag() {
    let pki = Pki::new();
    let (cert, key) = (pki.file("server.pem"), pki.file("server.key"));
    assert_eq!(refusal(&["--tls-cert", &cert]), "--tls-cert needs --tls-key");
    assert_eq!(refusal(&["--tls-key", &key]), "--tls-key needs --tls-cert");
    assert_eq!(refusal(&["--tls-client-ca", &cert]), "--tls-client-ca needs --tls-cert and --tls-key");
    assert!(refusal(&["--tls-cert", &key, "--tls-key", &key]).contains("holds no certificate in PEM"));
    assert!(refusal(&["--tls-cert", &cert, "--tls-key", &cert]).contains("holds no private key in PEM"));
    assert!(refusal(&["--tls-cert", "/nowhere", "--tls-key", &key]).starts_with("read --tls-cert /nowhere"));
    assert!(refusal(&["--token-file", "/nowhere"]).starts_with("read --token-file /nowhere"));
    assert!(refusal(&["--token-file", &pki.write("empty", "\n")]).ends_with("the token is empty"));
}

#[tokio::test]
async fn a_planted_token_never_shows_in_logs_or_help() {
    let pki = Pki::new();
    let variable = [("FENCEPOST_TOKEN", PLANTED)];
    let file = pki.write("token", PLANTED);
    let bad = pki.write("bad", &format!("{PLANTED}\u{7}"));
    let trace = ["tell", "--log-filter", "trace"];
    for (arguments, environment) in [
        (trace.to_vec(), &variable[..]),
        ([&trace[..], &["--token-file", &file]].concat(), &[]),
        ([&trace[..], &["--token-file", &bad]].concat(), &[]),
        (vec!["--help"], &variable[..]),
    ] {
        let (_, log) = Probe::start(&arguments, environment).end().await;
        assert!(!log.iter().any(|line| line.contains(PLANTED)), "{log:#?}");
        let looked_at = ["***", "ERROR", "--token-file <FILE>"];
        assert!(log.iter().any(|line| looked_at.iter().any(|text| line.contains(text))), "{log:#?}");
    }
}
