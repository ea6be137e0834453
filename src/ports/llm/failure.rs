//! Failures of providers, told apart by what can be done about them.

use std::time::Duration;

use chrono::{DateTime, Utc};
use http::{HeaderMap, StatusCode};
use serde_json::Value;

use crate::base::secret::{REDACTED, Secret};
use crate::ports::egress;
use crate::ports::llm::LlmError;

/// As much of a provider's error message as is passed on, in characters.
const MESSAGE_LENGTH: usize = 300;

/// Some servers say `200 OK` and mean the `error` in the body or in the middle of a stream.
pub fn without_error(body: Value, key: Option<&Secret>) -> Result<Value, LlmError> {
    match body.get("error").filter(|error| !error.is_null()) {
        None => Ok(body),
        Some(_) => Err(stated_error(&body, key)),
    }
}

/// The failure that a body or an event states under `error`.
pub fn stated_error(body: &Value, key: Option<&Secret>) -> LlmError {
    of_response(status_in(body), None, &redacted(&body.to_string(), key))
}

/// The status that a failure in the middle of a stream would have had in its head.
fn status_in(event: &Value) -> StatusCode {
    let code = &event["error"]["code"];
    let number = code.as_u64().or_else(|| code.as_str()?.parse().ok());
    if let Some(status) = number.and_then(|code| StatusCode::from_u16(u16::try_from(code).ok()?).ok()) {
        return status;
    }
    let words = [&event["error"]["code"], &event["error"]["type"]].map(|word| word.as_str().unwrap_or_default());
    words.into_iter().find_map(status_of_word).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// The status that goes with a provider's word for a failure.
fn status_of_word(word: &str) -> Option<StatusCode> {
    Some(match word {
        "rate_limit_error" | "rate_limit_exceeded" | "overloaded_error" => StatusCode::TOO_MANY_REQUESTS,
        "insufficient_quota" => StatusCode::TOO_MANY_REQUESTS,
        "authentication_error" | "permission_error" | "invalid_api_key" => StatusCode::UNAUTHORIZED,
        "not_found_error" | "model_not_found" => StatusCode::NOT_FOUND,
        "invalid_request_error" | "invalid_prompt" | "context_length_exceeded" => StatusCode::BAD_REQUEST,
        "request_too_large" => StatusCode::PAYLOAD_TOO_LARGE,
        "timeout_error" => StatusCode::REQUEST_TIMEOUT,
        _ => return None,
    })
}

/// Judges a response that is no success. `retry_after`: the wait that it asks for; `body` has passed the redactor.
pub fn of_response(status: StatusCode, retry_after: Option<Duration>, body: &str) -> LlmError {
    let message = format!("{}: {}", status.as_u16(), message_in(body));
    match status.as_u16() {
        401 | 403 => LlmError::Auth { message },
        // not a matter of waiting: this key has nothing left
        402 => LlmError::Auth { message },
        429 if body.contains("insufficient_quota") => LlmError::Auth { message },
        429 | 529 => LlmError::RateLimited { retry_after, message },
        413 => LlmError::Overflow { message },
        400 | 422 if speaks_of_overflow(body) => LlmError::Overflow { message },
        404 => LlmError::NoModel { message },
        408 | 504 => LlmError::Timeout { message },
        409 | 425 | 500..=599 => LlmError::Transient { retry_after, message },
        _ => LlmError::Rejected { message },
    }
}

/// The words of OpenAI, Anthropic, Gemini, vLLM, llama.cpp and OpenRouter for a conversation that is too long.
fn speaks_of_overflow(body: &str) -> bool {
    const WORDS: [&str; 7] = [
        "context_length_exceeded",
        "maximum context length",
        "prompt is too long",
        "exceed_context_size",
        "exceeds the available context size",
        "input length and `max_tokens` exceed context limit",
        "exceeds the maximum number of tokens allowed",
    ];
    let body = body.to_lowercase();
    WORDS.iter().any(|words| body.contains(words))
}

/// The wait that a response asks for: milliseconds in OpenAI's own header, else what `Retry-After` says.
pub fn requested_wait(headers: &HeaderMap, now: DateTime<Utc>) -> Option<Duration> {
    let millis = headers.get("retry-after-ms").and_then(|value| value.to_str().ok()?.trim().parse::<f64>().ok());
    let wait = millis.and_then(|millis| Duration::try_from_secs_f64(millis / 1000.0).ok());
    wait.or_else(|| egress::retry_after(headers, now))
}

/// The provider's sentence, wherever it puts it, cut to a length for logs.
fn message_in(body: &str) -> String {
    let parsed: Value = serde_json::from_str(body).unwrap_or_default();
    let places = [&parsed["error"]["message"], &parsed["message"], &parsed["detail"], &parsed["error"]];
    let sentence = places.into_iter().find_map(Value::as_str).unwrap_or(body).trim();
    match sentence.char_indices().nth(MESSAGE_LENGTH) {
        Some((end, _)) => format!("{}…", &sentence[..end]),
        None if sentence.is_empty() => "no reason given".into(),
        None => sentence.into(),
    }
}

/// Providers like to quote the key that they refuse.
pub fn redacted(body: &str, key: Option<&Secret>) -> String {
    match key.map(Secret::expose).filter(|key| !key.is_empty()) {
        Some(key) => body.replace(key, REDACTED),
        None => body.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(status: u16, body: &str) -> LlmError {
        of_response(StatusCode::from_u16(status).unwrap(), None, body)
    }

    #[test]
    fn failure_is_told_apart_by_status_and_body() {
        let mut table = String::new();
        for (status, body) in [
            (400, r#"{"error":{"message":"too long","code":"context_length_exceeded"}}"#),
            (400, r#"{"error":{"message":"This model's maximum context length is 8192 tokens"}}"#),
            (400, r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 > 8"}}"#),
            (
                400,
                r#"{"error":{"message":"The input token count (9) exceeds the maximum number of tokens allowed (8)."}}"#,
            ),
            (400, r#"{"error":{"message":"unknown field"}}"#),
            (401, ""),
            (402, r#"{"error":{"message":"no credits"}}"#),
            (403, r#"{"error":"no access"}"#),
            (404, r#"{"detail":"no such model"}"#),
            (408, ""),
            (413, r#"{"error":{"message":"request_too_large"}}"#),
            (429, r#"{"error":{"message":"slow down"}}"#),
            (429, r#"{"error":{"message":"no money","code":"insufficient_quota"}}"#),
            (500, "<html>"),
            (503, r#"{"message":"warming up"}"#),
            (504, ""),
            (529, r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#),
        ] {
            table.push_str(&format!("{}\n", told(status, body)));
        }
        insta::assert_snapshot!(table, @r"
        the conversation is too long for the model: 400: too long
        the conversation is too long for the model: 400: This model's maximum context length is 8192 tokens
        the conversation is too long for the model: 400: prompt is too long: 9 > 8
        the conversation is too long for the model: 400: The input token count (9) exceeds the maximum number of tokens allowed (8).
        refused: 400: unknown field
        the key was refused: 401: no reason given
        the key was refused: 402: no credits
        the key was refused: 403: no access
        there is no such model: 404: no such model
        no answer in time: 408: no reason given
        the conversation is too long for the model: 413: request_too_large
        rate limited: 429: slow down
        the key was refused: 429: no money
        unavailable: 500: <html>
        unavailable: 503: warming up
        no answer in time: 504: no reason given
        rate limited: 529: Overloaded
        ");
    }

    #[test]
    fn wait_that_a_provider_asks_for_is_read_in_both_units_and_as_a_date() {
        let now: DateTime<Utc> = "2026-12-24T07:00:00Z".parse().unwrap();
        let wait = |name: &'static str, value: &str| {
            requested_wait(&HeaderMap::from_iter([(http::HeaderName::from_static(name), value.parse().unwrap())]), now)
        };
        assert_eq!(wait("retry-after", "7"), Some(Duration::from_secs(7)));
        assert_eq!(wait("retry-after", "1.5"), Some(Duration::from_millis(1500)));
        assert_eq!(wait("retry-after", "Thu, 24 Dec 2026 07:01:30 GMT"), Some(Duration::from_secs(90)));
        assert_eq!(wait("retry-after-ms", "250"), Some(Duration::from_millis(250)));
        for odd in ["-1", "soon", "inf", "1e300", "Thu, 24 Dec 2026 06:59:00 GMT"] {
            assert_eq!(wait("retry-after", odd), None, "{odd}");
        }
        for status in [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE] {
            let asked = of_response(status, Some(Duration::from_secs(7)), "").retry_after();
            assert_eq!(asked, Some(Duration::from_secs(7)), "{status}");
        }
    }

    #[test]
    fn key_that_the_provider_quotes_does_not_get_out() {
        let key = Secret::new("sk-canary");
        assert_eq!(redacted("bad key sk-canary!", Some(&key)), "bad key [redacted]!");
        assert_eq!(redacted("bad key", Some(&Secret::new(""))), "bad key");
    }

    #[test]
    fn failure_in_the_middle_of_a_stream_is_told_apart_too() {
        let read = |event: &str| without_error(serde_json::from_str(event).unwrap(), None);
        let rate = read(r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#);
        assert!(matches!(rate, Err(LlmError::RateLimited { .. })), "{rate:?}");
        let down = read(r#"{"error":{"code":502,"message":"upstream"}}"#);
        assert!(matches!(down, Err(LlmError::Transient { .. })), "{down:?}");
        assert!(read(r#"{"error":null,"choices":[]}"#).is_ok());
    }
}
