//! The harness of the agent's tests: a store in memory, a host that writes down what it is asked, models and tools that
//! do as they are told, and time that passes by itself.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures::FutureExt;
use futures::future::BoxFuture;
use reveille::agent::configured::agent_tool::AgentTool;
use reveille::agent::{
    Agent, AgentOverrides, AgentRequest, AgentResponse, AgentStore, AppendError, ApprovalContext, Settings, StopSignal,
    SummaryCost, TranscriptSlice, UncountedSlot,
};
use reveille::base::clock::Clock;
use reveille::base::compute::Compute;
use reveille::base::id::Tenant;
use reveille::base::template::untrusted::RULE;
use reveille::domain::approval;
use reveille::domain::approval::matrix::{Category, Consequence};
use reveille::domain::approval::policy::Policy;
use reveille::domain::approval::{Approval, ApprovalOverride, ApprovedCallStart, CallOutcome, GrantAsk};
use reveille::domain::budget::CallBound;
use reveille::domain::data_file::{DataFilePart, NewDataFile};
use reveille::domain::event::Event;
use reveille::domain::memory::{Fact, NewFact, is_profile};
use reveille::domain::run::ToolAttribution;
use reveille::domain::run::outcome::RunError;
use reveille::domain::run::stream::StreamEvent;
use reveille::domain::run::transcript::{ToolCall, TranscriptEntry, TranscriptMessage};
use reveille::ports::llm::breaker::ModelBreaker;
use reveille::ports::llm::fallback::{ChainLink, ModelOrigin};
use reveille::ports::llm::pricing::TokenPrices;
use reveille::ports::llm::tokens::TokenCounter;
use reveille::ports::llm::{LlmError, Model, ModelAnswer, ModelRequest, ModelTokens, Models, OnDelta, StopReason};
use reveille::ports::skill::SkillLibrary;
use reveille::ports::tool::access::ToolLimits;
use reveille::ports::tool::{
    Definition, FactQuery, HostError, MissedByStep, TaskQuery, TenantCredentials, Tool, ToolContext, ToolError,
    ToolHost, ToolNotice, ToolOutput, ToolRegistry,
};
use serde_json::{Map, Value, json};
use uuid::Uuid;

pub const RUN: Uuid = Uuid::from_u128(7);

/// The system message of an agent with these tools whose answer no channel carries.
pub fn system_message(tools: &str) -> String {
    system_parts(tools).concat()
}

/// The part of it that all runs of the agent share, and the one of this run.
pub fn system_parts(tools: &str) -> [String; 2] {
    let of_run = "This run:\nYour answer stays on the record of the run; no channel carries it.\n\
                  Current time: Thursday, 2026-12-24T08:00:00+01:00 (2026-12-24T07:00:00Z).\n\
                  The recipient's time zone: Europe/Berlin.\n";
    [format!("Be brief.\n\nYour tools: {tools}.\n{RULE}\n\n"), of_run.to_owned()]
}

pub fn start() -> DateTime<Utc> {
    "2026-12-24T07:00:00Z".parse().unwrap()
}

/// A transcript in memory.
#[derive(Default)]
pub struct Memory {
    pub entries: Mutex<Vec<TranscriptEntry>>,
    /// How many entries each append has brought.
    pub appended: Mutex<Vec<usize>>,
    /// Entries that wait for the next append, or the end.
    pub deferred: Mutex<Vec<TranscriptEntry>>,
    /// Failures of the coming appends; an empty place is one that succeeds.
    pub failures: Mutex<VecDeque<Option<AppendError>>>,
    /// Questions to people; a test answers by changing them.
    pub approvals: Mutex<Vec<Approval>>,
    /// Tools that a standing grant covers.
    pub granted: Mutex<Vec<String>>,
    /// Overrides of the matrix.
    pub overrides: Mutex<Vec<ApprovalOverride>>,
    /// The tools whose overrides were read together, each time.
    pub override_reads: Mutex<Vec<String>>,
    /// A tool whose grants are answered after those of the others.
    pub answered_last: Mutex<Option<String>>,
    /// Messages of earlier runs.
    pub history: Mutex<Vec<TranscriptMessage>>,
    /// Costs for which summaries have asked.
    pub summaries: Mutex<Vec<SummaryCost>>,
    /// Amounts that summaries have given back, in micro-dollars.
    pub given_back: Mutex<Vec<i64>>,
    /// Nothing is left for summaries.
    pub refuses_summaries: bool,
    /// Budgets hold, and have something left.
    pub is_budgeted: bool,
    /// The turns whose calls were reserved, each with whether that came with an append.
    pub reserved: Mutex<Vec<(i64, bool)>>,
    /// The most that each call may come to that was reserved by itself.
    pub bounds: Mutex<Vec<CallBound>>,
    /// As many runs of the tenant wait for people as may.
    pub refuses_questions: AtomicBool,
}

