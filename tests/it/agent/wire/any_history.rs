//! Property: whatever stands in a transcript, and however little of it the model can be shown, each request is one that
//! its provider takes. A run is resumed with the transcript, and its conversation is extracted and trimmed to a window
//! and by each step of the recovery from an overflow. The run that goes on after a crash has the same conversation.

use std::cell::{Cell, RefCell};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use reveille::agent::context::settings::{ContextSettings, Strategy as ContextStrategy};
use reveille::agent::{Agent, AgentResponse, Settings as ReactSettings};
use reveille::domain::run::TranscriptEntry;
use reveille::domain::run::transcript::{Compaction, CompactionKind, TranscriptMessage};
use serde_json::Value;

use super::fakes::{Wire, said};
use super::histories::{MODEL, histories};
use super::rules::broken_rules;
use super::scenarios::{code, patiently, tools, with_models};
use super::server::{Reply, Server, settings};
use super::vendors::{SentRequest, faults_of};
use crate::agent::harness::{AgentHarness, Memory};

/// Histories that are tried, each over every wire.
const CASES: u32 = 48;
/// Each so many-th request is held against the provider's document.
const SAMPLE: usize = 5;

/// How little of a history may be shown.
#[derive(Debug, Clone)]
struct Budget {
    /// Of the window, in tokens.
    tokens: u64,
    history: usize,
    /// How often the provider finds the conversation too long.
    overflows: u32,
    /// The turns are used up, and the model is asked for its answer.
    is_last_turn: bool,
    streams: bool,
    strategy: ContextStrategy,
    /// Rounds between two reminders.
    refocus: u32,
    /// The turn of the model up to which the history was summarised before.
    summarised: Option<usize>,
    /// Whether the first half of that was extracted before.
    was_extracted: bool,
}

fn budgets() -> impl Strategy<Value = Budget> {
    let tokens = prop_oneof![2 => 1..3000_u64, 1 => 3000..60_000_u64, 1 => Just(1_000_000)];
    let strategy = prop::sample::select(ContextStrategy::ALL.to_vec());
    let before = (prop::option::of(1..12_usize), any::<bool>());
    (tokens, 5..41_usize, 0..4_u32, any::<bool>(), any::<bool>(), strategy, 0..4_u32, before).prop_map(
        |(tokens, history, overflows, is_last_turn, streams, strategy, refocus, (summarised, was_extracted))| Budget {
            tokens,
            history,
            overflows,
            is_last_turn,
            streams,
            strategy,
            refocus,
            summarised,
            was_extracted,
        },
    )
}

/// The requests of a run, and its transcript.
struct PlayedRun {
    sent: Vec<SentRequest>,
    entries: Vec<TranscriptEntry>,
}

/// A run that is resumed with these entries, while its model finds the conversation too long so often.
async fn resumed(
    wire: Wire,
    entries: Vec<TranscriptEntry>,
    budget: &Budget,
    overflows: u32,
) -> Result<PlayedRun, String> {
    let too_long = || wire.failure(400, "context_length_exceeded: the prompt is too long");
    let overflows = (0..overflows).map(|_| too_long());
    let replies: Vec<Reply> = overflows.chain([said("Fine.").reply(wire, budget.streams)]).collect();
    let server = Server::start(replies).await;
    let react = ReactSettings {
        system_prompt: "Be brief.".into(),
        context_token_limit: budget.tokens,
        max_history_messages: budget.history,
        max_turns: if budget.is_last_turn { 1 } else { 100 },
        loop_repetitions: 0,
        ..ReactSettings::default()
    };
    let mut stage = AgentHarness { store: Memory::of(entries), ..AgentHarness::with_settings(vec![], tools(), react) };
    let context = ContextSettings {
        strategy: budget.strategy,
        refocus_every_rounds: budget.refocus,
        summarise_from_messages: 0,
        ..ContextSettings::default()
    };
    stage.agent = Agent { context, ..stage.agent };
    let model = settings(&server, |settings| {
        settings.provider = wire.provider().into();
        settings.model = MODEL.into();
        settings.stream = budget.streams;
    });
    let agent = with_models(&stage, vec![("main", model)]);
    let ended = patiently(&stage.clock, agent.handle_message(&stage.incoming("Go."))).await;
    let sent = server.requests().into_iter().map(|sent| SentRequest { title: "history".into(), wire, body: sent.body });
    let has_ended = match &ended.ok_or("it hangs")? {
        Ok(AgentResponse::Answered(result)) => result.response == "Fine.",
        Err(error) => code(error) == "context_overflow" && budget.overflows > 0,
        _ => false,
    };
    let entries = stage.store.entries.lock().unwrap().clone();
    has_ended.then(|| PlayedRun { sent: sent.collect(), entries }).ok_or_else(|| "no answer".to_owned())
}

