//! The shapes of what is asked of pipelines and of runs that others execute.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::executor::pipeline::schema::PipelineConfig;

/// A pipeline to be tried, and a sample of what would make it fire.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"config": {"steps": [{"name": "large", "filter": "event.data.total > 100"}]},
    "event": {"data": {"total": 120}}}))]
pub struct DryRunRequest {
    /// For whom; a tenant's token need not say it.
    #[schema(required = false)]
    pub tenant_id: Option<String>,
    /// As in `action.config` of a task.
    pub config: PipelineConfig,
    /// An event in the structured form of CloudEvents.
    #[schema(required = false)]
    pub event: Option<Value>,
    /// Value that a poll saw.
    #[schema(required = false)]
    pub value: Option<Value>,
    #[schema(required = false)]
    pub previous: Option<Value>,
    /// As given to `run now`.
    #[schema(required = false)]
    pub input: Option<Value>,
    /// Values that earlier runs have stored.
    #[schema(required = false)]
    pub state: Option<Map<String, Value>>,
    /// Values of steps by name, which are then not executed.
    #[schema(required = false)]
    pub mocks: Option<Map<String, Value>>,
    /// Executes what only reads: GET and HEAD requests, reading tools.
    #[schema(required = false)]
    pub live: Option<bool>,
}

/// How a run ended that a foreign runtime executed.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"state": "succeeded", "output": "Booked for eight."}))]
#[schema(as = Completion)]
pub struct CompletionSchema {
    /// `succeeded` or `failed`.
    pub state: String,
    /// The answer, told to the recipient; what is no text is stored as JSON.
    #[schema(required = false)]
    pub output: Option<Value>,
    /// A sentence, or `{"code", "message"}`.
    #[schema(required = false)]
    pub error: Option<Value>,
}
