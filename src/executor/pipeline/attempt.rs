//! Executing a step: what the ledger says, the intent, the effect within its time, the result, and again where that may
//! help.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use serde_json::{Value, json};

use crate::agent::{RunSlot, Suspension, TimedSlot};
use crate::base::backoff::full_jitter;
use crate::domain::run::{RunError, RunFault, StepOutcome, Usage};
use crate::executor::pipeline::account::StepAccount;
use crate::executor::pipeline::context::StepContext;
use crate::executor::pipeline::kind::{Effect, RetryAdvice, StepAction, StepError, StepFault, StepKind, StepResult};
use crate::executor::pipeline::ledger::{Ledger, StepPlace, StepStanding, VALUE_BYTES};
use crate::executor::pipeline::schema::OnError;
use crate::executor::pipeline::scope::{RESULTS_BYTES, StepScope};
use crate::executor::pipeline::spec::{ForEach, StepSpec, StepWork};

/// The longest wait within a run. A longer wait ends the attempt, and the run's next one asks again.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A step that came to its end: a value, or a failure for good.
pub type SettledStep = Result<Value, RunFault>;

/// Why the steps of a run do not go on here.
pub enum StepsEnd {
    /// The run ends, or this attempt of it.
    Error(RunError),
    /// An agent waits for people.
    Asks(Box<Suspension>),
}

impl From<RunError> for StepsEnd {
    fn from(error: RunError) -> StepsEnd {
        StepsEnd::Error(error)
    }
}

/// Executor of the steps of one run.
pub struct Attempts<'a> {
    pub world: &'a StepContext,
    pub ledger: &'a Ledger,
}

/// One step, or one item of it.
#[derive(Clone, Copy)]
struct Unit<'a> {
    step: &'a StepSpec,
    kind: &'a dyn StepKind,
    index: Option<u32>,
    position: i64,
    /// A failure that time may heal is left to the run's next attempt, once the step's own are used up.
    later: bool,
}

impl<'a> Unit<'a> {
    fn place(&self) -> StepPlace<'a> {
        StepPlace { position: self.position, step: &self.step.name, index: self.index }
    }
}

