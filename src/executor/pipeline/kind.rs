//! The kinds of steps: the port, the list, and what an execution of a step is given.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;
use uuid::Uuid;

use crate::agent::{RunSlot, Suspension};
use crate::base::expr::{Expression, ExpressionError, MissingField};
use crate::base::template::{TemplateError, sharing_steps};
use crate::domain::run::{RunError, RunFault, RunFinish, Usage};
use crate::executor::pipeline::account::StepAccount;
use crate::executor::pipeline::context::StepContext;
use crate::executor::pipeline::reading::StepReader;
use crate::executor::pipeline::scope::StepScope;
use crate::ports::tool::{HostError, MissedByStep};
use crate::ports::vault::credentials::{CredentialError, CredentialFault};

/// The effect of executing a step twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It computes: nothing outside of the run hears of it.
    Nothing,
    /// It reads: an execution may be forgotten with the process that made it.
    Read,
    /// Twice is as good as once: by its nature, or because the other side is told a key.
    Repeatable,
    /// Its effect would happen twice. An execution of unknown outcome is not repeated.
    Once,
}

/// A step of one kind, read and checked.
pub trait StepKind: Send + Sync {
    fn effect(&self) -> Effect;

    /// The steps that putting everything in takes at most: see [`crate::base::template::Template::steps`].
    fn steps(&self, _scope: &StepScope) -> u64 {
        0
    }

    /// The step with everything put in: a dry run shows it.
    fn shown(&self, scope: &StepScope) -> Result<Value, StepFault>;

    /// Executes it. Dropped when it takes longer than its time limit.
    fn perform<'a>(&'a self, act: &'a StepAction<'a>) -> BoxFuture<'a, Result<StepResult, StepError>>;

    /// How long one execution may take where the step does not say; `None`: as long as others of the kind.
    fn time_limit(&self) -> Option<Duration> {
        None
    }

    /// Whether this value ends the run, quietly.
    fn ends_run(&self, _value: &Value) -> bool {
        false
    }

    /// The field that its expression looks for and does not find: a dry run names it.
    fn missing(&self, _scope: &StepScope) -> Option<MissingField> {
        None
    }

    /// Whether a person has been told by it what there is to tell.
    fn notifies(&self) -> bool {
        false
    }

    /// Shows later steps further results besides the value.
    fn record_outcome(&self, _value: &Value, _scope: &mut StepScope) {}
}

/// Reads what stands behind the name of a kind; adds what is wrong.
pub type ReadKind = fn(&Value, &mut StepReader) -> Option<Box<dyn StepKind>>;

/// One execution of one step.
pub struct StepAction<'a> {
    pub world: &'a StepContext,
    pub scope: &'a StepScope,
    pub step: &'a str,
    /// Which item of a `for_each`.
    pub index: Option<u32>,
    /// The step's place, from 1.
    pub position: i64,
    /// Whether it was begun before, in this execution of the run or in an earlier one.
    pub begun_before: bool,
    /// The run's slot; no item of a `for_each` leaves it, because none asks a model.
    pub slot: &'a Arc<dyn RunSlot>,
    pub time_limit: Duration,
    /// Cost of calls that were cut off together with the step.
    pub cut: &'a Mutex<Usage>,
}

/// The result of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepResult {
    pub value: Value,
    /// Whether its agent was stopped at its limit of turns.
    pub finish: Option<RunFinish>,
    /// The calls that it took, as far as they are not in the transcript already.
    pub account: StepAccount,
}

/// Why a step gave nothing.
#[derive(Debug, Clone, PartialEq)]
pub enum StepError {
    Fault(StepFault),
    /// The run as a whole stops here: its lease is lost, its store is away, its end was asked for.
    Run(RunError),
    /// It waits for people. Executed again, it goes on with what they answer.
    Asks(Box<Suspension>),
}

/// A failure of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepFault {
    pub fault: RunFault,
    pub again: RetryAdvice,
    /// The calls that it took all the same.
    pub account: Box<StepAccount>,
}

/// Whether a step that failed may be executed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryAdvice {
    No,
    /// It had no effect, or may have it twice; not earlier than after this.
    After(Duration),
}

impl StepContext {
    /// Computes what the tenant wrote over what a step sees: in place where it takes few steps, else on a thread. All
    /// templates of it share what they may take.
    pub async fn compute<T: Send + 'static>(
        &self,
        scope: &StepScope,
        steps: u64,
        work: impl FnOnce(&StepScope) -> Result<T, StepFault> + Send + 'static,
    ) -> Result<T, StepFault> {
        let scope = scope.clone();
        let work = move || sharing_steps(|| work(&scope));
        let computed = self.parts.compute.run_if_costly(self.tenant.as_str(), steps, work).await;
        computed.unwrap_or_else(|panicked| Err(StepFault::new("computation", panicked.to_string())))
    }

    /// The value of a step's expression. Where it looks for a field that is not there, the task's owner is told of the
    /// first in a run.
    pub async fn value_of(&self, expression: &Expression, step: &str, scope: &StepScope) -> Result<Value, StepFault> {
        let (steps, own) = (expression.cost(&scope.cel), expression.clone());
        let value = self.compute(scope, steps, move |scope| Ok(own.value(&scope.cel))).await?;
        if let Err(error) = &value
            && let Some(name) = error.missing_field()
        {
            self.tell_missing(expression, name, step, scope).await;
        }
        Ok(value?)
    }

    /// Tells the task's owner of a field that an expression misses. A run goes on where that fails.
    pub async fn tell_missing(&self, expression: &Expression, name: &str, step: &str, scope: &StepScope) {
        if self.missing_notified.swap(true, Ordering::Relaxed) {
            return;
        }
        // to find the place of the field is as much work as to evaluate the expression
        let (steps, own, name) = (expression.cost(&scope.cel), expression.clone(), name.to_owned());
        let field = self.compute(scope, steps, move |scope| Ok(own.missing(&name, &scope.cel))).await;
        let Ok(field) = field else { return };
        let missed = MissedByStep { task_id: self.task_id, steps: self.steps.clone(), step: step.to_owned(), field };
        if let Err(error) = self.host.tell_missing(&self.tenant, missed).await {
            tracing::warn!(task_id = %self.task_id, %error, "the owner of a task is not told yet of a missing field");
        }
    }

    /// The scope with more in it: large values are taken in on a thread.
    pub async fn with(
        &self,
        scope: StepScope,
        bytes: usize,
        add: impl FnOnce(&mut StepScope) + Send + 'static,
    ) -> StepScope {
        let before = scope.clone();
        let taken_in = self.parts.compute.run_if_costly(self.tenant.as_str(), scope.steps_to_add(bytes), move || {
            let mut scope = scope;
            add(&mut scope);
            scope
        });
        taken_in.await.unwrap_or(before)
    }
}

