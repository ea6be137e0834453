//! One exchange with a provider that the operator has an account with: a request, and its answer within bounds.
//!
//! It tells what was never sent from what was sent and not answered, because the second may have arrived. The secret of
//! the account is in no text that comes out of here, even where the provider repeats it.

use std::error::Error;
use std::time::Duration;

use bytes::BytesMut;
use chrono::{DateTime, Utc};
use http::StatusCode;
use serde_json::Value;
use url::{Host, Url};

use crate::base::invalid::ValidationErrors;
use crate::base::secret::{REDACTED, Secret};
use crate::ports::channel::{ChannelError, Login};
use crate::ports::egress::{operator_client, retry_after};

/// Largest answer that is read, in bytes.
const ANSWER_LIMIT: usize = 64 * 1024;
/// How much of what a provider says is kept, in characters.
const SAID_LENGTH: usize = 200;
/// How long an attempt may take, in seconds.
pub(super) const TIMEOUT_RANGE: std::ops::RangeInclusive<u64> = 1..=50;

/// Where a provider is asked, and as whom.
pub(super) struct ProviderApi {
    /// `Twilio`, in messages.
    name: &'static str,
    /// Without a slash at its end.
    base: String,
    pub secret: Secret,
    client: reqwest::Client,
}

/// An answer of a provider.
pub(super) struct ProviderAnswer {
    pub status: StatusCode,
    /// In what time it wants to be asked again.
    pub retry_after: Option<Duration>,
    /// `null` where it is no JSON, or could not be read.
    pub body: Value,
}

impl ProviderApi {
    /// # Errors
    /// What is wrong, by its key below `place`: `base_url`, `timeout_seconds`.
    pub fn new(
        name: &'static str,
        place: &str,
        base: &str,
        secret: Secret,
        timeout_seconds: u64,
    ) -> Result<ProviderApi, ValidationErrors> {
        let mut faults = ValidationErrors::new();
        let url = Url::parse(base).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        if url.is_none_or(|url| url.query().is_some() || url.fragment().is_some()) {
            faults.add(format!("{place}/base_url"), "must be an address such as `https://api.example.org`");
        }
        if !TIMEOUT_RANGE.contains(&timeout_seconds) {
            faults.add(format!("{place}/timeout_seconds"), "must be 1 to 50");
        }
        let client = operator_client(Duration::from_secs(timeout_seconds));
        faults.into_result(ProviderApi { name, base: base.trim_end_matches('/').to_owned(), secret, client })
    }

    /// A request to `path`, which begins with a slash.
    pub fn post(&self, path: &str) -> reqwest::RequestBuilder {
        self.client.post(format!("{}{path}", self.base))
    }

    /// A GET request to `path`, which begins with a slash.
    pub fn get(&self, path: &str) -> reqwest::RequestBuilder {
        self.client.get(format!("{}{path}", self.base))
    }

    /// Asks something that sends no message, for a look at the login: the answer, or what came instead.
    pub async fn probe(&self, request: reqwest::RequestBuilder) -> Result<ProviderAnswer, Login> {
        // an answer's Retry-After is of no use here, so it need not be read against any clock
        self.ask(request, DateTime::UNIX_EPOCH).await.map_err(|error| match error {
            ChannelError::Unknown { .. } => Login::Wrong(format!("{} does not answer", self.name)),
            other => Login::Wrong(other.to_string()),
        })
    }

    /// Reads a refusal as an answer about the login.
    pub fn refused(&self, answer: &ProviderAnswer, message: &str) -> Login {
        Login::Wrong(self.judge(answer, message).to_string())
    }

    /// Sends a request once.
    pub async fn ask(
        &self,
        request: reqwest::RequestBuilder,
        now: DateTime<Utc>,
    ) -> Result<ProviderAnswer, ChannelError> {
        let mut response = request.send().await.map_err(|error| self.lost(&error))?;
        let (status, retry_after) = (response.status(), retry_after(response.headers(), now));
        let mut body = BytesMut::new();
        while let Ok(Some(chunk)) = response.chunk().await {
            if body.len() + chunk.len() > ANSWER_LIMIT {
                break;
            }
            body.extend_from_slice(&chunk);
        }
        Ok(ProviderAnswer { status, retry_after, body: serde_json::from_slice(&body).unwrap_or_default() })
    }

