//! The gate: an ordered list of checks before the first call of a model, and not again.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::TimeDelta;
use futures::future::BoxFuture;
use reveille::agent::gate::safety::Settings;
use reveille::agent::gate::{Gate, GateCheck, GateMessage, GateRefusal};
use reveille::agent::{
    Agent, AgentRequest, AgentResponse, ContextSource, ContextSources, PendingAgents, PendingChecks, PendingVerdict,
    SOURCE_CHARS, Settings as ReactSettings,
};
use reveille::base::clock::pause;
use reveille::base::compute::Compute;
use reveille::base::invalid::ValidationErrors;
use reveille::domain::run::TranscriptMessage;
use reveille::domain::run::outcome::RunError;
use reveille::ports::llm::LlmError;
use serde_json::json;

use super::harness::{AgentHarness, FakeTool, call, calls, says};

/// Answers as it is told, and writes down that it was asked.
struct FakeCheck {
    name: &'static str,
    answer: Result<(), GateRefusal>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl GateCheck for FakeCheck {
    fn name(&self) -> &'static str {
        self.name
    }

    fn check<'a>(&'a self, message: GateMessage<'a>) -> BoxFuture<'a, Result<(), GateRefusal>> {
        let again = if message.is_repeated { " again" } else { "" };
        self.asked.lock().unwrap().push(format!("{} {} {}{again}", self.name, message.source, message.text));
        Box::pin(std::future::ready(self.answer.clone()))
    }

    fn withdraw(&self, message: GateMessage<'_>) {
        self.asked.lock().unwrap().push(format!("{} withdraws {}", self.name, message.text));
    }
}

type FakeAnswer = (&'static str, Result<(), GateRefusal>);

fn gated(stage: AgentHarness, answers: Vec<FakeAnswer>) -> (AgentHarness, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let check =
        |(name, answer)| -> Arc<dyn GateCheck> { Arc::new(FakeCheck { name, answer, asked: Arc::clone(&asked) }) };
    let gate = Gate::new(answers.into_iter().map(check).collect());
    let agent = Agent { gate, ..stage.agent.clone() };
    (AgentHarness { agent, ..stage }, asked)
}

#[tokio::test]
async fn checks_are_asked_in_their_order_until_one_refuses_and_no_model_is() {
    let refused = Err(GateRefusal::Skip("tier".into()));
    let stage = AgentHarness::new(vec![], vec![]);
    let (stage, asked) = gated(stage, vec![("one", Ok(())), ("two", refused), ("three", Ok(()))]);
    assert_eq!(stage.handle("Go.").await, Ok(AgentResponse::Refused { reason: "tier".into() }));
    assert_eq!(*asked.lock().unwrap(), ["one trigger Go.", "two trigger Go."]);
    assert_eq!(stage.model.asked(), 0);
    assert!(stage.host.looked_for.lock().unwrap().is_empty(), "an endpoint would have seen the message");
}

#[tokio::test]
async fn run_that_may_not_begin_now_is_handed_back() {
    let (stage, _) = gated(AgentHarness::new(vec![], vec![]), vec![("one", Err(GateRefusal::NotNow))]);
    assert_eq!(stage.handle("Go.").await, Err(RunError::HandBack));
    assert_eq!(stage.model.asked(), 0);
}

#[tokio::test]
async fn message_that_comes_back_is_withdrawn_from_the_checks_that_have_let_it_through() {
    let told = async |last: GateRefusal| {
        let answers = vec![("one", Ok(())), ("two", Ok(())), ("three", Err(last)), ("four", Ok(()))];
        let (stage, asked) = gated(AgentHarness::new(vec![], vec![]), answers);
        let _ = stage.handle("Go.").await;
        asked.lock().unwrap().split_off(3)
    };
    assert_eq!(told(GateRefusal::NotNow).await, ["one withdraws Go.", "two withdraws Go."]);
    assert_eq!(told(GateRefusal::Skip("tier".into())).await, [""; 0]);
}

#[tokio::test]
async fn checks_are_told_of_a_message_that_they_have_seen_before() {
    let (stage, asked) = gated(AgentHarness::new(vec![says("Done.")], vec![]), vec![("one", Ok(()))]);
    let again = AgentRequest { is_repeated: true, ..stage.incoming("Go.") };
    stage.agent.handle_message(&again).await.expect("an answer");
    assert_eq!(*asked.lock().unwrap(), ["one trigger Go. again"]);
}

/// A check, and agents, that never come to an end.
struct Hanging;

impl GateCheck for Hanging {
    fn name(&self) -> &'static str {
        "hanging"
    }

    fn check<'a>(&'a self, _: GateMessage<'a>) -> BoxFuture<'a, Result<(), GateRefusal>> {
        Box::pin(std::future::pending())
    }
}

