//! Requests about tools.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// The definition of a tool to be accepted.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcceptTool {
    /// Hash of the definition that was looked at: refused where another one waits by now. Absent: the one that waits.
    #[schema(min_length = 64, max_length = 64)]
    pub definition: Option<String>,
}

/// A tool to be tried.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"tenant_id": "user_123", "arguments": {"timezone": "Europe/Berlin"}}))]
pub struct CallTool {
    /// For whom, and with whose credentials; a tenant's token need not say it.
    pub tenant_id: Option<String>,
    /// As a model would give them.
    #[serde(default)]
    pub arguments: Map<String, Value>,
    /// Version of the tool that was looked at: refused where it has another one by now. Absent: whichever it has.
    pub version: Option<String>,
    /// A person has agreed to this call. Needed where it acts, or where the approval rules ask somebody.
    #[serde(default)]
    pub confirmed: bool,
}
