//! A model that goes round in circles: it is told, then the run ends, wherever it goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use reveille::agent::{AgentResponse, Settings};
use reveille::domain::run::outcome::RunError;
use reveille::domain::run::stream::StreamEvent;
use reveille::domain::run::transcript::{TranscriptEntry, TranscriptMessage};
use reveille::domain::run::{ResultNotice, ResultNoticeKind};
use reveille::ports::llm::{LlmError, ModelAnswer};
use reveille::ports::tool::{ToolContext, ToolOutput};
use serde_json::json;

use super::harness::{AgentHarness, FakeTool, Memory, call, calls, says};

const NOTICE: &str = "[Repetition] You have called `echo` 3 times in a row with the same arguments, and the result was the \
                      same each time.";

/// A call that is made again, the `n`th time.
fn again(n: usize) -> Result<ModelAnswer, LlmError> {
    calls(vec![call(&format!("c{n}"), "echo", json!({ "id": 7 }))])
}

fn fault(error: Result<AgentResponse, RunError>) -> (String, String) {
    match error {
        Err(RunError::Fail { fault }) => (fault.code, fault.message),
        other => panic!("{other:?}"),
    }
}

/// Whether the notice stands first.
fn is_told(notices: &[ResultNotice]) -> bool {
    let first = notices.first();
    first.is_some_and(|first| first.kind == ResultNoticeKind::Repetition && first.text.starts_with(NOTICE))
}

/// Which results have the notice.
fn told(entries: &[TranscriptEntry]) -> Vec<bool> {
    let results = entries.iter().filter_map(|entry| match &entry.message {
        TranscriptMessage::Tool { notices, .. } => Some(is_told(notices)),
        _ => None,
    });
    results.collect()
}

#[tokio::test]
async fn model_is_told_of_the_third_equal_call_and_the_fourth_ends_the_run() {
    let stage = AgentHarness::new((1..=5).map(again).collect(), vec![FakeTool::echo("echo")]);
    let (code, message) = fault(stage.handle("go").await);
    assert_eq!(code, "loop");
    assert_eq!(
        message,
        "the agent called `echo` again and again with the same arguments and the same result, also after it was told so"
    );
    assert_eq!(stage.model.asked(), 4);
    assert_eq!(told(&stage.store.entries.lock().unwrap()), [false, false, true, false]);
    // the model reads it with the result, and the result whole
    let requests = stage.model.requests.lock().unwrap();
    match requests[3].messages.last() {
        Some(TranscriptMessage::Tool { notices, content, call_id, .. }) => {
            assert!(is_told(notices), "{notices:?}");
            assert_eq!((content.as_str(), call_id.as_str()), ("{\"id\":7}", "c3"));
        }
        other => panic!("{other:?}"),
    }
    let told = stage.told.lock().unwrap();
    let warnings = told.iter().filter(|event| matches!(event, StreamEvent::ToolWarning { .. })).count();
    assert_eq!(warnings, 1);
    let results: Vec<&str> = told
        .iter()
        .filter_map(|event| match event {
            StreamEvent::ToolResult { result, .. } => Some(result.as_str()),
            _ => None,
        })
        .collect();
    let stored: Vec<String> = stage.results().into_iter().map(|(_, content, _)| content).collect();
    assert_eq!(results, stored, "watchers are told what is stored");
}

#[tokio::test]
async fn model_that_heeds_the_notice_answers() {
    let answers = (1..=3).map(again).chain([says("It is 7.")]).collect();
    let stage = AgentHarness::new(answers, vec![FakeTool::echo("echo")]);
    let result = stage.answer("go").await;
    assert_eq!(result.response, "It is 7.");
    let warned: Vec<String> =
        result.tool_warnings.iter().map(|warning| format!("{}: {}", warning.tool, warning.message)).collect();
    assert_eq!(warned, ["echo: the model repeats itself, and was told so"], "it is on the record");
}

#[tokio::test]
async fn poll_whose_result_changes_is_left_alone() {
    let progress = Arc::new(AtomicUsize::new(0));
    let counted = progress.clone();
    let status = FakeTool::new("echo", move |_: ToolContext, _| {
        let done = counted.fetch_add(1, Ordering::SeqCst);
        async move { Ok(ToolOutput::text(format!("{done} of 8"))) }
    });
    let stage = AgentHarness::new((1..=9).map(again).chain([says("Done.")]).collect(), vec![status]);
    assert_eq!(stage.answer("go").await.response, "Done.");
    assert_eq!(told(&stage.store.entries.lock().unwrap()), [false; 9]);
}

