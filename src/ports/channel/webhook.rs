//! Webhooks as Standard Webhooks has them (<https://www.standardwebhooks.com>): a signed POST to the recipient's address.
//!
//! `delivered` means that the other side answered 2xx. The id is the delivery's at each attempt, so a receiver drops
//! what it has seen, and an attempt of unknown outcome is repeated. Redirects are never followed.

use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use futures::future::BoxFuture;
use http::{HeaderMap, Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::base::invalid::ValidationErrors;
use crate::base::secret::Secret;
use crate::base::signature;
use crate::domain::notification::WebhookAddress;
use crate::domain::notification::recipient::signing_keys;
use crate::ports::channel::{Capabilities, Channel, ChannelError, Confirmed, OutgoingMessage, Receipt};
use crate::ports::egress::{Egress, EgressError, EgressRequest, Response, retry_after};
use crate::ports::vault::{SealedPlace, Vault, VaultError};

/// How long an attempt may take, in seconds.
const TIMEOUT_RANGE: std::ops::RangeInclusive<u64> = 1..=50;
/// The answer's body is of no use; more than this is not even read.
const ANSWER_LIMIT: usize = 64 * 1024;

/// `[channels.webhook]`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// For one attempt, 1 to 50.
    pub timeout_seconds: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { timeout_seconds: 15 }
    }
}

/// The channel.
pub struct WebhookChannel {
    timeout: Duration,
    egress: Egress,
    vault: Vault,
}

impl WebhookChannel {
    /// The channel with its settings. Fails where they are out of bounds.
    pub fn new(settings: &Settings, egress: Egress, vault: Vault) -> Result<WebhookChannel, ValidationErrors> {
        if !TIMEOUT_RANGE.contains(&settings.timeout_seconds) {
            return Err(ValidationErrors::one("/channels/webhook/timeout_seconds", "must be 1 to 50"));
        }
        Ok(WebhookChannel { timeout: Duration::from_secs(settings.timeout_seconds), egress, vault })
    }

    async fn post(&self, message: &OutgoingMessage<'_>) -> Result<Receipt, ChannelError> {
        let Some(address) = &message.recipient.addresses.webhook else {
            return Err(ChannelError::Unsendable { why: "the recipient has no webhook address".into() });
        };
        let body = body(message);
        let headers = self.headers(message, address, &body)?;
        let request = EgressRequest {
            headers,
            body,
            timeout: self.timeout,
            max_bytes: ANSWER_LIMIT,
            follow_redirects: false,
            ..EgressRequest::new(Method::POST, &address.url)
        };
        judge(self.egress.fetch(request).await, message.now)
    }

    fn headers(
        &self,
        message: &OutgoingMessage,
        address: &WebhookAddress,
        body: &[u8],
    ) -> Result<HeaderMap, ChannelError> {
        let misconfigured = |why: String| ChannelError::Misconfigured { why: format!("the webhook's secret {why}") };
        let secrets = self.vault.unseal(&SealedPlace::webhook(message.recipient_id).context(), &address.sealed_secret);
        let keys = signing_keys(&secrets.map_err(|error| misconfigured(error.to_string()))?).map_err(misconfigured)?;
        signature::headers(&keys, &message.id.to_string(), message.now, body).map_err(misconfigured)
    }
}

impl Channel for WebhookChannel {
    fn name(&self) -> &'static str {
        "webhook"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            supported_formats: &["plain", "markdown", "html", "csv"],
            max_response_length: 200_000,
            deduplicates: true,
        }
    }

    fn deliver<'a>(&'a self, message: &'a OutgoingMessage<'a>) -> BoxFuture<'a, Result<Receipt, ChannelError>> {
        Box::pin(self.post(message))
    }
}

/// Seals a recipient's signing secrets as this channel will look for them.
pub fn seal_secret(vault: &Vault, recipient_id: &str, secret: &Secret) -> Result<String, VaultError> {
    vault.seal(&SealedPlace::webhook(recipient_id).context(), secret)
}

