//! Summaries of long conversations: written beside the turns, shown from the next one on, and missed by nobody.

use std::sync::Arc;

use chrono::TimeDelta;
use reveille::agent::Settings;
use reveille::domain::run::TranscriptMessage;
use reveille::domain::run::transcript::{CompactionKind, SUMMARY_UNUSABLE};
use reveille::ports::llm::{LlmError, ModelAnswer, ModelRequest, ModelTokens, StopReason};
use reveille::ports::tool::{ToolContext, ToolError, ToolOutput};
use serde_json::{Value, json};

use super::harness::{AgentHarness, FakeModel, FakeTool, Memory, call, calls, models, says, seconds};

/// Rounds of calls before the answer.
const ROUNDS: usize = 11;

/// A run of so many rounds, whose summaries the model `small` writes.
fn stage(summaries: Vec<Result<ModelAnswer, LlmError>>) -> (AgentHarness, Arc<FakeModel>) {
    let look = FakeTool::new("look", |_, arguments| async move {
        // a tool takes its time, in which others go on
        for _ in 0..30 {
            tokio::task::yield_now().await;
        }
        match arguments["page"].as_u64() {
            Some(1) => {
                Err(ToolError::for_model(reveille::ports::tool::ToolFailure::NotFound, "no_page", "page 1 is torn"))
            }
            _ => Ok(ToolOutput::text(arguments.to_string())),
        }
    });
    let small = FakeModel::of(summaries);
    (stage_of(look, small.clone()), small)
}

/// A run of so many rounds with this tool, whose summaries this model writes.
fn stage_of(look: FakeTool, small: Arc<FakeModel>) -> AgentHarness {
    let rounds = (0..ROUNDS).map(|n| calls(vec![call(&format!("c{n}"), "look", json!({ "page": n }))]));
    let settings = Settings { system_prompt: "Be brief.".into(), max_turns: 50, ..Settings::default() };
    let mut stage = AgentHarness::with_settings(rounds.chain([says("done")]).collect(), vec![look], settings.clone());
    stage.agent.models = models(vec![("main", stage.model.clone()), ("small", small)], &settings, &stage.clock);
    stage.agent.context.summary_model = Some("small".into());
    stage.agent.context.summarise_from_messages = 20;
    stage.agent.context.refocus_every_rounds = 0;
    stage
}

/// Which requests bring a summary.
fn with_summary(stage: &AgentHarness) -> Vec<usize> {
    let requests = stage.model.requests.lock().unwrap();
    let has = |request: &ModelRequest| format!("{:?}", request.messages).contains("A summary of your turns");
    (0..requests.len()).filter(|index| has(&requests[*index])).collect()
}

#[tokio::test]
async fn summary_is_written_beside_the_turns_and_shown_from_the_next_one_on() {
    let (stage, small) = stage(vec![says("Pages 0 to 3 were read.")]);
    let result = stage.answer("Find the number.").await;
    // system, question and two messages a round: the tenth request has twenty
    assert_eq!(with_summary(&stage), (10..=ROUNDS).collect::<Vec<_>>());
    let stored = stage.store.messages();
    let compaction = stored.iter().find_map(|message| match message {
        TranscriptMessage::Compaction(compaction) => Some(compaction.clone()),
        _ => None,
    });
    let compaction = compaction.expect("an entry");
    assert_eq!((compaction.from, compaction.to), (2, 9), "all rounds but the last five");
    let CompactionKind::Summarised { summary, errors } = compaction.by else { panic!("{:?}", compaction.by) };
    assert_eq!(summary, "Pages 0 to 3 were read.");
    let [error] = &errors[..] else { panic!("{errors:?}") };
    assert!(error.starts_with("Error of look: ") && error.contains("page 1 is torn"), "errors are never lost: {error}");

    let asked = small.requests.lock().unwrap();
    assert_eq!((asked.len(), asked[0].max_tokens), (1, Some(500)));
    assert!(format!("{:?}", asked[0].messages).contains("You called look with"), "{:?}", asked[0].messages);
    let usage = result.usage;
    let turns = ROUNDS as i64 + 1;
    assert_eq!((usage.turns, usage.input_tokens, usage.cost_micros), (turns, 100 * (turns + 1), 110 * (turns + 1)));
    let cost = stage.store.summaries.lock().unwrap()[0].clone();
    assert_eq!(cost.hourly_micros, 100_000);
    assert_eq!(*stage.store.given_back.lock().unwrap(), [cost.bound.most.cost_micros - 110]);
}

#[tokio::test]
async fn run_that_goes_on_behind_a_summary_asks_for_none_again() {
    let (whole, _) = stage(vec![says("Pages 0 to 3 were read.")]);
    whole.answer("Find the number.").await;
    let entries = whole.store.entries.lock().unwrap().clone();
    let is_answer = |message: &TranscriptMessage| matches!(message, TranscriptMessage::Assistant { .. });
    let last = entries.iter().rposition(|entry| is_answer(&entry.message)).unwrap();
    let (mut next, small) = stage(vec![]);
    next.store = Memory::of(entries[..last].to_vec());
    *next.model.answers.lock().unwrap() = [says("done")].into();
    next.answer("Find the number.").await;
    let (sent, again) = (whole.model.requests.lock().unwrap(), next.model.requests.lock().unwrap());
    assert_eq!(again[0].messages, sent.last().unwrap().messages);
    assert_eq!(small.asked(), 0);
}