impl StepAction<'_> {
    /// See [`StepContext::compute`].
    pub async fn compute<T: Send + 'static>(
        &self,
        steps: u64,
        work: impl FnOnce(&StepScope) -> Result<T, StepFault> + Send + 'static,
    ) -> Result<T, StepFault> {
        self.world.compute(self.scope, steps, work).await
    }

    /// The idempotency key: equal for each execution of this step and item, and no other's. See `docs/keys.md`,
    /// "Effects".
    pub fn key(&self) -> String {
        key_of(self.world.run_id, self.step, self.index)
    }

    /// The identity of the step and item within the run.
    pub fn place(&self) -> String {
        match self.index {
            Some(index) => format!("{}:{index}", self.step),
            None => self.step.to_owned(),
        }
    }
}

/// Hex SHA-256 of run, step and index.
pub fn key_of(run_id: Uuid, step: &str, index: Option<u32>) -> String {
    let index = index.map_or(String::new(), |index| index.to_string());
    let identity = format!("{run_id}|{step}|{index}");
    hex::encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, identity.as_bytes()))
}

impl StepResult {
    /// A value that took no model and no tool.
    pub fn plain(value: Value) -> StepResult {
        StepResult::with_account(value, StepAccount::default())
    }

    /// A value, and the calls that it took.
    pub fn with_account(value: Value, account: StepAccount) -> StepResult {
        StepResult { value, finish: None, account }
    }
}

impl StepFault {
    /// A fault that a repetition would not heal.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> StepFault {
        StepFault { fault: RunFault::new(code, message), again: RetryAdvice::No, account: Box::default() }
    }

    /// A fault that time may heal.
    pub fn passing(code: impl Into<String>, message: impl Into<String>, after: Option<Duration>) -> StepFault {
        StepFault { again: RetryAdvice::After(after.unwrap_or_default()), ..StepFault::new(code, message) }
    }

    /// A credential was not used, or was refused: the step had no effect.
    pub fn credential(error: &CredentialError) -> StepFault {
        match error.kind {
            CredentialFault::Busy => StepFault::passing(error.code(), error.to_string(), None),
            _ => StepFault { fault: error.fault(), again: RetryAdvice::No, account: Box::default() },
        }
    }

    /// Nobody knows whether it had its effect, so it is not repeated.
    pub fn unknown(message: impl Into<String>) -> StepFault {
        StepFault::new("outcome_unknown", message)
    }
}

/// A run that fails is a step that fails: what the pipeline does then, its `on_error` says.
impl From<RunError> for StepError {
    fn from(error: RunError) -> StepError {
        match error {
            RunError::Fail { fault } => StepFault::new(fault.code, fault.message).into(),
            RunError::Retry { fault, after } => StepFault::passing(fault.code, fault.message, after).into(),
            other => StepError::Run(other),
        }
    }
}

impl From<StepFault> for StepError {
    fn from(fault: StepFault) -> StepError {
        StepError::Fault(fault)
    }
}

impl From<ExpressionError> for StepFault {
    fn from(error: ExpressionError) -> StepFault {
        match &error {
            ExpressionError::Missing(_) => StepFault::new("missing", error.to_string()),
            ExpressionError::Failed(_) => StepFault::new("expression", error.to_string()),
        }
    }
}

impl From<TemplateError> for StepFault {
    fn from(error: TemplateError) -> StepFault {
        match &error {
            TemplateError::Missing(_) => StepFault::new("missing", error.to_string()),
            TemplateError::Failed(_) => StepFault::new("template", error.to_string()),
        }
    }
}

impl From<HostError> for StepFault {
    fn from(error: HostError) -> StepFault {
        let message = error.to_string();
        match error {
            HostError::NotFound => StepFault::new("not_found", message),
            HostError::Invalid(_) => StepFault::new("invalid", message),
            HostError::Conflict(_) => StepFault::new("refused", message),
            HostError::Unavailable => StepFault::passing("unavailable", message, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_a_step_is_its_own() {
        let run = Uuid::from_u128(7);
        let key = key_of(run, "tell", Some(1));
        assert_eq!((key.len(), key == key_of(run, "tell", Some(1))), (64, true));
        let others = [
            (Uuid::from_u128(8), "tell", Some(1)),
            (run, "tel", Some(1)),
            (run, "tell", None),
            (run, "tell", Some(11)),
        ];
        assert!(others.iter().all(|(run, step, index)| key_of(*run, step, *index) != key));
    }
}
