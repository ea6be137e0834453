//! Telegram: messages of the operator's bot (<https://core.telegram.org/bots/api#sendmessage>).
//!
//! `delivered` means that Telegram took the message. It drops no repeats, so an attempt that was not answered is
//! `unknown`. The bot's token is a part of the address that is asked, and in no text that comes out of here. A question
//! to a person can't be forwarded from the chat: whoever has the link may answer.

mod fit;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::base::invalid::ValidationErrors;
use crate::base::secret::Secret;
use crate::domain::notification::{Link, RenderedMessage};
use crate::domain::task::Urgency;
use crate::ports::channel::provider::{ProviderAnswer, ProviderApi, has_public_name};
use crate::ports::channel::{Capabilities, Channel, ChannelError, Login, OutgoingMessage, Receipt, ReceiptLevel};

/// `[channels.telegram]`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The bot's token, as @BotFather gives it (`123456:ABC…`); absent: no Telegram.
    pub token: Option<Secret>,
    /// Telegram's server, or a Bot API server of one's own.
    pub base_url: String,
    /// For one attempt, 1 to 50.
    pub timeout_seconds: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { token: None, base_url: "https://api.telegram.org".into(), timeout_seconds: 15 }
    }
}

impl Settings {
    /// Asks the provider whether it takes the token; `None` where there is none.
    pub async fn login(&self) -> Result<Option<Login>, ValidationErrors> {
        let Some(telegram) = TelegramChannel::new(self)? else { return Ok(None) };
        Ok(Some(telegram.login().await))
    }
}

/// The channel.
pub struct TelegramChannel {
    provider: ProviderApi,
}

impl TelegramChannel {
    /// `None` where no token is configured.
    pub fn new(settings: &Settings) -> Result<Option<TelegramChannel>, ValidationErrors> {
        let Some(token) = &settings.token else { return Ok(None) };
        let place = "/channels/telegram";
        let mut faults = ValidationErrors::new();
        if !is_token(token.expose()) {
            faults.add(format!("{place}/token"), "must be a bot's token as @BotFather gives it: `123456:ABC…`");
        }
        match ProviderApi::new("Telegram", place, &settings.base_url, token.clone(), settings.timeout_seconds) {
            Ok(provider) if faults.is_empty() => Ok(Some(TelegramChannel { provider })),
            Ok(_) => Err(faults),
            Err(more) => {
                faults.0.extend(more.0);
                Err(faults)
            }
        }
    }

    /// Asks for the name of the bot (<https://core.telegram.org/bots/api#getme>).
    pub async fn login(&self) -> Login {
        let path = format!("/bot{}/getMe", self.provider.secret.expose());
        let answer = match self.provider.probe(self.provider.post(&path)).await {
            Ok(answer) => answer,
            Err(login) => return login,
        };
        let body = &answer.body;
        match (answer.status.is_success(), body["ok"] == true, body["result"]["username"].as_str()) {
            (true, true, Some(name)) => {
                Login::Fine(format!("Telegram knows the bot @{}", self.provider.public_text(name)))
            }
            (true, ..) => Login::Wrong("Telegram's answer can't be read".into()),
            (false, ..) => self.provider.refused(&answer, body["description"].as_str().unwrap_or_default()),
        }
    }

    async fn send(&self, message: &OutgoingMessage<'_>) -> Result<Receipt, ChannelError> {
        let Some(chat) = &message.recipient.addresses.telegram else {
            return Err(ChannelError::Unsendable { why: "the recipient has no Telegram chat".into() });
        };
        let path = format!("/bot{}/sendMessage", self.provider.secret.expose());
        let request = self.provider.post(&path).json(&body(chat, message.words, message.urgency));
        judge(&self.provider, &self.provider.ask(request, message.now).await?)
    }
}

