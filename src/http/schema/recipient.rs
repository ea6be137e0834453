//! The shapes of recipients: what is put holds secrets, what is shown does not.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

/// Where a tenant is reached.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "timezone": "Europe/Berlin", "locale": "en", "addresses": {"email": "ann@example.org"}, "fallback": ["email"]
}))]
pub struct NewRecipient {
    #[schema(required = false, default = "UTC")]
    pub timezone: String,
    #[schema(required = false, default = "en")]
    pub locale: String,
    #[schema(required = false)]
    pub addresses: NewAddresses,
    /// Channels in the order in which they are tried.
    #[schema(required = false)]
    pub fallback: Vec<String>,
}

/// One address for each kind of channel.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAddresses {
    #[schema(required = false)]
    pub email: Option<String>,
    #[schema(required = false)]
    pub webhook: Option<NewWebhook>,
}

#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewWebhook {
    #[schema(format = Uri)]
    pub url: String,
    /// A signing secret, or several while they are rotated. Left out, the stored one is kept.
    #[schema(required = false, write_only)]
    pub secret: Option<Secrets>,
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum Secrets {
    One(String),
    Several(Vec<String>),
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
    pub version: i64,
    pub updated_at: DateTime<Utc>,
}

#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Addresses {
    #[schema(required = false)]
    pub email: Option<String>,
    #[schema(required = false)]
    pub webhook: Option<Webhook>,
}

#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    pub url: String,
    pub secret_set: bool,
}
