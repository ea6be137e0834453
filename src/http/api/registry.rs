//! Registered tools that a model may call, and executors that a task may name.

use axum::Json;
use serde::Serialize;
use serde_json::Value;

use crate::base::token::Permission;
use crate::domain::task::DEFAULT_EXECUTOR;
use crate::http::error::ApiError;
use crate::http::request::{Call, Items, Query};
use crate::ports::tool::Definition;

/// An executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct ExecutorView {
    /// Name of the executor, for tasks.
    #[schema(example = "orchestrator")]
    pub name: &'static str,
    /// Whether a task that names none gets this one.
    pub default: bool,
    /// JSON Schema of `action.config`.
    #[schema(value_type = Object)]
    pub config_schema: Value,
}

/// List tools
#[utoipa::path(get, path = "/v1/tools", tag = "operations", security(("bearer" = ["tasks:read"])),
    responses((status = 200, body = Items<Definition>)))]
pub async fn list_tools(Call(state, caller): Call, query: Query) -> Result<Json<Items<Definition>>, ApiError> {
    caller.may(Permission::TasksRead)?;
    query.done()?;
    Ok(Json(Items::whole(state.tools.clone())))
}

/// List executors
///
/// Each with the JSON Schema of its settings, `action.config` of a task.
#[utoipa::path(get, path = "/v1/executors", tag = "operations", security(("bearer" = ["tasks:read"])),
    responses((status = 200, body = Items<ExecutorView>)))]
pub async fn list_executors(Call(state, caller): Call, query: Query) -> Result<Json<Items<ExecutorView>>, ApiError> {
    caller.may(Permission::TasksRead)?;
    query.done()?;
    let view = |(name, config_schema)| ExecutorView { name, default: name == DEFAULT_EXECUTOR, config_schema };
    Ok(Json(Items::whole(state.executors.config_schemas().into_iter().map(view).collect())))
}
