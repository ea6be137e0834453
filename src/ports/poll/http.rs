//! A poll of an address, with a credential where one is named, asking only for what is newer than what is known.

use chrono::{DateTime, Utc};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use serde_json::{Map, Value, json};
use url::Url;

use crate::base::compute::{Compute, steps_to_parse};
use crate::domain::credential::Reference;
use crate::domain::trigger::condition::poll::PollMethod;
use crate::domain::trigger::condition::{HttpPoll, PollFault, PollResult, Validators};
use crate::ports::egress::{EgressError, EgressRequest, Response, retry_after};
use crate::ports::poll::{PollRequest, json_or_text, of_credential};
use crate::ports::vault::credentials::{Credentials, FetchError, Use, UsedSecrets};

/// Longest validator that is kept, in bytes.
const VALIDATOR_BYTES: usize = 1024;

/// Name of a URL's host in the rate limiter.
pub fn host(url: &str) -> String {
    let host =
        Url::parse(url).ok().and_then(|url| url.host_str().map(|host| host.trim_end_matches('.').to_ascii_lowercase()));
    format!("http:{}", host.unwrap_or_default())
}

/// Requests an address, and answers what it says.
pub async fn poll(
    credentials: &Credentials,
    poll: &HttpPoll,
    ask: &PollRequest<'_>,
    now: DateTime<Utc>,
    compute: &Compute,
) -> Result<PollResult, PollFault> {
    let odd = |why| PollFault::new("invalid", format!("the credential's name: {why}"));
    let credential = poll.credential.as_deref().map(Reference::parse).transpose().map_err(odd)?;
    let with = credential.as_ref().map(|reference| Use {
        tenant: ask.tenant,
        reference,
        run_id: None,
        task_id: (!ask.trial).then_some(ask.id),
        by: "poll",
    });
    let method = match poll.method {
        PollMethod::Get => Method::GET,
        PollMethod::Head => Method::HEAD,
    };
    let headers = headers(poll, ask.known)?;
    let request = EgressRequest { headers, timeout: ask.time_limit, ..EgressRequest::new(method, poll.url.clone()) };
    let answer = credentials.fetch(request, with.as_ref(), &UsedSecrets::default()).await.map_err(unfetched)?;
    let response = answer.check_accepted().map_err(|error| of_credential(&error))?;
    let (steps, poll, known) = (steps_to_parse(response.body.len()), poll.clone(), ask.known.is_some());
    let read = move || result_of(&poll, known, &response, now);
    let read = compute.run_if_costly(ask.tenant.as_str(), steps, read).await;
    read.unwrap_or_else(|panicked| Err(PollFault::new("panicked", panicked.to_string())))
}

fn headers(poll: &HttpPoll, known: Option<&Validators>) -> Result<HeaderMap, PollFault> {
    let mut headers = HeaderMap::new();
    for (name, value) in &poll.headers {
        let fault = || PollFault::new("invalid", format!("`{name}` is no header with a value that it can carry"));
        let value = HeaderValue::from_str(value).map_err(|_| fault())?;
        headers.insert(name.parse::<HeaderName>().map_err(|_| fault())?, value);
    }
    let validators =
        known.map(|known| [(header::IF_NONE_MATCH, &known.etag), (header::IF_MODIFIED_SINCE, &known.last_modified)]);
    for (name, value) in validators.into_iter().flatten() {
        let value = value.as_deref().and_then(|value| HeaderValue::from_str(value).ok());
        headers.extend(value.map(|value| (name, value)));
    }
    Ok(headers)
}

fn result_of(poll: &HttpPoll, known: bool, response: &Response, now: DateTime<Utc>) -> Result<PollResult, PollFault> {
    let status = response.status;
    if status == StatusCode::NOT_MODIFIED && known {
        return Ok(PollResult::Unchanged);
    }
    if !status.is_success() {
        let asked = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        let retry_after = asked.then(|| retry_after(&response.headers, now)).flatten();
        let fault = PollFault::new(format!("http_{}", status.as_u16()), format!("the address answered {status}"));
        return Err(PollFault { retry_after, ..fault });
    }
    let value = match poll.method {
        PollMethod::Head => json!({ "status": status.as_u16(), "headers": shown(&response.headers) }),
        PollMethod::Get => body(&response.body)?,
    };
    Ok(PollResult::Value { value, validators: validators(&response.headers) })
}

fn body(bytes: &[u8]) -> Result<Value, PollFault> {
    let no_text = || PollFault::new("not_text", format!("the answer is {} bytes that are no text", bytes.len()));
    match std::str::from_utf8(bytes).map_err(|_| no_text())? {
        "" => Ok(Value::Null),
        text => Ok(json_or_text(text)),
    }
}

/// Names in lower case; of several with one name the first.
fn shown(headers: &HeaderMap) -> Map<String, Value> {
    let text = |name: &HeaderName| headers.get(name)?.to_str().ok().map(|text| json!(text));
    let secret = |name: &&HeaderName| **name != header::SET_COOKIE;
    headers.keys().filter(secret).filter_map(|name| Some((name.to_string(), text(name)?))).collect()
}