impl Attempts<'_> {
    /// Executes a step, or takes from the ledger what it gave.
    pub async fn settle(&self, step: &StepSpec, position: i64, scope: &StepScope) -> Result<SettledStep, StepsEnd> {
        match &step.what {
            StepWork::One(kind) => {
                let later = step.on_error == OnError::Fail;
                self.run_unit(Unit { step, kind: &**kind, index: None, position, later }, scope).await
            }
            StepWork::Each(each) => self.each(step, each, position, scope).await,
        }
    }

    /// All items, several at once. The first failure lets none begin after it.
    async fn each(
        &self,
        step: &StepSpec,
        each: &ForEach,
        position: i64,
        scope: &StepScope,
    ) -> Result<SettledStep, StepsEnd> {
        match self.ledger.step_state(&step.name, None) {
            StepStanding::Failed(fault) => return Ok(Err(fault)),
            StepStanding::Done(value) => return Ok(Ok(value)),
            StepStanding::Fresh | StepStanding::Open => {}
        }
        let items = match each.list(self.world, scope).await {
            Ok(items) => items,
            Err(fault) => return Ok(Err(self.failed(&step.name, position, fault.fault).await?)),
        };
        let mut values = vec![Value::Null; items.len()];
        let mut waiting = items.iter().zip(0_u32..);
        let mut running = FuturesUnordered::new();
        let later = step.on_error == OnError::Fail && each.step.on_error == OnError::Fail;
        let (mut failed, mut ended, mut bytes) = (None, None, 0);
        // what has begun comes to its end: an effect that is dropped would be one of unknown outcome
        loop {
            while failed.is_none() && ended.is_none() && running.len() < each.concurrency {
                let Some((item, index)) = waiting.next() else { break };
                let unit = Unit { step: &each.step, kind: &**each.kind(), index: Some(index), position, later };
                running.push(async move { (index, self.run_unit(unit, &scope.with_item(index, item)).await) });
            }
            let Some((index, settled)) = running.next().await else { break };
            let settled = match settled {
                Ok(settled) => settled,
                Err(error) => {
                    ended = ended.or(Some(error));
                    continue;
                }
            };
            match settled {
                Ok(value) => {
                    bytes += value.to_string().len();
                    values[index as usize] = value;
                }
                Err(fault) if each.step.on_error == OnError::Continue => values[index as usize] = error_value(&fault),
                Err(fault) => failed = failed.or(Some(fault)),
            }
            if bytes > VALUE_BYTES {
                failed = failed.or(Some(too_large("the values of all items together")));
            }
        }
        if let Some(error) = ended {
            return Err(error);
        }
        match failed {
            Some(fault) => Ok(Err(self.failed(&step.name, position, fault).await?)),
            None => Ok(Ok(Value::Array(values))),
        }
    }

    async fn failed(&self, step: &str, position: i64, fault: RunFault) -> Result<RunFault, RunError> {
        let outcome = StepOutcome::Failed { error: fault.clone() };
        let place = StepPlace { position, step, index: None };
        self.ledger.defer_result(place, outcome, StepAccount::default(), 0).await?;
        Ok(fault)
    }

    async fn run_unit(&self, unit: Unit<'_>, scope: &StepScope) -> Result<SettledStep, StepsEnd> {
        let name = &unit.step.name;
        match self.ledger.step_state(name, unit.index) {
            StepStanding::Done(value) => return Ok(Ok(value)),
            StepStanding::Failed(fault) => return Ok(Err(fault)),
            StepStanding::Open if unit.kind.effect() == Effect::Once => {
                let message = "the service stopped during this step; whether it had its effect is unknown, and it was \
                               not repeated";
                let fault = StepFault::unknown(message).fault;
                self.record(unit, StepOutcome::Failed { error: fault.clone() }, StepAccount::default(), 0).await?;
                return Ok(Err(fault));
            }
            StepStanding::Fresh | StepStanding::Open => {}
        }
        for tries in 1.. {
            let (fault, wait) = match self.attempt_once(unit, scope).await? {
                Ok(value) => return Ok(Ok(value)),
                Err(fault) => match wait(unit, &fault, tries) {
                    NextAttempt::Wait(wait) => (fault, wait),
                    NextAttempt::LaterAttempt(after) => {
                        self.record(unit, StepOutcome::Again { error: fault.fault.clone() }, *fault.account, 0).await?;
                        return Err(RunError::Retry { fault: fault.fault, after }.into());
                    }
                    NextAttempt::Never => {
                        let outcome = StepOutcome::Failed { error: fault.fault.clone() };
                        self.record(unit, outcome, *fault.account, 0).await?;
                        return Ok(Err(fault.fault));
                    }
                },
            };
            self.record(unit, StepOutcome::Again { error: fault.fault }, *fault.account, 0).await?;
            self.world.stop.run_until_stopped(self.world.clock.sleep(wait)).await?;
        }
        unreachable!("tries are counted, and limited by the step")
    }

    /// One execution: the intent, the effect, and its value in the ledger.
    async fn attempt_once(&self, unit: Unit<'_>, scope: &StepScope) -> Result<Result<Value, StepFault>, StepsEnd> {
        self.world.stop.check()?;
        let begun_before = self.ledger.was_begun(unit.place());
        self.intend(unit).await?;
        let begun = self.world.clock.elapsed();
        let cut = Mutex::default();
        let done = self.with_time_limit(unit, scope, (begun_before, &cut)).await;
        let cut = cut.into_inner().expect("usage lock");
        if unit.step.kind == "agent" {
            self.ledger.catch_up().await?;
        }
        let StepResult { value, finish, account } = match done {
            Ok(done) => done,
            Err(StepError::Run(error)) => {
                if cut != Usage::default() {
                    let outcome = StepOutcome::Again { error: RunFault::new("stopped", "a stop has cut it off") };
                    self.record(unit, outcome, StepAccount::of_model(cut, None), 0).await?;
                }
                return Err(error.into());
            }
            Err(StepError::Asks(suspension)) => return Err(StepsEnd::Asks(suspension)),
            Err(StepError::Fault(mut fault)) => {
                fault.account.usage += cut;
                return Ok(Err(fault));
            }
        };
        if let Some(fault) = excess(&value, scope) {
            return Ok(Err(StepFault { fault, again: RetryAdvice::No, account: Box::new(account) }));
        }
        let duration_ms = self.world.clock.elapsed().saturating_sub(begun).as_millis() as i64;
        self.record(unit, StepOutcome::Done { value: value.clone(), finish }, account, duration_ms).await?;
        Ok(Ok(value))
    }

    /// Notes what is about to be executed; before an effect, durably, with all that it follows from.
    async fn intend(&self, unit: Unit<'_>) -> Result<(), RunError> {
        let begun = self.ledger.step_state(&unit.step.name, unit.index) == StepStanding::Open;
        match unit.kind.effect() {
            Effect::Nothing => Ok(()),
            Effect::Read if begun => Ok(()),
            Effect::Read => self.ledger.defer_intent(unit.place()).await,
            Effect::Repeatable | Effect::Once if begun => self.ledger.flush().await,
            Effect::Repeatable | Effect::Once if failpoint!("intent_after_effect") => {
                self.ledger.defer_intent(unit.place()).await
            }
            Effect::Repeatable | Effect::Once => self.ledger.record_intent(unit.place()).await,
        }
    }

    async fn with_time_limit(
        &self,
        unit: Unit<'_>,
        scope: &StepScope,
        (begun_before, cut): (bool, &Mutex<Usage>),
    ) -> Result<StepResult, StepError> {
        let limit = unit.step.timeout;
        let timed = TimedSlot::of(&self.world.slot);
        let slot: Arc<dyn RunSlot> = timed.clone();
        let act = StepAction {
            world: self.world,
            scope,
            step: &unit.step.name,
            index: unit.index,
            position: unit.position,
            begun_before,
            slot: &slot,
            time_limit: limit,
            cut,
        };
        tokio::select! {
            biased;
            done = unit.kind.perform(&act) => done,
            () = self.world.clock.sleep(limit).map(|()| timed.cut_off()) => {
                // a run that is to stop does not wait for its slot
                let _ = self.world.stop.run_until_stopped(timed.regain()).await;
                let message = format!("no end within {} s", limit.as_secs());
                Err(StepError::Fault(match unit.kind.effect() {
                    Effect::Once => StepFault::unknown(format!("{message}; whether it had its effect is unknown")),
                    _ => StepFault::passing("timeout", message, None),
                }))
            }
        }
    }

    /// Notes an outcome; durably where the effect would happen twice.
    async fn record(
        &self,
        unit: Unit<'_>,
        outcome: StepOutcome,
        account: StepAccount,
        duration_ms: i64,
    ) -> Result<(), RunError> {
        self.ledger.defer_result(unit.place(), outcome, account, duration_ms).await?;
        match unit.kind.effect() {
            Effect::Once => self.ledger.flush().await,
            Effect::Nothing | Effect::Read | Effect::Repeatable => Ok(()),
        }
    }
}