impl Memory {
    pub fn of(entries: Vec<TranscriptEntry>) -> Arc<Memory> {
        Arc::new(Memory { entries: Mutex::new(entries), ..Memory::default() })
    }

    /// Stores what waited, as the record of an execution's end does; answers how many entries those were.
    pub fn end(&self) -> usize {
        let deferred = std::mem::take(&mut *self.deferred.lock().unwrap());
        let count = deferred.len();
        self.entries.lock().unwrap().extend(deferred);
        count
    }

    pub fn messages(&self) -> Vec<TranscriptMessage> {
        self.entries.lock().unwrap().iter().map(|entry| entry.message.clone()).collect()
    }
}

impl AgentStore for Memory {
    fn load(&self) -> BoxFuture<'_, Result<Vec<TranscriptEntry>, AppendError>> {
        Box::pin(async { Ok(self.entries.lock().unwrap().clone()) })
    }

    fn earlier(&self) -> BoxFuture<'_, Result<Vec<TranscriptMessage>, AppendError>> {
        Box::pin(async { Ok(self.history.lock().unwrap().clone()) })
    }

    fn append(&self, entries: Vec<TranscriptEntry>) -> BoxFuture<'_, Result<(), AppendError>> {
        Box::pin(async {
            if let Some(Some(error)) = self.failures.lock().unwrap().pop_front() {
                return Err(error);
            }
            self.appended.lock().unwrap().push(entries.len());
            let last = entries.last().map_or(-1, |entry| entry.seq);
            self.deferred.lock().unwrap().retain(|entry| entry.seq > last);
            self.entries.lock().unwrap().extend(entries);
            Ok(())
        })
    }

    fn is_budgeted(&self) -> bool {
        self.is_budgeted
    }

    fn reserve(&self, turn: i64, bound: CallBound) -> BoxFuture<'_, Result<(), RunError>> {
        self.reserved.lock().unwrap().push((turn, false));
        self.bounds.lock().unwrap().push(bound);
        Box::pin(std::future::ready(Ok(())))
    }

    fn append_and_reserve(
        &self,
        entries: Vec<TranscriptEntry>,
        turn: i64,
        _bound: CallBound,
    ) -> BoxFuture<'_, Result<bool, AppendError>> {
        Box::pin(async move {
            self.append(entries).await?;
            self.reserved.lock().unwrap().push((turn, true));
            Ok(true)
        })
    }

    fn defer(&self, entries: Vec<TranscriptEntry>) {
        self.deferred.lock().unwrap().extend(entries);
    }

    fn approvals(&self, turn: i64) -> BoxFuture<'_, Result<Vec<Approval>, AppendError>> {
        let of_turn = |approval: &&Approval| approval.turn == turn;
        let found = self.approvals.lock().unwrap().iter().filter(of_turn).cloned().collect();
        Box::pin(std::future::ready(Ok(found)))
    }

    fn reserve_summary(&self, cost: SummaryCost) -> BoxFuture<'_, bool> {
        self.summaries.lock().unwrap().push(cost);
        Box::pin(std::future::ready(!self.refuses_summaries))
    }

    fn give_summary_back(&self, micros: i64) -> BoxFuture<'_, ()> {
        self.given_back.lock().unwrap().push(micros);
        Box::pin(std::future::ready(()))
    }

    fn may_suspend(&self) -> BoxFuture<'_, Result<bool, AppendError>> {
        Box::pin(std::future::ready(Ok(!self.refuses_questions.load(Ordering::Relaxed))))
    }

    fn begin<'a>(&'a self, approval: Uuid, digest: &'a str) -> BoxFuture<'a, Result<ApprovedCallStart, AppendError>> {
        let mut approvals = self.approvals.lock().unwrap();
        let found = approvals.iter_mut().find(|known| known.id == approval).unwrap();
        let begun = match (found.decided_digest.as_deref() == Some(digest), found.execution_started_at) {
            (_, Some(_)) => ApprovedCallStart::Before,
            (true, None) => ApprovedCallStart::Now,
            (false, None) => ApprovedCallStart::Refused,
        };
        found.execution_started_at.get_or_insert(start());
        Box::pin(std::future::ready(Ok(begun)))
    }

    fn overrides<'a>(
        &'a self,
        agent: Option<&'a str>,
        tools: &'a [&'a str],
    ) -> BoxFuture<'a, Result<Vec<ApprovalOverride>, AppendError>> {
        self.override_reads.lock().unwrap().push(tools.join(" "));
        let applies = |set: &&ApprovalOverride| {
            let is_of_agent = set.agent.is_none() || set.agent.as_deref() == agent;
            is_of_agent && tools.contains(&set.tool.as_str())
        };
        let found = self.overrides.lock().unwrap().iter().filter(applies).cloned().collect();
        Box::pin(async move {
            // others may ask meanwhile
            tokio::task::yield_now().await;
            Ok(found)
        })
    }

    fn use_grant<'a>(&'a self, call: GrantAsk<'a>) -> BoxFuture<'a, Result<Option<Uuid>, AppendError>> {
        let granted = self.granted.lock().unwrap().iter().any(|tool| tool == call.tool);
        let waits = self.answered_last.lock().unwrap().as_deref() == Some(call.tool);
        Box::pin(async move {
            for _ in 0..if waits { 100 } else { 0 } {
                tokio::task::yield_now().await;
            }
            Ok(granted.then_some(Uuid::from_u128(77)))
        })
    }

    fn note_outcome(&self, approval: Uuid, outcome: CallOutcome) -> BoxFuture<'_, ()> {
        let mut approvals = self.approvals.lock().unwrap();
        approvals.iter_mut().find(|known| known.id == approval).unwrap().outcome = Some(outcome);
        Box::pin(std::future::ready(()))
    }
}