fn validators(headers: &HeaderMap) -> Validators {
    let text = |name| {
        let value: &HeaderValue = headers.get(name)?;
        value.to_str().ok().filter(|text| text.len() <= VALIDATOR_BYTES).map(str::to_owned)
    };
    Validators { etag: text(header::ETAG), last_modified: text(header::LAST_MODIFIED) }
}

fn unfetched(error: FetchError) -> PollFault {
    match error {
        FetchError::Egress(error) => unreachable(error),
        FetchError::Credential(error) => of_credential(&error),
    }
}

fn unreachable(error: EgressError) -> PollFault {
    let kind = match error {
        EgressError::Denied { .. } => "denied",
        EgressError::Invalid { .. } => "invalid",
        EgressError::Timeout { .. } => "timeout",
        EgressError::TooLarge { .. } => "too_large",
        EgressError::Connect { .. } => "connect",
        EgressError::Broken { .. } => "broken_off",
        EgressError::TooManyRedirects => "too_many_redirects",
    };
    PollFault::new(kind, error.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn poll(method: &str) -> HttpPoll {
        serde_json::from_value(json!({ "url": "https://example.org/x", "method": method })).unwrap()
    }

    fn answered(status: u16, headers: &[(&str, &str)], body: &'static [u8]) -> Response {
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        Response {
            status: StatusCode::from_u16(status).unwrap(),
            headers: headers.collect(),
            body: bytes::Bytes::from_static(body),
            url: "https://example.org/x".parse().unwrap(),
        }
    }

    fn value(body: &'static [u8]) -> Result<Value, String> {
        match result_of(&poll("GET"), false, &answered(200, &[], body), DateTime::UNIX_EPOCH) {
            Ok(PollResult::Value { value, .. }) => Ok(value),
            Ok(PollResult::Unchanged) => unreachable!("200 is an answer"),
            Err(fault) => Err(fault.kind),
        }
    }

    #[test]
    fn value_is_json_or_text_or_nothing() {
        assert_eq!(value(br#"{"price": 480}"#), Ok(json!({"price": 480})));
        assert_eq!(value(b"42\n"), Ok(json!(42)));
        assert_eq!(value(b"<p>up</p>"), Ok(json!("<p>up</p>")));
        assert_eq!(value(b""), Ok(Value::Null));
        assert_eq!(value(b"\xff\xd8"), Err("not_text".into()));
    }

    #[test]
    fn head_is_its_status_and_headers() {
        let answer = answered(200, &[("Content-Length", "12"), ("Set-Cookie", "secret")], b"");
        let Ok(PollResult::Value { value, .. }) = result_of(&poll("HEAD"), false, &answer, DateTime::UNIX_EPOCH) else {
            panic!()
        };
        assert_eq!(value, json!({ "status": 200, "headers": { "content-length": "12" } }));
    }

    #[test]
    fn known_document_is_asked_for_only_if_it_is_newer() {
        let answer = answered(200, &[("ETag", "\"v1\""), ("Last-Modified", "Thu, 24 Dec 2026 07:00:00 GMT")], b"1");
        let Ok(PollResult::Value { validators, .. }) = result_of(&poll("GET"), false, &answer, DateTime::UNIX_EPOCH)
        else {
            panic!()
        };
        let sent = headers(&poll("GET"), Some(&validators)).unwrap();
        assert_eq!(sent[header::IF_NONE_MATCH], "\"v1\"");
        assert_eq!(sent[header::IF_MODIFIED_SINCE], "Thu, 24 Dec 2026 07:00:00 GMT");
        let unchanged = answered(304, &[], b"");
        assert_eq!(result_of(&poll("GET"), true, &unchanged, DateTime::UNIX_EPOCH), Ok(PollResult::Unchanged));
        let out_of_the_blue = result_of(&poll("GET"), false, &unchanged, DateTime::UNIX_EPOCH).unwrap_err();
        assert_eq!(out_of_the_blue.kind, "http_304");
    }

    #[test]
    fn status_that_is_no_answer_is_a_fault_and_says_when_to_come_again() {
        let fault = |status, headers: &[(&str, &str)]| {
            result_of(&poll("GET"), true, &answered(status, headers, b"{\"price\": 1}"), DateTime::UNIX_EPOCH)
                .unwrap_err()
        };
        let busy = fault(429, &[("Retry-After", "90")]);
        assert_eq!((busy.kind.as_str(), busy.retry_after), ("http_429", Some(Duration::from_secs(90))));
        assert_eq!(fault(503, &[("Retry-After", "5")]).retry_after, Some(Duration::from_secs(5)));
        assert_eq!(fault(404, &[("Retry-After", "5")]).retry_after, None);
        assert_eq!(fault(500, &[]).to_string(), "http_500: the address answered 500 Internal Server Error");
    }
}
