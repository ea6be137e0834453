//! One call of a tool that may be made: the result that is kept of it, else the tool, again where that may help, each
//! time within its time.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use serde_json::Value;
use tracing::{Instrument, Span};

use crate::agent::calls::ToolRunner;
use crate::agent::calls::policy::again;
use crate::agent::calls::shown::FetchedOutput;
use crate::agent::stream::CallWarnings;
use crate::base::metrics::trace;
use crate::domain::approval::CallContinuation;
use crate::domain::run::ToolCall;
use crate::ports::tool::output::OutputLevel;
use crate::ports::tool::registry::RegisteredTool;
use crate::ports::tool::{ToolCaller, ToolContext, ToolError, ToolFailure, ToolOutput};

/// A call that may be made.
#[derive(Clone, Copy)]
pub(super) struct ReadyCall<'a> {
    pub(super) turn: i64,
    pub(super) call: &'a ToolCall,
    pub(super) tool: &'a RegisteredTool,
    /// The answer of a person with which it goes on; `None`: it begins.
    pub(super) continuation: Option<&'a Arc<CallContinuation>>,
    pub(super) warnings: &'a CallWarnings<'a>,
}

impl ToolRunner<'_> {
    /// The result that is known from the same call, else that of this one. The level of the call is no matter of its
    /// tool.
    pub(super) async fn call_cached(&self, ready: ReadyCall<'_>) -> Result<FetchedOutput, ToolError> {
        let call = ready.call;
        let span = trace::execute_tool(&call.name, &call.id);
        let fetched = self.fetched(ready).instrument(span.clone()).await;
        match &fetched {
            Ok(fetched) if trace::has_content() => {
                self.note_content(&span, call, &fetched.output.whole()).await;
            }
            // a call that waits for a person has not failed
            Ok(_) | Err(ToolError::NeedsInput(_)) => {}
            Err(error) => trace::fail(&span, error.code()),
        }
        fetched
    }

    /// Notes arguments and result on a span, unless there is a secret in them.
    async fn note_content(&self, span: &Span, call: &ToolCall, result: &str) {
        let arguments = call.args.to_string();
        for (field, text) in [(trace::ARGUMENTS, arguments.as_str()), (trace::RESULT, result)] {
            if !self.used_secrets.finds(text).await {
                trace::note(span, field, text);
            }
        }
    }

    async fn fetched(&self, ready: ReadyCall<'_>) -> Result<FetchedOutput, ToolError> {
        let (tool, mut call) = (ready.tool, ready.call.clone());
        let level = tool.output_level().and_then(|_| OutputLevel::take_from(&mut call.args));
        let context = self.context(ready.turn, &call, self.time_limit, ready.continuation);
        let called = self.with_retries(ReadyCall { call: &call, ..ready });
        // none is kept in which there is a secret, so it is taken out afterwards
        let fetched = self.results.cached_or_call(tool, &context, &call.args, called).await?;
        let output = self.used_secrets.clean_output(fetched.output).await;
        Ok(FetchedOutput { output, level, at: fetched.at })
    }

    async fn with_retries(&self, ready: ReadyCall<'_>) -> Result<ToolOutput, ToolError> {
        let ReadyCall { turn, call, tool, continuation, warnings } = ready;
        let mut limit = tool.definition().timeout.unwrap_or(self.time_limit);
        for tries in 1.. {
            let context = self.context(turn, call, limit, continuation);
            let error = match self.within(limit, context, tool, &call.args).await {
                Ok(output) => return Ok(output),
                Err(error) => error,
            };
            let Some(next) = again(tool.definition(), &tool.policy.retry, &error, tries, limit) else {
                return Err(error);
            };
            // no call begins where the run is to stop
            if self.stop.reason().is_some() {
                return Err(error);
            }
            warnings.warn(format!("{error}; trying again"));
            if self.stop.run_until_stopped(self.clock.sleep(next.wait)).await.is_err() {
                return Err(error);
            }
            limit = next.limit;
        }
        unreachable!("tries are counted, and limited by the policy")
    }

    /// One try.
    async fn within(
        &self,
        limit: Duration,
        context: ToolContext,
        tool: &RegisteredTool,
        arguments: &Value,
    ) -> Result<ToolOutput, ToolError> {
        let called = self.limited(limit, tool.tool.call(&context, arguments.clone())).await;
        match called {
            Ok(output) => Ok(output),
            Err(error) => Err(self.used_secrets.clean_error(error).await),
        }
    }

    /// Something of a tool, within a time. A panic in it is that tool's failure, not the run's.
    pub(super) async fn limited<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T, ToolError>>,
    ) -> Result<T, ToolError> {
        tokio::select! {
            biased;
            done = AssertUnwindSafe(work).catch_unwind() => done.unwrap_or_else(|_| {
                Err(ToolError::for_model(ToolFailure::InternalError, "panicked", "the tool broke down"))
            }),
            () = self.clock.sleep(limit) => {
                let message = format!("no result within {} s", limit.as_secs_f64());
                Err(ToolError::for_model(ToolFailure::Timeout, "timeout", message))
            }
        }
    }

    /// The context of a call, which may go on with a person's answer.
    pub(super) fn context(
        &self,
        turn: i64,
        call: &ToolCall,
        time_limit: Duration,
        continuation: Option<&Arc<CallContinuation>>,
    ) -> ToolContext {
        let task_id = self.consent.approval_context.task_id;
        let ids = (Some(self.run_id), task_id);
        ToolContext {
            credentials: ToolContext::credentials_of(self.host, self.tenant, ids, &call.name, self.used_secrets),
            tenant: self.tenant.clone(),
            run_id: self.run_id,
            task_id,
            called_by: ToolCaller::Model,
            turn,
            call_id: call.id.clone(),
            idempotency_key: self.key_of(turn, call, continuation),
            delegation_chain: self.incoming.chain().to_vec(),
            words: self.words.clone(),
            limits: Arc::clone(self.limits),
            timezone: self.timezone,
            time_limit,
            host: self.host.clone(),
            clock: self.clock.clone(),
            compute: self.compute.clone(),
            used_secrets: self.used_secrets.clone(),
            continuation: continuation.cloned(),
            progress: self.emitter.progress_of(turn, call),
        }
    }

    /// The idempotency key of a call. Each answer of a person makes it another request, with a key of its own: by the
    /// key before a server would give its question again.
    fn key_of(&self, turn: i64, call: &ToolCall, continuation: Option<&Arc<CallContinuation>>) -> String {
        let call_id = match continuation {
            None => &call.id,
            Some(answered) => &format!("{}|input|{}", call.id, answered.question.continuation.round),
        };
        ToolContext::key_of(self.run_id, turn, call_id)
    }
}
