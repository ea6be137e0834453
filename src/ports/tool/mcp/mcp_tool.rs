//! A tool of an MCP server, which is called as any other tool is.
//!
//! A call waits for its turn among those of its server, and for the connection; then it goes out once. It says of each
//! failure whether anything was sent, and leaves it to the agent to call again.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use rmcp::model::ServerResult;
use rmcp::service::ServiceError;
use serde_json::{Map, Value};

use crate::base::clock::Clock;
use crate::ports::tool::exchange::notify_owner;
use crate::ports::tool::mcp::call_result::output;
use crate::ports::tool::mcp::fault::McpFault;
use crate::ports::tool::mcp::http::call_origin::CallOrigin;
use crate::ports::tool::mcp::listed_tool::ListedTool;
use crate::ports::tool::mcp::server::McpServer;
use crate::ports::tool::{Definition, Tool, ToolCaller, ToolContext, ToolError, ToolFailure, ToolOutput, ToolSource};
use crate::ports::vault::credentials::{CredentialError, CredentialFault};

/// The outcome of a call that went well, for metrics.
const OK: &str = "ok";

/// A tool of an MCP server.
pub struct McpTool {
    server: Arc<McpServer>,
    listed: ListedTool,
    definition: Definition,
}

/// A call that came to nothing.
enum CallFailure {
    /// The server, or the way there.
    Fault(McpFault),
    /// No answer came in this time.
    Late(Duration),
    /// The tool itself.
    Tool(ToolError),
}

impl McpTool {
    /// A tool as its server lists it, under the settings of the operator.
    pub fn new(server: Arc<McpServer>, listed: ListedTool) -> McpTool {
        let definition = listed.definition(server.prepared());
        McpTool { server, listed, definition }
    }

    /// The tool as its server lists it.
    pub fn listed(&self) -> &ListedTool {
        &self.listed
    }

    /// One call, whose time began at this moment.
    async fn call_from(
        &self,
        begun: Duration,
        context: &ToolContext,
        arguments: Value,
    ) -> Result<ToolOutput, CallFailure> {
        let server = self.server.prepared();
        let left = || context.time_limit.saturating_sub(context.clock.elapsed().saturating_sub(begun));
        // a program may print its variables
        context.used_secrets.add(server.secrets());
        let connection = self.server.connection(&context.tenant, left()).await?;
        let limit = left();
        if limit.is_zero() {
            return Err(McpFault::Slow { server: server.name.clone(), after: context.time_limit }.into());
        }
        let arguments = match arguments {
            Value::Object(arguments) => arguments,
            _ => Map::new(),
        };
        let key = &context.idempotency_key;
        let called = connection.call(&self.listed.name, arguments, key, origin(context), limit).await;
        let answer = called.map_err(|error| match error {
            ServiceError::Timeout { timeout } => CallFailure::Late(timeout),
            error => CallFailure::Fault(McpFault::of_call(&server.name, error)),
        })?;
        self.read(answer, context).await
    }

    async fn read(&self, answer: ServerResult, context: &ToolContext) -> Result<ToolOutput, CallFailure> {
        match answer {
            ServerResult::CallToolResult(result) => {
                output(result, context, &self.definition.name).await.map_err(CallFailure::Tool)
            }
            ServerResult::EmptyResult(_) | ServerResult::TaskAckResult(_) => Ok(ToolOutput::text("")),
            ServerResult::InputRequiredResult(_) => {
                let message = "the tool asks a person, which can't be done here yet; it was not carried out";
                Err(CallFailure::Tool(ToolError::for_model(ToolFailure::ExecutionError, "mcp_needs_input", message)))
            }
            _ => {
                let server = self.server.prepared().name.clone();
                Err(McpFault::Protocol { server, why: "its answer is none to a call".to_owned() }.into())
            }
        }
    }

    /// The failure as the run is told of it.
    fn told(&self, failure: CallFailure) -> ToolError {
        let server = self.server.prepared();
        match failure {
            CallFailure::Fault(fault) if !server.is_per_tenant() => fault.of_others_credential(&server.name).into(),
            failure => failure.into(),
        }
    }

    /// Tells the tenant that its credential is missing.
    async fn tell_owner(&self, error: &CredentialError, context: &ToolContext) {
        if context.called_by == ToolCaller::Model && error.kind == CredentialFault::Missing {
            notify_owner(error, context).await;
        }
    }
}

