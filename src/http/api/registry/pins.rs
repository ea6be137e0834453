//! Pins of the tools of MCP servers: the definitions that are accepted, and those that wait for the operator.

use axum::http::StatusCode;
use axum::response::Response;
use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::domain::approval::tool_pin::{PinState, PinnedDefinition, ToolPin};
use crate::http::HttpState;
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::request::{AuthenticatedCaller, Call, EarlyResponse, Id, JsonBody};
use crate::http::schema;

/// The definition of a tool that is accepted, and the one that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct PinView {
    /// Where it stands.
    pub state: PinState,
    /// Hash of the accepted definition; absent: the tool is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted: Option<String>,
    /// The instant at which it was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_at: Option<DateTime<Utc>>,
    /// The token that has accepted it, for an admin token alone; absent: the first list of the server had it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_by: Option<String>,
    /// Hash of the definition that waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// The instant at which it was first seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_since: Option<DateTime<Utc>>,
    /// Lines in which it differs from the accepted one: `- ` goes, `+ ` comes, and `…` stands for lines that are equal.
    /// They are the server's words.
    pub difference: Vec<String>,
}

impl PinView {
    fn of(pin: ToolPin, difference: Vec<String>, is_operator: bool) -> PinView {
        let state = pin.state();
        let parts = |definition: Option<PinnedDefinition>| definition.map(|it| (it.hash, it.at)).unzip();
        let (accepted, accepted_at) = parts(pin.accepted);
        let (waiting, waiting_since) = parts(pin.waiting);
        let accepted_by = pin.accepted_by.filter(|_| is_operator);
        PinView { state, accepted, accepted_at, accepted_by, waiting, waiting_since, difference }
    }
}

/// The pin of the tool of this name, if there is one.
pub(super) async fn pin_of(
    state: &HttpState,
    caller: &AuthenticatedCaller,
    name: &str,
) -> Result<Option<PinView>, ApiError> {
    let Some((server, tool)) = name.split_once('.') else { return Ok(None) };
    match state.store.find_tool_pin(server, tool).await? {
        Some(pin) => shown(state, caller, pin).await.map(Some),
        None => Ok(None),
    }
}

/// A pin as the caller is shown it. To compare two definitions takes milliseconds.
async fn shown(state: &HttpState, caller: &AuthenticatedCaller, pin: ToolPin) -> Result<PinView, ApiError> {
    let is_operator = caller.is_operator().is_ok();
    if pin.waiting.is_none() {
        return Ok(PinView::of(pin, Vec::new(), is_operator));
    }
    let compare = move || {
        let difference = pin.difference();
        PinView::of(pin, difference, is_operator)
    };
    state.compute_for(caller.computes_for(), compare).await
}

/// Accept the definition of a tool
///
/// For an admin token. A tool of an MCP server whose definition is new or changed is offered to no model until this is
/// done. `definition` is the hash of the one that was looked at, `pin.waiting` of `GET /v1/tools/{name}`: where another
/// one waits by now nothing happens. This instance asks its servers for their tools at once, others within seconds. A
/// definition that is accepted already stays so.
#[utoipa::path(post, path = "/v1/tools/{name}/accept", tag = "operations", security(("bearer" = ["*"])),
    params(("name" = String, Path, description = "Name of the tool, `server.tool`"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    request_body = Option<schema::AcceptTool>,
    responses((status = 200, body = PinView), (status = 409, body = ProblemDetails,
        content_type = "application/problem+json", description = "Another definition waits, or none does")))]
pub async fn accept_tool(Call(state, caller): Call, name: Id, body: JsonBody) -> Result<Response, EarlyResponse> {
    caller.is_operator()?;
    body.key.replay_if_repeated(&state, &caller).await?;
    let schema::AcceptTool { definition } = body.read_or_empty().await?;
    let (server, tool) = name.0.split_once('.').ok_or(ApiError::NotFound("tool"))?;
    let accepted = state.store.accept_tool(server, tool, definition.as_deref(), &caller.name()).await;
    let pin = accepted.map_err(|error| ApiError::of_store(error, "tool"))?;
    state.mcp.tools_accepted();
    let view = shown(&state, &caller, pin).await?;
    body.key.remember_answer(&state, &caller, StatusCode::OK, view).await
}
