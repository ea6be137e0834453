//! Webhooks as Standard Webhooks has them (<https://www.standardwebhooks.com>): a signed POST to the recipient's
//! address.
//!
//! `delivered` means that the other side answered 2xx. The id is the delivery's at each attempt, so a receiver drops
//! what it has seen, and an attempt of unknown outcome is repeated. Redirects are never followed.

use std::time::Duration;

use bytes::Bytes;
use chrono::SecondsFormat;
use futures::future::BoxFuture;
use http::{HeaderMap, Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::base::invalid::ValidationErrors;
use crate::base::secret::Secret;
use crate::base::signature;
use crate::domain::notification::WebhookAddress;
use crate::domain::notification::recipient::signing_keys;
use crate::ports::channel::answer::{judge_no_answer, judge_status};
use crate::ports::channel::{Capabilities, Channel, ChannelError, OutgoingMessage, Receipt};
use crate::ports::egress::{Egress, EgressError, EgressRequest, retry_after};
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
        match self.egress.fetch(request).await {
            Ok(response) => judge(response.status, retry_after(&response.headers, message.now)),
            Err(EgressError::TooLarge { status, .. }) => judge(status, None),
            Err(error) => Err(judge_no_answer("the webhook", &error)),
        }
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

/// Judges an answer.
fn judge(status: StatusCode, retry_after: Option<Duration>) -> Result<Receipt, ChannelError> {
    let hint = match status.as_u16() {
        300..=399 => "; redirects are not followed, set the new address",
        410 => ": it wants no more messages",
        _ => "",
    };
    judge_status(status, retry_after, format!("the webhook answered {status}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_what_is_to_be_done() {
        let said = |code: u16| judge(StatusCode::from_u16(code).unwrap(), None).unwrap_err();
        for (code, why) in [
            (302, "the webhook answered 302 Found; redirects are not followed, set the new address"),
            (404, "the webhook answered 404 Not Found"),
            (410, "the webhook answered 410 Gone: it wants no more messages"),
        ] {
            assert_eq!(said(code), ChannelError::Rejected { why: why.into() });
        }
    }
}
