//! The headers of the request that an http handler makes.

use std::collections::BTreeMap;
use std::fmt::Write;

use reqwest::Url;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use worker::{Context, HandlerError};

/// Headers of a job that are not passed on: the worker's own, and those of the connection or of a proxy on the way.
const NOT_PASSED: [&str; 12] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "idempotency-key",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Names that begin so are the worker's.
const OWN_PREFIX: &str = "fencepost-";

/// What is sent with this job to this URL. Of a header that both set, the worker's or the URL's is sent.
///
/// Errors: a failure for good if the job has a header that HTTP cannot carry.
pub fn headers(job: &Context, url: &Url) -> Result<HeaderMap, HandlerError> {
    let mut headers = passed_on(job.headers(), url)?;
    headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/octet-stream"));
    // A job without a key has its identity, which is the same for every attempt as well.
    let key = job.idempotency_key().map_or_else(|| format!("job-{}", job.job_id()), encoded);
    let traceparent = telemetry::current_traceparent().or_else(|| job.traceparent().map(str::to_owned));
    let own = [
        ("idempotency-key", Some(key)),
        ("fencepost-job-id", Some(job.job_id().to_string())),
        ("fencepost-fencing-token", Some(job.token().to_string())),
        ("fencepost-attempt", Some(job.attempt().to_string())),
        ("traceparent", traceparent),
    ];
    for (name, value) in own {
        if let Some(Ok(value)) = value.map(HeaderValue::try_from) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    Ok(headers)
}

fn passed_on(job: &BTreeMap<String, String>, url: &Url) -> Result<HeaderMap, HandlerError> {
    let has_credentials = !url.username().is_empty() || url.password().is_some();
    let mut headers = HeaderMap::new();
    for (name, value) in job {
        let named = HeaderName::try_from(name).map_err(|_| unsendable(name, "HTTP allows no such name"))?;
        let is_own = NOT_PASSED.contains(&named.as_str()) || named.as_str().starts_with(OWN_PREFIX);
        if is_own || (has_credentials && named == AUTHORIZATION) {
            continue;
        }
        let value = HeaderValue::try_from(value).map_err(|_| unsendable(name, "its value has control characters"))?;
        // Names that differ in case only are one name here, with several values.
        headers.append(named, value);
    }
    Ok(headers)
}

/// Another attempt would have the same headers. The value is not told: it may be a credential.
fn unsendable(name: &str, why: &str) -> HandlerError {
    HandlerError::permanent("unsendable_header", format!("the job's header {name} cannot be sent: {why}"))
}

/// A key as a header can hold it, still different for different keys: bytes other than visible ASCII, and `%`, as `%XX`.
fn encoded(key: &str) -> String {
    let mut text = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            text.push(char::from(byte));
        } else {
            // Writing into a string cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(headers: &[(&str, &str)], url: &str) -> Result<Vec<(String, String)>, HandlerError> {
        let job = headers.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let passed = passed_on(&job, &Url::parse(url).unwrap())?;
        let text = |value: &HeaderValue| String::from_utf8(value.as_bytes().to_vec()).unwrap();
        Ok(passed.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect())
    }

    #[test]
    fn a_key_becomes_visible_ascii_and_stays_another_than_others() {
        for (key, header) in [
            ("pay-7/2026:x", "pay-7/2026:x"),
            ("a b", "a%20b"),
            ("a\nb\u{7f}", "a%0Ab%7F"),
            ("100%", "100%25"),
            ("\u{e9}\u{20ac}", "%C3%A9%E2%82%AC"),
        ] {
            assert_eq!(encoded(key), header);
            assert!(HeaderValue::try_from(encoded(key)).is_ok());
        }
        assert_ne!(encoded("%20"), encoded(" "));
    }

    #[test]
    fn a_header_that_cannot_be_sent_fails_for_good_and_is_named_without_its_value() {
        for (name, value) in [("x-note", "secret\nX-Evil: 1"), ("x(note)", "secret")] {
            let Err(HandlerError::Failed(failure)) = passed(&[("x-good", "1"), (name, value)], "http://a/") else {
                panic!("{name} must fail");
            };
            assert_eq!((failure.code.as_str(), failure.retryable), ("unsendable_header", false));
            assert!(failure.message.contains(name) && !failure.message.contains("secret"), "{}", failure.message);
        }
        assert_eq!(passed(&[("x", "caf\u{e9}")], "http://a/").unwrap(), [("x".to_owned(), "caf\u{e9}".to_owned())]);
    }

    #[test]
    fn what_the_operator_and_the_worker_set_wins_over_the_job() {
        let own = ["Idempotency-Key", "Fencepost-Attempt", "Host", "Content-Length", "Transfer-Encoding", "Connection"];
        let forged: Vec<_> = own.into_iter().map(|name| (name, "forged")).chain([("Authorization", "job")]).collect();
        assert_eq!(passed(&forged, "http://user:pass@a/").unwrap(), []);
        assert_eq!(passed(&forged, "http://a/").unwrap(), [("authorization".to_owned(), "job".to_owned())]);
    }
}