enum NextAttempt {
    Wait(Duration),
    /// The run's own retries go on at this step.
    LaterAttempt(Option<Duration>),
    Never,
}

fn wait(unit: Unit<'_>, fault: &StepFault, tries: u32) -> NextAttempt {
    let RetryAdvice::After(wished) = fault.again else { return NextAttempt::Never };
    let retry = unit.step.retry;
    if tries <= retry.count && wished <= LONGEST_WAIT {
        return NextAttempt::Wait(full_jitter(retry.back_off, tries, LONGEST_WAIT, fastrand::f64()).max(wished));
    }
    match unit.later {
        true => NextAttempt::LaterAttempt((!wished.is_zero()).then_some(wished)),
        false => NextAttempt::Never,
    }
}

/// The value of a step that failed.
pub fn error_value(fault: &RunFault) -> Value {
    json!({ "error": { "code": fault.code, "message": fault.message } })
}

/// The fault of a step's value that is too large by itself, or beside those of the steps before.
pub fn excess(value: &Value, scope: &StepScope) -> Option<RunFault> {
    let bytes = value.to_string().len();
    if bytes > VALUE_BYTES {
        return Some(too_large("the step's value"));
    }
    let message = format!("the values of all steps together would have more than {RESULTS_BYTES} bytes");
    (!scope.has_room(bytes)).then(|| RunFault::new("value_too_large", message))
}

/// The fault of a value, or of several together, that is too large.
pub fn too_large(what: &str) -> RunFault {
    RunFault::new("value_too_large", format!("{what} would have more than {VALUE_BYTES} bytes"))
}
