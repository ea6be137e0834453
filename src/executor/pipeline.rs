//! `pipeline`: steps in order, written as JSON, without a model's decisions.
//!
//! Owns the order, and what a failure means. Keeps nothing itself: what survives a crash is the ledger in the run's
//! transcript, and a run goes on at the step where it ends, in this attempt or in the next. An effect that would happen
//! twice and whose outcome nobody knows is never repeated.

mod account;
mod attempt;
mod configured_agent;
mod context;
mod dry_run;
mod kind;
mod kinds;
mod ledger;
mod parts;
mod reading;
pub mod schema;
mod scope;
mod settling;
mod spec;
pub mod steps;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use aws_lc_rs::digest::{SHA256, digest};
use futures::future::BoxFuture;
use serde_json::{Map, Value};
use tracing::Instrument;

use crate::agent::{ApprovalContext, Suspension, TRIGGER};
use crate::base::compute::steps_to_read;
use crate::base::id::Tenant;
use crate::base::invalid::ValidationErrors;
use crate::base::template::Tree;
use crate::domain::approval::PolicyRules;
use crate::domain::budget::TASK_KEY;
use crate::domain::run::{RunError, RunFault, RunOutcome};
use crate::domain::task::{Action, Task};
use crate::executor::pipeline::attempt::{Attempts, StepsEnd, error_value};
use crate::executor::pipeline::context::StepContext;
use crate::executor::pipeline::ledger::{Ledger, StepStart};
use crate::executor::pipeline::schema::OnError;
use crate::executor::pipeline::scope::{FireScope, StepScope, run_value, task_value};
use crate::executor::pipeline::spec::{PipelineSpec, StepWork};
use crate::executor::task_rules::{TASK_RULES_KEY, rules_of_run};
use crate::executor::{Executor, Job, UNREADABLE_ACTION, in_span};
use crate::ports::tool::HostError;

pub use crate::executor::pipeline::configured_agent::ConfiguredAgent;
pub use crate::executor::pipeline::dry_run::{DryRun, Sample};
pub use crate::executor::pipeline::parts::StepParts;

/// Why a run ended early and well: a `filter` was false, or a step with `on_error: stop` failed.
pub const REASON_FILTERED: &str = "filtered";
/// Reason of a run that a failed step has ended by `on_error: stop`.
pub const REASON_STOPPED: &str = "stopped";
/// Its last step was a `notify`: nobody is told twice.
pub const REASON_TOLD: &str = "told";
/// Where the steps stand in a task.
const CONFIG: &str = "/action/config";

/// The executor.
#[derive(Clone)]
pub struct Pipeline(Arc<StepParts>);

impl Pipeline {
    /// Names of the configured agents.
    pub fn agents(&self) -> impl Iterator<Item = &str> {
        self.0.agents.iter().map(|agent| agent.name.as_str())
    }

