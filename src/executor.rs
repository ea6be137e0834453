//! Executors: how a run is executed. The port, the registry, and what an execution is given.
//!
//! An executor owns nothing between calls: all that it needs comes with the job, all that must outlive it goes
//! through the job's store.

pub mod early_reservation;
pub mod halt_check;
pub mod held_reservations;
pub mod host;
pub mod hub;
pub mod leased_transcript;
pub mod open_calls;
pub mod orchestrator;
pub mod pending_reservation;
pub mod pipeline;
pub mod post_process;
pub mod quota_check;
pub mod rate_check;
pub mod recall_words;
pub mod run_spending;
pub mod schema;
pub mod secrets;
pub mod task_rules;
pub mod tool_trial;
pub mod webhook;

use std::sync::Arc;

use chrono_tz::Tz;
use futures::future::BoxFuture;
use serde_json::Value;
use tracing::{Instrument, Span};

use crate::agent::{AgentStore, ChannelLimits, RunSlot, StopSignal, StreamSink};
use crate::base::clock::Clock;
use crate::base::id::Tenant;
use crate::base::invalid::{ValidationErrors, did_you_mean};
use crate::base::metrics::trace::{self, TracedRun};
use crate::domain::run::{Run, RunError, RunOutcome};
use crate::domain::task::{Action, Task};
use crate::ports::tool::ToolHost;
use crate::ports::tool::access::ToolLimits;
use crate::ports::vault::credentials::{TenantCredentials, UsedSecrets};

/// The code of a run whose action can't be read as it is stored, whatever is configured: its task is disabled.
pub const UNREADABLE_ACTION: &str = "unreadable_action";

/// One execution of a run.
#[derive(Clone)]
pub struct Job {
    /// The run to execute.
    pub run: Arc<Run>,
    /// Whether the run is executed for the first time.
    pub is_first: bool,
    /// `None`: it is gone.
    pub task: Option<Arc<Task>>,
    /// The recipient's time zone.
    pub timezone: Tz,
    /// The recipient's language tag, such as `de-AT`; `None`: there is no recipient.
    pub locale: Option<Arc<str>>,
    /// Of the first channel that will tell the answer; `None` when it is told to nobody.
    pub channel: Option<ChannelLimits>,
    /// The store of the transcript.
    pub store: Arc<dyn AgentStore>,
    /// The host of tools.
    pub host: Arc<dyn ToolHost>,
    /// The signal to stop.
    pub stop: StopSignal,
    /// The place in which the run computes.
    pub slot: Arc<dyn RunSlot>,
    /// The sink of live events.
    pub sink: StreamSink,
    /// Time of the engine.
    pub clock: Clock,
    /// The tenant's credentials. Their values are taken out of the run's output and error.
    pub credentials: TenantCredentials,
    /// The secrets that the run has used so far.
    pub used_secrets: UsedSecrets,
}

impl Job {
    /// The span of the execution, by which its lines in the log are found.
    pub fn span(&self) -> tracing::Span {
        tracing::info_span!(
            "run",
            run_id = %self.run.id,
            task_id = self.run.task_id.map(tracing::field::display),
            fire_key = %self.run.fire_key,
            trigger_type = %self.run.trigger_type,
        )
    }

    /// The run as traces name it.
    pub fn traced(&self) -> TracedRun<'_> {
        TracedRun {
            id: self.run.id,
            conversation_id: self.run.conversation_id(),
            task_id: self.run.task_id,
            tenant: &self.run.tenant_id,
            is_first: self.is_first,
        }
    }
}

/// An execution within its span, which says why the run has failed.
fn in_span(
    span: Span,
    execution: impl Future<Output = Result<RunOutcome, RunError>>,
) -> impl Future<Output = Result<RunOutcome, RunError>> {
    // boxed: what is moved into a future and awaited there has its room in it twice, for as long as the run waits
    let execution = Box::pin(execution.instrument(span.clone()));
    async move {
        let ended = execution.await;
        if let Err(error) = &ended {
            trace::fail(&span, error.code());
        }
        ended
    }
}

/// A way to execute runs.
pub trait Executor: Send + Sync {
    /// The word in a task's `executor`.
    fn name(&self) -> &'static str;

    /// Adds what is wrong with an action; pointers begin with `/action`.
    fn validate(&self, action: &Action, faults: &mut ValidationErrors);

    /// The JSON Schema of `action.config`: what can be said of it without knowing what is configured.
    fn config_schema(&self) -> Value {
        schema::any()
    }

    /// The tools that a model may be offered in a run of this action; `None`: a run of it offers a model none of its
    /// own.
    fn tool_limits(&self, _action: &Action) -> Option<ToolLimits> {
        None
    }

    /// Makes an action that was checked ready to be stored: seals its secrets. `before` is what is stored, where the
    /// executor is the same; a secret that is left out is kept from it.
    fn seal(&self, _tenant: &Tenant, _action: &mut Action, _before: Option<&Action>) -> Result<(), ValidationErrors> {
        Ok(())
    }

    /// Executes a run, or goes on with it where its transcript ends. Safe to drop at any await: what was appended
    /// stays, what was deferred comes with the record of the end, the rest is done again.
    fn execute(&self, job: Job) -> BoxFuture<'_, Result<RunOutcome, RunError>>;
}

/// The executors that tasks may name.
#[derive(Clone)]
pub struct ExecutorRegistry(Vec<Arc<dyn Executor>>);

impl ExecutorRegistry {
    /// A registry of these executors; the first of a name counts.
    pub fn new(executors: Vec<Arc<dyn Executor>>) -> ExecutorRegistry {
        ExecutorRegistry(executors)
    }

    /// The executor of this name.
    pub fn find(&self, name: &str) -> Option<&Arc<dyn Executor>> {
        self.0.iter().find(|executor| executor.name() == name)
    }

    /// Names of the executors, in order.
    pub fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(|executor| executor.name()).collect()
    }

    /// Each with the JSON Schema of its settings.
    pub fn config_schemas(&self) -> Vec<(&'static str, Value)> {
        self.0.iter().map(|executor| (executor.name(), executor.config_schema())).collect()
    }

    /// Seals what is secret in an action that is meant for this executor.
    pub fn seal(
        &self,
        name: &str,
        tenant: &Tenant,
        action: &mut Action,
        before: Option<&Action>,
    ) -> Result<(), ValidationErrors> {
        self.find(name).map_or(Ok(()), |executor| executor.seal(tenant, action, before))
    }

    /// Adds what is wrong with an executor's name and the action meant for it.
    pub fn validate(&self, name: &str, action: &Action, faults: &mut ValidationErrors) {
        match self.find(name) {
            Some(executor) => executor.validate(action, faults),
            None => {
                let hint = did_you_mean(name, self.names());
                faults.add("/executor", format!("unknown executor `{name}`{hint}"));
            }
        }
    }
}
