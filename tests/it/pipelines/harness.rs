//! A pipeline on the harness of the agent's tests: a fake model and fake tools, a transcript in memory, a host that
//! writes down what it is asked, and a real HTTP server for the other side.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use reveille::agent::configured::agent_tool::StepAgents;
use reveille::agent::{AgentDefinition, AgentStore, AppendError, UncountedSlot};
use reveille::base::compute::Compute;
use reveille::base::id::Tenant;
use reveille::base::invalid::ValidationErrors;
use reveille::domain::run::cause::Cause;
use reveille::domain::run::outcome::{RunError, RunOutcome};
use reveille::domain::run::transcript::{StepOutcome, TranscriptEntry, TranscriptMessage};
use reveille::domain::run::{Run, RunOrigin, RunState};
use reveille::domain::task::{Action, Draft, Task, TaskValidator};
use reveille::executor::pipeline::{Pipeline, StepParts};
use reveille::executor::{Executor, Job};
use reveille::ports::egress::{self, Egress};
use reveille::ports::vault::credentials::Credentials;
use serde_json::{Value, json};
use tokio::sync::watch;
use uuid::Uuid;

use crate::agent::harness::{AgentHarness, Memory, RUN, no_credentials, start};

pub const TASK: Uuid = Uuid::from_u128(77);

pub fn egress() -> Egress {
    let settings = egress::Settings { allow: vec!["127.0.0.1:*".into()], ..egress::Settings::default() };
    Egress::new(&settings).unwrap()
}

pub fn pipeline(stage: &AgentHarness) -> Pipeline {
    pipeline_with(stage, Compute::of_machine())
}

/// A pipeline that computes there.
pub fn pipeline_with(stage: &AgentHarness, compute: Compute) -> Pipeline {
    let librarian = AgentDefinition {
        name: "librarian".into(),
        description: String::new(),
        instruction: "You look things up.".into(),
        tools: None,
        deny_tools: Vec::new(),
        model: None,
        fields: Vec::new(),
        skills: Some(vec!["dates".into()]),
        expose_as_tool: true,
        approval: false,
        timeout_seconds: None,
        max_turns: Some(2),
        approvals: Default::default(),
    };
    // steps alone may call these
    let waiter = json!({
        "name": "waiter", "instruction": "You book tables.", "expose_as_tool": false, "timeout_seconds": 25,
        "fields": [
            { "name": "email", "type": "string", "required": true, "validator": "value.contains('@')",
              "validator_description": "an address with an @" },
            { "name": "party", "type": "integer", "required": true, "max": 12 },
            { "name": "room", "type": "string", "default": "hall" },
        ],
    });
    let payer = json!({ "name": "payer", "instruction": "You pay.", "expose_as_tool": false, "approval": true });
    let hidden = [waiter, payer].map(|agent| serde_json::from_value(agent).expect("an agent"));
    Pipeline::new(StepParts {
        credentials: Credentials::none(egress()),
        agent: stage.agent.clone(),
        agents: StepAgents::new([librarian].into_iter().chain(hidden).collect()),
        channels: vec!["email".into()],
        compute,
        expressions: Default::default(),
        templates: Default::default(),
    })
}

/// The faults of these steps.
pub fn faults(stage: &AgentHarness, config: Value) -> Vec<(String, String)> {
    let mut faults = ValidationErrors::new();
    let action = Action { instruction: String::new(), config: config.as_object().cloned().unwrap_or_default() };
    pipeline(stage).validate(&action, &mut faults);
    faults.0.into_iter().map(|fault| (fault.pointer, fault.message)).collect()
}

pub fn event(data: Value) -> Cause {
    let event = json!({
        "specversion": "1.0", "id": "1", "source": "shop", "type": "order", "tenantid": "ann", "data": data,
    });
    Cause::Event { event, events: vec![] }
}

fn task(config: Value) -> Task {
    let validator = TaskValidator {
        channels: vec![],
        check: Arc::new(|_, _, _| {}),
        poll: Arc::new(|_, _, _, _| {}),
        seal: Arc::new(|_, _, _, _| Ok(())),
    };
    let fields = json!({
        "name": "Orders", "executor": "pipeline", "action": { "config": config },
        "trigger": { "type": "schedule", "interval": "1h" }, "metadata": { "team": "sales" },
    });
    let draft = Draft::parse(Tenant::new("ann").map_err(|why| panic!("{why}")), &fields, &validator, start()).unwrap();
    Task::new(TASK, draft, start()).unwrap().0
}