    /// Names of the models that its agents may use.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.0.agent.models.names()
    }

    /// The executor with its parts.
    pub fn new(parts: StepParts) -> Pipeline {
        Pipeline(Arc::new(parts))
    }

    async fn run(&self, job: Job) -> Result<RunOutcome, RunError> {
        let task = job.task.as_ref().ok_or_else(|| RunError::fail("no_task", "the task of the run is gone"))?;
        let spec = self.spec_now(&job, task).await?;
        let rules = rules_of_run(&job, task, &self.0.compute).await;
        let written = written_steps(&task.spec.action.config);
        let digest = digest_of(&written);
        let world = self.world(&job, task, (&digest, rules))?;
        let (ledger, begun) = Ledger::load(job.store.clone(), job.clock.clone()).await?;
        let beginning = match begun {
            Some(begun) if begun.digest != digest && begun.digest != former_digest(&task.spec.action.config) => {
                let message = "the steps of the task were changed while the run went on; run it again";
                return Err(RunError::fail("pipeline_changed", message));
            }
            Some(begun) => begun,
            None => {
                let beginning = StepStart { digest, state: state_of(&world, &written).await? };
                ledger.begin(&beginning).await?;
                beginning
            }
        };
        let (run, task) = (run_value(&job.run), task_value(task));
        let scope = StepScope::new(&world, FireScope::of(&job.run), run, task, beginning.state).await;
        let attempts = Attempts { world: &world, ledger: &ledger };
        tokio::select! {
            biased;
            ended = steps(&spec, &attempts, scope) => ended,
            never = ledger.flush_overdue() => match never {},
        }
    }

    /// The steps once more: tools, models and channels may have gone since they were checked.
    async fn spec_now(&self, job: &Job, task: &Task) -> Result<PipelineSpec, RunError> {
        let (parts, config) = (Arc::clone(&self.0), task.spec.action.config.clone());
        let steps = steps_to_read(&Value::Object(config.clone()));
        let read = move || {
            let (mut faults, unreadable) = (ValidationErrors::new(), Cell::default());
            let spec = PipelineSpec::read_stored(&config, CONFIG, &parts, &mut faults, &unreadable);
            spec.ok_or_else(|| match (unreadable.get(), faults.0.first()) {
                (true, Some(fault)) => {
                    RunError::fail(UNREADABLE_ACTION, format!("{}: {}", fault.pointer, fault.message))
                }
                _ => RunError::fail("invalid_action", faults.to_string()),
            })
        };
        let read = self.0.compute.run_if_costly(&job.run.tenant_id, steps, read).await;
        read.unwrap_or_else(|panicked| Err(RunError::fail("invalid_action", panicked.to_string())))
    }

    fn world(
        &self,
        job: &Job,
        task: &Task,
        (steps, rules): (&str, Option<Arc<PolicyRules>>),
    ) -> Result<StepContext, RunError> {
        Ok(StepContext {
            parts: self.0.clone(),
            tenant: Tenant::stored(&job.run.tenant_id).map_err(|why| RunError::fail("invalid_tenant", why))?,
            run_id: job.run.id,
            task_id: task.id,
            was_interrupted: job.run.was_interrupted(),
            timezone: job.timezone,
            locale: job.locale.clone(),
            channel: job.channel.clone(),
            approval_context: ApprovalContext { task_id: job.run.task_id, source: TRIGGER, rules },
            host: job.host.clone(),
            store: job.store.clone(),
            stop: job.stop.clone(),
            slot: job.slot.clone(),
            sink: job.sink.clone(),
            clock: job.clock.clone(),
            used_secrets: job.used_secrets.clone(),
            steps: steps.to_owned(),
            missing_notified: AtomicBool::new(false),
        })
    }
}

async fn steps(spec: &PipelineSpec, attempts: &Attempts<'_>, mut scope: StepScope) -> Result<RunOutcome, RunError> {
    let (mut last, mut notified) = (Value::Null, false);
    for (step, position) in spec.steps.iter().zip(1..) {
        let settled = match attempts.settle(step, position, &scope).await {
            Ok(settled) => settled,
            Err(StepsEnd::Asks(suspension)) => return Ok(attempts.suspended(*suspension).await),
            Err(StepsEnd::Error(error)) => return Err(error),
        };
        notified = settled.is_ok();
        match settled {
            Ok(value) => {
                if let StepWork::One(kind) = &step.what
                    && kind.ends_run(&value)
                {
                    return Ok(attempts.quiet(REASON_FILTERED).await);
                }
                last = value;
            }
            Err(fault) => match step.on_error {
                OnError::Continue => last = error_value(&fault),
                OnError::Stop => return Ok(attempts.quiet(REASON_STOPPED).await),
                OnError::Fail => {
                    let message = format!("step `{}`: {}", step.name, fault.message);
                    return Err(RunError::Fail { fault: RunFault { message, ..fault } });
                }
            },
        }
        scope = attempts.world.after_step(scope, step, notified, last.clone()).await;
    }
    let tells = matches!(spec.steps.last().map(|step| &step.what), Some(StepWork::One(kind)) if kind.notifies());
    if tells && notified && spec.output.is_none() {
        return Ok(attempts.quiet(REASON_TOLD).await);
    }
    let output = output(spec.output.as_ref(), attempts.world, &scope, last).await;
    let output = output.map_err(|why| RunError::fail("output", why))?;
    let (finish, usage) = (attempts.ledger.finish(), attempts.ledger.usage().await);
    Ok(RunOutcome::Succeeded { output: shown(output), finish, usage })
}

