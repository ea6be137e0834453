//! The addresses of a recipient, as they are stored: one for each kind of channel. Secrets among them are sealed.

use serde::{Deserialize, Serialize};

/// One address for each kind of channel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Addresses {
    /// Address of email.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// E.164: `+` and up to 15 digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sms: Option<String>,
    /// Devices and topics; a message goes to each, and has arrived when one has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub push: Vec<PushAddress>,
    /// Target of webhooks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookAddress>,
    /// Channel or user in Slack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slack: Option<SlackAddress>,
    /// A chat id, or `@name` of a channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telegram: Option<String>,
    /// Sessions that the tenant has open, if any.
    #[serde(default, skip_serializing_if = "is_false")]
    pub live: bool,
}

/// Target of webhooks: an address, and the secrets that sign messages to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WebhookAddress {
    /// The address that messages are posted to.
    pub url: String,
    /// The signing secrets, as the vault sealed them.
    pub sealed_secret: String,
}

/// One device or topic for push messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PushAddress {
    /// A topic of the operator's ntfy server, or of another one.
    Ntfy {
        /// Topic on the server.
        topic: String,
        /// Base address of the server; `None`: the operator's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        server: Option<String>,
    },
    /// A browser's subscription (RFC 8030); its keys as RFC 8291 has them, base64url without padding.
    WebPush {
        /// Address of the push service for this browser.
        endpoint: String,
        /// Public key of the browser, base64url.
        p256dh: String,
        /// The authentication secret, as the vault sealed it.
        sealed_auth: String,
    },
}

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

impl Addresses {
    /// The kinds of address, each with the channel of that name, in the order in which they are tried where a recipient
    /// names none: what costs money or has few words comes late.
    pub const KINDS: [&str; 7] = ["email", "push", "telegram", "slack", "sms", "webhook", "live"];

    /// Whether there is an address of this kind, such as `email`.
    pub fn has(&self, kind: &str) -> bool {
        match kind {
            "email" => self.email.is_some(),
            "sms" => self.sms.is_some(),
            "push" => !self.push.is_empty(),
            "webhook" => self.webhook.is_some(),
            "slack" => self.slack.is_some(),
            "telegram" => self.telegram.is_some(),
            "live" => self.live,
            _ => false,
        }
    }

    /// Each place that messages go to, as a text that is the same for the same place. Sessions are the tenant's own, and a
    /// webhook of Slack can't be told from another while it is sealed.
    pub fn places(&self) -> Vec<String> {
        let push = self.push.iter().map(|push| match push {
            PushAddress::Ntfy { topic, server } => format!("ntfy {} {topic}", server.as_deref().unwrap_or_default()),
            PushAddress::WebPush { endpoint, .. } => format!("browser {endpoint}"),
        });
        let slack = match &self.slack {
            Some(SlackAddress::Channel { channel }) => Some(format!("slack {channel}")),
            Some(SlackAddress::Webhook { .. }) | None => None,
        };
        let mut places: Vec<String> = push.collect();
        places.extend(self.email.iter().map(|email| format!("email {}", email.to_lowercase())));
        places.extend(self.sms.iter().map(|phone| format!("phone {phone}")));
        places.extend(self.webhook.iter().map(|webhook| format!("webhook {}", webhook.url)));
        places.extend(slack);
        places.extend(self.telegram.iter().map(|chat| format!("telegram {}", chat.to_lowercase())));
        places
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}
