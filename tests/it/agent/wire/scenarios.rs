//! Scenarios of a tool loop with a real server: each over the three wires, streamed and in one piece.
//!
//! A case is a row: what the server answers in turn, how the message ends, how often the model was asked, and what else
//! must hold.

mod answers;
mod bodies;
mod chain;
mod failures;
mod limits;
mod streams;
mod tool_loops;

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use reveille::agent::{Agent, AgentResponse, Settings as ReactSettings};
use reveille::base::clock::{Clock, pause};
use reveille::base::secret::Secret;
use reveille::domain::run::Usage;
use reveille::domain::run::outcome::RunError;
use reveille::domain::run::transcript::{ModelTokens, TranscriptMessage};
use reveille::ports::llm::tokens::encoders::Encoders;
use reveille::ports::llm::{ModelSettings, Models, Settings};
use reveille::ports::tool::{ToolError, ToolFailure, ToolOutput};
use serde_json::{Value, json};

use super::fakes::Wire;
use super::rules::broken_rules;
use super::server::{ReceivedRequest, Reply, Server, settings};
use super::vendors::{SentRequest, faults_of};
use crate::agent::harness::{AgentHarness, FakeTool, start};

/// Scenarios that are played at once.
const AT_ONCE: usize = 12;
/// Longest time of a scenario; it passes much faster.
const PATIENCE: Duration = Duration::from_secs(60);

/// One row.
pub struct Case {
    pub name: &'static str,
    /// The answers of the server, in turn.
    pub replies: fn(Wire, bool) -> Vec<Reply>,
    /// The answer, or the code of the error.
    pub end: Result<&'static str, &'static str>,
    /// How often the model is asked.
    pub asked: usize,
    /// Adds to the settings of the model.
    pub model: fn(&mut ModelSettings),
    /// Adds to the settings of the loop.
    pub react: fn(&mut ReactSettings),
    /// Asserts whatever else must hold.
    pub holds: fn(&PlayedCase),
    /// The rule of a provider that its own answers break, so that requests may break it, too.
    pub allows: Option<&'static str>,
}

impl Case {
    /// A case in which nothing else has to hold.
    pub const fn new(
        name: &'static str,
        replies: fn(Wire, bool) -> Vec<Reply>,
        end: Result<&'static str, &'static str>,
        asked: usize,
    ) -> Case {
        Case { name, replies, end, asked, model: |_| {}, react: |_| {}, holds: |_| {}, allows: None }
    }

    pub const fn model(self, model: fn(&mut ModelSettings)) -> Case {
        Case { model, ..self }
    }

    pub const fn react(self, react: fn(&mut ReactSettings)) -> Case {
        Case { react, ..self }
    }

    pub const fn holds(self, holds: fn(&PlayedCase)) -> Case {
        Case { holds, ..self }
    }

    pub const fn allows(self, rule: &'static str) -> Case {
        Case { allows: Some(rule), ..self }
    }
}

/// The outcome of a case over one wire.
pub struct PlayedCase {
    pub wire: Wire,
    pub stream: bool,
    pub requests: Vec<ReceivedRequest>,
    /// The results of tools in the transcript: call, content, whether it is an error.
    pub results: Vec<(String, String, bool)>,
    pub error: Option<RunError>,
    /// Tokens of the model's calls.
    pub tokens: Vec<ModelTokens>,
    /// All that was paid, answers that could not be used included: turns, tokens of input and of output.
    pub paid: (i64, i64, i64),
    /// Time of the service that has passed.
    pub took: Duration,
}

impl PlayedCase {
    pub fn error_message(&self) -> &str {
        match &self.error {
            Some(RunError::Fail { fault } | RunError::Retry { fault, .. }) => &fault.message,
            other => panic!("{other:?}"),
        }
    }

    /// Results as the last request brings them.
    pub fn sent_results(&self) -> Vec<(String, String)> {
        self.wire.results(&self.requests.last().expect("a request").body)
    }
}

