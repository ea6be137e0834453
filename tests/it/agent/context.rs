//! The part of a conversation that the model is shown, and what stands before it.

use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use reveille::agent::context::settings::{ContextSettings, Strategy};
use reveille::agent::{Agent, AgentResponse, ApprovalContext, CHAT, ChannelLimits, Settings, StopSignal};
use reveille::app::{AppAdditions, validate};
use reveille::base::clock::Clock;
use reveille::config::Config;
use reveille::domain::run::TranscriptMessage;
use reveille::domain::run::outcome::RunError;
use reveille::domain::run::transcript::{Compaction, CompactionKind};
use reveille::ports::llm::fallback::ChainLink;
use reveille::ports::llm::tokens::calibration::TokenCalibration;
use reveille::ports::llm::tokens::exact::ExactCounts;
use reveille::ports::llm::{LlmError, ModelAnswer, ModelRequest, ModelTokens, OwnEncoder, StopReason, TokenEncoder};
use reveille::ports::tool::ToolOutput;
use serde_json::json;

use super::harness::{AgentHarness, FakeTool, Memory, call, calls, link, models_of, passing, says};

/// The system message of the request of this number.
fn system(stage: &AgentHarness, request: usize) -> String {
    match stage.model.requests.lock().unwrap()[request].messages.first() {
        Some(TranscriptMessage::System { text, .. }) => text.clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn each_prompt_says_what_carries_the_answer_and_within_which_limits() {
    let webhook = ChannelLimits {
        name: "webhook".into(),
        supported_formats: vec!["csv".into()],
        renders_markdown: false,
        max_response_length: Some(200),
    };
    let on_webhook =
        "Your answer is delivered by webhook, which carries csv; keep it under 200 characters.\nCSV (RFC 4180) ";
    for (source, channel, expected) in [
        ("trigger", Some(webhook.clone()), on_webhook),
        ("trigger", None, "Your answer stays on the record of the run; no channel carries it.\n"),
        (CHAT, None, "Your answer is delivered by chat, which carries markdown.\n"),
        (CHAT, Some(webhook), on_webhook),
    ] {
        let stage = AgentHarness::new(vec![says("done")], vec![]);
        let mut incoming = stage.incoming("go");
        incoming.channel = channel;
        incoming.approval_context = ApprovalContext { task_id: None, source, rules: None };
        passing(&stage.clock, stage.agent.handle_message(&incoming)).await.unwrap();
        let text = system(&stage, 0);
        assert!(text.contains(expected), "{source}: {text}");
    }
}

/// A turn of the model that thinks for a while and makes one call.
fn thinking(turn: usize) -> Result<ModelAnswer, LlmError> {
    Ok(ModelAnswer {
        text: Some(format!("Thought {turn}. {}", "I wonder. ".repeat(400))),
        tool_calls: vec![call(&format!("c{turn}"), "look", json!({ "page": turn }))],
        stop: StopReason::ToolCalls,
        tokens: ModelTokens::of(0, 10),
        provider_message: None,
        failure: None,
    })
}

/// An agent whose model thinks for so many turns and then answers, in a window of 10,000 tokens.
fn stage(first: usize, turns: usize, context: ContextSettings) -> AgentHarness {
    let answers = (first..=turns).map(thinking).chain([says("done")]).collect();
    let look = FakeTool::new("look", |_, arguments| async move {
        Ok(ToolOutput::text(format!("page {} has a number", arguments["page"])))
    });
    let settings = Settings {
        system_prompt: "Be brief.".into(),
        context_token_limit: 10_000,
        max_turns: 50,
        ..Settings::default()
    };
    let mut stage = AgentHarness::with_settings(answers, vec![look], settings);
    stage.agent = Agent { context, ..stage.agent };
    stage
}

fn compactions(messages: &[TranscriptMessage]) -> Vec<Compaction> {
    let compaction = |message: &TranscriptMessage| match message {
        TranscriptMessage::Compaction(compaction) => Some(compaction.clone()),
        _ => None,
    };
    messages.iter().filter_map(compaction).collect()
}

/// Texts of the messages of people, and of the service in their place.
fn user_texts(request: &ModelRequest) -> Vec<String> {
    let text = |message: &TranscriptMessage| match message {
        TranscriptMessage::User { text, .. } => Some(text.clone()),
        _ => None,
    };
    request.messages.iter().filter_map(text).collect()
}

#[tokio::test]
async fn conversation_that_fills_its_window_is_extracted_once_and_the_entry_names_what_it_replaces() {
    let stage = stage(1, 12, ContextSettings::default());
    assert_eq!(stage.answer("Find the number.").await.response, "done");
    let stored = stage.store.messages();
    // about 1,000 tokens a turn: the ninth request is the first that is too long
    let expected = Compaction { from: 2, to: 7, pinned: vec![], by: CompactionKind::Extracted };
    assert_eq!(compactions(&stored)[0], expected, "turns 1 to 3, without the question");
    let written = json!({ "role": "compaction", "from": 2, "to": 7, "by": { "kind": "extracted" } });
    assert_eq!(serde_json::to_value(TranscriptMessage::Compaction(expected)).unwrap(), written);
    let said = |message: &&TranscriptMessage| matches!(message, TranscriptMessage::Assistant { text: Some(text), .. } if text.len() > 4000);
    assert_eq!(stored.iter().filter(said).count(), 12, "the transcript keeps everything");

    let requests = stage.model.requests.lock().unwrap();
    let texts = user_texts(&requests[8]);
    assert_eq!(texts[0], "Find the number.");
    assert!(texts[1].starts_with("[Earlier in this conversation]"), "{texts:?}");
    for page in 1..=3 {
        assert!(texts[1].contains(&format!("Result of look: page {page} has a number")), "{texts:?}");
    }
    assert!(texts[1].len() < 2000, "{texts:?}");
}

/// Counts so many characters as a token.
pub struct Characters(pub usize);

impl TokenEncoder for Characters {
    fn count(&self, text: &str) -> usize {
        text.chars().count().div_ceil(self.0)
    }
}

#[tokio::test]
async fn conversation_is_fitted_into_its_window_by_the_counts_of_an_encoder() {
    // the estimate is four characters a token
    for (characters, is_shortened) in [(4, true), (8, false)] {
        let mut stage = stage(1, 12, ContextSettings::default());
        let counts = ExactCounts::new(Arc::new(Characters(characters)));
        let calibration = TokenCalibration::with_exact(Some(counts));
        let counted = ChainLink { calibration, ..link("main", stage.model.clone()) };
        let models = models_of(vec![counted], &stage.agent.settings, &stage.clock);
        stage.agent = Agent { models, ..stage.agent };
        // no time has to pass for it
        let handled = stage.agent.handle_message(&stage.incoming("Find the number.")).await;
        assert!(matches!(handled, Ok(AgentResponse::Answered(_))), "{handled:?}");
        assert_eq!(!compactions(&stage.store.messages()).is_empty(), is_shortened, "{characters} a token");
    }
}

/// Hands its run back while it counts the instructions, and comes to no end with them.
struct Endless(StopSignal, Mutex<mpsc::Receiver<()>>);

impl TokenEncoder for Endless {
    fn count(&self, text: &str) -> usize {
        if text.starts_with("Be brief.") {
            self.0.hand_back();
            // nothing is sent: it is over with the test
            let _ = self.1.lock().unwrap().recv();
        }
        text.len()
    }
}

#[tokio::test]
async fn run_that_is_to_stop_waits_for_no_encoder() {
    let mut stage = AgentHarness::new(vec![says("done")], vec![]);
    let (_held, waits) = mpsc::channel();
    let counts = ExactCounts::new(Arc::new(Endless(stage.stop.clone(), Mutex::new(waits))));
    let calibration = TokenCalibration::with_exact(Some(counts));
    let counted = ChainLink { calibration, ..link("main", stage.model.clone()) };
    let models = models_of(vec![counted], &stage.agent.settings, &stage.clock);
    stage.agent = Agent { models, ..stage.agent };
    let begun = Instant::now();
    let handled = stage.agent.handle_message(&stage.incoming("Find the number.")).await;
    assert_eq!(handled, Err(RunError::HandBack));
    assert!(begun.elapsed() < Duration::from_secs(4), "the counts of others are waited for five seconds");
    assert_eq!(stage.model.asked(), 0);
}

#[tokio::test]
async fn encoder_with_a_name_that_no_model_can_have_is_refused_at_the_start() {
    let own = OwnEncoder { models: "a*b".into(), encoder: Arc::new(Characters(4)) };
    let added = AppAdditions { encoders: &[own], ..AppAdditions::default() };
    let refused = validate(&Config::default(), Path::new("/nowhere"), &Clock::system(), added).err();
    let places: Vec<String> = refused.expect("faults").0.into_iter().map(|fault| fault.pointer).collect();
    assert_eq!(places, ["/encoders/a*b"]);
}

#[tokio::test]
async fn run_that_goes_on_after_any_entry_shows_its_model_the_same_conversation() {
    for strategy in Strategy::ALL {
        let context = ContextSettings { strategy, ..ContextSettings::default() };
        let whole = stage(1, 20, context.clone());
        whole.answer("Find the number.").await;
        let entries = whole.store.entries.lock().unwrap().clone();
        assert!(compactions(&whole.store.messages()).len() > 1, "{strategy:?}");
        let sent = whole.model.requests.lock().unwrap().clone();
        // a crash loses an answer, with the compaction before it or without
        let is_answer = |message: &TranscriptMessage| matches!(message, TranscriptMessage::Assistant { .. });
        let answers: Vec<usize> = (0..entries.len()).filter(|at| is_answer(&entries[*at].message)).collect();
        for (turn, at) in (1..).zip(&answers) {
            for stored in [*at, at - 1].into_iter().filter(|stored| *stored >= 2) {
                if matches!(entries[stored].message, TranscriptMessage::Tool { .. }) {
                    continue; // its call would be made again
                }
                let mut next = stage(turn, 20, context.clone());
                next.store = Memory::of(entries[..stored].to_vec());
                next.answer("Find the number.").await;
                let again = next.model.requests.lock().unwrap();
                assert_eq!(again[0].messages, sent[turn - 1].messages, "{strategy:?}, {stored} entries");
            }
        }
    }
}

#[tokio::test]
async fn model_is_reminded_after_so_many_rounds_in_one_request_alone() {
    let reminded = async |refocus_every_rounds| {
        let answers = (1..=11).map(|n| calls(vec![call(&format!("c{n}"), "echo", json!({ "n": n }))]));
        let mut stage = AgentHarness::new(answers.chain([says("done")]).collect(), vec![FakeTool::echo("echo")]);
        stage.agent.settings.max_turns = 50;
        stage.agent.context.refocus_every_rounds = refocus_every_rounds;
        stage.answer("go").await;
        assert!(!format!("{:?}", stage.store.messages()).contains("[Refocus]"), "it is not stored");
        let requests = stage.model.requests.lock().unwrap();
        let has_reminder =
            |request: &ModelRequest| user_texts(request).iter().any(|text| text.starts_with("[Refocus] "));
        (0..requests.len()).filter(|index| has_reminder(&requests[*index])).collect::<Vec<_>>()
    };
    assert_eq!(reminded(5).await, [5, 10], "behind the fifth round and the tenth");
    assert_eq!(reminded(0).await, [] as [usize; 0]);
}
