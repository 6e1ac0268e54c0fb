//! Why a call or a connection failed, in one line for people.

use std::error::Error;

use tonic::{ConnectError, Status};

/// Alerts of TLS by which a server refuses the certificate that it was shown, or that it was shown none.
const CERTIFICATE_ALERTS: [&str; 8] = [
    "CertificateRequired",
    "UnknownCA",
    "BadCertificate",
    "CertificateUnknown",
    "CertificateExpired",
    "CertificateRevoked",
    "UnsupportedCertificate",
    "DecryptError",
];

/// What a status says, with its causes: that of a connection that broke says no more than `transport error` itself.
pub fn reason(status: &Status) -> String {
    with_causes(status.message().to_owned(), status.source())
}

/// The same, and what to check if the connection to this address did not come about as it should.
pub fn advised_reason(address: &str, status: &Status) -> String {
    let broke = status.source().is_some() && !was_never_sent(status);
    advised(address, reason(status), broke)
}

/// Why there is no connection to this address, and what to check.
pub(crate) fn unconnected(address: &str, error: &dyn Error) -> String {
    advised(address, with_causes(error.to_string(), error.source()), false)
}

/// Whether a call failed before anything of it was sent.
pub(crate) fn was_never_sent(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

fn with_causes(mut line: String, mut source: Option<&(dyn Error + 'static)>) -> String {
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !line.contains(&cause_text) {
            line.push_str(": ");
            line.push_str(&cause_text);
        }
        source = cause.source();
    }
    line
}

fn advised(address: &str, line: String, broke: bool) -> String {
    match advice(address, &line, broke) {
        // Not twice, if a cause has it already.
        Some(advice) if !line.contains(advice) => format!("{line}; {advice}"),
        _ => line,
    }
}

/// What to check. By the text, because the causes have no types that would tell; tests hold it to the libraries' wording.
fn advice(address: &str, line: &str, broke: bool) -> Option<&'static str> {
    let alert = line.split("received fatal alert: ").nth(1);
    if alert.is_some_and(|alert| CERTIFICATE_ALERTS.iter().any(|refusal| alert.starts_with(refusal))) {
        return Some("the scheduler does not accept the caller's certificate: check it (--tls-client-cert)");
    }
    if line.contains("invalid peer certificate") {
        return Some(
            "the scheduler's certificate is not accepted: check its authority (--tls-ca) and name (--tls-domain)",
        );
    }
    if line.contains("InvalidContentType") {
        return Some("the scheduler does not answer with TLS: check whether its address is http://");
    }
    let is_plain = address.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("http://"));
    (is_plain && broke).then_some("if the scheduler expects TLS, its address is https://")
}
