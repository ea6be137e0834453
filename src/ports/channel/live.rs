//! Live: a message to the sessions that a tenant has open, on this instance or any other.
//!
//! The message is laid out in the database, where sessions look, and is withdrawn when none has taken it within a few
//! seconds, so that the next channel follows at once. `delivered` means that a session has taken it to write it to its
//! connection. The row has the delivery's id, so an attempt that was broken off is gone on with. What lies in the
//! database is sealed, because a link in it lets whoever has it decide.

use std::time::Duration;

use chrono::SecondsFormat;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::base::clock::pause;
use crate::base::id::Tenant;
use crate::base::invalid::ValidationErrors;
use crate::base::secret::Secret;
use crate::domain::task::Urgency;
use crate::ports::channel::{Capabilities, Channel, ChannelError, OutgoingMessage, Receipt, ReceiptLevel};
use crate::ports::vault::{SealedPlace, Vault, VaultError};
use crate::store::{Store, StoreError, Topic};

/// How long a session is waited for, in seconds.
const WAIT_RANGE: std::ops::RangeInclusive<u64> = 1..=30;
/// How often the row is looked at while nothing is heard of it: a session of another instance gives no wake-up.
const LOOK: Duration = Duration::from_millis(200);

/// `[channels.live]`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How long a session may take to take a message, before the next channel follows: 1 to 30.
    pub wait_seconds: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { wait_seconds: 3 }
    }
}

/// The channel.
pub struct LiveChannel {
    store: Store,
    vault: Vault,
    wait: Duration,
}

impl Settings {
    /// Judges the settings before there is a database.
    pub fn check(&self) -> Result<(), ValidationErrors> {
        match WAIT_RANGE.contains(&self.wait_seconds) {
            true => Ok(()),
            false => Err(ValidationErrors::one("/channels/live/wait_seconds", "must be 1 to 30")),
        }
    }
}

impl LiveChannel {
    /// The channel of sessions that are open anywhere.
    pub fn new(settings: &Settings, store: Store, vault: Vault) -> LiveChannel {
        LiveChannel { store, vault, wait: Duration::from_secs(settings.wait_seconds) }
    }

    async fn offer(&self, message: &OutgoingMessage<'_>) -> Result<Receipt, ChannelError> {
        let rejected = |why: &str| ChannelError::Rejected { why: why.into() };
        if !message.recipient.addresses.live {
            return Err(ChannelError::Unsendable { why: "the recipient has no live address".into() });
        }
        let tenant = Tenant::stored(message.recipient_id).map_err(|why| rejected(&why))?;
        let sealed = seal(&self.vault, &tenant, message.id, &body(message))
            .map_err(|error| ChannelError::Misconfigured { why: error.to_string() })?;
        let has_approval_link = message.words.asks;
        self.store
            .put_live_message(&tenant, message.id, has_approval_link, &sealed)
            .await
            .map_err(store_unavailable)?;
        let taken = tokio::time::timeout(self.wait, self.wait_until_received(&tenant, message.id)).await;
        // what was taken in the last moment can't be withdrawn
        let withdrawn = match taken {
            Ok(taken) => taken.map(|()| false),
            Err(_late) => self.store.withdraw_live_message(&tenant, message.id).await,
        };
        match withdrawn.map_err(outcome_unknown)? {
            false => Ok(Receipt { provider_id: None, confirmed: ReceiptLevel::Delivered }),
            true => Err(rejected("no session is open")),
        }
    }

    async fn wait_until_received(&self, tenant: &Tenant, id: Uuid) -> Result<(), StoreError> {
        let mut taking = self.store.listen(Topic::Live);
        while !self.store.live_message(tenant, id).await?.is_some_and(|message| message.taken) {
            tokio::select! {
                _ = taking.changed() => {}
                () = pause(LOOK) => {}
            }
        }
        Ok(())
    }
}

impl Channel for LiveChannel {
    fn name(&self) -> &'static str {
        "live"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { supported_formats: &["plain", "markdown"], max_response_length: 200_000, deduplicates: true }
    }

    fn deliver<'a>(&'a self, message: &'a OutgoingMessage<'a>) -> BoxFuture<'a, Result<Receipt, ChannelError>> {
        Box::pin(self.offer(message))
    }
}

/// The text that a session tells, as the channel has sealed it for this tenant and message.
pub fn open(vault: &Vault, tenant: &Tenant, id: Uuid, sealed: &str) -> Result<Secret, VaultError> {
    vault.unseal(&SealedPlace::live(tenant.as_str(), id).context(), sealed)
}

fn seal(vault: &Vault, tenant: &Tenant, id: Uuid, body: &Secret) -> Result<String, VaultError> {
    vault.seal(&SealedPlace::live(tenant.as_str(), id).context(), body)
}

/// A message as a session tells it.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = LiveMessage)]
pub struct LiveBody<'a> {
    /// Id of the delivery.
    id: Uuid,
    /// Type of the event: `run.finished`, `approval.requested`, `notice`, …
    #[schema(example = "run.finished")]
    event: &'a str,
    /// When the delivery came to be.
    #[schema(format = DateTime)]
    created_at: String,
    urgency: Urgency,
    /// One line.
    subject: &'a str,
    /// The whole message.
    text: &'a str,
    /// Where there is more to read, or something to decide.
    #[schema(required)]
    link: Option<LiveLink<'a>>,
    /// For `run.finished` the run with its task's name; else what the message says, for programs.
    data: &'a Value,
}

/// A link of a message. Anybody who has the address may decide, or read.
#[derive(Serialize, utoipa::ToSchema)]
pub struct LiveLink<'a> {
    label: &'a str,
    #[schema(format = Uri)]
    url: &'a str,
}

fn body(message: &OutgoingMessage) -> Secret {
    let words = message.words;
    let body = LiveBody {
        id: message.id,
        event: words.event,
        created_at: message.created_at.to_rfc3339_opts(SecondsFormat::Millis, true),
        urgency: message.urgency,
        subject: &words.subject,
        text: &words.text,
        link: words.link.as_ref().map(|link| LiveLink { label: &link.label, url: &link.url }),
        data: &words.data,
    };
    Secret::new(json!(body).to_string())
}

/// A session may have taken it.
fn outcome_unknown(error: StoreError) -> ChannelError {
    ChannelError::Unknown { why: format!("whether a session took the message could not be read: {error}") }
}

/// Nothing is lost: the next attempt goes on with the row, if there is one.
fn store_unavailable(error: StoreError) -> ChannelError {
    ChannelError::Transient {
        why: format!("the message could not be laid out for sessions: {error}"),
        retry_after: None,
    }
}