/// Each case over each wire, in one piece and streamed.
fn plays(cases: &[Case]) -> impl Iterator<Item = (&Case, Wire, bool)> {
    let combinations = Wire::ALL.into_iter().flat_map(|wire| [(wire, false), (wire, true)]);
    combinations.flat_map(move |(wire, stream)| cases.iter().map(move |case| (case, wire, stream)))
}

/// Plays each case over each wire, and tells of all that do not hold or that send what the provider does not allow.
pub async fn play(cases: &'static [Case]) {
    let played = futures::stream::iter(plays(cases)).map(|(case, wire, stream)| check(case, wire, stream));
    let (complaints, sent): (Vec<_>, Vec<_>) = played.buffer_unordered(AT_ONCE).unzip().await;
    let sent: Vec<SentRequest> = sent.into_iter().flatten().collect();
    let wrong: Vec<String> = complaints.into_iter().flatten().chain(faults_of(&sent).await).collect();
    assert!(wrong.is_empty(), "{} scenarios do not hold:\n{}", wrong.len(), wrong.join("\n"));
}

fn paid(stage: &AgentHarness) -> (i64, i64, i64) {
    let entries = stage.store.entries.lock().unwrap();
    let add = |(turns, input, output), usage: &Usage| {
        (turns + usage.turns, input + usage.input_tokens, output + usage.output_tokens)
    };
    entries.iter().map(|entry| &entry.usage).fold((0, 0, 0), add)
}

/// The complaint about a case, if it does not hold, and what it sent.
async fn check(case: &Case, wire: Wire, stream: bool) -> (Option<String>, Vec<SentRequest>) {
    let title = format!("{} ({wire:?}, {})", case.name, if stream { "streamed" } else { "in one piece" });
    let server = Server::start((case.replies)(wire, stream)).await;
    let complaint = complaint_about(case, wire, stream, &server).await.or_else(|| {
        let requests = server.requests();
        let broken = requests.iter().flat_map(|sent| broken_rules(wire, &sent.body));
        let broken: Vec<String> = broken.filter(|rule| case.allows.is_none_or(|allowed| allowed != rule)).collect();
        (!broken.is_empty()).then(|| broken.join(", "))
    });
    let complaint = complaint.map(|why| format!("{title}: {why}"));
    let sent = server.requests().into_iter().map(|sent| SentRequest { title: title.clone(), wire, body: sent.body });
    (complaint, sent.collect())
}

async fn complaint_about(case: &Case, wire: Wire, stream: bool, server: &Server) -> Option<String> {
    let mut react = ReactSettings { system_prompt: "Be brief.".into(), ..ReactSettings::default() };
    (case.react)(&mut react);
    let stage = AgentHarness::with_settings(vec![], tools(), react);
    let model = settings(server, |settings| {
        settings.provider = wire.provider().into();
        settings.stream = stream;
        (case.model)(settings);
    });
    let agent = with_models(&stage, vec![("main", model)]);
    let ended = patiently(&stage.clock, agent.handle_message(&stage.incoming("Go."))).await;
    stage.store.end();
    let (end, error) = match ended {
        None => return Some(format!("it hangs after {} requests", server.requests().len())),
        Some(Ok(AgentResponse::Answered(result))) => (Ok(result.response), None),
        Some(Ok(other)) => return Some(format!("{other:?}")),
        Some(Err(error)) => (Err(code(&error)), Some(error)),
    };
    let played = PlayedCase {
        wire,
        stream,
        requests: server.requests(),
        results: stage.results(),
        error,
        tokens: tokens(&stage),
        paid: paid(&stage),
        took: stage.clock.elapsed().saturating_sub(Clock::manual(start()).elapsed()),
    };
    let expected = (case.end.map(str::to_owned).map_err(str::to_owned), case.asked);
    if (end.clone(), played.requests.len()) != expected {
        return Some(format!("{end:?} after {} requests: {:?}", played.requests.len(), played.error));
    }
    let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (case.holds)(&played)));
    held.err().map(|panicked| {
        let text = panicked.downcast_ref::<String>().cloned();
        text.unwrap_or_else(|| "what must hold does not".into())
    })
}

