//! What is registered: the tools a model may call, and the executors a task may name.

use axum::Json;
use axum::extract::State as Held;
use serde::Serialize;

use crate::http::State;
use crate::http::auth::Caller;
use crate::http::error::ApiError;
use crate::http::page::Items;
use crate::http::query::Query;
use crate::http::schema;
use crate::task::DEFAULT_EXECUTOR;
use crate::token::Permission;
use crate::tool::Definition;

/// An executor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct ExecutorView {
    #[schema(example = "orchestrator")]
    pub name: &'static str,
    /// Whether a task that names none gets this one.
    pub default: bool,
}

/// List tools
#[utoipa::path(get, path = "/v1/tools", tag = "operations", security(("bearer" = ["tasks:read"])),
    responses((status = 200, body = Items<schema::Tool>)))]
pub async fn list_tools(
    Held(state): Held<State>,
    caller: Caller,
    query: Query,
) -> Result<Json<Items<Definition>>, ApiError> {
    caller.may(Permission::TasksRead)?;
    query.done()?;
    Ok(Json(Items::whole(state.tools.clone())))
}

/// List executors
#[utoipa::path(get, path = "/v1/executors", tag = "operations", security(("bearer" = ["tasks:read"])),
    responses((status = 200, body = Items<ExecutorView>)))]
pub async fn list_executors(
    Held(state): Held<State>,
    caller: Caller,
    query: Query,
) -> Result<Json<Items<ExecutorView>>, ApiError> {
    caller.may(Permission::TasksRead)?;
    query.done()?;
    let names = state.executors.names().into_iter();
    Ok(Json(Items::whole(names.map(|name| ExecutorView { name, default: name == DEFAULT_EXECUTOR }).collect())))
}
