//! Trying a pipeline before a task is made of it.

use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value};

use crate::base::invalid::ValidationErrors;
use crate::base::token::Permission;
use crate::executor::pipeline::{DryRun, Sample};
use crate::http::HttpState;
use crate::http::error::ApiError;
use crate::http::request::auth::AuthenticatedCaller;
use crate::http::request::body::{JsonBody, only};
use crate::http::schema;

const FIELDS: [&str; 9] = ["tenant_id", "config", "event", "value", "previous", "input", "state", "mocks", "live"];

/// Try a pipeline
///
/// Goes through its steps with a sample of what would make it fire. Steps that compute are computed; steps that only
/// read are executed where `live` is true; all else is shown with everything put in, and skipped. `mocks` are values of
/// steps that are not executed. Nothing is saved.
#[utoipa::path(post, path = "/v1/pipelines/dry-run", tag = "tasks", security(("bearer" = ["tasks:write"])),
    request_body = schema::DryRunRequest, responses((status = 200, body = DryRun)))]
pub async fn dry_run_pipeline(
    State(state): State<HttpState>,
    caller: AuthenticatedCaller,
    body: JsonBody,
) -> Result<Json<DryRun>, ApiError> {
    caller.may(Permission::TasksWrite)?;
    let value = body.json()?;
    only(&value, &FIELDS)?;
    let tenant = caller.acts_for(&value)?;
    let mut faults = ValidationErrors::new();
    let config = object(&value, "config", &mut faults);
    let sample = Sample {
        event: value["event"].clone(),
        value: value["value"].clone(),
        previous: value["previous"].clone(),
        input: value["input"].clone(),
        state: object(&value, "state", &mut faults),
        mocks: object(&value, "mocks", &mut faults),
        live: match value.get("live") {
            None | Some(Value::Null) => false,
            Some(live) => faults.read(live, "/live").unwrap_or_default(),
        },
    };
    if value.get("config").is_none() {
        faults.add("/config", "is missing: the steps, as in `action.config` of a task");
    }
    faults.or(())?;
    Ok(Json(state.pipeline.dry_run(&tenant, &config, sample, &state.clock).await?))
}

fn object(value: &Value, field: &str, faults: &mut ValidationErrors) -> Map<String, Value> {
    match value.get(field) {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(fields)) => fields.clone(),
        Some(_) => {
            faults.add(format!("/{field}"), "must be an object");
            Map::new()
        }
    }
}