/// An agent with these models: the first the default, the others its fallback.
pub fn with_models(stage: &AgentHarness, models: Vec<(&str, ModelSettings)>) -> Agent {
    let fallback = models.iter().skip(1).map(|(name, _)| (*name).to_owned()).collect();
    let default = models[0].0.to_owned();
    let models = models.into_iter().map(|(name, model)| (name.to_owned(), model)).collect();
    let settings = Settings { models, default, fallback };
    let models = Models::build(&settings, &Encoders::default(), stage.agent.settings.retry(), &stage.clock)
        .expect("sound settings");
    Agent { models, ..stage.agent.clone() }
}

/// Waits while time passes for the service, faster than it does for the server; `None`: it takes too long.
pub async fn patiently<T>(clock: &Clock, work: impl Future<Output = T>) -> Option<T> {
    let time = async {
        let begun = std::time::Instant::now();
        while begun.elapsed() < PATIENCE {
            pause(Duration::from_millis(2)).await;
            clock.advance(chrono::TimeDelta::milliseconds(100));
        }
    };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = time => None,
    }
}

pub fn code(error: &RunError) -> String {
    match error {
        RunError::Fail { fault } | RunError::Retry { fault, .. } => fault.code.clone(),
        other => format!("{other:?}"),
    }
}

fn tokens(stage: &AgentHarness) -> Vec<ModelTokens> {
    let entries = stage.store.entries.lock().unwrap();
    let answers = entries.iter().filter(|entry| matches!(entry.message, TranscriptMessage::Assistant { .. }));
    answers.map(|entry| entry.model_call.as_ref().expect("the call of a model").tokens).collect()
}

/// `echo` gives its arguments, `count` wants a whole number, `long` gives 9,000 letters and `empty` none; `fails`,
/// `panics` and `hangs` do.
pub fn tools() -> Vec<FakeTool> {
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    vec![
        FakeTool::echo("echo"),
        FakeTool::echo("count").with(|tool| tool.parameters = schema),
        FakeTool::new("long", |_, _| async { Ok(ToolOutput::text("x".repeat(9000))) }),
        FakeTool::new("empty", |_, _| async { Ok(ToolOutput::text("")) }),
        FakeTool::new("fails", |_, _| async {
            Err(ToolError::for_model(ToolFailure::ExecutionError, "broken", "it is broken"))
        }),
        FakeTool::new("panics", |_, _| async { panic!("a tool that panics") }),
        FakeTool::new("hangs", |_, _| std::future::pending()).with(|tool| tool.idempotent = false),
    ]
}

/// Two keys, the second of which is another.
pub fn two_keys(settings: &mut ModelSettings) {
    settings.api_keys = vec![Secret::new("sk-second")];
}

/// The keys that requests came with, in order.
pub fn keys(played: &PlayedCase) -> Vec<&str> {
    played
        .requests
        .iter()
        .map(|request| match played.wire {
            Wire::Anthropic => request.header("x-api-key").unwrap_or_default(),
            Wire::Chat | Wire::Responses => {
                request.header("authorization").unwrap_or_default().trim_start_matches("Bearer ")
            }
        })
        .collect()
}

/// The body of a request.
pub fn body(played: &PlayedCase, index: usize) -> &Value {
    &played.requests[index].body
}

/// Fewest scenarios of a wire, of each kind of answer.
const LEAST: usize = 60;

#[test]
fn scenarios_of_each_wire_are_many_and_no_two_are_one() {
    let cases: [&[Case]; 7] = [
        &answers::CASES,
        &bodies::CASES,
        &chain::CASES,
        &failures::CASES,
        &limits::CASES,
        &streams::CASES,
        &tool_loops::CASES,
    ];
    let mut names: BTreeMap<(&str, bool), Vec<&str>> = BTreeMap::new();
    for (case, wire, stream) in cases.into_iter().flat_map(plays) {
        names.entry((wire.provider(), stream)).or_default().push(case.name);
    }
    assert_eq!(names.len(), 6, "three wires, streamed and in one piece");
    for (of, mut names) in names {
        let count = names.len();
        assert!(count >= LEAST, "{of:?}: {count} scenarios");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{of:?}: a name is given twice");
    }
}