impl PendingAgents for Hanging {
    fn name(&self) -> &'static str {
        "hanging"
    }

    fn take<'a>(&'a self, _: GateMessage<'a>) -> BoxFuture<'a, Result<PendingVerdict, RunError>> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn checks_and_agents_that_hang_hold_a_run_for_seconds_and_let_nothing_through() {
    let stage = AgentHarness::new(vec![], vec![]);
    let agent = Agent { gate: Gate::new(vec![Arc::new(Hanging)]), ..stage.agent.clone() };
    let gated = AgentHarness { agent, ..stage };
    let before = gated.elapsed();
    assert_eq!(gated.handle("Go.").await, Err(RunError::HandBack));
    assert!((10_000..11_000).contains(&(gated.elapsed() - before)));

    let stage = AgentHarness::new(vec![], vec![]);
    let agent = Agent { pending: PendingChecks::new(vec![Arc::new(Hanging)]), ..stage.agent.clone() };
    let pending = AgentHarness { agent, ..stage };
    let before = pending.elapsed();
    let ended = pending.handle("Go.").await;
    assert!(matches!(&ended, Err(RunError::Retry { fault, .. }) if fault.code == "pending_agents"), "{ended:?}");
    assert!((30_000..31_000).contains(&(pending.elapsed() - before)));
    assert_eq!(pending.model.asked() + gated.model.asked(), 0);
}

#[tokio::test]
async fn run_that_has_begun_is_not_asked_about_again() {
    let answers = vec![calls(vec![call("c1", "echo", json!({}))]), says("Done.")];
    let (stage, asked) = gated(AgentHarness::new(answers, vec![FakeTool::echo("echo")]), vec![("one", Ok(()))]);
    stage.answer("Go.").await;
    assert_eq!(*asked.lock().unwrap(), ["one trigger Go."], "once, whatever the number of turns");
    let (stage, asked) = gated(stage, vec![("one", Err(GateRefusal::Skip("late".into())))]);
    let again = stage.handle("Go.").await;
    assert!(matches!(again, Ok(AgentResponse::Answered(_))), "{again:?}");
    assert_eq!(*asked.lock().unwrap(), [""; 0]);
}

#[tokio::test]
async fn safety_refuses_whole_words_in_any_case_and_patterns() {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let settings = Settings { words: texts(&["secret plan", "C++"]), patterns: texts(&[r"\b\d{4}-\d{4}\b"]) };
    let check = settings.check(&Compute::new(1)).unwrap().expect("a check");
    for (text, passes) in [
        ("What is the weather?", true),
        ("Tell me the SECRET plan!", false),
        ("secret plans are others", true),
        ("Write C++ for me", false),
        ("my card is 1234-5678.", false),
        ("12345-6789", true),
    ] {
        let (run_id, task_id, source, is_repeated) = (uuid::Uuid::nil(), None, "trigger", false);
        let message = GateMessage { tenant: "ann", run_id, task_id, source, text, is_repeated };
        let expected = if passes { Ok(()) } else { Err(GateRefusal::Skip("safety".into())) };
        assert_eq!(check.check(message).await, expected, "{text}");
    }
    assert!(Settings::default().check(&Compute::new(1)).unwrap().is_none());
}

#[test]
fn faulty_words_and_patterns_are_named_by_their_place() {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let places = |settings: Settings| {
        let mut faults = ValidationErrors::new();
        settings.compile(&mut faults);
        faults.0.into_iter().map(|fault| fault.pointer).collect::<Vec<_>>()
    };
    let settings = Settings { words: texts(&["fine", " "]), patterns: texts(&["(", "a{9999}", "fine"]) };
    assert_eq!(places(settings), ["/gate/words/1", "/gate/patterns/0", "/gate/patterns/1"]);
    assert_eq!(places(Settings { words: vec!["x".into(); 201], patterns: vec![] }), ["/gate"]);
    assert_eq!(places(Settings { words: vec!["x".into(); 200], patterns: vec![] }), [""; 0]);
}

