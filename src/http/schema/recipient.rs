//! The shapes of recipients: what is put holds secrets, what is shown does not.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use crate::notification::quiet::{BreaksThrough, Day};

/// Where a tenant is reached. Fields that `GET` shows besides may be sent along and change nothing.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "timezone": "Europe/Berlin", "locale": "en", "addresses": {"email": "ann@example.org", "sms": "+4915123456789"},
    "fallback": ["email", "sms"], "quiet_hours": [{"from": "22:00", "to": "07:00"}], "budget": {"per_day": 20}
}))]
pub struct NewRecipient {
    #[schema(required = false, default = "UTC")]
    pub timezone: String,
    /// A language tag. It picks among templates of the operator's; the built-in ones are English.
    #[schema(required = false, default = "en")]
    pub locale: String,
    #[schema(required = false)]
    pub addresses: NewAddresses,
    /// Channels in the order in which they are tried. Empty: every address there is.
    #[schema(required = false)]
    pub fallback: Vec<String>,
    /// When less urgent messages are held, to be told in a digest.
    #[schema(required = false)]
    pub quiet_hours: Vec<QuietHours>,
    /// When held messages are told. Absent: as soon as the quiet hours are over; what went over the budget, at 08:00.
    #[schema(required = false)]
    pub digest: Option<Digest>,
    /// Interruptions on a day of the recipient's calendar. Absent: any number.
    #[schema(required = false)]
    pub budget: Option<Budget>,
}

/// One address for each kind of channel.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAddresses {
    #[schema(required = false)]
    pub email: Option<String>,
    /// With its country code; kept as `+` and digits.
    #[schema(required = false, example = "+4915123456789")]
    pub sms: Option<String>,
    /// Up to 8; a message goes to each.
    #[schema(required = false)]
    pub push: Option<NewPushes>,
    #[schema(required = false)]
    pub webhook: Option<NewWebhook>,
    #[schema(required = false)]
    pub slack: Option<NewSlack>,
    /// A chat's id, or the name of a channel.
    #[schema(required = false, example = "-1001234567890")]
    pub telegram: Option<String>,
    /// Whether sessions that the tenant has open are told.
    #[schema(required = false, default = false)]
    pub live: bool,
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum NewPushes {
    One(NewPush),
    Several(Vec<NewPush>),
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum NewPush {
    Ntfy(Ntfy),
    Browser(NewBrowser),
}

/// A topic of ntfy.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Ntfy {
    #[schema(min_length = 1, max_length = 64)]
    pub topic: String,
    /// Absent: the server of the configuration.
    #[schema(required = false, format = Uri)]
    pub server: Option<String>,
}

/// A browser's subscription, as `PushSubscription.toJSON()` writes it.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewBrowser {
    #[schema(format = Uri)]
    pub endpoint: String,
    #[serde(rename = "expirationTime")]
    #[schema(required = false)]
    pub expiration_time: Option<i64>,
    pub keys: NewKeys,
}

#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewKeys {
    pub p256dh: String,
    /// Left out, the one stored for this endpoint is kept.
    #[schema(required = false, write_only)]
    pub auth: Option<String>,
    #[schema(required = false)]
    pub auth_set: Option<bool>,
}

#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewWebhook {
    #[schema(format = Uri)]
    pub url: String,
    /// A signing secret, or several while they are rotated. Left out, the stored one is kept.
    #[schema(required = false, write_only)]
    pub secret: Option<Secrets>,
    #[schema(required = false)]
    pub secret_set: Option<bool>,
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum Secrets {
    One(String),
    Several(Vec<String>),
}

/// A channel or member that the operator's token writes to, or an incoming webhook.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSlack {
    #[schema(required = false, example = "C0123ABCD")]
    pub channel: Option<String>,
    /// Anybody who knows it can write there, so it is not shown again.
    #[schema(required = false, write_only, format = Uri)]
    pub webhook_url: Option<String>,
    /// `true` keeps the stored one.
    #[schema(required = false)]
    pub webhook_url_set: Option<bool>,
}

/// A stretch of the recipient's day in which messages are held that are less urgent than what breaks through.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuietHours {
    #[schema(example = "22:00", pattern = "^[0-2][0-9]:[0-5][0-9]$")]
    pub from: String,
    /// Not later than `from`: on the next day.
    #[schema(example = "07:00", pattern = "^[0-2][0-9]:[0-5][0-9]$")]
    pub to: String,
    /// On which they begin. Absent: every day.
    #[schema(required = false)]
    pub days: Vec<Day>,
    /// Absent: all but `webhook` and `live`, which interrupt nobody.
    #[schema(required = false)]
    pub channels: Vec<String>,
    /// Absent: `high`.
    #[schema(required = false)]
    pub breaks_through: BreaksThrough,
}

#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Digest {
    #[schema(example = json!(["08:00", "18:00"]))]
    pub at: Vec<String>,
    /// Absent: all.
    #[schema(required = false)]
    pub channels: Vec<String>,
}

/// Most interruptions in a day. Messages over it wait for the digest. Those of urgency `high` and more go through, and
/// count.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    #[schema(minimum = 0, maximum = 10000)]
    pub per_day: u32,
}

/// Where a tenant is reached, without the secrets.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Recipient {
    pub tenant_id: String,
    pub timezone: String,
    pub locale: String,
    pub addresses: Addresses,
    pub fallback: Vec<String>,
    pub quiet_hours: Vec<QuietHours>,
    #[schema(required)]
    pub digest: Option<Digest>,
    #[schema(required)]
    pub budget: Option<Budget>,
    /// When which address was verified, by channel.
    pub verified: BTreeMap<String, DateTime<Utc>>,
    pub version: i64,
    pub updated_at: DateTime<Utc>,
}

#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Addresses {
    #[schema(required = false)]
    pub email: Option<String>,
    #[schema(required = false)]
    pub sms: Option<String>,
    #[schema(required = false)]
    pub push: Vec<Push>,
    #[schema(required = false)]
    pub webhook: Option<Webhook>,
    #[schema(required = false)]
    pub slack: Option<Slack>,
    #[schema(required = false)]
    pub telegram: Option<String>,
    #[schema(required = false)]
    pub live: bool,
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum Push {
    Ntfy(Ntfy),
    Browser(Browser),
}

#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Browser {
    pub endpoint: String,
    pub keys: Keys,
}

#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    pub p256dh: String,
    pub auth_set: bool,
}

#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    pub url: String,
    pub secret_set: bool,
}

#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Slack {
    #[schema(required = false)]
    pub channel: Option<String>,
    #[schema(required = false)]
    pub webhook_url_set: Option<bool>,
}