impl Channel for TelegramChannel {
    fn name(&self) -> &'static str {
        "telegram"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            supported_formats: &["telegram_html"],
            max_response_length: fit::MOST_CHARACTERS,
            deduplicates: false,
        }
    }

    fn deliver<'a>(&'a self, message: &'a OutgoingMessage<'a>) -> BoxFuture<'a, Result<Receipt, ChannelError>> {
        Box::pin(self.send(message))
    }
}

fn body(chat: &str, words: &RenderedMessage, urgency: Urgency) -> Value {
    let mut body = json!({
        "chat_id": chat,
        "text": fit::fit(&words.text, words.link.as_ref().map(|link| link.url.as_str())),
        "parse_mode": "HTML",
        "link_preview_options": { "is_disabled": true },
    });
    if words.asks {
        body["protect_content"] = json!(true);
    }
    if urgency == Urgency::Low {
        body["disable_notification"] = json!(true);
    }
    if let Some(button) = words.link.as_ref().and_then(button) {
        body["reply_markup"] = json!({ "inline_keyboard": [[button]] });
    }
    body
}

/// Telegram refuses a whole message for a button that leads to a private place; there the link in the text has to do.
fn button(link: &Link) -> Option<Value> {
    has_public_name(&link.url).then(|| json!({ "text": link.label, "url": link.url }))
}

/// <https://core.telegram.org/bots/api#making-requests>
fn judge(provider: &ProviderApi, answer: &ProviderAnswer) -> Result<Receipt, ChannelError> {
    let body = &answer.body;
    if answer.status.is_success() {
        if body["ok"] != true {
            return Err(ChannelError::Unknown { why: "Telegram's answer can't be read".into() });
        }
        let provider_id = body["result"]["message_id"].as_i64().map(|id| id.to_string());
        return Ok(Receipt { provider_id, confirmed: ReceiptLevel::Delivered });
    }
    let said = body["description"].as_str().unwrap_or_default();
    let parameters = &body["parameters"];
    let asked = parameters["retry_after"].as_u64().map(std::time::Duration::from_secs);
    Err(match (provider.judge(answer, said), answer.status.as_u16()) {
        (ChannelError::Busy { why }, _) if asked.is_some() => ChannelError::Transient { why, retry_after: asked },
        (ChannelError::Transient { why, retry_after }, _) => {
            ChannelError::Transient { why, retry_after: asked.or(retry_after) }
        }
        // blocked, kicked, a person who never wrote to the bot
        (ChannelError::Misconfigured { why }, 403) => ChannelError::Rejected { why },
        (ChannelError::Rejected { why }, _) => match parameters["migrate_to_chat_id"].as_i64() {
            Some(id) => ChannelError::Rejected { why: format!("{why}; the group's chat id is now {id}") },
            None => ChannelError::Rejected { why },
        },
        (other, _) => other,
    })
}

/// A number, a colon, and letters: nothing that would make another address of it.
fn is_token(token: &str) -> bool {
    let Some((id, secret)) = token.split_once(':') else { return false };
    let letters = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    !id.is_empty() && id.chars().all(|c| c.is_ascii_digit()) && secret.len() >= 10 && secret.chars().all(letters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_in_the_settings_are_named_and_hold_no_token() {
        assert!(TelegramChannel::new(&Settings::default()).unwrap().is_none(), "no token, no Telegram");
        let wrong =
            Settings { token: Some(Secret::new("canary/../x")), base_url: "nowhere".into(), timeout_seconds: 0 };
        assert_eq!(
            TelegramChannel::new(&wrong).err().unwrap().to_string(),
            "/channels/telegram/token: must be a bot's token as @BotFather gives it: `123456:ABC…`; \
             /channels/telegram/base_url: must be an address such as `https://api.example.org`; \
             /channels/telegram/timeout_seconds: must be 1 to 50"
        );
        assert!(is_token("123456:ABC-DEF1234ghIkl-zyx57W2v1u123ew11"));
        for bad in ["", ":", "123456", "x:ABCDEFGHIJKL", "1:short", "1:ABCDEFGHIJ/KL", "1:ABCDEFGHIJ?KL"] {
            assert!(!is_token(bad), "{bad}");
        }
    }
}