/// A host that answers every request and writes it down.
#[derive(Default)]
pub struct Ledger {
    pub asked: Mutex<Vec<Value>>,
    /// Values that the task has stored.
    pub state: Mutex<Map<String, Value>>,
    /// Data files that were kept; the id of each is its place, from 1.
    pub files: Mutex<Vec<NewDataFile>>,
    /// Failure of the coming request.
    pub failure: Mutex<Option<HostError>>,
    /// Facts of the tenant.
    pub facts: Mutex<Vec<Fact>>,
    /// Messages for which facts were looked for.
    pub looked_for: Mutex<Vec<String>>,
    /// Failure of the look for facts at the beginning of a run.
    pub without_facts: Mutex<Option<HostError>>,
}

impl Ledger {
    fn note(&self, asked: Value) -> BoxFuture<'_, Result<Value, HostError>> {
        self.asked.lock().unwrap().push(asked);
        let failure = self.failure.lock().unwrap().take();
        Box::pin(async move { failure.map_or(Ok(json!({ "done": true })), Err) })
    }
}

impl ToolHost for Ledger {
    fn create_task<'a>(
        &'a self,
        tenant: &'a Tenant,
        draft: Value,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Value, HostError>> {
        self.note(json!({ "create": draft, "tenant": tenant, "key": key }))
    }

    fn list_tasks<'a>(&'a self, tenant: &'a Tenant, filter: TaskQuery) -> BoxFuture<'a, Result<Value, HostError>> {
        self.note(json!({ "list": [filter.status, filter.q, filter.limit], "tenant": tenant }))
    }

    fn pause_task<'a>(&'a self, tenant: &'a Tenant, id: Uuid) -> BoxFuture<'a, Result<Value, HostError>> {
        self.note(json!({ "pause": id, "tenant": tenant }))
    }

