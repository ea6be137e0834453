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
    #[schema(min_length = 1, max_length = 512)]
    pub source: String,
    #[schema(min_length = 1, max_length = 512)]
    pub r#type: String,
    /// Unique within tenant and source: the same again does nothing. Absent: one is made.
    #[schema(required = false, min_length = 1, max_length = 512)]
    pub id: Option<String>,
    #[schema(required = false)]
    pub data: Value,
    /// When it happened; absent: now.
    #[schema(required = false, format = DateTime)]
    pub time: Option<String>,
    #[schema(required = false)]
    pub subject: Option<String>,
}

/// An event in either form.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum AnyEvent {
    Short(EventSchema),
    Cloud(CloudEvent<'static>),
}

/// An event, or up to 500 in a list.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum NewEvents {
    One(Box<AnyEvent>),
    Several(Vec<AnyEvent>),
}

/// Which dead letters are meant; an empty object means all.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"source": "email", "type": "mail.*", "error": "timed out"}))]
pub struct DeadLetterChoice {
    pub tenant_id: Option<String>,
    pub source: Option<String>,
    /// Exact, or with a trailing `*`.
    pub r#type: Option<String>,
    /// Part of the error, whatever its case.
    pub error: Option<String>,
    #[serde(default = "most_letters")]
    #[schema(default = most_letters, minimum = 1, maximum = 1000)]
    pub limit: u32,
}

fn most_letters() -> u32 {
    1000
}
