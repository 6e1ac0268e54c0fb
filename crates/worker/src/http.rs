//! Handlers that post to a URL.

use std::pin::Pin;
use std::time::Duration;

use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode, Url};
use worker::{Context, HandlerError, Success};

use crate::headers::headers;
use crate::output::{MAX_ERROR_BYTES, MAX_RESULT_BYTES, success, tail_text, too_large};

/// How long a connection may take to come about. The whole exchange is bounded by the job's timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest Retry-After that is honoured; the protocol allows no longer one.
const MAX_RETRY_AFTER: Duration = queue_core::MAX_WAIT;
type Run = Pin<Box<dyn Future<Output = Result<Success, HandlerError>> + Send>>;

/// The client that all handlers share.
pub fn client() -> reqwest::Result<Client> {
    Client::builder()
        // A redirect would repeat the POST elsewhere, or turn it into a GET.
        .redirect(Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .user_agent(concat!("fencepost-worker/", env!("CARGO_PKG_VERSION")))
        .build()
}

/// A handler that posts each job to this URL.
pub fn handler(client: Client, url: Url, is_effect: bool) -> impl Fn(Context) -> Run + Send + Sync + 'static {
    move |job| Box::pin(run(client.clone(), url.clone(), job, is_effect))
}

async fn run(client: Client, url: Url, job: Context, is_effect: bool) -> Result<Success, HandlerError> {
    tokio::select! {
        biased;
        // Dropping the exchange closes its connection or resets its stream.
        () = job.cancellation().cancelled() => {
            let reason = job.cancel_reason().map_or_else(String::new, ToString::to_string);
            Err(HandlerError::retryable("interrupted", reason))
        }
        result = exchange(client, url, &job, is_effect) => result,
    }
}

async fn exchange(client: Client, url: Url, job: &Context, is_effect: bool) -> Result<Success, HandlerError> {
    let headers = headers(job, &url)?;
    let request = client.post(url).headers(headers).body(job.payload().clone());
    let mut response = request.send().await.map_err(broken)?;
    let status = response.status();
    if status.is_success() {
        let result = body(&mut response, MAX_RESULT_BYTES).await?;
        return if result.len() > MAX_RESULT_BYTES { Err(too_large()) } else { Ok(success(result, is_effect)) };
    }
    let retry_after = retry_after(response.headers());
    // The body is only for people, so what cannot be read of it is left out.
    let mut text = body(&mut response, MAX_ERROR_BYTES).await.unwrap_or_default();
    text.truncate(MAX_ERROR_BYTES);
    Err(failure(status, &tail_text(&text), retry_after))
}

fn failure(status: StatusCode, text: &str, retry_after: Option<Duration>) -> HandlerError {
    let code = format!("http_{}", status.as_u16());
    if !may_help_later(status) {
        return HandlerError::permanent(&code, text);
    }
    let failure = HandlerError::retryable(&code, text);
    match retry_after {
        Some(after) => failure.retry_after(after),
        None => failure,
    }
}

fn may_help_later(status: StatusCode) -> bool {
    let passing = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS];
    status.is_server_error() || passing.contains(&status)
}

/// The body up to `max` bytes, and a little more if it is larger.
async fn body(response: &mut Response, max: usize) -> Result<Vec<u8>, HandlerError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(broken)? {
        body.extend_from_slice(&chunk);
        if body.len() > max {
            break;
        }
    }
    Ok(body)
}

/// Seconds, or a date: that is compared with the server's own date, so no clock of ours is involved.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let after = if let Ok(seconds) = value.parse::<u64>() {
        Duration::from_secs(seconds)
    } else {
        let date = |text: &str| httpdate::parse_http_date(text).ok();
        let now = date(headers.get(DATE)?.to_str().ok()?)?;
        date(value)?.duration_since(now).unwrap_or_default()
    };
    Some(after.min(MAX_RETRY_AFTER))
}

/// An exchange that broke off. Its text does not show the URL, which may hold credentials.
fn broken(error: reqwest::Error) -> HandlerError {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    HandlerError::retryable("http_broken", text)
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    fn after(retry: &str, date: Option<&str>) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_str(retry).unwrap());
        date.map(|date| headers.insert(DATE, HeaderValue::from_str(date).unwrap()));
        retry_after(&headers)
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_by_the_servers_clock_and_bounded() {
        let date = Some("Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(after("7", None), Some(Duration::from_secs(7)));
        assert_eq!(after("Sun, 06 Nov 1994 08:50:00 GMT", date), Some(Duration::from_secs(23)));
        assert_eq!(after("Sun, 06 Nov 1994 08:00:00 GMT", date), Some(Duration::ZERO));
        assert_eq!(after("Sun, 06 Nov 1994 08:50:00 GMT", None), None);
        assert_eq!(after("soon", date), None);
        assert_eq!(after("18446744073709551615", None), Some(MAX_RETRY_AFTER));
    }

    #[test]
    fn only_what_may_help_later_is_tried_again() {
        for (status, again) in [(500, true), (503, true), (408, true), (425, true), (429, true)].into_iter().chain([
            (400, false),
            (404, false),
            (409, false),
            (301, false),
            (304, false),
        ]) {
            assert_eq!(may_help_later(StatusCode::from_u16(status).unwrap()), again, "{status}");
        }
    }
}
