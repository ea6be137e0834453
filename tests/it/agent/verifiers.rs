//! Verifiers in the loop: a warning is noted, a flag asks once more, and a second flag ends the run with nothing said.

use std::sync::Arc;

use futures::future::BoxFuture;
use reveille::agent::verify::settings::VerifierSettings;
use reveille::agent::verify::{AnswerToVerify, Verdict, Verifier, Verifiers};
use reveille::agent::{Agent, AgentResponse, ApprovalContext, CHAT, ChannelLimits, TRIGGER};
use reveille::domain::run::outcome::RunError;
use reveille::domain::run::stream::StreamEvent;
use reveille::domain::run::transcript::TranscriptMessage;
use reveille::ports::llm::{LlmError, ModelAnswer};
use serde_json::{Value, json};

use super::harness::{AgentHarness, FakeTool, Memory, call, calls, says};

type Answers = Vec<Result<ModelAnswer, LlmError>>;

const KEY: &str = "-----BEGIN PRIVATE KEY-----";

fn verified(answers: Answers, settings: Value) -> AgentHarness {
    let mut stage = AgentHarness::new(answers, vec![FakeTool::echo("echo")]);
    let verifiers = Verifiers::new(&serde_json::from_value(settings).unwrap(), vec![]);
    stage.agent = Agent { verifiers, ..stage.agent };
    stage
}

fn verdicts(stage: &AgentHarness) -> Vec<(Vec<String>, Vec<String>)> {
    let verdict = |message| match message {
        TranscriptMessage::Verdict { pass, warnings, flags } => {
            assert_eq!(pass, Some(flags.is_empty()), "{flags:?}");
            Some((warnings, flags))
        }
        _ => None,
    };
    stage.store.messages().into_iter().filter_map(verdict).collect()
}

fn warned(stage: &AgentHarness) -> Vec<String> {
    let warning = |event: &StreamEvent| match event {
        StreamEvent::ToolWarning { tool, message, turn: Some(_) } => Some(format!("{tool}: {message}")),
        _ => None,
    };
    stage.told.lock().unwrap().iter().filter_map(warning).collect()
}

#[tokio::test]
async fn sound_answer_leaves_no_verdict() {
    let stage = verified(vec![says("It is late.")], json!({}));
    assert_eq!(stage.answer("go").await.response, "It is late.");
    stage.store.end();
    assert_eq!((verdicts(&stage), warned(&stage)), (vec![], vec![]));
}

#[tokio::test]
async fn warning_is_on_the_record_and_in_the_stream_and_the_answer_goes_out() {
    let stage = verified(vec![says("It is very late.")], json!({}));
    let mut incoming = stage.incoming("go");
    incoming.channel = Some(ChannelLimits {
        name: "sms".into(),
        supported_formats: vec!["plain".into()],
        renders_markdown: false,
        max_response_length: Some(10),
    });
    let response = stage.agent.handle_message(&incoming).await.unwrap();
    let AgentResponse::Answered(result) = response else { panic!("{response:?}") };
    assert_eq!(result.response, "It is very late.");
    stage.store.end();
    let warning = "I-0001: the answer has 16 characters, and sms carries 10";
    let found: Vec<String> =
        result.tool_warnings.iter().map(|found| format!("{}: {}", found.tool, found.message)).collect();
    assert_eq!(found, [warning]);
    assert_eq!(verdicts(&stage), [(vec![warning.to_owned()], vec![])]);
    assert_eq!(warned(&stage), [warning]);
}

#[tokio::test]
async fn flagged_answer_is_asked_for_once_more_and_the_model_is_told_why() {
    let look = calls(vec![call("c1", "echo", json!({}))]);
    let stage = verified(vec![says(KEY), look, says("It is late.")], json!({}));
    let result = stage.answer("go").await;
    assert_eq!((result.response.as_str(), result.turns), ("It is late.", 3));
    assert_eq!(
        stage.store.appended.lock().unwrap()[0],
        5,
        "question, answer, verdict and notice: then it is asked again"
    );
    let flag = "R-0001: the answer has what looks like a secret";
    assert_eq!(verdicts(&stage), [(vec![], vec![flag.to_owned()])]);
    let requests = stage.model.requests.lock().unwrap();
    let Some(TranscriptMessage::User { text, .. }) = requests[1].messages.last() else { panic!("not told") };
    assert!(text.contains(flag) && text.ends_with("Answer again without it."), "{text}");
    let shown = |message: &TranscriptMessage| matches!(message, TranscriptMessage::Verdict { .. });
    assert!(!requests.iter().any(|request| request.messages.iter().any(shown)), "a verdict is no message");
}

