//! A request to try a pipeline.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::executor::pipeline::schema::PipelineConfig;

/// A pipeline to be tried, and a sample of what would make it fire.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"config": {"steps": [{"name": "large", "filter": "event.data.total > 100"}]},
    "event": {"data": {"total": 120}}}))]
pub struct DryRunRequest {
    /// For whom; a tenant's token need not say it.
    pub tenant_id: Option<String>,
    /// As in `action.config` of a task.
    #[schema(value_type = PipelineConfig)]
    pub config: Map<String, Value>,
    /// An event in the structured form of CloudEvents.
    #[serde(default)]
    pub event: Value,
    /// Value that a poll saw.
    #[serde(default)]
    pub value: Value,
    /// Value of the poll before.
    #[serde(default)]
    pub previous: Value,
    /// As given to `run now`.
    #[serde(default)]
    pub input: Value,
    /// Values that earlier runs have stored.
    #[serde(default)]
    pub state: Map<String, Value>,
    /// Values of steps by name, which are then not executed.
    #[serde(default)]
    pub mocks: Map<String, Value>,
    /// Executes what only reads: GET and HEAD requests, reading tools.
    #[serde(default)]
    pub live: bool,
}
