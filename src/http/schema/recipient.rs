//! The shapes of recipients: what is put holds secrets, what is shown does not.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::fields::{parts, with_fields};
use crate::domain::notification;
use crate::domain::notification::{DigestTimes, InterruptionBudget, QuietHours};

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
    pub digest: Option<DigestTimes>,
    /// Interruptions on a day of the recipient's calendar. Absent: any number.
    #[schema(required = false)]
    pub budget: Option<InterruptionBudget>,
}

/// Where a tenant is reached, without the secrets.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Recipient)]
pub struct RecipientSchema {
    pub tenant_id: String,
    pub timezone: String,
    pub locale: String,
    pub addresses: Addresses,
    pub fallback: Vec<String>,
    pub quiet_hours: Vec<QuietHours>,
    #[schema(required)]
    pub digest: Option<DigestTimes>,
    #[schema(required)]
    pub budget: Option<InterruptionBudget>,
    /// When which address was verified, by channel.
    pub verified: BTreeMap<String, DateTime<Utc>>,
    pub version: i64,
    pub updated_at: DateTime<Utc>,
}

/// One address for each kind of channel.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAddressesOwn {}

/// One address for each kind of channel, as a request writes it.
#[derive(Serialize)]
pub struct NewAddresses;

impl PartialSchema for NewAddresses {
    fn schema() -> RefOr<Schema> {
        with_fields(NewAddressesOwn::schema(), &notification::Addresses::written())
    }
}

impl ToSchema for NewAddresses {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        parts(&notification::Addresses::written(), schemas);
    }
}

#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddressesOwn {}

/// One address for each kind of channel, without the secrets.
#[derive(Serialize)]
pub struct Addresses;

impl PartialSchema for Addresses {
    fn schema() -> RefOr<Schema> {
        with_fields(AddressesOwn::schema(), &notification::Addresses::shown())
    }
}

impl ToSchema for Addresses {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        parts(&notification::Addresses::shown(), schemas);
    }
}
