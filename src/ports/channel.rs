//! Ways to reach a recipient: the trait, and the list of those that there are.
//!
//! A channel makes one attempt and says honestly what came of it. It never retries, never stores, and never claims
//! `delivered` unless the other side said so. It keeps nothing; what survives a crash is the delivery's row.

mod answer;
pub mod email;
pub mod full_message_url;
pub mod live;
mod provider;
pub mod push;
pub mod report_url;
pub mod slack;
pub mod sms;
pub mod telegram;
pub mod templates;
pub mod webhook;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::base::invalid::{ValidationErrors, escape};
use crate::domain::notification::{DeliveryReport, Recipient, RenderedMessage};
use crate::domain::task::Urgency;
use crate::ports::channel::templates::{MessageTemplates, renders_markdown};
use crate::ports::egress::Egress;
use crate::ports::vault::Vault;

/// No attempt may take longer than this: deliveries are leased for longer.
pub const ATTEMPT_LIMIT: Duration = Duration::from_secs(60);

/// `[channels]`.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Whether only addresses that their tenants have proved get anything but the code that proves them.
    pub require_verified: bool,
    /// A directory of templates for what messages say, in languages of the operator's choice, used before the embedded
    /// ones, which are English.
    pub templates_dir: Option<PathBuf>,
    /// Settings of email.
    pub email: email::Settings,
    /// Settings of open sessions.
    pub live: live::Settings,
    /// Settings of push messages.
    pub push: push::Settings,
    /// Settings of text messages.
    pub sms: sms::Settings,
    /// Settings of Slack.
    pub slack: slack::Settings,
    /// Settings of Telegram.
    pub telegram: telegram::Settings,
    /// Settings of webhooks.
    pub webhook: webhook::Settings,
}

/// Capabilities of a channel; told to the model before it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Capabilities {
    /// `plain`, `markdown`, `html`, `csv`, Slack's `mrkdwn`, Telegram's `telegram_html`; the text is of the first one.
    pub supported_formats: &'static [&'static str],
    /// Longest text, in characters.
    pub max_response_length: usize,
    /// The other side drops a message that it has seen, by its id: an attempt of unknown outcome may be repeated.
    pub deduplicates: bool,
}

/// One message for one attempt.
#[derive(Debug, Clone)]
pub struct OutgoingMessage<'a> {
    /// The delivery's id: the same at each attempt, so that a repeat can be recognised.
    pub id: Uuid,
    /// The id of the recipient with the addresses and secrets to use.
    pub recipient_id: &'a str,
    /// When the delivery came to be: the same at each attempt.
    pub created_at: DateTime<Utc>,
    /// The instant of this attempt.
    pub now: DateTime<Utc>,
    /// The recipient with the addresses.
    pub recipient: &'a Recipient,
    /// The words of the message.
    pub words: &'a RenderedMessage,
    /// Urgency of the message.
    pub urgency: Urgency,
}

/// Confirmation of the other side for a message that it took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The provider's id of the message.
    pub provider_id: Option<String>,
    /// The degree to which delivery is confirmed.
    pub confirmed: ReceiptLevel,
}

/// How much a receipt says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiptLevel {
    /// Taken on; a later report says how it went.
    Sent,
    /// As delivered as this channel can ever say.
    Delivered,
}

/// Why an attempt came to nothing, by what follows from it. The texts are shown to people; they hold no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// Not taken, and may be later.
    #[error("{why}")]
    Transient {
        /// The reason, in a sentence.
        why: String,
        /// The wait that the other side asks for.
        retry_after: Option<Duration>,
    },
    /// Not taken now because of this recipient, or of how much was sent; it may be later. The other side is well.
    #[error("{why}")]
    Busy {
        /// The reason, in a sentence.
        why: String,
    },
    /// Refused for good: the address or the message is at fault.
    #[error("{why}")]
    Rejected {
        /// The reason, in a sentence.
        why: String,
    },
    /// Never sent, and never can be: the address may not be reached, or there is none. Says nothing of the other side.
    #[error("{why}")]
    Unsendable {
        /// The reason, in a sentence.
        why: String,
    },
    /// The operator has to change something. Retried, because that may happen meanwhile.
    #[error("{why}")]
    Misconfigured {
        /// The reason, in a sentence.
        why: String,
    },
    /// Handed over, and no answer came: it may have arrived. Repeated where the other side drops repeats.
    #[error("{why}")]
    Unknown {
        /// The reason, in a sentence.
        why: String,
    },
}

/// The provider's answer about the operator's login, for `reveille check`. Nothing is sent to anybody for it. The
/// sentences hold no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Login {
    /// It is taken.
    Fine(String),
    /// It is taken, and whether messages may be sent with it is not known.
    Odd(String),
    /// Nothing can be sent.
    Wrong(String),
}

/// The operator's account at the provider of a channel.
pub struct Account<'a> {
    /// The channel.
    pub channel: &'static str,
    /// The channel, as a sentence names it.
    pub called: &'static str,
    /// Whether one is configured.
    pub is_there: bool,
    /// Asks the provider whether it takes the login; `None` where none is configured. A fault of the settings is told
    /// with those of their section.
    pub login: BoxFuture<'a, Result<Option<Login>, ValidationErrors>>,
    /// The settings to look at where it does not.
    pub hint: &'static str,
}

