//! How an execution's end is to be recorded: decided purely, written by the finisher.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::domain::approval::QuestionKind;
use crate::domain::notification::{NewDelivery, Recipient, RunEnd, RunNotification};
use crate::domain::run::outcome::SCHEMA_CHANGED;
use crate::domain::run::{IllegalRunTransition, Run, RunError, RunEvent, RunFault, RunOutcome, RunState, Usage};
use crate::domain::task::Task;
use crate::store::{Finish, Lease, Park, RequeuedRun};

/// A run whose process died this often is not tried again, whatever its attempts.
pub const CRASH_LIMIT: i32 = 3;

/// A run that the infrastructure held up this often is not tried again; attempts are another matter.
pub const INFRA_LIMIT: i32 = 20;
/// One execution, as seen at its end.
pub struct RunEnding<'a> {
    /// Lease under which the run was executed.
    pub lease: Lease,
    /// The run as it was started.
    pub run: &'a Run,
    /// The run's task; `None` for a chat run.
    pub task: Option<&'a Task>,
    /// The recipient who is told.
    pub recipient: Option<&'a Recipient>,
    /// The run's usage, all attempts together.
    pub usage: Usage,
    /// Time of this execution.
    pub ran: Duration,
    /// The instant of the end.
    pub now: DateTime<Utc>,
    /// Its owner has been told of its failure: the task was paused for it.
    pub owner_notified: bool,
    /// For jitter, in 0..1.
    pub random: f64,
}

/// Whether it makes a difference to this end who is told of it: where it makes none, nobody need be looked up.
pub fn depends_on_recipient(task: Option<&Task>, result: &Result<RunOutcome, RunError>) -> bool {
    match result {
        // a question reaches people whatever becomes of the result
        Ok(RunOutcome::Asks { .. }) => true,
        Err(RunError::Fail { fault } | RunError::Retry { fault, .. } | RunError::Infrastructure { fault }) => {
            fault.code == SCHEMA_CHANGED || task.is_some_and(RunNotification::may_be_sent)
        }
        Ok(RunOutcome::Succeeded { .. }) => task.is_some_and(RunNotification::may_be_sent),
        Ok(RunOutcome::Quiet { .. } | RunOutcome::Waits { .. } | RunOutcome::Skipped { .. })
        | Err(RunError::Cancelled { .. } | RunError::HandBack | RunError::LeaseLost) => false,
    }
}

