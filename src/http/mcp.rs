//! The face for MCP clients: one address that takes a message of JSON-RPC and answers one.
//!
//! There are no sessions and no streams: each message is answered from what is stored, by any instance. Whatever a
//! client does is a request of its caller to the API (`call`), so that nothing can be done here that the token does
//! not permit there, and an approval can't be decided at all.
//!
//! Reading order: `origin` and the token let a message in, `rate` counts it, `envelope` reads it, `client` says
//! which revision it is of, `standard_headers` checks its headers, `methods` answers it; then `tools`,
//! `durable` for what takes long, `questions` for what waits for a person, and `skills`.

pub(in crate::http) mod call;
pub(in crate::http) mod client;
pub(in crate::http) mod durable;
pub(in crate::http) mod envelope;
pub(in crate::http) mod methods;
pub(in crate::http) mod origin;
pub(in crate::http) mod outcome;
pub(in crate::http) mod questions;
pub(in crate::http) mod rate;
pub(in crate::http) mod request_state;
pub(in crate::http) mod resources;
pub(in crate::http) mod rpc_error;
pub(in crate::http) mod run_result;
pub(in crate::http) mod served;
pub(in crate::http) mod skills;
pub(in crate::http) mod standard_headers;
pub(in crate::http) mod tools;
pub(in crate::http) mod version;

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use serde_json::{Value, json};

use crate::http::error::ApiError;
use crate::http::in_process::InProcessApi;
use crate::http::mcp::call::McpCall;
use crate::http::mcp::client::{Era, McpCaller};
use crate::http::mcp::envelope::{RpcMessage, RpcRequest};
use crate::http::mcp::origin::AllowedOrigin;
use crate::http::mcp::rpc_error::RpcError;
use crate::http::request::{AuthenticatedCaller, Call, Json, JsonBody, RawBody};
use crate::http::{HttpState, MCP_PATH};

/// The method of a message that is counted and has no answer.
const NOTIFICATION: &str = "notification";

/// The address of MCP clients, whose calls go to this API.
pub(in crate::http) fn routes(api: InProcessApi) -> Router<HttpState> {
    Router::new().route(MCP_PATH, post(answer_message)).layer(Extension(api))
}

/// Answers a message of a client.
async fn answer_message(
    _origin: AllowedOrigin,
    Call(state, caller): Call,
    Extension(api): Extension<InProcessApi>,
    headers: HeaderMap,
    body: JsonBody,
) -> Response {
    if let Some(retry_after) = state.served.rate.wait(caller.hash(), state.clock.elapsed()) {
        let detail = "this token has sent as many messages as it may in a minute";
        return ApiError::TooManyRequests { detail, retry_after }.into_response();
    }
    // a long message is read in the caller's turn
    match body.read_by(read_message).await {
        Err(problem) => problem.into_response(),
        Ok(Err((id, error))) => {
            state.served.count("", "error");
            refused(error, id, Era::New)
        }
        Ok(Ok(RpcMessage::Notification)) => {
            state.served.count(NOTIFICATION, "ok");
            StatusCode::ACCEPTED.into_response()
        }
        Ok(Ok(RpcMessage::Request(request))) => answer_request((state, caller, api), &headers, request).await,
    }
}

/// A message from its bytes; an error of JSON-RPC has the id of its request, and another is a problem.
fn read_message(sent: RawBody) -> Result<Result<RpcMessage, (Option<Value>, RpcError)>, ApiError> {
    match sent.json() {
        Ok(value) => Ok(envelope::read(value)),
        Err(ApiError::Malformed(why)) => Ok(Err((None, RpcError::parse(&why)))),
        Err(problem) => Err(problem),
    }
}

/// Answers a request, and counts it.
async fn answer_request(
    (state, caller, api): (HttpState, AuthenticatedCaller, InProcessApi),
    headers: &HeaderMap,
    request: RpcRequest,
) -> Response {
    let (id, method) = (request.id.clone(), request.method.clone());
    let client = match client_of(headers, &request) {
        Ok(client) => client,
        Err(error) => {
            state.served.count(&method, "error");
            return refused(error, Some(id), Era::New);
        }
    };
    let call = McpCall { state, caller, api, client };
    let answered = methods::answer(&call, request).await;
    call.state.served.count(&method, outcome_of(&answered));
    match answered {
        Ok(result) => Json(json!({ "jsonrpc": "2.0", "id": id, "result": result })).into_response(),
        Err(error) => refused(error, Some(id), call.client.era),
    }
}

/// The client of a request whose headers say what its body says.
fn client_of(headers: &HeaderMap, request: &RpcRequest) -> Result<McpCaller, RpcError> {
    let client = McpCaller::of(headers, request)?;
    if client.era == Era::New {
        standard_headers::check(headers, request)?;
    }
    Ok(client)
}

/// The answer of an error. In the old era its status says that there is one.
fn refused(error: RpcError, id: Option<Value>, era: Era) -> Response {
    let status = match era {
        Era::New => error.status,
        Era::Old => StatusCode::OK,
    };
    (status, Json(error.into_message(id))).into_response()
}

/// How a request ended, for the counter.
fn outcome_of(answered: &Result<Value, RpcError>) -> &'static str {
    let Ok(result) = answered else { return "error" };
    match result.get("resultType").and_then(Value::as_str) {
        Some("input_required") => "input_required",
        Some("task") => "task",
        _ if result.get("isError") == Some(&Value::Bool(true)) => "tool_error",
        _ => "ok",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_is_told_by_the_result() {
        let of = |result: Value| outcome_of(&Ok(result));
        assert_eq!(of(json!({ "tools": [] })), "ok");
        assert_eq!(of(json!({ "content": [], "isError": false, "resultType": "complete" })), "ok");
        assert_eq!(of(json!({ "content": [], "isError": true, "resultType": "complete" })), "tool_error");
        assert_eq!(of(json!({ "resultType": "input_required" })), "input_required");
        assert_eq!(of(json!({ "resultType": "task" })), "task");
        assert_eq!(outcome_of(&Err(RpcError::refused("no"))), "error");
    }

    #[test]
    fn error_has_its_status_in_the_new_era_alone() {
        let status = |error, era| refused(error, None, era).status().as_u16();
        assert_eq!(status(RpcError::method_not_found("x"), Era::New), 404);
        assert_eq!(status(RpcError::method_not_found("x"), Era::Old), 200);
    }
}