impl Attempts<'_> {
    /// The run waits for people; it goes on at the step that asks.
    async fn suspended(&self, suspension: Suspension) -> RunOutcome {
        let Suspension { asks, open, usage: _ } = suspension;
        RunOutcome::Asks { asks, open, usage: self.ledger.usage().await }
    }

    async fn quiet(&self, reason: &str) -> RunOutcome {
        let (finish, usage) = (self.ledger.finish(), self.ledger.usage().await);
        RunOutcome::Quiet { reason: reason.to_owned(), finish, usage }
    }
}

/// The answer of the run: its `output`, else the last step's value; after a `notify` that was the last step, nothing.
async fn output(template: Option<&Tree>, world: &StepContext, scope: &StepScope, last: Value) -> Result<Value, String> {
    let Some(template) = template.cloned() else { return Ok(last) };
    let steps = template.steps(&scope.template);
    let value = world.compute(scope, steps, move |scope| Ok(template.value(&scope.template)?)).await;
    value.map_err(|error| format!("the output: {}", error.fault.message))
}

fn shown(value: Value) -> String {
    match value {
        Value::String(text) => text,
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// The values that the task's runs have stored; none are read for steps whose text does not name them.
async fn state_of(world: &StepContext, written: &str) -> Result<Map<String, Value>, RunError> {
    if !written.contains("state") {
        return Ok(Map::new());
    }
    match world.host.task_state(&world.tenant, world.task_id).await {
        Ok(Value::Object(state)) => Ok(state),
        Ok(_) => Ok(Map::new()),
        Err(HostError::Unavailable) => {
            let fault = RunFault::new("store_unavailable", "what the task has stored can't be read now");
            Err(RunError::Infrastructure { fault })
        }
        Err(error) => Err(RunError::fail("state", error.to_string())),
    }
}

/// The steps and the output as they are written: without the rules about consent and money, which may be changed at any
/// time.
fn written_steps(config: &Map<String, Value>) -> String {
    let beside = [TASK_RULES_KEY, TASK_KEY];
    let steps = config.iter().filter(|(key, _)| !beside.contains(&key.as_str()));
    Value::Object(steps.map(|(key, value)| (key.clone(), value.clone())).collect()).to_string()
}

/// The digest with which earlier releases have begun runs.
fn former_digest(config: &Map<String, Value>) -> String {
    digest_of(&Value::Object(config.clone()).to_string())
}

/// Hex SHA-256 of the steps; keys are in order, whatever the database made of them.
fn digest_of(written: &str) -> String {
    hex::encode(digest(&SHA256, written.as_bytes()))
}

impl Executor for Pipeline {
    fn name(&self) -> &'static str {
        "pipeline"
    }

    fn config_schema(&self) -> Value {
        crate::executor::schema::of::<schema::PipelineConfig>()
    }

    fn validate(&self, action: &Action, faults: &mut ValidationErrors) {
        PipelineSpec::read(&action.config, CONFIG, &self.0, faults);
    }

    fn execute(&self, job: Job) -> BoxFuture<'_, Result<RunOutcome, RunError>> {
        let (span, name) = (job.span(), job.task.as_ref().map_or("", |task| task.name.as_str()));
        let traced = job.traced().invoke_workflow(name);
        Box::pin(in_span(traced, self.run(job)).instrument(span))
    }
}