#[tokio::test]
async fn summary_that_is_not_to_be_had_changes_nothing() {
    let empty = || {
        let (tokens, stop) = (ModelTokens::of(100, 10), StopReason::Length);
        Ok(ModelAnswer {
            text: Some("Half a".into()),
            tool_calls: vec![],
            stop,
            tokens,
            provider_message: None,
            failure: None,
        })
    };
    let refused = || Err(LlmError::Rejected { message: "no".into() });
    // without an answer the model hangs
    for (summaries, asked) in [(vec![], 1), (vec![refused()], 1), (vec![empty()], 1)] {
        let (stage, small) = stage(summaries);
        let began = stage.elapsed();
        assert_eq!(stage.answer("Find the number.").await.response, "done");
        assert!(stage.elapsed() - began < 10_000, "no turn waits for it");
        assert_eq!((small.asked(), with_summary(&stage)), (asked, vec![]));
        let stored = stage.store.messages();
        assert!(!stored.iter().any(|message| matches!(message, TranscriptMessage::Compaction(_))), "{stored:?}");
    }
    // the model may have been paid for one that nobody waits for: it counts as the worst
    let (hanging, _) = stage(vec![]);
    let usage = hanging.answer("Find the number.").await.usage;
    let most = hanging.store.summaries.lock().unwrap()[0].bound.most;
    let turns = ROUNDS as i64 + 1;
    assert_eq!(usage.cost_micros, 110 * turns + most.cost_micros);
    assert_eq!(usage.input_tokens + usage.output_tokens, 110 * turns + most.tokens);
    assert_eq!(usage.output_tokens, 10 * turns + 500);
    assert!(hanging.store.given_back.lock().unwrap().is_empty());

    let (paid, _) = stage(vec![empty()]);
    paid.answer("Find the number.").await;
    let unusable = TranscriptMessage::Unusable { code: SUMMARY_UNUSABLE.into() };
    let entries = paid.store.entries.lock().unwrap();
    let costs: Vec<_> =
        entries.iter().filter(|entry| entry.message == unusable).map(|entry| &entry.model_call).collect();
    assert!(matches!(costs[..], [Some(call)] if call.tokens == ModelTokens::of(100, 10)), "it was paid for: {costs:?}");
}

#[tokio::test]
async fn summary_is_asked_for_only_where_its_cost_is_left_and_it_is_wanted() {
    let (mut refused, small) = stage(vec![says("never")]);
    refused.store = Arc::new(Memory { refuses_summaries: true, ..Memory::default() });
    refused.answer("Find the number.").await;
    assert_eq!((small.asked(), refused.store.summaries.lock().unwrap().len()), (0, 1), "and not asked again");
    let (mut off, small) = stage(vec![says("never")]);
    off.agent.context.summarise_from_messages = 0;
    off.answer("Find the number.").await;
    assert_eq!((small.asked(), off.store.summaries.lock().unwrap().len()), (0, 0));
}

#[tokio::test]
async fn summary_that_is_kept_serves_the_same_conversation_without_a_model() {
    let (first, small) = stage(vec![says("Pages 0 to 3 were read.")]);
    first.answer("Find the number.").await;
    let (mut second, unused) = stage(vec![]);
    second.agent.summaries = first.agent.summaries.clone();
    second.answer("Find the number.").await;
    assert_eq!((small.asked(), unused.asked()), (1, 0));
    assert_eq!(with_summary(&second), with_summary(&first));
    assert!(second.store.summaries.lock().unwrap().is_empty(), "it costs nothing");
}

#[tokio::test]
async fn summary_is_kept_for_a_day_and_no_longer() {
    let (first, _) = stage(vec![says("Pages 0 to 3 were read.")]);
    first.answer("Find the number.").await;
    for (hours, asked) in [(23, 0), (25, 1)] {
        let (mut later, small) = stage(vec![says("Pages 0 to 3 were read.")]);
        later.agent.summaries = first.agent.summaries.clone();
        later.clock.advance(TimeDelta::hours(hours));
        later.answer("Find the number.").await;
        assert_eq!(small.asked(), asked, "after {hours} hours");
    }
}

#[tokio::test]
async fn summary_that_takes_longer_than_ten_seconds_is_given_up_while_the_run_goes_on() {
    let small = FakeModel::of(vec![]);
    let hanging = small.clone();
    let look = FakeTool::new("look", move |context: ToolContext, arguments: Value| {
        let hanging = hanging.clone();
        async move {
            // the call of the turn with which the summary begins
            if arguments["page"] == 9 {
                while hanging.asked() == 0 {
                    tokio::task::yield_now().await;
                }
                context.clock.sleep(seconds(11)).await;
            }
            Ok(ToolOutput::text(arguments.to_string()))
        }
    })
    .with(|tool| tool.timeout = Some(seconds(600)));
    let stage = stage_of(look, small);
    assert_eq!(stage.answer("Find the number.").await.response, "done");
    let stored = stage.store.messages();
    let given_up = TranscriptMessage::Unusable { code: SUMMARY_UNUSABLE.into() };
    let at = stored.iter().position(|message| *message == given_up).expect("an entry");
    let later = stored[at..].iter().filter(|message| matches!(message, TranscriptMessage::Assistant { .. })).count();
    assert_eq!(later, 2, "two turns came after it");
}

#[tokio::test]
async fn many_calls_of_the_last_turns_are_no_reason_for_a_summary() {
    let (mut stage, small) = stage(vec![says("never")]);
    // five turns of five calls each, and the question: 32 messages, of which nothing is old
    let turn = |n: usize| {
        calls((0..5).map(|at| call(&format!("c{n}-{at}"), "look", json!({ "page": 10 * n + at + 2 }))).collect())
    };
    *stage.model.answers.lock().unwrap() = (0..6).map(turn).chain([says("done")]).collect();
    stage.agent.context.summarise_from_messages = 28;
    stage.answer("Find the number.").await;
    assert_eq!((small.asked(), stage.store.summaries.lock().unwrap().len()), (0, 0));
}
