//! The shapes of events and of the choice of dead letters.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

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

/// An event as CloudEvents 1.0 has it, in the structured form.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"specversion": "1.0", "id": "evt-1", "source": "email", "type": "new_email",
    "tenantid": "user_123", "data": {"from": "ship-confirm@amazon.com"}}))]
pub struct CloudEvent {
    #[schema(example = "1.0")]
    pub specversion: String,
    pub id: String,
    pub source: String,
    pub r#type: String,
    /// The extension attribute that names the tenant.
    #[schema(required = false)]
    pub tenantid: String,
    #[schema(required = false)]
    pub data: Value,
    #[schema(required = false)]
    pub data_base64: String,
    #[schema(required = false, format = DateTime)]
    pub time: String,
    #[schema(required = false)]
    pub subject: String,
    #[schema(required = false)]
    pub datacontenttype: String,
    #[schema(required = false)]
    pub dataschema: String,
    /// Extension attributes: texts, numbers, true and false.
    #[serde(flatten)]
    pub extensions: Map<String, Value>,
}

/// An event in either form.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum AnyEvent {
    Short(EventSchema),
    Cloud(CloudEvent),
}

/// An event, or up to 500 in a list.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum NewEvents {
    One(Box<AnyEvent>),
    Several(Vec<AnyEvent>),
}

/// Which dead letters are meant; an empty object means all.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"source": "email", "type": "mail.*", "error": "timed out"}))]
pub struct DeadLetterChoice {
    #[schema(required = false)]
    pub tenant_id: Option<String>,
    #[schema(required = false)]
    pub source: Option<String>,
    /// Exact, or with a trailing `*`.
    #[schema(required = false)]
    pub r#type: Option<String>,
    /// Part of the error, whatever its case.
    #[schema(required = false)]
    pub error: Option<String>,
    #[schema(required = false, minimum = 1, maximum = 1000, default = 1000)]
    pub limit: Option<u32>,
}
