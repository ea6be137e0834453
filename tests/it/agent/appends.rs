//! When a run's transcript is stored: seldom, but before anything that must not happen twice.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;

use reveille::domain::approval::matrix::Category;
use reveille::domain::run::outcome::RunError;
use reveille::domain::run::transcript::TranscriptMessage;
use reveille::ports::llm::{LlmError, ModelAnswer};
use reveille::ports::tool::ToolOutput;
use serde_json::json;

use super::harness::{AgentHarness, FakeTool, Memory, call, calls, passing, says};

/// A tool that answers how many entries were stored when it ran.
fn looks_at(store: &Arc<Memory>, name: &str) -> FakeTool {
    let store = store.clone();
    FakeTool::new(name, move |_, _| {
        let stored = store.entries.lock().unwrap().len();
        async move { Ok(ToolOutput::text(stored.to_string())) }
    })
}

/// A run with this transcript, and a tool that looks at it.
fn harness(
    answers: Vec<Result<ModelAnswer, LlmError>>,
    tools: impl FnOnce(&Arc<Memory>) -> Vec<FakeTool>,
) -> AgentHarness {
    let store = Arc::new(Memory::default());
    let tools = tools(&store);
    AgentHarness { store, ..AgentHarness::new(answers, tools) }
}

fn appended(stage: &AgentHarness) -> Vec<usize> {
    stage.store.appended.lock().unwrap().clone()
}

#[tokio::test]
async fn run_of_three_turns_whose_calls_only_read_is_stored_in_two_appends_and_its_end() {
    let asked = |id: &str| calls(vec![call(id, "look", json!({}))]);
    let stage = harness(vec![asked("1"), asked("2"), says("done")], |store| vec![looks_at(store, "look")]);
    passing(&stage.clock, stage.agent.handle_message(&stage.incoming("go"))).await.unwrap();
    assert_eq!(appended(&stage), [4, 2], "question, intent and result; intent and result");
    assert_eq!(stage.store.end(), 1, "the answer");
    assert_eq!(stage.results().iter().map(|(_, text, _)| text.as_str()).collect::<Vec<_>>(), ["0", "4"]);
}

#[tokio::test]
async fn call_under_a_budget_is_reserved_with_the_append_of_the_turn_before_it() {
    let asked = |id: &str| calls(vec![call(id, "look", json!({}))]);
    let mut stage = harness(vec![asked("1"), asked("2"), says("done")], |store| vec![looks_at(store, "look")]);
    stage.store = Arc::new(Memory { is_budgeted: true, ..Memory::default() });
    assert_eq!(stage.answer("go").await.response, "done");
    assert_eq!(appended(&stage), [4, 2]);
    assert_eq!(*stage.store.reserved.lock().unwrap(), [(1, false), (2, true), (3, true)]);
}

#[tokio::test]
async fn answer_of_a_run_is_stored_with_its_end_unless_it_is_long() {
    for (letters, appends, with_the_end) in [(100, vec![], 3), (20_000, vec![3], 0)] {
        let stage = harness(vec![says(&"x".repeat(letters))], |_| vec![]);
        passing(&stage.clock, stage.agent.handle_message(&stage.incoming("go"))).await.unwrap();
        assert_eq!((appended(&stage), stage.store.end()), (appends, with_the_end), "{letters}");
    }
}

#[tokio::test]
async fn intent_is_stored_before_a_call_that_may_have_an_effect() {
    let effects = [Category::Write, Category::Delete, Category::SideEffect, Category::Internal];
    let mut tools: Vec<fn(FakeTool) -> FakeTool> = vec![
        |tool| tool.with(|definition| definition.idempotent = false),
        |tool| tool.with(|definition| definition.undo_seconds = Some(5)),
        |tool| tool.with(|definition| definition.requires_confirmation = true),
    ];
    tools.push(|tool| tool.with(|definition| definition.category = Category::Internal));
    for change in tools {
        let asked = calls(vec![call("1", "look", json!({})), call("2", "act", json!({}))]);
        let stage =
            harness(vec![asked, says("done")], |store| vec![looks_at(store, "look"), change(looks_at(store, "act"))]);
        passing(&stage.clock, stage.agent.handle_message(&stage.incoming("go"))).await.unwrap();
        assert_eq!(appended(&stage)[0], 3, "question and intent");
        assert_eq!(stage.results()[0].1, "3", "before any of the calls of its turn");
    }
    for category in effects {
        let tool = FakeTool::echo("act").with(|definition| definition.category = category);
        assert!(!reveille::ports::tool::Tool::definition(&tool).only_reads(), "{category:?}");
    }
}

#[tokio::test]
async fn intent_of_a_slow_call_that_only_reads_is_stored_while_it_runs() {
    let asked = calls(vec![call("1", "slow", json!({}))]);
    let slow = FakeTool::new("slow", |context, _| async move {
        context.clock.sleep(Duration::from_secs(5)).await;
        Ok(ToolOutput::text("read"))
    });
    let stage = AgentHarness::new(vec![asked, says("done")], vec![slow]);
    let incoming = stage.incoming("go");
    let mut handling = Box::pin(stage.agent.handle_message(&incoming));
    assert!(futures::poll!(&mut handling).is_pending());
    assert_eq!(appended(&stage), [0_usize; 0]);
    stage.clock.advance(TimeDelta::seconds(1));
    for _ in 0..10 {
        assert!(futures::poll!(&mut handling).is_pending());
    }
    assert_eq!(appended(&stage), [3], "an answer that was paid for");
    passing(&stage.clock, handling).await.unwrap();
    assert_eq!(appended(&stage), [3, 1]);
    assert_eq!(stage.store.end(), 1);
}

#[tokio::test]
async fn run_that_fails_or_is_handed_back_keeps_what_was_said() {
    let refused = Err(LlmError::Auth { message: "no".into() });
    let stage = harness(vec![refused], |_| vec![]);
    assert!(matches!(stage.handle("go").await, Err(RunError::Fail { .. })));
    assert!(matches!(&stage.store.messages()[..], [TranscriptMessage::System { .. }, TranscriptMessage::User { .. }]));
    let asked = calls(vec![call("1", "look", json!({}))]);
    let stage = harness(vec![asked, says("never asked for")], |store| vec![looks_at(store, "look")]);
    let stop = stage.stop.clone();
    let incoming = stage.incoming("go");
    let sink = incoming.sink.clone();
    let incoming = reveille::agent::AgentRequest {
        sink: Arc::new(move |event| {
            stop.hand_back();
            sink(event);
        }),
        ..incoming
    };
    assert_eq!(passing(&stage.clock, stage.agent.handle_message(&incoming)).await, Err(RunError::HandBack));
    assert_eq!(appended(&stage).iter().sum::<usize>(), stage.store.messages().len());
    assert!(!stage.store.messages().is_empty());
}
