//! How an execution's end is to be recorded: decided purely, written by the finisher.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::clock::signed;
use crate::notification::delivery::channels;
use crate::notification::{Kind, NewDelivery, Recipient};
use crate::retry::full_jitter;
use crate::run::outcome::{Outcome, RunError, RunFault};
use crate::run::{IllegalTransition, Run, RunEvent, RunState, Usage};
use crate::store::{Again, Finish, Lease};
use crate::task::{Output, Retry, Task};

/// The longest wait between two attempts.
const LONGEST_BACK_OFF: Duration = Duration::from_secs(3600);
/// A run whose process died this often is not tried again, whatever its attempts.
pub const CRASH_LIMIT: i32 = 3;

/// One execution, as seen at its end.
pub struct Ending<'a> {
    pub lease: Lease,
    pub run: &'a Run,
    pub task: Option<&'a Task>,
    pub recipient: Option<&'a Recipient>,
    /// The run's usage, all attempts together.
    pub usage: Usage,
    pub ran: Duration,
    pub now: DateTime<Utc>,
    /// For jitter, in 0..1.
    pub random: f64,
}

impl Ending<'_> {
    /// What is to be written; an error where nothing may be (the lease is lost).
    pub fn finish(&self, result: Result<Outcome, RunError>) -> Result<Option<Finish>, IllegalTransition> {
        Ok(Some(match result {
            Ok(Outcome::Succeeded { output, usage }) => {
                let deliveries = self.tell(Kind::Result);
                Finish { output: Some(output), usage, deliveries, ..self.end(RunEvent::Succeed)? }
            }
            Ok(Outcome::Skipped { reason, usage }) => {
                Finish { reason: Some(reason), usage, ..self.end(RunEvent::Skip)? }
            }
            Err(RunError::Cancelled { reason }) => Finish { reason: Some(reason), ..self.end(RunEvent::Cancel)? },
            Err(RunError::Fail { fault }) => self.failed(fault)?,
            Err(RunError::Retry { fault, after }) => match self.again(after) {
                Some(run_at) => Finish {
                    error: Some(fault),
                    again: Some(Again { run_at, uses_attempt: true }),
                    ..self.end(RunEvent::Requeue)?
                },
                None => self.failed(fault)?,
            },
            Err(RunError::HandBack) => {
                Finish { again: Some(Again { run_at: self.now, uses_attempt: false }), ..self.end(RunEvent::Requeue)? }
            }
            Err(RunError::LeaseLost) => return Ok(None),
        }))
    }

    /// What is to be written of a run whose process died: it goes on at once, but not for ever.
    pub fn crashed(&self) -> Result<Finish, IllegalTransition> {
        let crashes = self.run.crashes + 1;
        if crashes >= CRASH_LIMIT || self.attempts_left() == 0 {
            let message = format!("the process that executed it died, {crashes} time(s) in all");
            return self.failed(RunFault::new("crashed", message));
        }
        let again = Again { run_at: self.now, uses_attempt: true };
        Ok(Finish { again: Some(again), ..self.end(RunEvent::Requeue)? })
    }

    fn failed(&self, fault: RunFault) -> Result<Finish, IllegalTransition> {
        Ok(Finish { error: Some(fault), deliveries: self.tell(Kind::Failure), ..self.end(RunEvent::Fail)? })
    }

    /// When the next attempt follows; `None` when there is none left.
    fn again(&self, after: Option<Duration>) -> Option<DateTime<Utc>> {
        if self.attempts_left() == 0 {
            return None;
        }
        let first = Duration::from_secs(self.retry().backoff_seconds);
        let tries = self.run.attempt.max(1) as u32;
        let wait = full_jitter(first, tries, LONGEST_BACK_OFF, self.random).max(after.unwrap_or_default());
        Some(self.now + signed(wait.min(LONGEST_BACK_OFF)))
    }

    fn attempts_left(&self) -> u32 {
        self.retry().max_attempts.saturating_sub(self.run.attempt.max(0) as u32)
    }

    fn retry(&self) -> Retry {
        self.task.map(|task| task.spec.retry.clone()).unwrap_or_default()
    }

    fn tell(&self, kind: Kind) -> Vec<NewDelivery> {
        let output = self.task.map_or(Output::Nobody, |task| task.spec.output.clone());
        let order = channels(&output, self.recipient);
        NewDelivery::of_run(&self.run.tenant_id, self.run.id, kind, order).into_iter().collect()
    }

    fn end(&self, event: RunEvent) -> Result<Finish, IllegalTransition> {
        Ok(Finish {
            lease: self.lease,
            task_id: self.run.task_id,
            state: RunState::Running.on(event)?,
            reason: None,
            output: None,
            error: None,
            usage: self.usage,
            ran_ms: self.ran.as_millis() as i64,
            again: None,
            deliveries: Vec::new(),
            others_wait: self.task.is_some_and(|task| task.spec.trigger.others_wait()),
        })
    }
}
