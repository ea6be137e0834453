//! A poll by a registered tool: one that reads, and that nobody has to approve.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use serde_json::Value;

use crate::base::clock::Clock;
use crate::base::compute::Compute;
use crate::base::invalid::ValidationErrors;
use crate::domain::approval::matrix::approval_level;
use crate::domain::approval::{ApprovalLevel, Category};
use crate::domain::memory::PersonWords;
use crate::domain::trigger::condition::{PollFault, ToolPoll};
use crate::ports::poll::{PollRequest, of_credential};
use crate::ports::tool::absence::ToolAbsence;
use crate::ports::tool::registry::{RegisteredTool, unknown_tool};
use crate::ports::tool::{Definition, ToolCaller, ToolContext, ToolError, ToolRegistry, ToolStatus};
use crate::ports::vault::credentials::UsedSecrets;

pub use crate::ports::tool::{ToolCatalog, ToolHost};

/// Name of calls made by polls, in place of a model's id.
const CALL: &str = "poll";

/// Polls by the registered tools.
pub struct Tools(ToolCatalog);

impl Tools {
    /// Polls by these tools.
    pub fn new(tools: impl Into<ToolCatalog>) -> Tools {
        Tools(tools.into())
    }

    /// Adds what is wrong with a poll, below `place`.
    pub fn check(&self, poll: &ToolPoll, place: &str, faults: &mut ValidationErrors) {
        let tools = self.0.current();
        match find(&tools, &poll.name) {
            // it may be there when the poll is made
            Err(fault) if ToolAbsence::ALL.iter().any(|absence| absence.code() == fault.kind) => {}
            Err(fault) => faults.add(format!("{place}/name"), fault.message),
            Ok(tool) => {
                if let Err(error) = tool.check(&Value::Object(poll.args.clone())) {
                    faults.add(format!("{place}/args"), of_tool(error).message);
                }
            }
        }
    }

    /// Calls it. The value is what it says: as JSON where it is JSON, else as text.
    pub async fn poll(
        &self,
        poll: &ToolPoll,
        ask: &PollRequest<'_>,
        host: &Arc<dyn ToolHost>,
        clock: &Clock,
        compute: &Compute,
    ) -> Result<Value, PollFault> {
        let tools = self.0.current();
        let tool = find(&tools, &poll.name)?;
        if !tools.allows(ask.tenant.as_str(), &poll.name) {
            return Err(PollFault::new("denied", denied(&poll.name)));
        }
        let arguments = Value::Object(poll.args.clone());
        check(tool, &arguments, ask.tenant.as_str(), compute).await?;
        let (used_secrets, task_id) = (UsedSecrets::default(), (!ask.trial).then_some(ask.id));
        let context = ToolContext {
            credentials: ToolContext::credentials_of(host, ask.tenant, (None, task_id), &poll.name, &used_secrets),
            tenant: ask.tenant.clone(),
            run_id: ask.id,
            task_id,
            called_by: ToolCaller::Poll,
            turn: 0,
            call_id: CALL.into(),
            idempotency_key: ToolContext::key_of(ask.id, clock.now().timestamp_millis(), CALL),
            delegation_chain: Vec::new(),
            words: PersonWords::default(),
            limits: Arc::default(),
            timezone: chrono_tz::Tz::UTC,
            time_limit: ask.time_limit,
            host: Arc::clone(host),
            clock: clock.clone(),
            compute: compute.clone(),
            used_secrets: used_secrets.clone(),
            continuation: None,
            progress: Default::default(),
        };
        let called = AssertUnwindSafe(tool.tool.call(&context, arguments)).catch_unwind().await;
        let called = called.map_err(|_| PollFault::new("panicked", "the tool broke down"))?;
        let output = used_secrets.clean(called).await.map_err(of_tool)?;
        let read = context.value_of(output).await;
        read.map(|(value, _)| value).map_err(|panicked| PollFault::new("panicked", panicked.to_string()))
    }
}