/// The body of the request. It is equal at each attempt, so that a receiver may compare.
fn body(message: &OutgoingMessage) -> Bytes {
    let created_at = message.created_at.to_rfc3339_opts(SecondsFormat::Millis, true);
    json!({ "type": message.words.event, "timestamp": created_at, "data": message.words.data }).to_string().into()
}

/// Judges an answer, or its absence.
fn judge(answer: Result<Response, EgressError>, now: DateTime<Utc>) -> Result<Receipt, ChannelError> {
    match answer {
        Ok(response) => judge_status(response.status, retry_after(&response.headers, now)),
        Err(EgressError::TooLarge { status, .. }) => judge_status(status, None),
        Err(error @ (EgressError::Denied { .. } | EgressError::Invalid { .. })) => {
            Err(ChannelError::Unsendable { why: error.to_string() })
        }
        Err(error @ EgressError::TooManyRedirects) => Err(ChannelError::Rejected { why: error.to_string() }),
        Err(error @ EgressError::Connect { .. }) => {
            Err(ChannelError::Transient { why: error.to_string(), retry_after: None })
        }
        Err(error @ (EgressError::Timeout { .. } | EgressError::Broken { .. })) => {
            Err(ChannelError::Unknown { why: format!("the webhook was sent the message: {error}") })
        }
    }
}

fn judge_status(status: StatusCode, retry_after: Option<Duration>) -> Result<Receipt, ChannelError> {
    let why = format!("the webhook answered {status}");
    match status.as_u16() {
        200..=299 => Ok(Receipt { provider_id: None, confirmed: Confirmed::Delivered }),
        300..=399 => {
            Err(ChannelError::Rejected { why: format!("{why}; redirects are not followed, set the new address") })
        }
        410 => Err(ChannelError::Rejected { why: format!("{why}: it wants no more messages") }),
        // a receiver that many share may mean this recipient alone
        429 if retry_after.is_none() => Err(ChannelError::Busy { why }),
        408 | 425 | 429 | 500..=599 => Err(ChannelError::Transient { why, retry_after }),
        _ => Err(ChannelError::Rejected { why }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_meaning() {
        let meaning = |code: u16| match judge_status(StatusCode::from_u16(code).unwrap(), None) {
            Ok(receipt) => format!("{:?}", receipt.confirmed),
            Err(error) => format!("{error:?}").split(' ').next().unwrap().to_owned(),
        };
        for code in 200..600 {
            let expected = match code {
                200..=299 => "Delivered",
                429 => "Busy",
                408 | 425 | 500..=599 => "Transient",
                _ => "Rejected",
            };
            assert_eq!(meaning(code), expected, "{code}");
        }
    }

    #[test]
    fn failures_tell_apart_never_sendable_not_sent_and_maybe_sent() {
        let now = DateTime::UNIX_EPOCH;
        let unsendable = |error| matches!(judge(Err(error), now), Err(ChannelError::Unsendable { .. }));
        let unknown = |error| matches!(judge(Err(error), now), Err(ChannelError::Unknown { .. }));
        assert!(unsendable(EgressError::Denied { why: "private".into() }));
        assert!(unsendable(EgressError::Invalid { why: "no host".into() }));
        assert!(unknown(EgressError::Timeout { after: Duration::from_secs(1) }));
        assert!(unknown(EgressError::Broken { why: "reset".into() }));
        let connect = judge(Err(EgressError::Connect { why: "refused".into() }), now);
        let why = "can't connect: refused".into();
        assert_eq!(connect, Err(ChannelError::Transient { why, retry_after: None }));
        let busy = judge_status(StatusCode::TOO_MANY_REQUESTS, Some(Duration::from_secs(9)));
        assert!(matches!(busy, Err(ChannelError::Transient { retry_after: Some(_), .. })), "{busy:?}");
        let large = EgressError::TooLarge { status: StatusCode::OK, limit: 1 };
        assert_eq!(judge(Err(large), now).unwrap().confirmed, Confirmed::Delivered);
    }
}
