//! Slack: by an incoming webhook of the recipient's own, or with the operator's app to any channel or person.
//!
//! `delivered` means that Slack took the message. Slack drops no repeats, so an attempt that was not answered is
//! `unknown`. A message is a list of sections, with a button where there is something to open; replies in threads are
//! not made, because nothing is kept of earlier messages. The address of a webhook is a secret, and is in no text that
//! comes out of here.

mod blocks;

use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::{Origin, Url};

use crate::base::invalid::ValidationErrors;
use crate::base::secret::Secret;
use crate::domain::notification::SlackAddress;
use crate::ports::channel::provider::{ProviderAnswer, ProviderApi, redact};
use crate::ports::channel::{Capabilities, Channel, ChannelError, Login, OutgoingMessage, Receipt, ReceiptLevel};
use crate::ports::egress::{Egress, EgressError, EgressRequest, Response, retry_after};
use crate::ports::vault::{SealedPlace, Vault, VaultError};

/// More of an answer is not read, in bytes.
const ANSWER_LIMIT: usize = 64 * 1024;
/// How much of an answer's text is told, in characters.
const SAID_LENGTH: usize = 100;
const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");

/// `[channels.slack]`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The bot token of the operator's app (`xoxb-…`); absent: incoming webhooks alone.
    pub token: Option<Secret>,
    /// Where the Web API is.
    pub base_url: String,
    /// Hosts of incoming webhooks (`https`, the usual port), or whole origins such as `https://chat.example.org:8443`.
    pub webhook_hosts: Vec<String>,
    /// For one attempt, 1 to 50.
    pub timeout_seconds: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            token: None,
            base_url: "https://slack.com/api".into(),
            webhook_hosts: vec!["hooks.slack.com".into()],
            timeout_seconds: 15,
        }
    }
}

impl Settings {
    /// The operator's app, where there is one, and the origins of incoming webhooks.
    fn parts(&self) -> Result<(Option<ProviderApi>, Vec<Origin>), ValidationErrors> {
        let mut faults = ValidationErrors::new();
        let token = self.token.clone().unwrap_or_else(|| Secret::new(""));
        let app = ProviderApi::new("Slack", "/channels/slack", &self.base_url, token, self.timeout_seconds);
        let app = app.map_err(|more| faults.0.extend(more.0));
        let mut webhooks = vec![];
        for (index, host) in self.webhook_hosts.iter().enumerate() {
            match origin(host) {
                Some(origin) => webhooks.push(origin),
                None => faults.add(
                    format!("/channels/slack/webhook_hosts/{index}"),
                    "must be a host such as `hooks.slack.com`, or an origin such as `https://chat.example.org:8443`",
                ),
            }
        }
        match (app, faults.is_empty()) {
            (Ok(app), true) => Ok((self.token.is_some().then_some(app), webhooks)),
            _ => Err(faults),
        }
    }

    /// Whom the token logs in (<https://docs.slack.dev/reference/methods/auth.test>); `None`: there is none.
    ///
    /// # Errors
    /// What is wrong with the settings.
    pub async fn login(&self) -> Result<Option<Login>, ValidationErrors> {
        let (Some(app), _) = self.parts()? else { return Ok(None) };
        let request = app.post("/auth.test").bearer_auth(app.secret.expose());
        let answer = match app.probe(request).await {
            Ok(answer) => answer,
            Err(login) => return Ok(Some(login)),
        };
        let text = |name: &str| app.public_text(answer.body[name].as_str().unwrap_or("?"));
        Ok(Some(match judge_app(&app, &answer) {
            Ok(_) => Login::Fine(format!("Slack knows the app as {} of {}", text("user"), text("team"))),
            Err(ChannelError::Unknown { why } | ChannelError::Busy { why }) => Login::Wrong(why),
            Err(error) => Login::Wrong(error.to_string()),
        }))
    }
}

/// The channel.
pub struct SlackChannel {
    /// `None` without a token.
    app: Option<ProviderApi>,
    webhooks: Vec<Origin>,
    timeout: Duration,
    egress: Egress,
    vault: Vault,
}