/// The run that a call is made for, for the record of the credential's use.
fn origin(context: &ToolContext) -> CallOrigin {
    let is_of_run = context.called_by != ToolCaller::Poll && !context.run_id.is_nil();
    CallOrigin {
        tenant: context.tenant.clone(),
        run_id: is_of_run.then_some(context.run_id),
        task_id: context.task_id,
        used_secrets: context.used_secrets.clone(),
    }
}

impl Tool for McpTool {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn source(&self) -> ToolSource {
        ToolSource::Mcp
    }

    fn call<'a>(&'a self, context: &'a ToolContext, arguments: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let begun = context.clock.elapsed();
            let _place = self.server.place(&context.tenant).await;
            let mut meter = McpCallMeter::start(&self.server, &context.clock);
            let called = self.call_from(begun, context, arguments).await;
            meter.outcome = called.as_ref().map_or_else(CallFailure::word, |_| OK);
            let called = called.map_err(|failure| self.told(failure));
            if let Err(ToolError::Credential(error)) = &called {
                self.tell_owner(error, context).await;
            }
            called
        })
    }

    fn credential_state<'a>(
        &'a self,
        context: &'a ToolContext,
        _arguments: &'a Value,
    ) -> BoxFuture<'a, Option<String>> {
        Box::pin(async move {
            let Some(credential) = &self.server.prepared().credential else { return Some(String::new()) };
            let owner = credential.owner.as_ref().unwrap_or(&context.tenant);
            context.host.credentials()?.state(owner, &credential.reference).await
        })
    }
}

impl CallFailure {
    /// The outcome of the call, for metrics.
    fn word(&self) -> &'static str {
        match self {
            CallFailure::Fault(fault) => fault.word(),
            CallFailure::Late(_) => SLOW,
            CallFailure::Tool(_) => "tool_error",
        }
    }
}

impl From<McpFault> for CallFailure {
    fn from(fault: McpFault) -> CallFailure {
        CallFailure::Fault(fault)
    }
}

impl From<CallFailure> for ToolError {
    fn from(failure: CallFailure) -> ToolError {
        match failure {
            CallFailure::Fault(fault) => fault.into(),
            CallFailure::Late(after) => {
                let message = format!("no result within {} s", after.as_secs_f64());
                ToolError::for_model(ToolFailure::Timeout, "timeout", message)
            }
            CallFailure::Tool(error) => error,
        }
    }
}

/// The outcome of a call that had no answer in its time, for metrics.
const SLOW: &str = "slow";

/// Records a call once it ends. One that is dropped, as the agent drops it when its time is over, is slow.
struct McpCallMeter<'a> {
    server: &'a McpServer,
    clock: &'a Clock,
    begun: Duration,
    outcome: &'static str,
}

impl<'a> McpCallMeter<'a> {
    fn start(server: &'a McpServer, clock: &'a Clock) -> McpCallMeter<'a> {
        McpCallMeter { server, clock, begun: clock.elapsed(), outcome: SLOW }
    }
}

impl Drop for McpCallMeter<'_> {
    fn drop(&mut self) {
        let took = self.clock.elapsed().saturating_sub(self.begun);
        self.server.metrics().record_call(&self.server.prepared().name, self.outcome, took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_of_a_call_is_told_and_counted_by_its_kind() {
        let server = || "github".to_owned();
        let tool = ToolError::for_model(ToolFailure::ExecutionError, "mcp_tool_error", "no");
        let cases = [
            (CallFailure::Fault(McpFault::Broken { server: server() }), "broken", "outcome_unknown", false),
            (
                CallFailure::Fault(McpFault::Away { server: server(), why: String::new() }),
                "away",
                "mcp_unavailable",
                true,
            ),
            (CallFailure::Late(Duration::from_secs(30)), "slow", "timeout", false),
            (CallFailure::Tool(tool), "tool_error", "mcp_tool_error", false),
        ];
        for (failure, word, code, is_unsent) in cases {
            assert_eq!(failure.word(), word);
            let error = ToolError::from(failure);
            assert_eq!((error.code(), error.is_unsent()), (code, is_unsent));
        }
    }
}