#[tokio::test]
async fn cycle_of_calls_to_several_tools_is_found() {
    let tools = || vec![FakeTool::echo("list"), FakeTool::echo("read")];
    let turn = |n: usize| {
        let one = |name: &str| call(&format!("{name}{n}"), name, json!({ "box": "in" }));
        match n % 2 {
            0 => calls(vec![one("list")]),
            _ => calls(vec![one("read")]),
        }
    };
    let stage = AgentHarness::new((0..10).map(turn).collect(), tools());
    let (code, message) = fault(stage.handle("go").await);
    assert_eq!((code.as_str(), stage.model.asked()), ("loop", 8));
    assert!(message.starts_with("the agent made the same 2 calls (`list`, `read`) again and again"), "{message}");
    let is_told = |message: &TranscriptMessage| {
        let TranscriptMessage::Tool { notices, .. } = message else { return false };
        notices.iter().any(|notice| notice.text.contains("(`list`, `read`) 3 times"))
    };
    let notices = stage.store.messages().iter().filter(|message| is_told(message)).count();
    assert_eq!(notices, 1);
}

#[tokio::test]
async fn failing_call_that_is_repeated_is_a_repetition_like_any_other() {
    let asked = |n: usize| calls(vec![call(&format!("c{n}"), "gone", json!({}))]);
    let stage = AgentHarness::new((0..5).map(asked).collect(), vec![FakeTool::echo("echo")]);
    assert_eq!((fault(stage.handle("go").await).0.as_str(), stage.model.asked()), ("loop", 4));
}

#[tokio::test]
async fn repetitions_are_counted_to_the_configured_number_or_not_at_all() {
    let settings = |loop_repetitions| Settings { loop_repetitions, ..Settings::default() };
    let stage = AgentHarness::with_settings((1..=5).map(again).collect(), vec![FakeTool::echo("echo")], settings(2));
    assert_eq!((fault(stage.handle("go").await).0.as_str(), stage.model.asked()), ("loop", 3));
    let answers = (1..=8).map(again).chain([says("At last.")]).collect();
    let stage = AgentHarness::with_settings(answers, vec![FakeTool::echo("echo")], settings(0));
    assert_eq!(stage.answer("go").await.response, "At last.");
}

/// Wherever a run is cut off, what goes on behind it is judged alike: told once, and ended after as many turns.
#[tokio::test]
async fn run_that_goes_on_behind_any_entry_is_told_and_ended_alike() {
    let turn = |n| {
        let same = |name: &str| call(&format!("{name}{n}"), name, json!({ "id": 7 }));
        calls(vec![same("read"), same("write")])
    };
    let stage = |answered: usize| {
        AgentHarness::new((answered..6).map(turn).collect(), vec![FakeTool::echo("read"), FakeTool::echo("write")])
    };
    let whole = stage(0);
    let end = fault(whole.handle("go").await);
    assert_eq!((end.0.as_str(), whole.model.asked()), ("loop", 4));
    let entries = whole.store.entries.lock().unwrap().clone();
    let is_answer = |entry: &&TranscriptEntry| matches!(entry.message, TranscriptMessage::Assistant { .. });
    for length in 2..=entries.len() {
        let prefix = entries[..length].to_vec();
        let answered = prefix.iter().filter(is_answer).count();
        let mut resumed = stage(answered);
        resumed.store = Memory::of(prefix);
        assert_eq!(fault(resumed.handle("go").await), end, "behind {length} entries");
        assert_eq!(answered + resumed.model.asked(), 4, "behind {length} entries");
        let again = resumed.store.entries.lock().unwrap().clone();
        let content =
            |entries: &[TranscriptEntry]| entries.iter().map(|entry| entry.message.clone()).collect::<Vec<_>>();
        assert_eq!(content(&again), content(&entries), "behind {length} entries");
    }
}

#[tokio::test]
async fn result_that_is_cut_keeps_its_notice() {
    let settings = Settings { context_token_limit: 1000, ..Settings::default() };
    let long = FakeTool::new("echo", |_, _| async { Ok(ToolOutput::text("x".repeat(9000))) });
    let answers = (1..=3).map(again).chain([says("Done.")]).collect();
    let stage = AgentHarness::with_settings(answers, vec![long], settings);
    stage.answer("go").await;
    let has_notice = |message: &TranscriptMessage| match message {
        TranscriptMessage::Tool { notices, content, .. } => is_told(notices) && content.ends_with("[...truncated]"),
        _ => false,
    };
    assert!(stage.store.messages().iter().any(has_notice));
    let requests = stage.model.requests.lock().unwrap();
    assert!(requests[3].messages.iter().any(has_notice), "the trimmed conversation has it, too");
}