    fn resume_task<'a>(&'a self, tenant: &'a Tenant, id: Uuid) -> BoxFuture<'a, Result<Value, HostError>> {
        self.note(json!({ "resume": id, "tenant": tenant }))
    }

    fn update_task<'a>(
        &'a self,
        tenant: &'a Tenant,
        id: Uuid,
        changes: Value,
        limits: &'a ToolLimits,
    ) -> BoxFuture<'a, Result<Value, HostError>> {
        self.note(json!({ "update": id, "changes": changes, "limits": limits, "tenant": tenant }))
    }

    fn run_task<'a>(
        &'a self,
        tenant: &'a Tenant,
        id: Uuid,
        input: Option<Value>,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Value, HostError>> {
        self.note(json!({ "run": id, "input": input, "key": key, "tenant": tenant }))
    }

    fn delete_task<'a>(&'a self, tenant: &'a Tenant, id: Uuid) -> BoxFuture<'a, Result<Value, HostError>> {
        self.note(json!({ "delete": id, "tenant": tenant }))
    }

    fn notify<'a>(&'a self, tenant: &'a Tenant, notice: ToolNotice) -> BoxFuture<'a, Result<Value, HostError>> {
        let ToolNotice { run_id, channel, urgency: _, subject, text, subject_ref: _, dedupe_key } = notice;
        let words = [Some(subject), Some(text), channel, Some(dedupe_key)];
        self.note(json!({ "notify": words, "run": run_id, "tenant": tenant }))
    }

    fn publish_event<'a>(&'a self, tenant: &'a Tenant, event: Event) -> BoxFuture<'a, Result<Value, HostError>> {
        self.note(json!({ "publish": event, "tenant": tenant }))
    }

    fn task_state<'a>(&'a self, _: &'a Tenant, _: Uuid) -> BoxFuture<'a, Result<Value, HostError>> {
        Box::pin(async { Ok(Value::Object(self.state.lock().unwrap().clone())) })
    }

    fn put_task_state<'a>(
        &'a self,
        _: &'a Tenant,
        _: Uuid,
        name: &'a str,
        value: Option<Value>,
    ) -> BoxFuture<'a, Result<(), HostError>> {
        let asked = self.note(json!({ "store": name, "value": value }));
        Box::pin(async move {
            asked.await?;
            let mut state = self.state.lock().unwrap();
            match value {
                Some(value) => state.insert(name.to_owned(), value),
                None => state.remove(name),
            };
            Ok(())
        })
    }

    fn keep_data_file<'a>(&'a self, _: &'a Tenant, file: NewDataFile) -> BoxFuture<'a, Result<Uuid, HostError>> {
        let failure = self.failure.lock().unwrap().take();
        let mut files = self.files.lock().unwrap();
        files.push(file);
        let id = Uuid::from_u128(files.len() as u128);
        Box::pin(async move { failure.map_or(Ok(id), Err) })
    }

    fn read_data_file<'a>(
        &'a self,
        tenant: &'a Tenant,
        id: Uuid,
        part: DataFilePart,
    ) -> BoxFuture<'a, Result<Value, HostError>> {
        self.note(json!({ "file": id, "part": format!("{part:?}"), "tenant": tenant }))
    }

    fn facts_for<'a>(&'a self, _: &'a Tenant, text: &'a str, _: usize) -> BoxFuture<'a, Result<Vec<Fact>, HostError>> {
        self.looked_for.lock().unwrap().push(text.to_owned());
        let mut facts = self.facts.lock().unwrap().clone();
        facts.retain(|fact| !text.is_empty() || is_profile(&fact.collection, fact.origin));
        let failure = self.without_facts.lock().unwrap().clone();
        Box::pin(async move { failure.map_or(Ok(facts), Err) })
    }

    fn note_fact<'a>(
        &'a self,
        tenant: &'a Tenant,
        fact: NewFact,
        replaces: Option<String>,
    ) -> BoxFuture<'a, Result<Value, HostError>> {
        let NewFact { collection, text, origin, source, noted_by, call_key, is_direct: _ } = fact;
        let words = [collection, replaces, Some(noted_by), call_key];
        self.note(json!({ "fact": text, "origin": origin, "source": source, "words": words, "tenant": tenant }))
    }

    fn search_facts<'a>(&'a self, tenant: &'a Tenant, query: FactQuery) -> BoxFuture<'a, Result<Vec<Fact>, HostError>> {
        let asked =
            self.note(json!({ "about": query.text, "in": query.collection, "limit": query.limit, "tenant": tenant }));
        let facts = self.facts.lock().unwrap().clone();
        Box::pin(async move { asked.await.map(|_| facts) })
    }

    fn find_fact<'a>(&'a self, _: &'a Tenant, id: Uuid) -> BoxFuture<'a, Result<Fact, HostError>> {
        let found = self.facts.lock().unwrap().iter().find(|fact| fact.id == id).cloned();
        Box::pin(async move { found.ok_or(HostError::NotFound) })
    }

    fn delete_fact<'a>(
        &'a self,
        tenant: &'a Tenant,
        id: Uuid,
        run_id: Uuid,
    ) -> BoxFuture<'a, Result<Value, HostError>> {
        self.note(json!({ "forget": id, "run": run_id, "tenant": tenant }))
    }

    fn tell_missing<'a>(&'a self, tenant: &'a Tenant, missed: MissedByStep) -> BoxFuture<'a, Result<(), HostError>> {
        let asked = self.note(json!({ "missed": [missed.step, missed.field], "tenant": tenant }));
        Box::pin(async move { asked.await.map(drop) })
    }
}

