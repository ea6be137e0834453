//! Signed requests as Standard Webhooks has them (https://www.standardwebhooks.com), and what an answer asks for.

use std::time::Duration;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use http::{HeaderMap, HeaderName, HeaderValue, header};

/// The headers of a signed request with a JSON body. The id is the same at each attempt, so that a receiver drops what it
/// has seen; it is the `Idempotency-Key`, too.
pub fn headers(keys: &[impl AsRef<[u8]>], id: &str, now: DateTime<Utc>, body: &[u8]) -> Result<HeaderMap, String> {
    let timestamp = now.timestamp();
    let ours = [
        ("webhook-id", id.to_owned()),
        ("webhook-timestamp", timestamp.to_string()),
        ("webhook-signature", sign(keys, id, timestamp, body)),
        ("idempotency-key", id.to_owned()),
    ];
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (name, value) in ours {
        let value = HeaderValue::try_from(value).map_err(|error| error.to_string())?;
        headers.insert(HeaderName::from_static(name), value);
    }
    Ok(headers)
}

/// `v1,<base64 of HMAC-SHA-256 over "id.timestamp.body">` for each key, apart by spaces.
pub fn sign(keys: &[impl AsRef<[u8]>], id: &str, timestamp: i64, body: &[u8]) -> String {
    let signed = [format!("{id}.{timestamp}.").as_bytes(), body].concat();
    let one = |key: &[u8]| {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), &signed);
        format!("v1,{}", STANDARD.encode(tag))
    };
    keys.iter().map(|key| one(key.as_ref())).collect::<Vec<_>>().join(" ")
}

/// Retry-After in seconds or as a date (RFC 9110, section 10.2.3); nonsense is nothing.
pub fn retry_after(headers: &HeaderMap, now: DateTime<Utc>) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    match value.parse::<u64>() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => (DateTime::parse_from_rfc2822(value).ok()?.to_utc() - now).to_std().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = br#"{"test": 2432232314}"#;

    fn key(secret: &str) -> Vec<u8> {
        STANDARD.decode(secret).unwrap()
    }

    /// The vector of the Standard Webhooks specification and its libraries.
    #[test]
    fn the_signature_is_the_one_of_the_specification() {
        let keys = [key("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")];
        let signature = sign(&keys, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, BODY);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn each_secret_signs_while_they_are_rotated() {
        let keys = [key("C2FVsBQIhrscChlQIMV+b5sSYspob7oD"), key("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")];
        let both = sign(&keys, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, BODY);
        let (new, old) = both.split_once(' ').unwrap();
        assert_eq!(old, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert!(new.starts_with("v1,") && new != old, "{new}");
    }

    #[test]
    fn retry_after_is_read_as_seconds_or_as_a_date() {
        let now: DateTime<Utc> = "2026-12-24T07:00:00Z".parse().unwrap();
        let read = |value: &str| {
            let headers = HeaderMap::from_iter([(header::RETRY_AFTER, HeaderValue::from_str(value).unwrap())]);
            retry_after(&headers, now).map(|wait| wait.as_secs())
        };
        assert_eq!(read("120"), Some(120));
        assert_eq!(read("Thu, 24 Dec 2026 07:01:30 GMT"), Some(90));
        for nothing in ["", "-5", "soon", "1.5", "Thu, 24 Dec 2026 06:59:00 GMT"] {
            assert_eq!(read(nothing), None, "{nothing}");
        }
    }
}