impl SlackChannel {
    /// The channel with its settings. Fails where they contradict each other.
    pub fn new(settings: &Settings, egress: Egress, vault: Vault) -> Result<SlackChannel, ValidationErrors> {
        let (app, webhooks) = settings.parts()?;
        Ok(SlackChannel { app, webhooks, timeout: Duration::from_secs(settings.timeout_seconds), egress, vault })
    }

    async fn send(&self, message: &OutgoingMessage<'_>) -> Result<Receipt, ChannelError> {
        match &message.recipient.addresses.slack {
            Some(SlackAddress::Channel { channel }) => self.write(message, channel).await,
            Some(SlackAddress::Webhook { sealed_url }) => self.post(message, sealed_url).await,
            None => Err(ChannelError::Unsendable { why: "the recipient has no Slack address".into() }),
        }
    }

    /// `chat.postMessage`: <https://docs.slack.dev/reference/methods/chat.postMessage>
    async fn write(&self, message: &OutgoingMessage<'_>, channel: &str) -> Result<Receipt, ChannelError> {
        let Some(app) = &self.app else {
            let why = "channels.slack.token is not set, so only incoming webhooks can be written to".into();
            return Err(ChannelError::Misconfigured { why });
        };
        let mut body = blocks::body(message.words);
        body["channel"] = json!(channel);
        let request = app.post("/chat.postMessage").bearer_auth(app.secret.expose()).header(CONTENT_TYPE, JSON);
        let answer = app.ask(request.body(body.to_string()), message.now).await?;
        judge_app(app, &answer)
    }

    /// An incoming webhook: <https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks>
    async fn post(&self, message: &OutgoingMessage<'_>, sealed_url: &str) -> Result<Receipt, ChannelError> {
        let url =
            self.vault.unseal(&SealedPlace::slack(message.recipient_id).context(), sealed_url).map_err(|error| {
                ChannelError::Misconfigured { why: format!("the address of the Slack webhook {error}") }
            })?;
        self.check(&url)?;
        let request = EgressRequest {
            headers: HeaderMap::from_iter([(CONTENT_TYPE, JSON)]),
            body: Bytes::from(blocks::body(message.words).to_string()),
            timeout: self.timeout,
            max_bytes: ANSWER_LIMIT,
            follow_redirects: false,
            ..EgressRequest::new(Method::POST, url.expose())
        };
        let answer = self.egress.fetch(request).await;
        judge_webhook(answer, &url, |headers| retry_after(headers, message.now))
    }

    /// A webhook of Slack's, and no other address that happens to be reachable.
    fn check(&self, url: &Secret) -> Result<(), ChannelError> {
        let origin = Url::parse(url.expose()).ok().map(|url| url.origin());
        match origin.is_some_and(|origin| self.webhooks.contains(&origin)) {
            true => Ok(()),
            false => Err(ChannelError::Unsendable {
                why: "the address is no Slack webhook: its host is not in channels.slack.webhook_hosts".into(),
            }),
        }
    }
}

impl Channel for SlackChannel {
    fn name(&self) -> &'static str {
        "slack"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            supported_formats: &["mrkdwn"],
            max_response_length: blocks::MOST_CHARACTERS,
            deduplicates: false,
        }
    }

    fn deliver<'a>(&'a self, message: &'a OutgoingMessage<'a>) -> BoxFuture<'a, Result<Receipt, ChannelError>> {
        Box::pin(self.send(message))
    }
}

/// Seals the address of a recipient's incoming webhook as this channel will look for it.
pub fn seal_url(vault: &Vault, recipient_id: &str, url: &Secret) -> Result<String, VaultError> {
    vault.seal(&SealedPlace::slack(recipient_id).context(), url)
}

fn origin(entry: &str) -> Option<Origin> {
    let written = if entry.contains("://") { entry.to_owned() } else { format!("https://{entry}") };
    let url = Url::parse(&written).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
    (url.path() == "/" && url.query().is_none() && url.username().is_empty()).then(|| url.origin())
}