/// A model that gives the answers it was given, in turn, and keeps the requests. Without an answer it hangs.
#[derive(Default)]
pub struct FakeModel {
    pub answers: Mutex<VecDeque<Result<ModelAnswer, LlmError>>>,
    pub requests: Mutex<Vec<ModelRequest>>,
}

impl FakeModel {
    pub fn of(answers: Vec<Result<ModelAnswer, LlmError>>) -> Arc<FakeModel> {
        Arc::new(FakeModel { answers: Mutex::new(answers.into()), requests: Mutex::default() })
    }

    pub fn asked(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

impl Model for FakeModel {
    fn complete<'a>(
        &'a self,
        request: &'a ModelRequest,
        on_delta: Option<OnDelta<'a>>,
    ) -> BoxFuture<'a, Result<ModelAnswer, LlmError>> {
        self.requests.lock().unwrap().push(request.clone());
        let answer = self.answers.lock().unwrap().pop_front();
        if let (Some(Ok(answer)), Some(on_delta)) = (&answer, on_delta) {
            answer.text.iter().for_each(|text| on_delta(text));
        }
        match answer {
            Some(answer) => async { answer }.boxed(),
            None => std::future::pending().boxed(),
        }
    }
}

/// A model's word, 100 tokens for 10.
pub fn says(text: &str) -> Result<ModelAnswer, LlmError> {
    Ok(ModelAnswer {
        text: Some(text.into()),
        tool_calls: vec![],
        stop: StopReason::Done,
        tokens: ModelTokens::of(100, 10),
        provider_message: None,
        failure: None,
    })
}

pub fn call(id: &str, name: &str, arguments: Value) -> ToolCall {
    ToolCall::new(id, name, arguments)
}

pub fn calls(tool_calls: Vec<ToolCall>) -> Result<ModelAnswer, LlmError> {
    let tokens = ModelTokens::of(100, 10);
    Ok(ModelAnswer {
        text: None,
        tool_calls,
        stop: StopReason::ToolCalls,
        tokens,
        provider_message: None,
        failure: None,
    })
}

type ToolFunction = dyn Fn(ToolContext, Value) -> BoxFuture<'static, Result<ToolOutput, ToolError>> + Send + Sync;

/// A tool that does as it is told.
pub struct FakeTool {
    pub definition: Definition,
    deed: Box<ToolFunction>,
}

