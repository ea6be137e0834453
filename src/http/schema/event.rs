//! The shapes of events and of the choice of dead letters.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::event::CloudEvent;

/// An event in the short form.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"source": "email", "type": "new_email", "data": {"from": "ship-confirm@amazon.com"}}))]
#[schema(as = NewEvent)]
pub struct EventSchema {
    /// Tenant of the event; an admin names it.
    #[schema(required = false, example = "user_123")]
    pub tenant_id: Option<String>,
    /// The system that it comes from; triggers name it.
    #[schema(min_length = 1, max_length = 512)]
    pub source: String,
    /// The kind of event; triggers name it.
    #[schema(min_length = 1, max_length = 512)]
    pub r#type: String,
    /// Unique within tenant and source: the same again does nothing. Absent: one is made.
    #[schema(required = false, min_length = 1, max_length = 512)]
    pub id: Option<String>,
    /// Any JSON.
    #[schema(required = false)]
    pub data: Value,
    /// When it happened; absent: now.
    #[schema(required = false, format = DateTime)]
    pub time: Option<String>,
    /// The thing that it is about. Absent: none.
    #[schema(required = false)]
    pub subject: Option<String>,
}

/// An event in either form.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum AnyEvent {
    /// The short form.
    Short(EventSchema),
    /// The structured form of CloudEvents 1.0.
    Cloud(CloudEvent<'static>),
}

/// An event, or up to 500 in a list.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum NewEvents {
    /// One event.
    One(Box<AnyEvent>),
    /// Up to 500 events, each in either form.
    Several(Vec<AnyEvent>),
}

/// Which dead letters are meant; an empty object means all.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"source": "email", "type": "mail.*", "error": "timed out"}))]
pub struct DeadLetterChoice {
    /// The tenant of the events. Absent: any.
    pub tenant_id: Option<String>,
    /// The `source` of the events, exact. Absent: any.
    pub source: Option<String>,
    /// The `type` of the events, exact or with a trailing `*`.
    pub r#type: Option<String>,
    /// Part of the error, whatever its case.
    pub error: Option<String>,
    /// How many of them are taken at most, newest first.
    #[serde(default = "most_letters")]
    #[schema(default = most_letters, minimum = 1, maximum = 1000)]
    pub limit: u32,
    /// The `next_cursor` of an earlier answer, to go on behind what it has looked at. Absent: from the newest.
    pub cursor: Option<String>,
}

fn most_letters() -> u32 {
    1000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::json::typed::field_names;
    use crate::domain::event::short::FIELDS;

    #[test]
    fn fields_that_are_read_of_a_short_event_are_those_that_are_described() {
        let mut read = FIELDS.to_vec();
        read.sort_unstable();
        assert_eq!(field_names::<EventSchema>(), read);
    }
}
