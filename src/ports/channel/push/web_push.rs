//! Web Push (RFC 8030): a message to one browser, encrypted for it (RFC 8291) and signed by this service (RFC 8292).
//!
//! The push service's 201 is all that is ever heard of a message. A message with the topic of one that still waits for
//! its device takes its place, and a page that shows it under its `tag` replaces what it has shown. There is no
//! idempotency key, so an attempt without an answer is not repeated.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use serde_json::json;
use url::Url;
use zeroize::Zeroizing;

use crate::base::secret::Secret;
use crate::domain::task::Urgency;
use crate::ports::channel::answer::{judge_no_answer, judge_status};
use crate::ports::channel::push::encryption::{self, EncryptionError, PLAINTEXT_LIMIT, encrypt};
use crate::ports::channel::push::vapid::Vapid;
use crate::ports::channel::push::{ANSWER_LIMIT, ELLIPSIS};
use crate::ports::channel::{ChannelError, OutgoingMessage, Receipt};
use crate::ports::egress::{Egress, EgressError, EgressRequest, retry_after};

/// How long a push service keeps a message for a device that is off, in seconds.
const TTL: &str = "86400";

/// The way to browsers.
pub struct WebPush {
    /// `None` where there is no key: nothing can be sent.
    vapid: Option<Vapid>,
    egress: Egress,
    timeout: Duration,
}

/// A browser's subscription, its secret opened.
pub struct PushSubscription<'a> {
    pub endpoint: &'a str,
    pub p256dh: &'a str,
    pub auth: Secret,
}

impl WebPush {
    /// A client that signs with this key; without one it sends nothing.
    pub fn new(vapid: Option<Vapid>, timeout: Duration, egress: Egress) -> WebPush {
        WebPush { vapid, egress, timeout }
    }

    /// One attempt. A message that still waits under the same `topic` (up to 32 characters of base64url) is replaced.
    pub async fn send(
        &self,
        to: &PushSubscription<'_>,
        topic: &str,
        message: &OutgoingMessage<'_>,
    ) -> Result<Receipt, ChannelError> {
        let unsendable = |why: String| ChannelError::Unsendable { why };
        let Some(vapid) = &self.vapid else {
            let why = "Web Push has no key: channels.push.vapid.private_key is not set".into();
            return Err(ChannelError::Misconfigured { why });
        };
        let endpoint =
            Url::parse(to.endpoint).map_err(|error| unsendable(format!("the endpoint is no URL: {error}")))?;
        let signed = vapid.authorization(&endpoint, message.now).and_then(|text| HeaderValue::from_str(&text).ok());
        let mut signed = signed.ok_or_else(|| unsendable("the endpoint has no origin".into()))?;
        signed.set_sensitive(true);
        let encrypted =
            keys(to.p256dh, &to.auth).and_then(|(key, auth)| encrypt(&payload(topic, message), &key, &auth));
        let body = encrypted.map_err(|error| unsendable(error.to_string()))?;
        let topic = HeaderValue::from_str(topic).map_err(|_| unsendable("the topic is unfit for a header".into()))?;
        let headers = [
            (AUTHORIZATION, signed),
            (CONTENT_ENCODING, HeaderValue::from_static("aes128gcm")),
            (CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
            (HeaderName::from_static("ttl"), HeaderValue::from_static(TTL)),
            (HeaderName::from_static("urgency"), HeaderValue::from_static(urgency(message.urgency))),
            (HeaderName::from_static("topic"), topic),
        ];
        let request = EgressRequest {
            headers: HeaderMap::from_iter(headers),
            body: body.into(),
            timeout: self.timeout,
            max_bytes: ANSWER_LIMIT,
            follow_redirects: false,
            ..EgressRequest::new(Method::POST, endpoint)
        };
        match self.egress.fetch(request).await {
            Ok(response) => judge(response.status, retry_after(&response.headers, message.now)),
            Err(EgressError::TooLarge { status, .. }) => judge(status, None),
            Err(error) => Err(judge_no_answer("the push service", &error)),
        }
    }
}

/// Whether messages can be encrypted for a subscription with these keys; else why not.
pub fn check_keys(p256dh: &str, auth: &Secret) -> Result<(), EncryptionError> {
    let (public_key, auth) = keys(p256dh, auth)?;
    encryption::check(&public_key, &auth)
}

fn keys(p256dh: &str, auth: &Secret) -> Result<(Vec<u8>, Zeroizing<Vec<u8>>), EncryptionError> {
    let read = |text: &str| URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok();
    let public_key = read(p256dh).ok_or(EncryptionError::PublicKey)?;
    let auth = read(auth.expose()).ok_or(EncryptionError::Auth)?;
    Ok((public_key, Zeroizing::new(auth)))
}

/// The payload for the page's service worker, its text cut until everything fits.
fn payload(tag: &str, message: &OutgoingMessage) -> Vec<u8> {
    let words = message.words;
    let written = |body: &str| {
        let link = words.link.as_ref().map(|link| link.url.as_str());
        let urgency = message.urgency.as_str();
        json!({ "title": words.subject, "body": body, "url": link, "tag": tag, "urgency": urgency }).to_string()
    };
    let whole = written(&words.text);
    if whole.len() <= PLAINTEXT_LIMIT {
        return whole.into_bytes();
    }
    // characters are counted as they are written, some of them escaped
    let as_written = |c: char| json!(c).to_string().len() - "\"\"".len();
    let mut room = PLAINTEXT_LIMIT.saturating_sub(written(ELLIPSIS).len());
    let fits = |c: &char| match room.checked_sub(as_written(*c)) {
        Some(left) => {
            room = left;
            true
        }
        None => false,
    };
    let text: String = words.text.chars().take_while(fits).collect();
    written(&format!("{text}{ELLIPSIS}")).into_bytes()
}

fn urgency(urgency: Urgency) -> &'static str {
    match urgency {
        Urgency::Low => "low",
        Urgency::Normal => "normal",
        Urgency::High | Urgency::Urgent => "high",
    }
}

