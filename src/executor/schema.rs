//! The settings of executors as they are published: the JSON Schema of `action.config`.
//!
//! Nothing is read into these types: each executor reads its settings itself, with every fault at its place.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

use crate::domain::approval::settings::Override;
use crate::domain::budget::TaskBudget;

const IN_REFERENCE: &str = "#/components/schemas/";
const IN_SCHEMA: &str = "#/$defs/";

/// A JSON Schema that stands by itself.
pub fn of<T: ToSchema>() -> Value {
    let mut parts: Vec<(String, RefOr<Schema>)> = Vec::new();
    T::schemas(&mut parts);
    // a schema that is made of texts, numbers and lists can always be written
    let mut schema = serde_json::to_value(T::schema()).unwrap_or_default();
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    for (name, part) in parts {
        schema["$defs"][name] = serde_json::to_value(part).unwrap_or_default();
    }
    stand_alone(&mut schema);
    schema
}

/// The names of the fields that a schema has.
#[cfg(test)]
pub fn fields_of<T: ToSchema>() -> Vec<String> {
    of::<T>()["properties"].as_object().map(|fields| fields.keys().cloned().collect()).unwrap_or_default()
}

/// The schema of an executor that says nothing of its settings.
pub fn any() -> Value {
    json!({ "type": "object" })
}

fn stand_alone(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Some(name) = text.strip_prefix(IN_REFERENCE) {
                *text = format!("{IN_SCHEMA}{name}");
            }
        }
        Value::Array(items) => items.iter_mut().for_each(stand_alone),
        Value::Object(fields) => fields.values_mut().for_each(stand_alone),
        _ => {}
    }
}

/// `action.config` of the executor `orchestrator`.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"model": "main", "max_turns": 20, "tools": ["http_request"]}))]
pub struct OrchestratorConfig {
    /// The agent's persona. Absent: the operator's.
    #[schema(max_length = 32_768)]
    pub system_prompt: Option<String>,
    /// One of `[llm.models]`. Absent: the default.
    pub model: Option<String>,
    /// Absent: what `[react]` says.
    #[schema(minimum = 1, maximum = 100)]
    pub max_turns: Option<u32>,
    /// The tools that the agent may call. Absent: all that it is offered.
    pub tools: Option<Vec<String>>,
    /// Tools that the agent may not call.
    pub deny_tools: Option<Vec<String>>,
    /// The tenant's credentials that it may use: `service`, or `service/account`.
    pub credentials: Option<Vec<String>>,
    /// By tool: the task's own say in what people are asked about.
    pub approvals: Option<BTreeMap<String, Override>>,
    /// `continue`: a run knows what the newest 20 before it have answered, and the trigger's `overlap` may not be
    /// `allow`. Absent: `fresh`.
    pub conversation: Option<ConversationMode>,
    /// The task's own budget, below that of the operator.
    pub budget: Option<TaskBudget>,
}

/// Whether runs of a task are one conversation.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConversationMode {
    /// Each run begins anew.
    Fresh,
    /// A run goes on where those before it have ended.
    Continue,
}

/// `action.config` of the executor `webhook`, which hands a run to a runtime of yours.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "url": "https://agents.example.org/runs", "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "completion_timeout_seconds": 600
}))]
pub struct WebhookConfig {
    /// Where your runtime takes runs.
    #[schema(format = Uri)]
    pub url: String,
    /// The secret that signs each POST: `whsec_` and 24 to 64 random bytes in base64. Left out, the stored one is kept.
    /// No answer shows it.
    #[schema(write_only)]
    pub secret: Option<String>,
    /// As an answer shows it; changes nothing.
    pub secret_set: Option<bool>,
    /// A credential of the tenant's that the POST is sent with: `service`, or `service/account`.
    pub credential: Option<String>,
    /// Of the POST. Absent: `30`.
    #[schema(minimum = 1, maximum = 300)]
    pub timeout_seconds: Option<u64>,
    /// How long a run that was taken may wait for its completion. Absent: `3600`.
    #[schema(minimum = 1, maximum = 2_592_000)]
    pub completion_timeout_seconds: Option<u64>,
    /// 30 at most; none that holds a secret, and none that is ours.
    pub headers: Option<BTreeMap<String, String>>,
}