/// The history as it was compacted before.
fn compacted(entries: Vec<TranscriptEntry>, budget: &Budget) -> Vec<TranscriptEntry> {
    let Some(turns) = budget.summarised else { return entries };
    let entries = match budget.was_extracted {
        true => with_compaction(entries, turns.div_ceil(2), CompactionKind::Extracted),
        false => entries,
    };
    let errors = vec!["Error of echo: it is torn".into()];
    let by = CompactionKind::Summarised { summary: "It was looked for, and not found.".into(), errors };
    with_compaction(entries, turns, by)
}

/// The history with something in the place of its first turns, but for questions.
fn with_compaction(mut entries: Vec<TranscriptEntry>, turns: usize, by: CompactionKind) -> Vec<TranscriptEntry> {
    let is_turn = |entry: &&TranscriptEntry| matches!(entry.message, TranscriptMessage::Assistant { .. });
    if let (Some(first_kept), Some(last)) = (entries.iter().filter(is_turn).nth(turns), entries.last()) {
        let (from, to) = (1, first_kept.seq - 1);
        let is_question = |entry: &&TranscriptEntry| matches!(entry.message, TranscriptMessage::User { .. });
        let pinned = entries[1..=to as usize].iter().filter(is_question).map(|entry| entry.seq).collect();
        let message = TranscriptMessage::Compaction(Compaction { from, to, pinned, by });
        entries.push(TranscriptEntry { seq: last.seq + 1, message, ..last.clone() });
    }
    entries
}

/// The entries that stand before the last answer of the model, and what the run sent to get it: a crash may have lost
/// the answer.
fn before_the_answer(run: &PlayedRun) -> Option<(Vec<TranscriptEntry>, &SentRequest)> {
    let is_answer = |entry: &TranscriptEntry| match &entry.message {
        TranscriptMessage::Assistant { text, .. } => text.as_deref() == Some("Fine."),
        _ => false,
    };
    let answer = run.entries.iter().rposition(is_answer)?;
    Some((run.entries[..answer].to_vec(), run.sent.last()?))
}

/// All texts of a request, one after the other.
fn words_of(body: &Value) -> String {
    match body {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(words_of).collect::<Vec<_>>().join("\n"),
        Value::Object(fields) => fields.values().map(words_of).collect::<Vec<_>>().join("\n"),
        _ => String::new(),
    }
}

fn extracts(run: &PlayedRun) -> usize {
    let is_extract = |entry: &&TranscriptEntry| match &entry.message {
        TranscriptMessage::Compaction(compaction) => compaction.by == CompactionKind::Extracted,
        _ => false,
    };
    run.entries.iter().filter(is_extract).count()
}

#[test]
fn any_history_that_is_cut_to_any_budget_is_a_request_that_its_provider_takes() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let config =
        Config { cases: CASES, rng_seed: RngSeed::Fixed(20_261_126), failure_persistence: None, ..Config::default() };
    let sample = RefCell::new(Vec::new());
    let (seen, shortened, extracted) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let held = TestRunner::new(config).run(&(histories(), budgets()), |(history, budget)| {
        for wire in Wire::ALL {
            let play = |entries, overflows| runtime.block_on(resumed(wire, entries, &budget, overflows));
            let run = play(compacted(history.entries(), &budget), budget.overflows).map_err(TestCaseError::fail)?;
            prop_assert!(!run.sent.is_empty(), "{:?}: nothing was asked", wire);
            extracted.set(extracted.get() + extracts(&run));
            if let Some((entries, last)) = before_the_answer(&run) {
                let again = play(entries, 0).map_err(TestCaseError::fail)?;
                prop_assert_eq!(&again.sent[0].body, &last.body, "{:?}: another conversation after a crash", wire);
            }
            let sent = run.sent;
            let again = sent.windows(2).filter(|pair| pair[0].body != pair[1].body).count();
            shortened.set(shortened.get() + again);
            for request in sent {
                let broken = broken_rules(wire, &request.body);
                prop_assert!(broken.is_empty(), "{:?}: {:?} in {}", wire, broken, request.body);
                let sent = words_of(&request.body);
                prop_assert!(sent.contains(&history.task()), "{:?}: the task is gone", wire);
                for notice in history.lasting() {
                    prop_assert!(sent.contains(&notice), "{:?}: {} is gone from {}", wire, notice, sent);
                }
                seen.set(seen.get() + 1);
                if seen.get() % SAMPLE == 0 {
                    sample.borrow_mut().push(request);
                }
            }
        }
        Ok(())
    });
    held.unwrap_or_else(|broken| panic!("{broken}"));
    assert!(shortened.get() > CASES as usize / 2, "{} of {} requests were shortened", shortened.get(), seen.get());
    assert!(extracted.get() > CASES as usize / 8, "{} histories were extracted", extracted.get());
    let faults = runtime.block_on(faults_of(&sample.into_inner()));
    assert!(faults.is_empty(), "{} of the sample:\n{}", faults.len(), faults.join("\n"));
}