impl FakeTool {
    /// A harmless, repeatable tool without parameters.
    pub fn new<F>(name: &str, deed: impl Fn(ToolContext, Value) -> F + Send + Sync + 'static) -> FakeTool
    where
        F: Future<Output = Result<ToolOutput, ToolError>> + Send + 'static,
    {
        let definition = Definition::new(
            name,
            &format!("the tool {name}"),
            json!({ "type": "object" }),
            Category::Read,
            Consequence::Low,
        );
        FakeTool { definition, deed: Box::new(move |context, arguments| deed(context, arguments).boxed()) }
    }

    /// A tool that answers its arguments.
    pub fn echo(name: &str) -> FakeTool {
        FakeTool::new(name, |_, arguments| async move { Ok(ToolOutput::text(arguments.to_string())) })
    }

    pub fn with(mut self, change: impl FnOnce(&mut Definition)) -> FakeTool {
        change(&mut self.definition);
        self
    }
}

impl Tool for FakeTool {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn call<'a>(&'a self, context: &'a ToolContext, arguments: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        (self.deed)(context.clone(), arguments)
    }
}

/// Everything that one message needs.
pub struct AgentHarness {
    pub clock: Clock,
    pub model: Arc<FakeModel>,
    pub agent: Agent,
    pub store: Arc<Memory>,
    pub host: Arc<Ledger>,
    pub stop: StopSignal,
    pub told: Arc<Mutex<Vec<StreamEvent>>>,
}

impl AgentHarness {
    pub fn new(answers: Vec<Result<ModelAnswer, LlmError>>, tools: Vec<FakeTool>) -> AgentHarness {
        let settings = Settings { system_prompt: "Be brief.".into(), ..Settings::default() };
        AgentHarness::with_settings(answers, tools, settings)
    }

    pub fn with_settings(
        answers: Vec<Result<ModelAnswer, LlmError>>,
        tools: Vec<FakeTool>,
        settings: Settings,
    ) -> AgentHarness {
        let clock = Clock::manual(start());
        let model = FakeModel::of(answers);
        let models = models(vec![("main", model.clone())], &settings, &clock);
        let tools: Vec<Arc<dyn Tool>> = tools.into_iter().map(|tool| Arc::new(tool) as Arc<dyn Tool>).collect();
        let policy = Policy::new(&approval::Settings::default()).unwrap();
        let compute = Compute::new(1);
        let tools = Arc::new(ToolRegistry::new(tools).unwrap());
        let gate = Default::default();
        let agent = Agent::new(models, tools, settings, policy, compute, gate);
        let (store, host, stop, told) = Default::default();
        AgentHarness { clock, model, agent, store, host, stop, told }
    }

    /// As it is, with these configured agents besides the tools.
    pub fn with_agents(
        answers: Vec<Result<ModelAnswer, LlmError>>,
        tools: Vec<FakeTool>,
        agents: Value,
    ) -> AgentHarness {
        let stage = AgentHarness::new(answers, vec![]);
        let configured: Vec<reveille::agent::AgentDefinition> = serde_json::from_value(agents).expect("agents");
        let agents: Vec<Arc<AgentTool>> = AgentTool::all(&configured).into_iter().map(Arc::new).collect();
        let tools = tools.into_iter().map(|tool| Arc::new(tool) as Arc<dyn Tool>);
        let tools = tools.chain(agents.iter().map(|agent| Arc::clone(agent) as Arc<dyn Tool>)).collect();
        let tools = Arc::new(ToolRegistry::new(tools).unwrap());
        AgentHarness { agent: Agent { tools, agents: Arc::new(agents), ..stage.agent }, ..stage }
    }

    /// As it is, with the skills in this folder besides the tools.
    pub fn with_skills(
        answers: Vec<Result<ModelAnswer, LlmError>>,
        tools: Vec<FakeTool>,
        dir: &std::path::Path,
    ) -> AgentHarness {
        let stage = AgentHarness::new(answers, vec![]);
        let skills = SkillLibrary::open(vec![dir.to_owned()], stage.clock.clone());
        let tools = tools.into_iter().map(|tool| Arc::new(tool) as Arc<dyn Tool>);
        let tools = tools.chain(reveille::ports::tool::builtin::skills::all(&skills)).collect();
        let tools = Arc::new(ToolRegistry::new(tools).unwrap());
        AgentHarness { agent: Agent { tools, skills, ..stage.agent }, ..stage }
    }

