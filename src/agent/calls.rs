//! Carries out the tool calls of a turn: all at once, each within its own time, each with a result of its own.
//!
//! A call that fails is an observation for the model; only [`ToolError::Abort`] ends the run. Nothing is stored here.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use chrono_tz::Tz;
use futures::FutureExt;
use futures::stream::{FuturesUnordered, Stream};
use serde_json::Value;

use crate::agent::policy::{again, permit};
use crate::agent::stream::Teller;
use crate::clock::Clock;
use crate::id::Tenant;
use crate::run::outcome::RunError;
use crate::run::transcript::ToolCall;
use crate::tool::registry::{Registered, unknown_tool};
use crate::tool::{Failure, Host, Registry, ToolContext, ToolError, ToolOutput, ToolStatus};

/// All that calls of one run have in common.
pub struct Caller<'a> {
    pub tools: &'a Registry,
    /// The names that the model was offered.
    pub offered: &'a [&'a str],
    pub tenant: &'a Tenant,
    pub run_id: uuid::Uuid,
    pub timezone: Tz,
    pub host: &'a std::sync::Arc<dyn Host>,
    pub clock: &'a Clock,
    pub time_limit: Duration,
    pub teller: &'a Teller,
}

/// What came of one call.
pub struct Done {
    /// Its place among the calls of the turn.
    pub index: usize,
    pub call: ToolCall,
    /// As the tool gave it, not cut.
    pub text: String,
    pub is_error: bool,
    pub duration_ms: i64,
    /// Whether it must be stored before anything else happens.
    pub unrepeatable: bool,
}

impl Caller<'_> {
    /// Starts all calls; they come out as they are done. `resumed`: they may have been begun before a restart.
    pub fn start<'a>(
        &'a self,
        turn: i64,
        calls: &'a [ToolCall],
        resumed: bool,
    ) -> impl Stream<Item = Result<Done, RunError>> + Unpin + 'a {
        let each = |(index, call)| self.one(turn, index, call, resumed).boxed();
        calls.iter().enumerate().map(each).collect::<FuturesUnordered<_>>()
    }

    async fn one(&self, turn: i64, index: usize, call: &ToolCall, resumed: bool) -> Result<Done, RunError> {
        self.teller.tool_call(call);
        let begun = self.clock.elapsed();
        let came = self.attempt(turn, call, resumed).await;
        let duration_ms = self.clock.elapsed().saturating_sub(begun).as_millis() as i64;
        let unrepeatable = self.tools.find(&call.name).is_some_and(|tool| !tool.definition().idempotent);
        let (text, is_error) = match came {
            Ok(output) => (output.text, false),
            Err(ToolError::Abort { code, message }) => return Err(RunError::fail(code, message)),
            Err(ToolError::Tell { kind, code, message }) => (observation(kind, &code, &message, &call.id), true),
        };
        Ok(Done { index, call: call.clone(), text, is_error, duration_ms, unrepeatable })
    }

    /// Everything that may stand in the way of a call, then the call.
    async fn attempt(&self, turn: i64, call: &ToolCall, resumed: bool) -> Result<ToolOutput, ToolError> {
        let offered = self.offered.contains(&call.name.as_str());
        let Some(tool) = self.tools.find(&call.name).filter(|tool| offered || is_removed(tool)) else {
            return Err(unknown_tool(&call.name, self.offered.iter().copied()));
        };
        permit(tool.definition())?;
        tool.check(&call.arguments)?;
        if resumed && !tool.definition().idempotent {
            return Err(outcome_unknown());
        }
        if tool.definition().status == ToolStatus::Deprecated {
            self.teller.tool_warning(&call.name, "the tool is deprecated");
        }
        self.with_retries(turn, call, tool).await
    }

    async fn with_retries(&self, turn: i64, call: &ToolCall, tool: &Registered) -> Result<ToolOutput, ToolError> {
        let mut limit = tool.definition().timeout.unwrap_or(self.time_limit);
        for tries in 1.. {
            let error = match self.within(limit, self.context(turn, call, limit), tool, &call.arguments).await {
                Ok(output) => return Ok(output),
                Err(error) => error,
            };
            let Some(next) = again(tool.definition(), &error, tries, limit) else { return Err(error) };
            self.teller.tool_warning(&call.name, format!("{error}; trying again"));
            self.clock.sleep(next.wait).await;
            limit = next.limit;
        }
        unreachable!("tries are counted, and limited by the policy")
    }

    /// One try. A panic in a tool is that tool's failure, not the run's.
    async fn within(
        &self,
        limit: Duration,
        context: ToolContext,
        tool: &Registered,
        arguments: &Value,
    ) -> Result<ToolOutput, ToolError> {
        let work = AssertUnwindSafe(tool.tool.call(&context, arguments.clone())).catch_unwind();
        tokio::select! {
            biased;
            done = work => done.unwrap_or_else(|_| {
                Err(ToolError::tell(Failure::InternalError, "panicked", "the tool broke down"))
            }),
            () = self.clock.sleep(limit) => {
                let message = format!("no result within {} s", limit.as_secs_f64());
                Err(ToolError::tell(Failure::Timeout, "timeout", message))
            }
        }
    }

    fn context(&self, turn: i64, call: &ToolCall, time_limit: Duration) -> ToolContext {
        ToolContext {
            tenant: self.tenant.clone(),
            run_id: self.run_id,
            turn,
            call_id: call.id.clone(),
            idempotency_key: ToolContext::key_of(self.run_id, turn, &call.id),
            delegation_chain: vec![],
            timezone: self.timezone,
            time_limit,
            host: self.host.clone(),
            clock: self.clock.clone(),
        }
    }
}

fn is_removed(tool: &Registered) -> bool {
    tool.definition().status == ToolStatus::Removed
}

fn outcome_unknown() -> ToolError {
    let message = "the service was restarted during this call; whether it had its effect is unknown, and it was not \
                   repeated";
    ToolError::tell(Failure::ExecutionError, "outcome_unknown", message)
}

/// A failure as the model is told of it.
fn observation(kind: Failure, code: &str, message: &str, call_id: &str) -> String {
    format!("Operation failed.\ntype: {}\ncode: {code}\nmessage: {message}\ncall: {call_id}", kind.as_str())
}