impl Settings {
    /// The accounts of all channels but email, whose server is looked at in another way.
    pub fn accounts(&self) -> Vec<Account<'_>> {
        vec![
            Account {
                channel: "sms",
                called: "SMS",
                is_there: self.sms.account.is_some(),
                login: Box::pin(self.sms.login()),
                hint: "channels.sms: are account, token and api_key of one account there?",
            },
            Account {
                channel: "slack",
                called: "Slack",
                is_there: self.slack.token.is_some(),
                login: Box::pin(self.slack.login()),
                hint: "channels.slack.token is the bot token of an app that is installed: xoxb-…",
            },
            Account {
                channel: "telegram",
                called: "Telegram",
                is_there: self.telegram.token.is_some(),
                login: Box::pin(self.telegram.login()),
                hint: "channels.telegram.token is what @BotFather gave: 123456:ABC…",
            },
        ]
    }
}

/// A request of a provider to the address of a [`report_url`], as it came.
#[derive(Debug, Clone, Copy)]
pub struct Callback<'a> {
    /// The address as the provider was told it.
    pub address: &'a str,
    /// Headers of the request.
    pub headers: &'a HeaderMap,
    /// Body of the request, raw.
    pub body: &'a [u8],
}

/// Why nothing is made of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallbackError {
    /// The provider signs its reports, and has not signed this one.
    #[error("the signature is missing or wrong")]
    NotSigned,
    /// The report can't be read; the sentence says why.
    #[error("the report can't be read: {0}")]
    Unreadable(String),
    /// This channel is never reported on.
    #[error("no reports are taken for this channel")]
    NotExpected,
}

/// A way to reach a recipient.
pub trait Channel: Send + Sync {
    /// The name in `addresses`, `output` and `[channels]`.
    fn name(&self) -> &'static str;

    /// Capabilities of the channel.
    fn capabilities(&self) -> Capabilities;

    /// Whether Markdown is shown as such: it is carried as it is, or turned into the marks of one of the formats.
    fn renders_markdown(&self) -> bool {
        self.capabilities().supported_formats.iter().any(|format| renders_markdown(format))
    }

    /// Whether a text has room in one message; by its characters, where the other side counts those.
    fn fits(&self, text: &str) -> bool {
        text.chars().count() <= self.capabilities().max_response_length
    }

    /// One attempt, within [`ATTEMPT_LIMIT`].
    fn deliver<'a>(&'a self, message: &'a OutgoingMessage<'a>) -> BoxFuture<'a, Result<Receipt, ChannelError>>;

    /// Reads a provider's report about a message that it took on, for channels that say `sent`.
    fn read_callback(&self, _callback: &Callback) -> Result<DeliveryReport, CallbackError> {
        Err(CallbackError::NotExpected)
    }
}

/// The channels that are configured, and the templates of what goes through them.
#[derive(Clone)]
pub struct ChannelRegistry {
    list: Vec<Arc<dyn Channel>>,
    templates: MessageTemplates,
}

impl ChannelRegistry {
    /// Those that need no store. A channel without what it needs is left out. `public_url` is where providers report
    /// to.
    pub fn new(
        settings: &Settings,
        vapid: Option<push::Vapid>,
        egress: &Egress,
        vault: &Vault,
        public_url: Option<&str>,
    ) -> Result<ChannelRegistry, ValidationErrors> {
        settings.live.check()?;
        let mut list: Vec<Box<dyn Channel>> = vec![];
        if let Some(email) = email::EmailChannel::new(&settings.email)? {
            list.push(Box::new(email));
        }
        list.push(Box::new(push::PushChannel::new(&settings.push, vapid, egress.clone(), vault.clone())?));
        if let Some(sms) = sms::SmsChannel::new(&settings.sms, vault.clone(), public_url)? {
            list.push(Box::new(sms));
        }
        list.push(Box::new(webhook::WebhookChannel::new(&settings.webhook, egress.clone(), vault.clone())?));
        list.push(Box::new(slack::SlackChannel::new(&settings.slack, egress.clone(), vault.clone())?));
        if let Some(telegram) = telegram::TelegramChannel::new(&settings.telegram)? {
            list.push(Box::new(telegram));
        }
        let templates = MessageTemplates::read(settings.templates_dir.as_deref())?;
        Ok(ChannelRegistry { templates, ..ChannelRegistry::of(list) })
    }

    /// Exactly these, with the embedded templates.
    pub fn of(list: Vec<Box<dyn Channel>>) -> ChannelRegistry {
        ChannelRegistry { list: list.into_iter().map(Arc::from).collect(), templates: MessageTemplates::embedded() }
    }

    /// These channels and one more.
    pub fn and(mut self, channel: impl Channel + 'static) -> ChannelRegistry {
        self.list.push(Arc::new(channel));
        self
    }

    /// These channels and those of an embedder.
    ///
    /// # Errors
    /// One has the name of another.
    pub fn with(mut self, added: Vec<Arc<dyn Channel>>) -> Result<ChannelRegistry, ValidationErrors> {
        for channel in added {
            if self.get(channel.name()).is_some() {
                let why = format!("there are two channels `{}`", channel.name());
                return Err(ValidationErrors::one(format!("/{}", escape(channel.name())), why));
            }
            self.list.push(channel);
        }
        Ok(self)
    }

    /// Templates of all channels.
    pub fn templates(&self) -> &MessageTemplates {
        &self.templates
    }

    /// The channel of this name.
    pub fn get(&self, name: &str) -> Option<&dyn Channel> {
        self.list.iter().find(|channel| channel.name() == name).map(|channel| &**channel)
    }

    /// Names of the channels, in order.
    pub fn names(&self) -> Vec<&'static str> {
        self.list.iter().map(|channel| channel.name()).collect()
    }
}