    pub fn incoming(&self, text: &str) -> AgentRequest {
        let told = self.told.clone();
        AgentRequest {
            tenant: Tenant::new("ann").unwrap(),
            run_id: RUN,
            attribution: ToolAttribution { agent: Some("orchestrator".into()), ..ToolAttribution::default() },
            text: text.into(),
            about: None,
            is_repeated: false,
            first_turn: 0,
            metadata: Default::default(),
            continues: false,
            overrides: AgentOverrides::default(),
            timezone: chrono_tz::Europe::Berlin,
            locale: None,
            channel: None,
            agent: None,
            approval_context: ApprovalContext { task_id: None, source: "trigger", rules: None },
            delegation: None,
            skills: None,
            host: self.host.clone(),
            store: Arc::new(TranscriptSlice::of_run(self.store.clone())),
            stop: self.stop.clone(),
            slot: Arc::new(UncountedSlot),
            sink: Arc::new(move |event| told.lock().unwrap().push(event)),
            clock: self.clock.clone(),
            used_secrets: Default::default(),
        }
    }

    /// The message through the agent, while time passes. An answer is on the record with its end.
    pub async fn handle(&self, text: &str) -> Result<AgentResponse, RunError> {
        let handled = passing(&self.clock, self.agent.handle_message(&self.incoming(text))).await;
        if matches!(handled, Ok(AgentResponse::Answered(_))) {
            self.store.end();
        }
        handled
    }

    /// The answer; anything else fails the test.
    pub async fn answer(&self, text: &str) -> reveille::domain::run::ReactLoopResult {
        match self.handle(text).await {
            Ok(AgentResponse::Answered(result)) => result,
            other => panic!("no answer: {other:?}"),
        }
    }

    /// The results of tools in the transcript: call, content, whether it is an error.
    pub fn results(&self) -> Vec<(String, String, bool)> {
        let result = |message| match message {
            TranscriptMessage::Tool { call_id, content, is_error, .. } => Some((call_id, content, is_error)),
            _ => None,
        };
        self.store.messages().into_iter().filter_map(result).collect()
    }

    /// Milliseconds since the start.
    pub fn elapsed(&self) -> i64 {
        (self.clock.now() - start()).num_milliseconds()
    }
}

/// Models by name, the first the default, the others its fallback.
pub fn models(models: Vec<(&str, Arc<FakeModel>)>, settings: &Settings, clock: &Clock) -> Models {
    models_of(models.into_iter().map(|(name, model)| link(name, model)).collect(), settings, clock)
}

/// These models, the first the default, the others its fallback.
pub fn models_of(links: Vec<ChainLink>, settings: &Settings, clock: &Clock) -> Models {
    let names: Vec<String> = links.iter().map(|link| link.name.clone()).collect();
    Models::new(links, &names[0], names[1..].to_vec(), settings.retry(), clock)
}

/// A model by this name; a million tokens cost a dollar.
pub fn link(name: &str, model: Arc<FakeModel>) -> ChainLink {
    ChainLink {
        name: name.into(),
        keys: vec![model as Arc<dyn Model>],
        lower: vec![],
        plain: vec![],
        origin: ModelOrigin::default(),
        breaker: ModelBreaker::default(),
        calls: None,
        counter: TokenCounter::of("gpt"),
        calibration: Default::default(),
        context_token_limit: None,
        max_output_tokens: None,
        rates: TokenPrices::from_dollars(1.0, 1.0),
    }
}

/// Lets time pass, 50 ms at a time, whenever `work` waits. Work that needs more than a day hangs: that fails.
pub async fn passing<T>(clock: &Clock, work: impl Future<Output = T>) -> T {
    let time = async {
        for _ in 0..20 * 86_400 {
            // whoever can go on without time does so first
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            clock.advance(TimeDelta::milliseconds(50));
        }
    };
    tokio::select! {
        biased;
        done = work => done,
        () = time => panic!("still waiting after a day"),
    }
}

pub const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// The credentials of a tenant where there is no store of them.
pub fn no_credentials() -> TenantCredentials {
    let tenant = Tenant::new("ann").unwrap_or_else(|why| panic!("{why}"));
    TenantCredentials::new(None, tenant, (None, None), "test".into(), Default::default())
}
