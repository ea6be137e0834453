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
use crate::ports::tool::registry::{RegisteredTool, unknown_tool};
use crate::ports::tool::{Definition, ToolCaller, ToolContext, ToolError, ToolStatus};
use crate::ports::vault::credentials::UsedSecrets;

pub use crate::ports::tool::{ToolHost, ToolRegistry};

/// Name of calls made by polls, in place of a model's id.
const CALL: &str = "poll";

/// Polls by the registered tools.
pub struct Tools(Arc<ToolRegistry>);

impl Tools {
    /// Polls by these tools.
    pub fn new(tools: Arc<ToolRegistry>) -> Tools {
        Tools(tools)
    }

    /// Adds what is wrong with a poll, below `place`.
    pub fn check(&self, poll: &ToolPoll, place: &str, faults: &mut ValidationErrors) {
        match self.find(&poll.name) {
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
        let tool = self.find(&poll.name)?;
        if !self.0.allows(ask.tenant.as_str(), &poll.name) {
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
        };
        let called = AssertUnwindSafe(tool.tool.call(&context, arguments)).catch_unwind().await;
        let called = called.map_err(|_| PollFault::new("panicked", "the tool broke down"))?;
        let output = used_secrets.clean(called).await.map_err(of_tool)?;
        let read = context.value_of(output).await;
        read.map(|(value, _)| value).map_err(|panicked| PollFault::new("panicked", panicked.to_string()))
    }

    fn find(&self, name: &str) -> Result<&Arc<RegisteredTool>, PollFault> {
        let pollable = self.0.definitions().filter(|tool| is_pollable(tool) && self.0.allows_any(&tool.name));
        let pollable = pollable.map(|tool| tool.name.as_str());
        match self.0.find(name) {
            Some(_) if !self.0.allows_any(name) => Err(PollFault::new("denied", denied(name))),
            Some(tool) if is_pollable(tool.definition()) => Ok(tool),
            Some(_) => {
                let names = pollable.collect::<Vec<_>>().join(", ");
                let message = format!("the tool `{name}` does more than read, or needs approval; there are: {names}");
                Err(PollFault::new("denied", message))
            }
            None => Err(of_tool(unknown_tool(name, pollable))),
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
        ToolError::Tell { code, message, .. } | ToolError::Abort { code, message } => PollFault::new(code, message),
        ToolError::Credential(error) => of_credential(&error),
    }
}