/// Judges an answer.
fn judge(status: StatusCode, retry_after: Option<Duration>) -> Result<Receipt, ChannelError> {
    let hint = match status.as_u16() {
        401 | 403 => ": it refuses our VAPID key; is it the one that the browser subscribed to?",
        404 | 410 => ": the subscription is gone; the page has to subscribe again",
        413 => ": the message is too long",
        _ => "",
    };
    let why = format!("the push service answered {status}{hint}");
    match status.as_u16() {
        401 | 403 => Err(ChannelError::Misconfigured { why }),
        _ => judge_status(status, retry_after, why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_key_is_the_operators_to_mend_and_what_is_gone_the_recipients() {
        for (code, expected) in [(401, "Misconfigured"), (403, "Misconfigured"), (404, "Rejected"), (413, "Rejected")] {
            let outcome = format!("{:?}", judge(StatusCode::from_u16(code).unwrap(), None).unwrap_err());
            assert!(outcome.starts_with(expected), "{code}: {outcome}");
        }
        assert!(judge(StatusCode::CREATED, None).is_ok());
    }

    #[test]
    fn keys_are_taken_with_and_without_padding_and_named_when_they_are_none() {
        const PUBLIC: &str = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";
        let outcome =
            |p256dh: &str, auth: &str| check_keys(p256dh, &Secret::new(auth)).err().map(|error| error.to_string());
        assert_eq!(outcome(PUBLIC, "BTBZMqHH6r4Tts7J_aSIgg"), None);
        assert_eq!(outcome(&format!("{PUBLIC}="), "BTBZMqHH6r4Tts7J_aSIgg=="), None);
        let auth = "the subscription's `auth` is not 16 bytes in base64url";
        let public = "the subscription's `p256dh` is not a public key of P-256 in base64url";
        assert_eq!(outcome(PUBLIC, "canary!").as_deref(), Some(auth));
        assert_eq!(outcome(PUBLIC, "BTBZMqHH6r4Tts7J").as_deref(), Some(auth));
        assert_eq!(outcome("B+", "BTBZMqHH6r4Tts7J_aSIgg").as_deref(), Some(public));
    }
}