    /// Judges an answer by its status alone.
    pub fn judge(&self, answer: &ProviderAnswer, message: &str) -> ChannelError {
        let why = match message {
            "" => format!("{} answered {}", self.name, answer.status),
            message => format!("{} answered {}: {}", self.name, answer.status.as_u16(), self.public_text(message)),
        };
        match answer.status.as_u16() {
            429 if answer.retry_after.is_none() => ChannelError::Busy { why },
            408 | 425 | 429 | 500..=599 => ChannelError::Transient { why, retry_after: answer.retry_after },
            300..=399 | 401 | 403 | 404 => ChannelError::Misconfigured { why },
            _ => ChannelError::Rejected { why },
        }
    }

    /// The provider's words, for people: one line, not too long, without the secret.
    pub fn public_text(&self, message: &str) -> String {
        let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
        redact(&line, self.secret.expose()).chars().filter(|c| !c.is_control()).take(SAID_LENGTH).collect()
    }

    fn lost(&self, error: &reqwest::Error) -> ChannelError {
        let name = self.name;
        if error.is_builder() {
            return ChannelError::Misconfigured { why: format!("{name} can't be asked: check the settings") };
        }
        if error.is_connect() {
            let why = format!("{name} can't be reached: {}", self.public_text(&reason(error)));
            return ChannelError::Transient { why, retry_after: None };
        }
        let what =
            if error.is_timeout() { "in time".to_owned() } else { format!("({})", self.public_text(&reason(error))) };
        ChannelError::Unknown { why: format!("{name} was sent the message and did not answer {what}") }
    }
}

/// `text` without a secret, in whatever place it stands.
pub(super) fn redact(text: &str, secret: &str) -> String {
    if secret.is_empty() { text.to_owned() } else { text.replace(secret, REDACTED) }
}

/// The innermost cause: the outer ones repeat the address, which may hold the secret.
fn reason(error: &reqwest::Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.last().map_or_else(|| "the exchange broke off".to_owned(), ToString::to_string)
}

/// Whether others can reach this address by a name: what stands on this machine or in a private network has none, and
/// providers refuse such an address.
pub(super) fn has_public_name(address: &str) -> bool {
    let url = Url::parse(address).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    let Some(Host::Domain(name)) = url.as_ref().and_then(Url::host) else { return false };
    let last = name.trim_end_matches('.').rsplit_once('.').map(|(_, last)| last);
    last.is_some_and(|last| !["localhost", "local", "internal", "lan", "home", "test", "invalid"].contains(&last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provider(base: &str, timeout: u64) -> Result<ProviderApi, ValidationErrors> {
        ProviderApi::new("Twilio", "/channels/sms", base, Secret::new("canary"), timeout)
    }

    #[test]
    fn faults_in_the_settings_are_named() {
        assert!(provider("https://api.example.org/", 50).is_ok_and(|made| made.base == "https://api.example.org"));
        let faults = |base, timeout| provider(base, timeout).err().unwrap().to_string();
        let base = "/channels/sms/base_url: must be an address such as `https://api.example.org`";
        for bad in ["", "api.example.org", "ftp://example.org", "https://example.org?a=1"] {
            assert_eq!(faults(bad, 1), base, "{bad}");
        }
        assert_eq!(faults("https://a.org", 51), "/channels/sms/timeout_seconds: must be 1 to 50");
    }

    #[test]
    fn provider_text_is_shown_on_one_line_without_the_secret() {
        let provider = provider("https://a.org", 1).unwrap();
        assert_eq!(provider.public_text("no\n account\u{7} canary!"), "no account [redacted]!");
        assert_eq!(provider.public_text(&"x".repeat(500)).len(), SAID_LENGTH);
    }

    #[test]
    fn name_that_others_can_reach_is_told_from_one_that_they_can_t() {
        for public in ["https://wake.example.org", "http://example.org:8080/x"] {
            assert!(has_public_name(public), "{public}");
        }
        let private =
            ["http://localhost:7700", "http://127.0.0.1", "https://[::1]/", "https://10.1.2.3", "https://nas"];
        for private in private.into_iter().chain(["http://nas.local", "https://a.localhost", "ftp://example.org", ""]) {
            assert!(!has_public_name(private), "{private}");
        }
    }
}