impl RunEnding<'_> {
    /// The end to write; an error where nothing may be written (the lease is lost).
    pub fn finish(&self, result: Result<RunOutcome, RunError>) -> Result<Option<Finish>, IllegalRunTransition> {
        Ok(Some(match result {
            Ok(RunOutcome::Succeeded { output, finish, usage }) => {
                let tells = self.notification(RunEnd::Succeeded { output: Some(&output) });
                Finish { output: Some(output), finish, usage, tells, ..self.end(RunEvent::Succeed)? }
            }
            Ok(RunOutcome::Quiet { reason, finish, usage }) => {
                Finish { reason: Some(reason), finish, usage, ..self.end(RunEvent::Succeed)? }
            }
            Ok(RunOutcome::Waits { until, usage }) => {
                Finish { park: Some(Park::Completion { until }), usage, ..self.end(RunEvent::AskCompletion)? }
            }
            Ok(RunOutcome::Asks { asks, open, usage }) => {
                let deliveries =
                    asks.first().and_then(|(ask, _)| self.approval_question(ask.batch_id)).into_iter().collect();
                let kinds =
                    asks.iter().map(|(ask, _)| ask.proposal.kind).chain(open.iter().map(|question| question.kind));
                let event = match kinds.into_iter().all(|kind| kind == QuestionKind::Input) {
                    true => RunEvent::AskInput,
                    false => RunEvent::AskApproval,
                };
                // looked at at once: when to remind, and when it expires, is the expirer's to say
                let park = Some(Park::Approval { wake_at: self.now, asks, open });
                Finish { park, usage, deliveries, ..self.end(event)? }
            }
            Ok(RunOutcome::Skipped { reason, usage }) => {
                Finish { reason: Some(reason), usage, ..self.end(RunEvent::Skip)? }
            }
            Err(RunError::Cancelled { reason }) => Finish { reason: Some(reason), ..self.end(RunEvent::Cancel)? },
            Err(RunError::Fail { fault }) => self.failed(fault)?,
            Err(RunError::Retry { fault, after }) => match self.next_attempt_at(after) {
                Some(run_at) => Finish {
                    error: Some(fault),
                    again: Some(RequeuedRun { run_at, uses_attempt: true }),
                    ..self.end(RunEvent::Requeue)?
                },
                None => self.failed(fault)?,
            },
            Err(RunError::Infrastructure { fault }) if self.run.infra_retries < INFRA_LIMIT => Finish {
                error: Some(fault),
                again: Some(RequeuedRun { run_at: self.retry_after_outage(), uses_attempt: false }),
                infra_retry: true,
                ..self.end(RunEvent::Requeue)?
            },
            Err(RunError::Infrastructure { fault }) => self.failed(fault)?,
            Err(RunError::HandBack) => Finish {
                again: Some(RequeuedRun { run_at: self.now, uses_attempt: false }),
                ..self.end(RunEvent::Requeue)?
            },
            Err(RunError::LeaseLost) => return Ok(None),
        }))
    }

    /// The end to write for a run whose process died: it goes on at once, but not for ever.
    pub fn crashed(&self) -> Result<Finish, IllegalRunTransition> {
        let crashes = self.run.crashes + 1;
        if crashes >= CRASH_LIMIT || self.attempts_left() == 0 {
            let message = format!("the process that executed it died, {crashes} time(s) in all");
            return Ok(Finish { crashed: true, ..self.failed(RunFault::new("crashed", message))? });
        }
        let again = RequeuedRun { run_at: self.now, uses_attempt: true };
        Ok(Finish { crashed: true, again: Some(again), ..self.end(RunEvent::Requeue)? })
    }

    fn failed(&self, fault: RunFault) -> Result<Finish, IllegalRunTransition> {
        let tells = if self.owner_notified { None } else { self.notification(RunEnd::Failed { code: &fault.code }) };
        // the owner was asked, and would wait for what comes of the answer
        let is_of_asked = fault.code == SCHEMA_CHANGED && tells.is_none() && !self.owner_notified;
        let output = self.task.map(|task| &task.spec.output);
        let failure = || NewDelivery::failure_of_asked(self.run, output, self.recipient);
        let deliveries = is_of_asked.then(failure).flatten().into_iter().collect();
        let reason = fault.end_reason().map(str::to_owned);
        Ok(Finish { reason, error: Some(fault), tells, deliveries, ..self.end(RunEvent::Fail)? })
    }

    fn notification(&self, end: RunEnd) -> Option<RunNotification> {
        RunNotification::of(self.run, self.task, self.recipient, end)
    }

    /// The question to the recipient, whatever becomes of the run's result.
    fn approval_question(&self, batch: Uuid) -> Option<NewDelivery> {
        let Run { id, tenant_id, .. } = self.run;
        let output = self.task.map(|task| &task.spec.output);
        let to = (tenant_id.as_str(), self.recipient);
        NewDelivery::question((tenant_id, *id), to, output, batch, None)
    }

    fn end(&self, event: RunEvent) -> Result<Finish, IllegalRunTransition> {
        Ok(Finish {
            attempt: self.run.attempt,
            usage: self.usage,
            execution_ms: self.ran.as_millis() as i64,
            overlap_counts_waiting: self.task.is_some_and(|task| task.spec.overlap_counts_waiting()),
            in_conversation: self.run.conversation_id().is_some(),
            ..Finish::of(self.lease, self.run.task_id, RunState::Running.on(event)?)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::base::id::Tenant;
    use crate::domain::approval::OpenQuestion;
    use crate::domain::notification::{MessageKind, SubjectRef};
    use crate::domain::run::RunFinish;
    use crate::domain::task::{Draft, RetryPolicy, Spec};

    fn now() -> DateTime<Utc> {
        "2027-03-01T08:00:00Z".parse().unwrap()
    }

    fn task(retry: RetryPolicy) -> Task {
        let spec: Spec = serde_json::from_value(json!({
            "trigger": { "type": "schedule", "interval": "1m" }, "executor": "test", "action": {}, "max_runs": null,
            "timeout_seconds": 600, "retry": retry, "pause_after_failures": null, "metadata": {},
        }))
        .unwrap();
        let draft = Draft { tenant: Tenant::new("ann").unwrap(), key: None, name: "a task".into(), spec };
        Task::new(Uuid::from_u128(1), draft, now()).unwrap().0
    }

    /// A run in its `attempt`th attempt, after `crashes` crashes before this execution.
    fn run(attempt: i32, crashes: i32) -> Run {
        let (task_id, id) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let key = "s:2027-03-01T08:00:00.000Z";
        Run {
            state: RunState::Running,
            attempt,
            crashes,
            started_at: Some(now()),
            ..Run::queued(task_id, id, "ann", key, "schedule", now(), now())
        }
    }

    fn ending<R>(attempt: i32, crashes: i32, random: f64, act: impl FnOnce(RunEnding) -> R) -> R {
        let task = task(RetryPolicy { max_attempts: 20, backoff_seconds: 10 });
        act(RunEnding {
            lease: Lease { run_id: Uuid::from_u128(2), token: 7 },
            run: &run(attempt, crashes),
            task: Some(&task),
            recipient: None,
            usage: Usage::default(),
            ran: Duration::from_millis(1500),
            now: now(),
            owner_notified: false,
            random,
        })
    }

    /// How many seconds later the next attempt follows; `None` when the run has failed.
    fn next_attempt(attempt: i32, random: f64, after: Option<u64>) -> Option<i64> {
        let error = RunError::Retry { fault: RunFault::new("busy", ""), after: after.map(Duration::from_secs) };
        let finish = ending(attempt, 0, random, |ending| ending.finish(Err(error))).unwrap().unwrap();
        assert_eq!(finish.state, if finish.again.is_some() { RunState::Queued } else { RunState::Failed });
        finish.again.map(|again| {
            assert!(again.uses_attempt);
            (again.run_at - now()).num_seconds()
        })
    }

    #[test]
    fn waits_double_from_attempt_to_attempt_up_to_an_hour_and_chance_shares_them_out() {
        assert_eq!([1, 2, 3, 4].map(|attempt| next_attempt(attempt, 1.0, None)), [10, 20, 40, 80].map(Some));
        assert_eq!(next_attempt(3, 0.25, None), Some(10));
        assert_eq!(next_attempt(3, 0.0, None), Some(0));
        assert_eq!(next_attempt(19, 1.0, None), Some(3600));
        assert_eq!(next_attempt(20, 1.0, None), None, "twenty attempts are all there are");
    }

    #[test]
    fn wait_that_was_asked_for_is_the_least_but_never_more_than_a_day() {
        assert_eq!(next_attempt(1, 1.0, Some(300)), Some(300));
        assert_eq!(next_attempt(4, 1.0, Some(30)), Some(80));
        assert_eq!(next_attempt(1, 1.0, Some(7_200)), Some(7_200));
        assert_eq!(next_attempt(1, 1.0, Some(90_000)), Some(86_400));
    }

    #[test]
    fn run_that_a_budget_or_the_loop_detector_ends_says_so_as_its_reason() {
        let reason = |code: &str| {
            let failed = ending(1, 0, 1.0, |ending| ending.finish(Err(RunError::fail(code, ""))));
            let finish = failed.unwrap().unwrap();
            assert_eq!(finish.state, RunState::Failed);
            finish.reason
        };
        assert_eq!(reason("budget_task_tokens").as_deref(), Some("budget"));
        assert_eq!(reason("loop").as_deref(), Some("loop"));
        assert_eq!(reason("timeout"), None);
    }

    #[test]
    fn quiet_end_says_as_any_other_that_an_agent_was_stopped() {
        let stopped = Some(RunFinish::MaxTurns);
        let quiet = RunOutcome::Quiet { reason: "filtered".into(), finish: stopped, usage: Usage::default() };
        let finish = ending(1, 0, 1.0, |ending| ending.finish(Ok(quiet))).unwrap().unwrap();
        let (state, reason) = (finish.state, finish.reason.as_deref());
        assert_eq!((state, reason, finish.finish), (RunState::Succeeded, Some("filtered"), stopped));
        assert_eq!((finish.output, finish.tells), (None, None));
    }

    #[test]
    fn hand_back_uses_no_attempt_and_waits_for_nothing() {
        let finish = ending(20, 0, 1.0, |ending| ending.finish(Err(RunError::HandBack))).unwrap().unwrap();
        assert_eq!(finish.again, Some(RequeuedRun { run_at: now(), uses_attempt: false }));
        assert_eq!((finish.state, finish.execution_ms), (RunState::Queued, 1500));
    }

    #[test]
    fn crash_is_an_attempt_and_the_third_is_the_last() {
        let after = |attempt, crashes| ending(attempt, crashes, 1.0, |ending| ending.crashed()).unwrap();
        let again = Some(RequeuedRun { run_at: now(), uses_attempt: true });
        assert_eq!((after(1, 0).again, after(5, 1).again), (again, again));
        assert!(after(1, 0).crashed && after(3, 2).crashed, "counted with the end");
        for finish in [after(3, 2), after(20, 0)] {
            assert_eq!((finish.state, finish.again), (RunState::Failed, None));
            assert_eq!(finish.error.unwrap().code, "crashed");
        }
    }

    #[test]
    fn infrastructure_delays_use_no_attempt_and_have_a_limit_of_their_own() {
        let task = task(RetryPolicy { max_attempts: 1, backoff_seconds: 10 });
        let after = |infra_retries, random| {
            let run = Run { infra_retries, ..run(1, 0) };
            let ending = RunEnding {
                lease: Lease { run_id: run.id, token: 7 },
                run: &run,
                task: Some(&task),
                recipient: None,
                usage: Usage::default(),
                ran: Duration::ZERO,
                now: now(),
                owner_notified: false,
                random,
            };
            let fault = RunFault::new("store_unavailable", "");
            ending.finish(Err(RunError::Infrastructure { fault })).unwrap().unwrap()
        };
        for (before, random, seconds) in [(0, 1.0, 1), (1, 1.0, 2), (4, 0.5, 8), (8, 1.0, 256), (19, 1.0, 300)] {
            let finish = after(before, random);
            let again = RequeuedRun { run_at: now() + chrono::TimeDelta::seconds(seconds), uses_attempt: false };
            assert_eq!((finish.again, finish.infra_retry, finish.state), (Some(again), true, RunState::Queued));
        }
        let last = after(20, 1.0);
        assert_eq!((last.state, last.again, last.infra_retry), (RunState::Failed, None, false));
        assert_eq!(last.error.unwrap().code, "store_unavailable");
    }

    #[test]
    fn question_reaches_the_recipient_even_where_the_result_is_told_to_nobody() {
        let run = run(1, 0);
        let mut task = task(RetryPolicy::default());
        task.spec.output = crate::domain::task::Output::nobody();
        let recipient: Recipient = serde_json::from_value(json!({
            "timezone": "UTC", "locale": "en", "addresses": { "email": "ann@example.org" },
        }))
        .unwrap();
        let ending = RunEnding {
            lease: Lease { run_id: run.id, token: 7 },
            run: &run,
            task: Some(&task),
            recipient: Some(&recipient),
            usage: Usage::default(),
            ran: Duration::ZERO,
            now: now(),
            owner_notified: false,
            random: 0.0,
        };
        let asks_of = |kind| {
            let open = vec![OpenQuestion { id: Uuid::from_u128(9), turn: 1, kind }];
            let outcome = RunOutcome::Asks { asks: vec![], open: open.clone(), usage: Usage::default() };
            (open, ending.finish(Ok(outcome)).unwrap().unwrap())
        };
        assert_eq!(asks_of(QuestionKind::Input).1.state, RunState::WaitingForInput);
        let (open, finish) = asks_of(QuestionKind::Approval);
        assert_eq!((finish.state, finish.deliveries.len()), (RunState::PendingApproval, 0));
        assert_eq!(finish.park, Some(Park::Approval { wake_at: now(), asks: vec![], open }));
        let ask = ending.approval_question(Uuid::from_u128(5)).unwrap();
        assert_eq!((ask.channel.as_str(), ask.kind, ask.run_id), ("email", MessageKind::Ask, Some(run.id)));
        assert_eq!(ask.subject_ref, Some(SubjectRef::Questions { batch_id: Uuid::from_u128(5) }));
    }

    #[test]
    fn end_of_a_run_of_a_conversation_is_noted_as_its_use_and_no_other_end_is() {
        let task = task(RetryPolicy::default());
        let is_use = |trigger_type: &str| {
            let run = Run { trigger_type: trigger_type.into(), ..run(1, 0) };
            let ending = RunEnding {
                lease: Lease { run_id: run.id, token: 7 },
                run: &run,
                task: Some(&task),
                recipient: None,
                usage: Usage::default(),
                ran: Duration::ZERO,
                now: now(),
                owner_notified: false,
                random: 0.0,
            };
            ending.finish(Err(RunError::fail("timeout", ""))).unwrap().unwrap().in_conversation
        };
        assert_eq!(["chat", "schedule", "event"].map(is_use), [true, false, false]);
    }

    #[test]
    fn changed_fields_are_told_to_the_owner_even_where_the_result_is_told_to_nobody() {
        let (run, mut task) = (run(1, 0), task(RetryPolicy::default()));
        let recipient: Recipient = serde_json::from_value(json!({
            "timezone": "UTC", "locale": "en", "addresses": { "email": "ann@example.org" },
        }))
        .unwrap();
        let told = |task: &Task, code: &str| {
            let ending = RunEnding {
                lease: Lease { run_id: run.id, token: 7 },
                run: &run,
                task: Some(task),
                recipient: Some(&recipient),
                usage: Usage::default(),
                ran: Duration::ZERO,
                now: now(),
                owner_notified: false,
                random: 0.0,
            };
            let finish = ending.finish(Err(RunError::fail(code, ""))).unwrap().unwrap();
            let of_failure = |one: NewDelivery| (one.channel, one.kind, one.run_id == Some(run.id));
            (finish.tells.is_some(), finish.deliveries.into_iter().map(of_failure).collect::<Vec<_>>())
        };
        assert_eq!(told(&task, SCHEMA_CHANGED), (true, vec![]), "as any failure is told");
        task.spec.output = crate::domain::task::Output::nobody();
        let failure = ("email".to_owned(), MessageKind::Failure, true);
        assert_eq!(told(&task, SCHEMA_CHANGED), (false, vec![failure]));
        assert_eq!(told(&task, "timeout"), (false, vec![]));
    }

    #[test]
    fn end_for_which_nobody_is_looked_up_is_the_same_whoever_the_recipient_is() {
        let run = run(1, 0);
        let (told, mut quiet) = (task(RetryPolicy::default()), task(RetryPolicy::default()));
        quiet.spec.output = crate::domain::task::Output::nobody();
        let recipient: Recipient = serde_json::from_value(json!({
            "timezone": "UTC", "locale": "en", "addresses": { "email": "ann@example.org" },
        }))
        .unwrap();
        let (usage, reason) = (Usage::default(), || "told".to_owned());
        let results: [(Result<RunOutcome, RunError>, [bool; 2]); 11] = [
            (Ok(RunOutcome::Succeeded { output: "done".into(), finish: None, usage }), [true, false]),
            (Ok(RunOutcome::Asks { asks: vec![], open: vec![], usage }), [true, true]),
            (Ok(RunOutcome::Quiet { reason: reason(), finish: None, usage }), [false, false]),
            (Ok(RunOutcome::Skipped { reason: reason(), usage }), [false, false]),
            (Ok(RunOutcome::Waits { until: now(), usage }), [false, false]),
            (Err(RunError::fail("timeout", "")), [true, false]),
            (Err(RunError::fail(SCHEMA_CHANGED, "")), [true, true]),
            (Err(RunError::retry("busy", "")), [true, false]),
            (Err(RunError::Infrastructure { fault: RunFault::new("store_unavailable", "") }), [true, false]),
            (Err(RunError::Cancelled { reason: reason() }), [false, false]),
            (Err(RunError::HandBack), [false, false]),
        ];
        for (result, depends) in results {
            for (task, depends) in [&told, &quiet].into_iter().zip(depends) {
                assert_eq!(depends_on_recipient(Some(task), &result), depends, "{result:?}");
                let end = |recipient| {
                    let ending = RunEnding {
                        lease: Lease { run_id: run.id, token: 7 },
                        run: &run,
                        task: Some(task),
                        recipient,
                        usage,
                        ran: Duration::ZERO,
                        now: now(),
                        owner_notified: false,
                        random: 0.0,
                    };
                    ending.finish(result.clone())
                };
                assert!(depends || end(None) == end(Some(&recipient)), "{result:?}");
            }
        }
    }

    #[test]
    fn run_writes_nothing_after_its_lease_is_lost() {
        assert_eq!(ending(1, 0, 1.0, |ending| ending.finish(Err(RunError::LeaseLost))), Ok(None));
    }
}
