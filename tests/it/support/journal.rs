//! An executor that does as its task says, and a journal of what it was given. The journal outlives instances, so that
//! a test sees what was executed on both sides of a crash.
//!
//! `action.config.acts` lists what each attempt does, the last one over and over: `succeed`, `say:TEXT`, `nul` (says a
//! text with a NUL), `retry`, `retry:SECONDS` (Retry-After), `fail`, `lack:CREDENTIAL`, `skip`, `panic`, `hang` (until
//! it is asked to end), `sleep:SECONDS`, `deaf` (for ever, whatever is asked), `ask:SECONDS` (puts two questions with
//! so much time to answer, and goes on once they are settled), `foreign:SECONDS` (waits for its completion so long),
//! `wait` (until the test opens the gate), `give_up` (as `hang`, but calls what it was asked a passing fault).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures::future::BoxFuture;
use reveille::base::id::new_id;
use reveille::base::invalid::ValidationErrors;
use reveille::domain::approval::{Approval, Proposal, ProposalIdentity};
use reveille::domain::credential::{CredentialIssue, CredentialIssueKind, Reference};
use reveille::domain::run::outcome::{RunError, RunFault, RunOutcome};
use reveille::domain::run::{MissedInstants, Usage};
use reveille::domain::task::Action;
use reveille::executor::{Executor, Job};
use serde_json::json;
use tokio::sync::watch;
use uuid::Uuid;

/// How long a start may take on a loaded machine with two cores.
const PATIENCE: Duration = Duration::from_secs(30);

/// An execution that has started.
#[derive(Debug, Clone, PartialEq)]
pub struct StartedExecution {
    pub run_id: Uuid,
    pub fire_key: String,
    pub attempt: i32,
    pub at: DateTime<Utc>,
    pub missed: Option<MissedInstants>,
    /// The instance that executes it.
    pub instance: usize,
}

/// The end of an execution, as it was written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedEnd {
    ByItself,
    /// The engine let go of it.
    Dropped,
}

/// Executions of all instances. Clones share one journal.
#[derive(Clone)]
pub struct Journal(Arc<Shared>);

struct Shared {
    begun: watch::Sender<Vec<StartedExecution>>,
    ended: Mutex<Vec<(Uuid, RecordedEnd)>>,
    gate: watch::Sender<bool>,
}

impl Journal {
    pub fn new() -> Journal {
        let (begun, gate) = (watch::channel(Vec::new()).0, watch::channel(false).0);
        Journal(Arc::new(Shared { begun, ended: Mutex::default(), gate }))
    }

    pub fn begun(&self) -> Vec<StartedExecution> {
        self.0.begun.borrow().clone()
    }

    /// Waits until an executor has begun with the run: it comes to that a little after the run was started.
    pub async fn until_begun(&self, run_id: Uuid) {
        let mut begun = self.0.begun.subscribe();
        let has_begun = begun.wait_for(|begun| begun.iter().any(|begun| begun.run_id == run_id));
        tokio::time::timeout(PATIENCE, has_begun).await.expect("it begins").expect("the journal is here");
    }

    /// How the executions of a run ended, in order.
    pub fn ended(&self, run_id: Uuid) -> Vec<RecordedEnd> {
        self.0.ended.lock().unwrap().iter().filter(|(id, _)| *id == run_id).map(|(_, ended)| *ended).collect()
    }

    /// Lets all that wait go on, now and later.
    pub fn open_gate(&self) {
        self.0.gate.send_replace(true);
    }

    /// The executor `test` of one instance.
    pub fn executor(&self, instance: usize) -> Arc<dyn Executor> {
        Arc::new(ScriptedExecutor { journal: self.clone(), instance })
    }
}

struct ScriptedExecutor {
    journal: Journal,
    instance: usize,
}

/// Guard of an execution, which writes down its end, whichever it is.
struct EndGuard {
    journal: Journal,
    run_id: Uuid,
    ended: RecordedEnd,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.journal.0.ended.lock().unwrap().push((self.run_id, self.ended));
    }
}

impl Executor for ScriptedExecutor {
    fn name(&self) -> &'static str {
        "test"
    }

    fn validate(&self, _: &Action, _: &mut ValidationErrors) {}

    fn execute(&self, job: Job) -> BoxFuture<'_, Result<RunOutcome, RunError>> {
        Box::pin(async move {
            let begun = StartedExecution {
                run_id: job.run.id,
                fire_key: job.run.fire_key.clone(),
                attempt: job.run.attempt,
                at: job.clock.now(),
                missed: job.run.missed.clone(),
                instance: self.instance,
            };
            self.journal.0.begun.send_modify(|all| all.push(begun));
            let mut watched =
                EndGuard { journal: self.journal.clone(), run_id: job.run.id, ended: RecordedEnd::Dropped };
            let result = self.act(&job).await;
            watched.ended = RecordedEnd::ByItself;
            result
        })
    }
}