pub fn job(stage: &AgentHarness, store: Arc<dyn AgentStore>, config: Value, cause: Option<Cause>) -> Job {
    let run = Run {
        origin: RunOrigin::Request,
        state: RunState::Running,
        attempt: 1,
        cause,
        input: Some(json!({ "who": "Ann" })),
        started_at: Some(start()),
        ..Run::queued(TASK, RUN, "ann", "m:1", "schedule", start(), start())
    };
    Job {
        run: Arc::new(run),
        is_first: true,
        task: Some(Arc::new(task(config))),
        timezone: chrono_tz::Europe::Berlin,
        locale: None,
        channel: None,
        store,
        host: stage.host.clone(),
        stop: stage.stop.clone(),
        slot: Arc::new(UncountedSlot),
        sink: Arc::new(|_| {}),
        clock: stage.clock.clone(),
        credentials: no_credentials(),
        used_secrets: Default::default(),
    }
}

/// One attempt, whose end is recorded.
pub async fn run(stage: &AgentHarness, config: Value, cause: Option<Cause>) -> Result<RunOutcome, RunError> {
    let ended = pipeline(stage).execute(job(stage, stage.store.clone(), config, cause)).await;
    stage.store.end();
    ended
}

/// The answer of a pipeline of one attempt.
pub async fn answer(stage: &AgentHarness, steps: Value, cause: Option<Cause>) -> String {
    match run(stage, json!({ "steps": steps }), cause).await {
        Ok(RunOutcome::Succeeded { output, .. }) => output,
        other => panic!("no answer: {other:?}"),
    }
}

pub fn failure(result: Result<RunOutcome, RunError>) -> String {
    match result {
        Err(RunError::Fail { fault }) => format!("fail {}", fault.code),
        Err(RunError::Retry { fault, after }) => format!("retry {} {after:?}", fault.code),
        other => panic!("no failure: {other:?}"),
    }
}

/// The ledger, a line an entry: `order?` an intent, `order=…` a value, `order!code` a failure, `order~code` to be tried
/// again; `[i]` behind the name of an item.
pub fn ledger(store: &Memory) -> Vec<String> {
    let line = |message| match message {
        TranscriptMessage::Step { name, index, .. } => Some(format!("{name}{}?", of(index))),
        TranscriptMessage::StepResult { name, index, outcome, .. } => Some(match outcome {
            StepOutcome::Done { value, .. } => format!("{name}{}={value}", of(index)),
            StepOutcome::Failed { error } => format!("{name}{}!{}", of(index), error.code),
            StepOutcome::Again { error } => format!("{name}{}~{}", of(index), error.code),
        }),
        _ => None,
    };
    store.messages().into_iter().filter_map(line).collect()
}

fn of(index: Option<u32>) -> String {
    index.map_or(String::new(), |index| format!("[{index}]"))
}

/// When a worker dies, counted in appends to the transcript; the record of the end counts as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// Before this append.
    Before(usize),
    /// After it: it is stored, and nobody hears of it.
    After(usize),
}

/// A transcript whose writer dies at one append.
pub struct MortalTranscript {
    pub kept: Arc<Memory>,
    death: Death,
    appends: AtomicUsize,
    /// Entries that go with the worker.
    deferred: Mutex<Vec<TranscriptEntry>>,
    dead: watch::Sender<bool>,
}

impl MortalTranscript {
    pub fn new(kept: Arc<Memory>, death: Death) -> Arc<MortalTranscript> {
        let (appends, deferred, dead) = (AtomicUsize::new(0), Mutex::default(), watch::channel(false).0);
        Arc::new(MortalTranscript { kept, death, appends, deferred, dead })
    }

    /// The outcome, or `None` where the worker died before there was one.
    pub async fn execute(
        self: &Arc<MortalTranscript>,
        stage: &AgentHarness,
        config: &Value,
    ) -> Option<Result<RunOutcome, RunError>> {
        let mut dead = self.dead.subscribe();
        tokio::select! {
            result = async {
                let ended = pipeline(stage).execute(job(stage, self.clone(), config.clone(), None)).await;
                let deferred = std::mem::take(&mut *self.deferred.lock().unwrap());
                self.append(deferred).await.expect("the record of the end");
                ended
            } => Some(result),
            _ = dead.wait_for(|dead| *dead) => None,
        }
    }
}

impl AgentStore for MortalTranscript {
    fn load(&self) -> BoxFuture<'_, Result<Vec<TranscriptEntry>, AppendError>> {
        self.kept.load()
    }

    fn append(&self, entries: Vec<TranscriptEntry>) -> BoxFuture<'_, Result<(), AppendError>> {
        let n = self.appends.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            match self.death {
                Death::Before(at) if at == n => {}
                Death::After(at) if at == n => self.kept.append(entries).await?,
                _ => {
                    let last = entries.last().map_or(-1, |entry| entry.seq);
                    self.deferred.lock().unwrap().retain(|entry| entry.seq > last);
                    return self.kept.append(entries).await;
                }
            }
            self.dead.send_replace(true);
            std::future::pending().await
        })
    }

    fn defer(&self, entries: Vec<TranscriptEntry>) {
        self.deferred.lock().unwrap().extend(entries);
    }
}
