//! Signed requests as Standard Webhooks has them (<https://www.standardwebhooks.com>).

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use http::{HeaderMap, HeaderName, HeaderValue, header};

/// The headers of a signed request with a JSON body. The id is the same at each attempt, so that a receiver drops what
/// it has seen; it is the `Idempotency-Key`, too.
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

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = br#"{"test": 2432232314}"#;

    fn key(secret: &str) -> Vec<u8> {
        STANDARD.decode(secret).unwrap()
    }

    /// The vector of the Standard Webhooks specification and its libraries.
    #[test]
    fn signature_is_the_one_of_the_specification() {
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
}