impl ScriptedExecutor {
    async fn act(&self, job: &Job) -> Result<RunOutcome, RunError> {
        let config = &job.task.as_ref().expect("a task").spec.action.config;
        let acts: Vec<&str> = config["acts"].as_array().expect("acts").iter().filter_map(|act| act.as_str()).collect();
        let attempt = (job.run.attempt.max(1) - 1) as usize;
        let act = acts[attempt.min(acts.len() - 1)];
        match act.split_once(':').unwrap_or((act, "")) {
            ("nul", _) => Ok(succeeded("a\0b")),
            ("succeed", _) => Ok(succeeded("done")),
            ("say", text) => Ok(succeeded(text)),
            ("retry", "") => Err(RunError::retry("busy", "try again")),
            ("retry", seconds) => {
                let after = Some(Duration::from_secs(seconds.parse().expect("seconds")));
                Err(RunError::Retry { fault: RunFault::new("busy", "try again"), after })
            }
            ("fail", _) => Err(RunError::fail("broken", "it is broken")),
            ("lack", name) => {
                let credential = Reference::parse(name).expect("a reference");
                let credential_issue =
                    Some(Box::new(CredentialIssue { credential, kind: CredentialIssueKind::Missing, sent_at: None }));
                Err(RunError::Fail {
                    fault: RunFault { credential_issue, ..RunFault::new("lacks", "it lacks something") },
                })
            }
            ("skip", _) => Ok(RunOutcome::Skipped { reason: "quota".into(), usage: Usage::default() }),
            ("panic", _) => panic!("as the task says"),
            ("hang", _) => job.stop.run_until_stopped(std::future::pending()).await,
            ("give_up", _) => {
                job.stop.requested().await;
                Err(RunError::retry("interrupted", "a connection broke"))
            }
            ("deaf", _) => std::future::pending().await,
            ("sleep", seconds) => {
                // counted from its start, whenever the executor comes to it
                let length = TimeDelta::seconds(seconds.parse().expect("seconds"));
                job.clock.sleep_until(job.run.started_at.expect("a started run") + length).await;
                Ok(succeeded("slept"))
            }
            ("ask", seconds) => {
                let begun = self.journal.begun();
                if begun.iter().filter(|begun| begun.run_id == job.run.id).count() > 1 {
                    return Ok(succeeded("went on"));
                }
                let length = TimeDelta::seconds(seconds.parse().expect("seconds"));
                let asks = ["one", "two"].map(|call| (question(job, call, length), None)).into();
                Ok(RunOutcome::Asks { asks, open: vec![], usage: Usage::default() })
            }
            ("foreign", seconds) => {
                let until = job.clock.now() + TimeDelta::seconds(seconds.parse().expect("seconds"));
                Ok(RunOutcome::Waits { until, usage: Usage::default() })
            }
            ("wait", _) => {
                let _ = self.journal.0.gate.subscribe().wait_for(|open| *open).await;
                Ok(succeeded("waited"))
            }
            other => panic!("unknown act {other:?}"),
        }
    }
}

fn succeeded(text: &str) -> RunOutcome {
    RunOutcome::Succeeded { output: text.to_owned(), finish: None, usage: Usage::default() }
}

/// A question about a call of the run's first turn.
fn question(job: &Job, call: &str, length: TimeDelta) -> Approval {
    let (run, now) = (&job.run, job.clock.now());
    let proposal: Proposal = serde_json::from_value(json!({
        "tool": "pay", "version": "1.0.0", "definition": "d", "summary": format!("Pay the invoice {call}"),
        "description": "Pays an invoice.", "arguments": { "invoice": call }, "parameters": { "type": "object" },
        "category": "write", "consequence": "high", "reasons": ["the matrix says confirm"],
        "options": ["approve", "edit", "cancel"], "allow_modification": true, "source": "trigger", "approvers": 1,
        "timeout_seconds": length.num_seconds(),
    }))
    .expect("a proposal");
    let of = ProposalIdentity { tenant: &run.tenant_id, run_id: run.id, turn: 1, call_id: call };
    let ids = (new_id(now), run.id);
    Approval { expires_at: now + length, ..Approval::asked(ids, of, run.task_id, proposal, now) }
}
