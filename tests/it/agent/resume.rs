//! After a crash the run goes on from its transcript: whatever had been stored is not done again, and what may have
//! been done and can't be repeated is called unknown.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use reveille::domain::run::Usage;
use reveille::domain::run::transcript::{ToolCall, TranscriptEntry, TranscriptMessage};
use reveille::ports::tool::{ToolContext, ToolOutput};
use serde_json::json;

use super::harness::{AgentHarness, FakeTool, Memory, call, calls, says, start};

/// Calls by name and idempotency key, with the number of tries.
type CallTries = Arc<Mutex<BTreeMap<(String, String), usize>>>;

fn counting(name: &'static str, idempotent: bool, called: &CallTries) -> FakeTool {
    let called = called.clone();
    let tool = FakeTool::new(name, move |context: ToolContext, _| {
        *called.lock().unwrap().entry((name.to_owned(), context.idempotency_key.clone())).or_default() += 1;
        async move { Ok(ToolOutput::text(format!("{name} at turn {}", context.turn))) }
    });
    tool.with(|tool| tool.idempotent = idempotent)
}

/// Two turns with two tools each, one of which can't be repeated, then the answer.
fn stage(answered: usize, called: &CallTries) -> AgentHarness {
    let turn = |n| calls(vec![call(&format!("r{n}"), "read", json!({})), call(&format!("w{n}"), "write", json!({}))]);
    let answers = vec![turn(1), turn(2), says("done")];
    let tools = vec![counting("read", true, called), counting("write", false, called)];
    AgentHarness::new(answers.into_iter().skip(answered).collect(), tools)
}

fn count_answers(entries: &[TranscriptEntry]) -> usize {
    entries.iter().filter(|entry| matches!(entry.message, TranscriptMessage::Assistant { .. })).count()
}

/// The calls of the last answer that have no result.
fn open(entries: &[TranscriptEntry]) -> Vec<ToolCall> {
    let results: Vec<&str> = entries
        .iter()
        .filter_map(|entry| match &entry.message {
            TranscriptMessage::Tool { call_id, .. } => Some(call_id.as_str()),
            _ => None,
        })
        .collect();
    let calls = entries.iter().flat_map(|entry| match &entry.message {
        TranscriptMessage::Assistant { tool_calls, .. } => tool_calls.clone(),
        _ => vec![],
    });
    calls.filter(|call| !results.contains(&call.id.as_str())).collect()
}

#[tokio::test]
async fn resume_from_any_transcript_prefix_repeats_nothing() {
    let first: CallTries = CallTries::default();
    let whole = stage(0, &first);
    whole.answer("go").await;
    let entries = whole.store.entries.lock().unwrap().clone();
    assert_eq!(first.lock().unwrap().len(), 4);
    assert_eq!(count_answers(&entries), 3);
    assert_eq!(entries.len(), 9);

    for length in 0..=entries.len() {
        let prefix = entries[..length].to_vec();
        if length == 1 {
            continue; // the first two are one append
        }
        let called = CallTries::default();
        let mut resumed = stage(count_answers(&prefix), &called);
        resumed.store = Memory::of(prefix.clone());
        let result = resumed.answer("go").await;
        assert_eq!(result.response, "done", "prefix of {length}");
        assert_eq!(
            resumed.model.asked(),
            3 - count_answers(&prefix),
            "prefix of {length}: no finished turn is asked again"
        );
        let usage = Usage { turns: 3, tool_calls: 4, input_tokens: 300, output_tokens: 30, cost_micros: 330 };
        assert_eq!(result.usage, usage, "prefix of {length}: the account covers all attempts");
        assert_eq!(result.tool_calls.len(), 4);

        let open = open(&prefix);
        let unknown: Vec<&str> = open.iter().filter(|call| call.name == "write").map(|call| call.id.as_str()).collect();
        for (id, content, is_error) in resumed.results() {
            let is_unknown = content.contains("code: outcome_unknown");
            assert_eq!(is_unknown, unknown.contains(&id.as_str()), "prefix of {length}: {content}");
            assert_eq!(is_error, is_unknown);
        }
        // what ran, ran once, with the key of the first time
        for (who, times) in called.lock().unwrap().iter() {
            assert_eq!(*times, 1, "prefix of {length}");
            assert!(first.lock().unwrap().contains_key(who), "prefix of {length}: {who:?} has another key");
        }
        let stored =
            entries[..length].iter().filter(|entry| matches!(entry.message, TranscriptMessage::Tool { .. })).count();
        assert_eq!(called.lock().unwrap().len(), 4 - stored - unknown.len(), "prefix of {length}");
        let seqs: Vec<i64> = resumed.store.entries.lock().unwrap().iter().map(|entry| entry.seq).collect();
        assert_eq!(seqs, (0..9).collect::<Vec<_>>(), "prefix of {length}");
    }
}

#[tokio::test]
async fn unknown_outcome_is_told_to_the_model_in_words() {
    let called = CallTries::default();
    let whole = stage(0, &called);
    whole.answer("go").await;
    let entries = whole.store.entries.lock().unwrap()[..3].to_vec();
    let mut resumed = stage(1, &CallTries::default());
    resumed.store = Memory::of(entries);
    resumed.answer("go").await;
    let requests = resumed.model.requests.lock().unwrap();
    let told = requests[0].messages.iter().find_map(|message| match message {
        TranscriptMessage::Tool { call_id, content, .. } if call_id == "w1" => Some(content.as_str()),
        _ => None,
    });
    insta::assert_snapshot!(told.unwrap(), @r"
    Operation failed.
    type: execution_error
    code: outcome_unknown
    message: the service was restarted during this call; whether it had its effect is unknown, and it was not repeated
    call: w1
    ");
}

#[tokio::test]
async fn unrepeatable_call_is_stored_as_soon_as_it_is_done() {
    let called = CallTries::default();
    let slow = FakeTool::new("slow", |_, _| std::future::pending());
    let asked = calls(vec![call("s", "slow", json!({})), call("w", "write", json!({}))]);
    let stage = AgentHarness::new(vec![asked], vec![slow, counting("write", false, &called)]);
    let incoming = stage.incoming("go");
    let mut handling = Box::pin(stage.agent.handle_message(&incoming));
    for _ in 0..1_000 {
        assert!(futures::poll!(&mut handling).is_pending());
        if !stage.results().is_empty() {
            break;
        }
        tokio::task::yield_now().await;
    }
    drop(handling); // the process dies while the slow one runs
    assert_eq!(stage.results(), [("w".into(), "write at turn 1".into(), false)]);
}

#[tokio::test]
async fn resumed_run_is_shown_the_present_time_and_keeps_the_system_message_of_its_first_attempt_stored() {
    let stage = AgentHarness::new(vec![says("done")], vec![]);
    let usage = Usage::default();
    let entry = |seq, message| TranscriptEntry { usage, ..TranscriptEntry::new(seq, 0, start(), message) };
    let stored = vec![entry(0, TranscriptMessage::system("of yesterday")), entry(1, TranscriptMessage::user("go"))];
    let stage = AgentHarness { store: Memory::of(stored), ..stage };
    stage.answer("go").await;
    let requests = stage.model.requests.lock().unwrap();
    assert!(
        matches!(&requests[0].messages[0], TranscriptMessage::System { text, .. } if text.contains("2026-12-24T07:00:00Z"))
    );
    assert_eq!(requests[0].messages.len(), 2);
    assert_eq!(stage.store.messages()[0], TranscriptMessage::system("of yesterday"));
}