/// Slack answers 200 to almost everything, and says in the body what came of it.
fn judge_app(app: &ProviderApi, answer: &ProviderAnswer) -> Result<Receipt, ChannelError> {
    let body = &answer.body;
    if answer.status != StatusCode::OK || !body["ok"].is_boolean() {
        return Err(match answer.status.is_success() {
            true => ChannelError::Unknown { why: "Slack's answer can't be read".into() },
            false => app.judge(answer, body["error"].as_str().unwrap_or_default()),
        });
    }
    if body["ok"] == true {
        let provider_id = body["ts"].as_str().map(|ts| app.public_text(ts));
        return Ok(Receipt { provider_id, confirmed: ReceiptLevel::Delivered });
    }
    let code = body["error"].as_str().unwrap_or("no reason");
    let why = format!("Slack refused: {}{}", app.public_text(code), explained(body));
    Err(match code {
        "ratelimited" | "rate_limited" | "message_limit_exceeded" if answer.retry_after.is_none() => {
            ChannelError::Busy { why }
        }
        "ratelimited"
        | "rate_limited"
        | "message_limit_exceeded"
        | "service_unavailable"
        | "request_timeout"
        | "team_added_to_org" => ChannelError::Transient { why, retry_after: answer.retry_after },
        // "some aspect of the operation" may have succeeded, say Slack's own words
        "fatal_error" | "internal_error" => ChannelError::Unknown { why },
        "invalid_auth"
        | "not_authed"
        | "account_inactive"
        | "token_revoked"
        | "token_expired"
        | "no_permission"
        | "missing_scope"
        | "not_allowed_token_type"
        | "ekm_access_denied"
        | "org_login_required"
        | "access_denied"
        | "two_factor_setup_required"
        | "accesslimited"
        | "deprecated_endpoint"
        | "method_deprecated"
        | "enterprise_is_restricted"
        | "team_access_not_granted" => ChannelError::Misconfigured { why },
        _ => ChannelError::Rejected { why },
    })
}

/// The refusal, with advice for the more frequent ones.
fn explained(body: &Value) -> String {
    match body["error"].as_str() {
        Some("not_in_channel" | "channel_not_found") => "; is the app a member of the channel?".into(),
        Some("missing_scope") => match body["needed"].as_str() {
            Some(scope) if scope.len() <= SAID_LENGTH => format!("; the app needs the scope {scope}"),
            _ => String::new(),
        },
        _ => String::new(),
    }
}

fn judge_webhook(
    answer: Result<Response, EgressError>,
    url: &Secret,
    retry_after: impl Fn(&HeaderMap) -> Option<Duration>,
) -> Result<Receipt, ChannelError> {
    let shown = |error: &EgressError| redact(&error.to_string(), url.expose());
    let (status, headers, text) = match answer {
        Ok(response) => {
            let text: String = String::from_utf8_lossy(&response.body).chars().take(SAID_LENGTH).collect();
            (response.status, response.headers, text)
        }
        Err(EgressError::TooLarge { status, .. }) => (status, HeaderMap::new(), String::new()),
        Err(error @ EgressError::Connect { .. }) => {
            return Err(ChannelError::Transient { why: shown(&error), retry_after: None });
        }
        Err(error @ (EgressError::Timeout { .. } | EgressError::Broken { .. })) => {
            return Err(ChannelError::Unknown { why: format!("Slack was sent the message: {}", shown(&error)) });
        }
        Err(error @ EgressError::TooManyRedirects) => return Err(ChannelError::Rejected { why: shown(&error) }),
        Err(error @ (EgressError::Denied { .. } | EgressError::Invalid { .. })) => {
            return Err(ChannelError::Unsendable { why: shown(&error) });
        }
    };
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !text.is_empty();
    let why =
        format!("the Slack webhook answered {status}{}", if plain { format!(" ({text})") } else { String::new() });
    let wait = retry_after(&headers);
    match status.as_u16() {
        429 if wait.is_none() => Err(ChannelError::Busy { why }),
        200..=299 => Ok(Receipt { provider_id: None, confirmed: ReceiptLevel::Delivered }),
        408 | 429 | 500..=599 => Err(ChannelError::Transient { why, retry_after: wait }),
        _ => Err(ChannelError::Rejected { why }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhook_is_known_by_its_whole_origin() {
        let of = |entry: &str| origin(entry).map(|origin| origin.ascii_serialization());
        assert_eq!(of("hooks.slack.com").as_deref(), Some("https://hooks.slack.com"));
        assert_eq!(of("http://127.0.0.1:8065").as_deref(), Some("http://127.0.0.1:8065"));
        for bad in ["", "ftp://a.org", "https://a.org/path", "https://u@a.org", "a b"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }
}