/// The tool of this name, if it may be polled.
fn find<'t>(tools: &'t ToolRegistry, name: &str) -> Result<&'t Arc<RegisteredTool>, PollFault> {
    let pollable = tools.definitions().filter(|tool| is_pollable(tool) && tools.allows_any(&tool.name));
    let pollable = pollable.map(|tool| tool.name.as_str());
    match tools.find(name) {
        None if !tools.is_of_server(name) => Err(of_tool(unknown_tool(name, pollable))),
        _ if !tools.allows_any(name) => Err(PollFault::new("denied", denied(name))),
        None => {
            let absence = tools.absence(name).unwrap_or(ToolAbsence::Unlisted);
            Err(PollFault::new(absence.code(), absence.message(name)))
        }
        Some(tool) if is_pollable(tool.definition()) => Ok(tool),
        Some(_) => {
            let names = pollable.collect::<Vec<_>>().join(", ");
            let message = format!("the tool `{name}` does more than read, or needs approval; there are: {names}");
            Err(PollFault::new("denied", message))
        }
    }
}

/// Holds arguments against the schema of their tool; what takes long is computed on a thread of its own.
async fn check(
    tool: &Arc<RegisteredTool>,
    arguments: &Value,
    tenant: &str,
    compute: &Compute,
) -> Result<(), PollFault> {
    let (steps, tool, arguments) = (tool.steps(arguments), Arc::clone(tool), arguments.clone());
    let checked = compute.run_if_costly(tenant, steps, move || tool.check(&arguments)).await;
    checked.map_err(|panicked| PollFault::new("panicked", panicked.to_string()))?.map_err(of_tool)
}

/// A poll happens often and nobody looks on: it may look, and never act.
fn is_pollable(tool: &Definition) -> bool {
    matches!(tool.category, Category::Read | Category::Analysis)
        && approval_level(tool.category, tool.consequence, tool.requires_confirmation) == ApprovalLevel::Auto
        && tool.status != ToolStatus::Removed
}

fn denied(tool: &str) -> String {
    format!("the operator does not let you use `{tool}`")
}

fn of_tool(error: ToolError) -> PollFault {
    match error {
        ToolError::Tell { code, message, .. }
        | ToolError::Unsent { code, message }
        | ToolError::Abort { code, message } => PollFault::new(code, message),
        ToolError::Credential(error) => of_credential(&error),
        // nobody can be asked here, and tools know that
        needs_input @ ToolError::NeedsInput(_) => PollFault::new(needs_input.code(), needs_input.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ports::tool::access::ToolAccess;
    use crate::ports::tool::registry::fixture::listed_tool;

    #[test]
    fn poll_by_a_tool_that_its_server_does_not_list_now_is_taken_unless_nobody_may_use_it() {
        let access = ToolAccess { deny: vec!["github.close".into()], ..ToolAccess::default() };
        let waiting = [listed_tool("github.open")];
        let registry = ToolRegistry::new(Vec::new()).unwrap().with_servers(["github"]).with_waiting(waiting);
        let tools = Tools::new(Arc::new(registry.governed(&Default::default(), &access)));
        let told = |name: &str| {
            let poll: ToolPoll = serde_json::from_value(json!({ "name": name, "args": {} })).unwrap();
            let mut faults = ValidationErrors::new();
            tools.check(&poll, "/poll/tool", &mut faults);
            let kind = find(&tools.0.current(), name).err().map(|fault| fault.kind);
            (faults.0.into_iter().next().map(|fault| fault.message), kind.unwrap_or_default())
        };
        assert_eq!(told("github.search"), (None, "mcp_unavailable".to_owned()));
        assert_eq!(told("github.open"), (None, "mcp_tool_not_accepted".to_owned()));
        let denied = "the operator does not let you use `github.close`".to_owned();
        assert_eq!(told("github.close"), (Some(denied), "denied".to_owned()));
        let unknown = "there is no tool `gitlab.search`; no tools are available".to_owned();
        assert_eq!(told("gitlab.search"), (Some(unknown), "unknown_tool".to_owned()));
    }
}