/// Agents of an embedder: one of them waits for a message with this text, and decides so about it.
struct WaitingAgents(&'static str, PendingVerdict, Arc<Mutex<Vec<String>>>);

impl PendingAgents for WaitingAgents {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn take<'a>(&'a self, message: GateMessage<'a>) -> BoxFuture<'a, Result<PendingVerdict, RunError>> {
        self.2.lock().unwrap().push(message.text.to_owned());
        let verdict = if message.text == self.0 { self.1.clone() } else { PendingVerdict::Continue };
        Box::pin(std::future::ready(Ok(verdict)))
    }
}

/// With an agent that waits for `At nine.`, behind one that waits for something else.
fn with_agents(stage: AgentHarness, verdict: PendingVerdict, asked: &Arc<Mutex<Vec<String>>>) -> AgentHarness {
    let waits = |text, verdict, asked| -> Arc<dyn PendingAgents> { Arc::new(WaitingAgents(text, verdict, asked)) };
    let first = waits("At ten.", PendingVerdict::Refuse("late".into()), Arc::default());
    let pending = PendingChecks::new(vec![first, waits("At nine.", verdict, Arc::clone(asked))]);
    AgentHarness { agent: Agent { pending, ..stage.agent.clone() }, ..stage }
}

#[tokio::test]
async fn message_that_an_agent_waits_for_goes_to_it_and_to_no_model() {
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let waits = |stage: AgentHarness| with_agents(stage, PendingVerdict::Answer("Booked.".into()), &asked);
    let stage = waits(AgentHarness::new(vec![], vec![]));
    let result = stage.answer("At nine.").await;
    assert_eq!((result.response.as_str(), result.turns, stage.model.asked()), ("Booked.", 0, 0));
    let said: Vec<String> = stage.store.messages().iter().map(|message| format!("{message:?}")).collect();
    assert!(said[1].contains("At nine.") && said[2].contains("Booked."), "it is on the record: {said:?}");
    // after a crash the record is gone by, and nobody is asked again
    stage.answer("At nine.").await;
    assert_eq!(*asked.lock().unwrap(), ["At nine."]);

    let other = waits(AgentHarness::new(vec![says("Hello.")], vec![]));
    assert_eq!(other.answer("Hi.").await.response, "Hello.");
    assert_eq!(*asked.lock().unwrap(), ["At nine.", "Hi."]);
}

#[tokio::test]
async fn agent_that_has_done_its_part_hands_message_and_result_to_the_model() {
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let answers = vec![Err(LlmError::Rejected { message: "not now".into() }), says("Room 7 is yours.")];
    let stage = with_agents(AgentHarness::new(answers, vec![]), PendingVerdict::Done("Room 7.".into()), &asked);
    assert!(stage.handle("At nine.").await.is_err());
    // what it has done is on the record: it is not asked again
    let result = stage.answer("At nine.").await;
    assert_eq!((result.response.as_str(), result.turns), ("Room 7 is yours.", 1));
    assert_eq!(*asked.lock().unwrap(), ["At nine."]);
    let requests = stage.model.requests.lock().unwrap();
    for request in requests.iter() {
        let [_, TranscriptMessage::User { text, .. }, message] = &request.messages[..] else { panic!("{request:?}") };
        assert!(text.starts_with("[Agent] ") && text.contains(">\nRoom 7.\n</untrusted-"), "{text}");
        assert_eq!(*message, TranscriptMessage::user("At nine."), "it remains the question");
    }
}

#[tokio::test]
async fn message_that_an_agent_refuses_is_skipped_with_its_reason_and_nothing_is_on_record() {
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let stage = with_agents(AgentHarness::new(vec![], vec![]), PendingVerdict::Refuse("closed".into()), &asked);
    assert_eq!(stage.handle("At nine.").await, Ok(AgentResponse::Refused { reason: "closed".into() }));
    assert_eq!(stage.handle("At ten.").await, Ok(AgentResponse::Refused { reason: "late".into() }));
    assert_eq!(*asked.lock().unwrap(), ["At nine."], "the first that waits for a message decides");
    assert_eq!((stage.model.asked(), stage.store.messages()), (0, vec![]));
}

/// A source of context that answers, or hangs, or breaks.
struct FakeSource(&'static str, fn() -> BoxFuture<'static, Result<Option<String>, String>>);

impl ContextSource for FakeSource {
    fn name(&self) -> &'static str {
        self.0
    }

    fn context<'a>(&'a self, _: GateMessage<'a>) -> BoxFuture<'a, Result<Option<String>, String>> {
        (self.1)()
    }
}

#[tokio::test]
async fn sources_of_context_stand_behind_the_instructions_and_one_that_fails_adds_nothing() {
    let ready = |name, answer| Arc::new(FakeSource(name, answer)) as Arc<dyn ContextSource>;
    let sources = ContextSources::new(vec![
        ready("profile", || Box::pin(async { Ok(Some("The user is called Ann.\n".into())) })),
        ready("nothing", || Box::pin(async { Ok(None) })),
        ready("broken", || Box::pin(async { Err("away".into()) })),
        ready("panics", || Box::pin(async { panic!("as it is made to") })),
        ready("hangs", || Box::pin(std::future::pending())),
        ready("long", || Box::pin(async { Ok(Some("é".repeat(SOURCE_CHARS + 9))) })),
    ]);
    let settings = ReactSettings { system_prompt: "Be brief.".into(), ..ReactSettings::default() };
    let stage = AgentHarness::with_settings(vec![says("Hello.")], vec![], settings);
    let stage = AgentHarness { agent: Agent { sources, ..stage.agent.clone() }, ..stage };
    let time = async {
        while stage.model.asked() == 0 {
            pause(Duration::from_millis(2)).await;
            stage.clock.advance(TimeDelta::seconds(1));
        }
    };
    tokio::join!(stage.answer("Hi."), time);
    let requests = stage.model.requests.lock().unwrap();
    let TranscriptMessage::System { text, .. } = &requests[0].messages[0] else { panic!("{:?}", requests[0].messages) };
    let added = format!("\n\nThe user is called Ann.\n\n{}\n\nCurrent time: ", "é".repeat(SOURCE_CHARS));
    let is_behind = text.starts_with("Be brief.\n\n") && text.contains(&added);
    assert!(is_behind, "{}", text.replace(&"é".repeat(SOURCE_CHARS), "é…"));
}
