//! Ways to reach a recipient: the trait, and the list of those that there are.
//!
//! A channel makes one attempt and says honestly what came of it. It never retries, never stores, and never claims
//! `delivered` unless the other side said so. It keeps nothing; what survives a crash is the delivery's row.

pub mod email;
pub mod templates;
pub mod webhook;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::channel::templates::Templates;
use crate::egress::Egress;
use crate::invalid::Faults;
use crate::notification::wording::Words;
use crate::notification::{Recipient, Urgency};
use crate::vault::Vault;

/// No attempt may take longer than this: deliveries are leased for longer.
pub const ATTEMPT_LIMIT: Duration = Duration::from_secs(60);

/// `[channels]`.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// A directory of templates for what messages say, used before the embedded ones.
    pub templates_dir: Option<PathBuf>,
    pub email: email::Settings,
    pub webhook: webhook::Settings,
}

/// What a channel can carry; told to the model before it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Capabilities {
    /// `plain`, `markdown`, `html`, `csv`.
    pub supported_formats: &'static [&'static str],
    /// Longest text, in characters.
    pub max_response_length: usize,
    /// The other side drops a message that it has seen, by its id: an attempt of unknown outcome may be repeated.
    pub deduplicates: bool,
}

/// One message for one attempt.
#[derive(Debug, Clone)]
pub struct Message<'a> {
    /// The delivery's id: the same at each attempt, so that a repeat can be recognised.
    pub id: Uuid,
    /// Whose addresses and secrets are used: the id of the recipient.
    pub recipient_id: &'a str,
    /// When the delivery came to be: the same at each attempt.
    pub created_at: DateTime<Utc>,
    /// The instant of this attempt.
    pub now: DateTime<Utc>,
    pub recipient: &'a Recipient,
    pub words: &'a Words,
    pub urgency: Urgency,
}

/// What the other side said of a message that it took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// What the provider calls it.
    pub provider_id: Option<String>,
    pub confirmed: Confirmed,
}

/// How much a receipt says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confirmed {
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
    Transient { why: String, retry_after: Option<Duration> },
    /// Refused for good: the address or the message is at fault.
    #[error("{why}")]
    Rejected { why: String },
    /// The operator has to change something. Retried, because that may happen meanwhile.
    #[error("{why}")]
    Misconfigured { why: String },
    /// Handed over, and no answer came: it may have arrived.
    #[error("{why}")]
    Unknown { why: String },
}

/// A way to reach a recipient.
pub trait Channel: Send + Sync {
    /// The name in `addresses`, `output` and `[channels]`.
    fn name(&self) -> &'static str;

    fn capabilities(&self) -> Capabilities;

    /// One attempt, within [`ATTEMPT_LIMIT`].
    fn deliver<'a>(&'a self, message: &'a Message<'a>) -> BoxFuture<'a, Result<Receipt, ChannelError>>;
}

/// The channels that are configured, and the templates of what goes through them.
#[derive(Clone)]
pub struct Channels {
    list: Arc<Vec<Box<dyn Channel>>>,
    templates: Templates,
}

impl Channels {
    /// The list. A channel without what it needs is left out.
    pub fn new(settings: &Settings, egress: &Egress, vault: &Vault) -> Result<Channels, Faults> {
        let mut list: Vec<Box<dyn Channel>> = vec![];
        if let Some(email) = email::Email::new(&settings.email)? {
            list.push(Box::new(email));
        }
        list.push(Box::new(webhook::Webhook::new(&settings.webhook, egress.clone(), vault.clone())?));
        let templates = Templates::read(settings.templates_dir.as_deref())?;
        Ok(Channels { templates, ..Channels::of(list) })
    }

    /// Exactly these, with the embedded templates.
    pub fn of(list: Vec<Box<dyn Channel>>) -> Channels {
        Channels { list: Arc::new(list), templates: Templates::embedded() }
    }

    pub fn templates(&self) -> &Templates {
        &self.templates
    }

    pub fn get(&self, name: &str) -> Option<&dyn Channel> {
        self.list.iter().find(|channel| channel.name() == name).map(|channel| &**channel)
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.list.iter().map(|channel| channel.name()).collect()
    }
}
