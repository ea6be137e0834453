//! Slack addresses of a recipient: a channel or member that the operator's token writes to, or an incoming webhook.

use serde_json::{Map, Value, json};

use super::reading::{flag, given, object, only, text, url};
use super::secrets::{Seal, SecretPlace};
use crate::invalid::Faults;
use crate::notification::SlackAddress;
use crate::secret::Secret;

/// Longest name of a channel (Slack's own limit).
const NAME_LENGTH: usize = 80;
const PLACE: &str = "/addresses/slack";

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

impl SlackDraft {
    pub(super) fn read(kinds: &Map<String, Value>, faults: &mut Faults) -> Option<SlackDraft> {
        let fields = object(given(kinds, "slack")?, PLACE, faults)?;
        only(fields, PLACE, &["channel", "webhook_url", "webhook_url_set"], faults);
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

    pub(super) fn settle<S: Seal>(self, old: Option<&SlackAddress>, seal: &S) -> Result<SlackAddress, S::Error> {
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
                return Err(Faults::one(format!("{PLACE}/webhook_url"), message).into());
            }
        })
    }
}

fn read_channel(fields: &Map<String, Value>, faults: &mut Faults) -> Option<SlackDraft> {
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
pub(super) fn public(address: &SlackAddress) -> Value {
    match address {
        SlackAddress::Channel { channel } => json!({ "channel": channel }),
        SlackAddress::Webhook { .. } => json!({ "webhook_url_set": true }),
    }
}
