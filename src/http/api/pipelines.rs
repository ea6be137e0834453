//! Trying a pipeline before a task is made of it.

use serde_json::Value;

use crate::base::invalid::ValidationErrors;
use crate::base::json::typed;
use crate::base::token::Permission;
use crate::executor::pipeline::{DryRun, Sample};
use crate::http::error::ApiError;
use crate::http::request::{Call, Json, JsonBody};
use crate::http::schema;

/// Try a pipeline
///
/// Goes through its steps with a sample of what would make it fire. Steps that compute are computed; steps that only
/// read are executed where `live` is true; all else is shown with everything put in, and skipped. `mocks` are values of
/// steps that are not executed. Nothing is saved.
#[utoipa::path(post, path = "/v1/pipelines/dry-run", tag = "tasks", security(("bearer" = ["tasks:write"])),
    request_body = schema::DryRunRequest, responses((status = 200, body = DryRun)))]
pub async fn dry_run_pipeline(Call(state, caller): Call, body: JsonBody) -> Result<Json<DryRun>, ApiError> {
    caller.may(Permission::TasksWrite)?;
    let read = move |value: Value| {
        let asked: schema::DryRunRequest = typed::body(&value)?;
        Ok::<_, ValidationErrors>((asked, caller.acts_for(&value)?))
    };
    let (asked, tenant) = body.read_with(read).await?;
    let schema::DryRunRequest { config, event, value, previous, input, state: stored, mocks, live, .. } = asked;
    let sample = Sample { event, value, previous, input, state: stored, mocks, live };
    Ok(Json(state.pipeline.dry_run(&tenant, &config, sample, &state.clock).await?))
}
