//! Slack addresses of a recipient: a channel or member that the operator's token writes to, or an incoming webhook.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::reading::{flag, given, object, only_of, text, url};
use super::secrets::{Seal, SecretPlace};
use crate::base::field::{Flag, FlagValue};
use crate::base::invalid::ValidationErrors;
use crate::base::secret::Secret;
use crate::domain::notification::AddressKind;

/// Longest name of a channel (Slack's own limit).
const NAME_LENGTH: usize = 80;
const PLACE: &str = "/addresses/slack";

/// The address of the channel `slack`.
pub struct Slack;

/// Target in Slack: a channel by the operator's app, or an incoming webhook.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SlackAddress {
    /// A channel or member id, written to with the operator's token (`chat.postMessage`).
    Channel {
        /// Id of the channel or of the user.
        channel: String,
    },
    /// An incoming webhook; whoever knows its URL can write there, so it is sealed.
    Webhook {
        /// Address of the webhook, sealed by the vault.
        sealed_url: String,
    },
}

/// An address as it was asked for.
#[derive(Debug, Clone)]
pub enum SlackDraft {
    /// A channel or user, by the operator's app.
    Channel {
        /// Id of the channel or of the user.
        channel: String,
    },
    /// Absent: the stored one is kept.
    Webhook {
        /// Address of the webhook, which is a secret; `None` keeps the stored one.
        url: Option<Secret>,
    },
}

impl AddressKind for Slack {
    type Draft = Option<SlackDraft>;
    type Stored = Option<SlackAddress>;
    type Written = schema::Written;
    type Shown = schema::Shown;

    const FLAGS: &'static [Flag] = &[Flag {
        name: "--slack-channel",
        takes: FlagValue::Text("ID"),
        field: "addresses.slack.channel",
        help: "Channel or member id for the channel `slack`; an incoming webhook is a secret and goes by --file",
    }];

    fn read(kinds: &Map<String, Value>, faults: &mut ValidationErrors) -> Option<SlackDraft> {
        SlackDraft::read(kinds, faults)
    }

    fn settle<S: Seal>(
        draft: Option<SlackDraft>,
        old: &Option<SlackAddress>,
        seal: &S,
    ) -> Result<Option<SlackAddress>, S::Error> {
        draft.map(|draft| draft.settle(old.as_ref(), seal)).transpose()
    }

    fn public(stored: &Option<SlackAddress>) -> Value {
        stored.as_ref().map(public).unwrap_or_default()
    }

    /// The stored form: incoming webhooks are shown alike, wherever they lead.
    fn identity(stored: &Option<SlackAddress>) -> Value {
        json!(stored)
    }

    fn places(stored: &Option<SlackAddress>) -> Vec<String> {
        match stored {
            Some(SlackAddress::Channel { channel }) => vec![format!("slack {channel}")],
            Some(SlackAddress::Webhook { .. }) | None => vec![],
        }
    }
}

impl SlackDraft {
    fn read(kinds: &Map<String, Value>, faults: &mut ValidationErrors) -> Option<SlackDraft> {
        let fields = object(given(kinds, "slack")?, PLACE, faults)?;
        only_of::<schema::NewSlack>(fields, PLACE, faults);
        let kept = flag(fields, "webhook_url_set", PLACE, faults);
        match (given(fields, "channel"), given(fields, "webhook_url")) {
            (Some(_), None) => read_channel(fields, faults),
            (None, Some(_)) => {
                Some(SlackDraft::Webhook { url: Some(Secret::new(url(fields, "webhook_url", PLACE, faults)?)) })
            }
            (None, None) if kept => Some(SlackDraft::Webhook { url: None }),
            (None, None) => {
                faults.add(PLACE, "expected `{\"channel\": …}` or `{\"webhook_url\": …}`");
                None
            }
            (Some(_), Some(_)) => {
                faults.add(PLACE, "expected either `channel` or `webhook_url`, not both");
                None
            }
        }
    }

    fn settle<S: Seal>(self, old: Option<&SlackAddress>, seal: &S) -> Result<SlackAddress, S::Error> {
        Ok(match (self, old) {
            (SlackDraft::Channel { channel }, _) => SlackAddress::Channel { channel },
            (SlackDraft::Webhook { url: Some(url) }, _) => {
                SlackAddress::Webhook { sealed_url: seal.seal(SecretPlace::Slack, &url)? }
            }
            (SlackDraft::Webhook { url: None }, Some(SlackAddress::Webhook { sealed_url })) => {
                SlackAddress::Webhook { sealed_url: sealed_url.clone() }
            }
            (SlackDraft::Webhook { url: None }, _) => {
                let message = "is needed: the address of an incoming webhook, `https://hooks.slack.com/services/…`";
                return Err(ValidationErrors::one(format!("{PLACE}/webhook_url"), message).into());
            }
        })
    }
}

fn read_channel(fields: &Map<String, Value>, faults: &mut ValidationErrors) -> Option<SlackDraft> {
    let channel = text(fields, "channel", PLACE, faults)?;
    let name = channel.strip_prefix(['#', '@']).unwrap_or(channel);
    let plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.chars().count() > NAME_LENGTH || !name.chars().all(plain) {
        let message = format!("`{channel}` is not an id such as `C0123ABCD`, or a channel's name such as `#alerts`");
        faults.add(format!("{PLACE}/channel"), message);
    }
    Some(SlackDraft::Channel { channel: channel.to_owned() })
}

/// The document that is shown of it.
fn public(address: &SlackAddress) -> Value {
    match address {
        SlackAddress::Channel { channel } => json!({ "channel": channel }),
        SlackAddress::Webhook { .. } => json!({ "webhook_url_set": true }),
    }
}

/// Its schemas in the API. The reader takes the fields of what a request writes.
pub(super) mod schema {
    use serde::Serialize;
    use utoipa::ToSchema;

    /// An address as a request writes it.
    #[derive(Serialize, ToSchema)]
    pub struct Written {
        #[schema(required = false)]
        slack: Option<NewSlack>,
    }

    /// An address as it is shown.
    #[derive(Serialize, ToSchema)]
    pub struct Shown {
        #[schema(required = false)]
        slack: Option<Slack>,
    }

    /// A channel or member that the operator's token writes to, or an incoming webhook.
    #[derive(Serialize, ToSchema)]
    #[serde(deny_unknown_fields)]
    pub struct NewSlack {
        /// Id of the channel or member.
        #[schema(required = false, example = "C0123ABCD")]
        pub channel: Option<String>,
        /// Anybody who knows it can write there, so it is not shown again.
        #[schema(required = false, write_only, format = Uri)]
        pub webhook_url: Option<String>,
        /// `true` keeps the stored one.
        #[schema(required = false)]
        pub webhook_url_set: Option<bool>,
    }

    /// A channel or member that the operator's token writes to, or an incoming webhook without its URL.
    #[derive(Serialize, ToSchema)]
    #[serde(deny_unknown_fields)]
    pub struct Slack {
        /// Id of the channel or member.
        #[schema(required = false)]
        pub channel: Option<String>,
        /// Whether the URL of an incoming webhook is stored.
        #[schema(required = false)]
        pub webhook_url_set: Option<bool>,
    }
}
