//! The gate: an ordered list of checks before the first call of a model, and not again.

use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use reveille::agent::gate::safety::Settings;
use reveille::agent::gate::{Gate, GateCheck, GateMessage, GateRefusal};
use reveille::agent::{Agent, AgentResponse};
use reveille::base::compute::Compute;
use reveille::base::invalid::ValidationErrors;
use reveille::domain::run::outcome::RunError;
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
        self.asked.lock().unwrap().push(format!("{} {} {}", self.name, message.source, message.text));
        Box::pin(std::future::ready(self.answer.clone()))
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
    assert_eq!(*asked.lock().unwrap(), ["one step Go.", "two step Go."]);
    assert_eq!(stage.model.asked(), 0);
}

#[tokio::test]
async fn run_that_may_not_begin_now_is_handed_back() {
    let (stage, _) = gated(AgentHarness::new(vec![], vec![]), vec![("one", Err(GateRefusal::NotNow))]);
    assert_eq!(stage.handle("Go.").await, Err(RunError::HandBack));
    assert_eq!(stage.model.asked(), 0);
}

#[tokio::test]
async fn run_that_has_begun_is_not_asked_about_again() {
    let answers = vec![calls(vec![call("c1", "echo", json!({}))]), says("Done.")];
    let (stage, asked) = gated(AgentHarness::new(answers, vec![FakeTool::echo("echo")]), vec![("one", Ok(()))]);
    stage.answer("Go.").await;
    assert_eq!(*asked.lock().unwrap(), ["one step Go."], "once, whatever the number of turns");
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
        let message = GateMessage { tenant: "ann", run_id: uuid::Uuid::nil(), task_id: None, source: "trigger", text };
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