#[tokio::test]
async fn second_flag_ends_the_run_whether_or_not_a_crash_lies_between() {
    let rule = json!({ "rules": { "C-0100": { "when": "answer.contains('surely')", "message": "Promise nothing." } } });
    let check = |end: Result<AgentResponse, RunError>| match end {
        Err(RunError::Fail { fault }) => {
            assert_eq!((fault.code.as_str(), fault.message.as_str()), ("answer_flagged", "C-0100: Promise nothing."));
        }
        other => panic!("{other:?}"),
    };
    let stage = verified(vec![says("surely"), says("most surely")], rule.clone());
    check(stage.handle("go").await);
    assert_eq!((stage.model.asked(), verdicts(&stage).len()), (2, 2));

    // whatever was stored last, the next execution comes to the same end and asks no more often
    let entries = stage.store.entries.lock().unwrap().clone();
    for stored in 3..=entries.len() {
        let left = entries[stored..].iter().filter_map(|entry| match &entry.message {
            TranscriptMessage::Assistant { text, .. } => Some(says(text.as_deref().unwrap())),
            _ => None,
        });
        let mut next = verified(left.collect(), rule.clone());
        next.store = Memory::of(entries[..stored].to_vec());
        check(next.handle("go").await);
        assert!(next.model.answers.lock().unwrap().is_empty(), "{stored} entries");
    }
}

struct Hanging;

impl Verifier for Hanging {
    fn name(&self) -> &str {
        "R-0100"
    }

    fn verify<'a>(&'a self, _: &'a AnswerToVerify) -> BoxFuture<'a, Verdict> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn answer_whose_verifier_hangs_does_not_go_out() {
    let mut stage = verified(vec![says("One."), says("Two.")], json!({}));
    stage.agent.verifiers = Verifiers::new(&VerifierSettings::default(), vec![Arc::new(Hanging)]);
    match stage.handle("go").await {
        Err(RunError::Fail { fault }) => {
            assert_eq!(fault.message, "R-0100: the verifier did not come to an end in 30 s")
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn rule_for_the_channel_of_a_chat_finds_something_in_the_answer_to_a_message_and_not_in_that_to_a_fire() {
    let rule = json!({ "when": "channel == 'chat'", "message": "Say it shortly.", "severity": "warning" });
    for (source, expected) in [(CHAT, vec!["I-0100: Say it shortly."]), (TRIGGER, vec![])] {
        let stage = verified(vec![says("It is late.")], json!({ "rules": { "I-0100": rule.clone() } }));
        let mut incoming = stage.incoming("go");
        incoming.approval_context = ApprovalContext { task_id: None, source, rules: None };
        let response = stage.agent.handle_message(&incoming).await.unwrap();
        assert!(matches!(response, AgentResponse::Answered(_)), "{response:?}");
        stage.store.end();
        let warnings: Vec<String> = verdicts(&stage).into_iter().flat_map(|(warnings, _)| warnings).collect();
        assert_eq!(warnings, expected, "{source}");
    }
}

#[tokio::test]
async fn severity_of_a_built_in_verifier_is_the_operator_s() {
    let stage = verified(vec![says(KEY)], json!({ "severity": { "R-0001": "off" } }));
    assert_eq!(stage.answer("go").await.response, KEY);
    let settings = json!({ "severity": { "U-0001": "flag" } });
    let failing = calls(vec![call("c1", "none", json!({}))]);
    let stage = verified(vec![failing, says("Done."), says("It did not work.")], settings);
    assert_eq!(stage.answer("go").await.response, "It did not work.");
}

#[tokio::test]
async fn source_that_no_tool_has_read_is_flagged_though_the_flag_has_named_it_and_one_of_the_message_is_not() {
    let settings = json!({ "severity": { "A-0001": "flag" } });
    let claim = "According to news.example it is 8.";
    let stage = verified(vec![says(claim), says("See https://news.example.")], settings.clone());
    let told = "A-0001: the answer names news.example, and no tool has read that";
    match stage.handle("How late is it?").await {
        Err(RunError::Fail { fault }) => {
            assert_eq!((fault.code.as_str(), fault.message.as_str()), ("answer_flagged", told))
        }
        other => panic!("{other:?}"),
    }
    let stage = verified(vec![says(claim)], settings);
    assert_eq!(stage.answer("Look at https://news.example/today.").await.response, claim);
}
