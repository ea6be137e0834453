//! The shapes of recipients: the one that is put holds secrets, the one that is shown does not.

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
    /// The time zone of quiet hours, of digests and of times in messages: an IANA name, such as `Europe/Berlin`.
    #[schema(required = false, default = "UTC")]
    pub timezone: String,
    /// A language tag. It picks among templates of the operator's; the built-in ones are English.
    #[schema(required = false, default = "en")]
    pub locale: String,
    /// The addresses by kind of channel; those that are left out are taken away.
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
    /// The tenant that is reached.
    pub tenant_id: String,
    /// The time zone, by its IANA name.
    pub timezone: String,
    /// The language tag of the messages.
    pub locale: String,
    /// The addresses by kind of channel.
    pub addresses: Addresses,
    /// Channels in the order in which they are tried. Empty: every address there is.
    pub fallback: Vec<String>,
    /// When less urgent messages are held.
    pub quiet_hours: Vec<QuietHours>,
    /// When held messages are told; `null`: as soon as they may be.
    #[schema(required)]
    pub digest: Option<DigestTimes>,
    /// Interruptions on a day of the recipient's calendar; `null`: any number.
    #[schema(required)]
    pub budget: Option<InterruptionBudget>,
    /// When which address was verified, by channel.
    pub verified: BTreeMap<String, DateTime<Utc>>,
    /// Counts the changes, from 1.
    pub version: i64,
    /// When it was changed last.
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
        with_fields(NewAddressesOwn::schema(), &notification::Addresses::request_forms())
    }
}

impl ToSchema for NewAddresses {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        parts(&notification::Addresses::request_forms(), schemas);
    }
}

/// One address for each kind of channel, without the secrets.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddressesOwn {}

/// One address for each kind of channel, without the secrets.
#[derive(Serialize)]
pub struct Addresses;

impl PartialSchema for Addresses {
    fn schema() -> RefOr<Schema> {
        with_fields(AddressesOwn::schema(), &notification::Addresses::answer_forms())
    }
}

impl ToSchema for Addresses {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        parts(&notification::Addresses::answer_forms(), schemas);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::json::typed::field_names;

    #[test]
    fn fields_that_are_read_of_a_recipient_are_those_that_are_described() {
        let mut read = notification::RecipientDraft::FIELDS;
        read.sort_unstable();
        assert_eq!(field_names::<NewRecipient>(), read);
        let mut kinds = notification::Addresses::KINDS;
        kinds.sort_unstable();
        assert_eq!(field_names::<NewAddresses>(), kinds);
    }
}
