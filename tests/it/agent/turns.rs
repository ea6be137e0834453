//! The limit of turns: the model is asked for an answer, and the run ends with what it said, and says so.

use reveille::agent::Settings;
use reveille::domain::run::RunFinish;
use reveille::domain::run::outcome::RunError;
use reveille::domain::run::transcript::TranscriptMessage;
use reveille::ports::llm::{LlmError, ModelAnswer, ModelRequest, StopReason, ToolChoice};
use serde_json::json;

use super::harness::{AgentHarness, FakeTool, Memory, call, calls, says};

/// One turn with tools.
fn one_turn() -> Settings {
    Settings { max_turns: 1, ..Settings::default() }
}

/// Calls `echo`, with or without a text before it.
fn calling(id: &str, text: Option<&str>) -> Result<ModelAnswer, LlmError> {
    let answer = calls(vec![call(id, "echo", json!({ "id": id }))])?;
    Ok(ModelAnswer { text: text.map(str::to_owned), ..answer })
}

fn stage(answers: Vec<Result<ModelAnswer, LlmError>>, settings: Settings) -> AgentHarness {
    AgentHarness::with_settings(answers, vec![FakeTool::echo("echo")], settings)
}

#[tokio::test]
async fn model_is_asked_once_for_an_answer_without_tools_after_ten_turns() {
    let mut answers: Vec<_> = (1..=10).map(|n| calls(vec![call(&n.to_string(), "echo", json!({ "n": n }))])).collect();
    let mut stubborn = calls(vec![call("11", "echo", json!({}))]).unwrap();
    stubborn.text = Some("This far I came.".into());
    answers.push(Ok(stubborn));
    let stage = AgentHarness::new(answers, vec![FakeTool::echo("echo")]);
    let result = stage.answer("count for ever").await;
    assert_eq!((result.response.as_str(), result.turns, result.tool_calls.len()), ("This far I came.", 11, 10));
    assert_eq!(result.finish, Some(RunFinish::MaxTurns));
    let requests = stage.model.requests.lock().unwrap();
    let choices: Vec<ToolChoice> = requests.iter().map(|request| request.tool_choice).collect();
    assert_eq!(choices, [vec![ToolChoice::Auto; 10], vec![ToolChoice::None]].concat());
    let closing =
        "You have executed enough steps. Please provide a final answer based on the information gathered so far.";
    let closes = |request: &ModelRequest| request.messages.last() == Some(&TranscriptMessage::ephemeral(closing));
    assert_eq!(requests.iter().filter(|request| closes(request)).count(), 1);
    assert!(closes(&requests[10]));
    assert!(!stage.store.messages().contains(&TranscriptMessage::ephemeral(closing)), "nobody said it");
}

#[tokio::test]
async fn answer_within_the_turns_is_a_plain_one() {
    let stage = stage(vec![calling("1", None), says("One.")], Settings { max_turns: 2, ..Settings::default() });
    assert_eq!(stage.answer("go").await.finish, Some(RunFinish::Answer));
    let finishes = stage.store.messages().into_iter().filter_map(|message| match message {
        TranscriptMessage::Assistant { finish, .. } => Some(finish),
        _ => None,
    });
    assert_eq!(finishes.collect::<Vec<_>>(), [None, None]);
}

#[tokio::test]
async fn model_that_calls_on_all_the_same_ends_with_the_last_thing_that_it_said() {
    let cut =
        || calling("2", None).map(|answer| ModelAnswer { tool_calls: vec![], stop: StopReason::Length, ..answer });
    let blank = || calling("2", Some(" \n"));
    for closing in [calling("2", None), cut(), blank()] {
        let stage = stage(vec![calling("1", Some("I have read three of five mails.")), closing], one_turn());
        let result = stage.answer("go").await;
        assert_eq!(
            (result.response.as_str(), result.finish),
            ("I have read three of five mails.", Some(RunFinish::MaxTurns))
        );
        assert_eq!((result.turns, result.tool_calls.len()), (2, 1), "the call of the closing turn is not made");
    }
}

#[tokio::test]
async fn run_that_goes_on_behind_its_closing_answer_says_the_same_whatever_its_limit_is_now() {
    for closing in [says("Three of five."), calling("2", None)] {
        let first = stage(vec![calling("1", Some("I have read three.")), closing], one_turn());
        let whole = first.answer("go").await;
        let entries = first.store.entries.lock().unwrap().clone();
        let mut resumed = stage(vec![], Settings::default());
        resumed.store = Memory::of(entries);
        let again = resumed.answer("go").await;
        assert_eq!(
            (&again.response, again.finish, again.usage),
            (&whole.response, Some(RunFinish::MaxTurns), whole.usage)
        );
        assert_eq!(resumed.model.asked(), 0);
    }
}

#[tokio::test]
async fn run_that_dies_before_its_closing_answer_is_asked_for_it_again() {
    let first = stage(vec![calling("1", None), says("Three of five.")], one_turn());
    first.answer("go").await;
    let mut entries = first.store.entries.lock().unwrap().clone();
    entries.pop();
    let mut resumed = stage(vec![says("Three of five.")], one_turn());
    resumed.store = Memory::of(entries);
    assert_eq!(resumed.answer("go").await.finish, Some(RunFinish::MaxTurns));
    assert_eq!(resumed.model.requests.lock().unwrap()[0].tool_choice, ToolChoice::None);
}

#[tokio::test]
async fn model_that_has_said_nothing_in_all_its_turns_fails_the_run() {
    let answers = vec![calls(vec![call("1", "echo", json!({}))]), calls(vec![call("2", "echo", json!({}))])];
    let settings = Settings { max_turns: 1, ..Settings::default() };
    let stage = AgentHarness::with_settings(answers, vec![FakeTool::echo("echo")], settings);
    let failed = stage.handle("go").await;
    assert_eq!(failed, Err(RunError::fail("no_answer", "the model used up its turns and has not said anything")));
}

#[tokio::test]
async fn turn_makes_fifty_calls_and_each_beyond_them_is_refused() {
    let asked = |number: usize| call(&format!("c{number}"), "echo", json!({ "n": number }));
    let answers = vec![calls((1..=52).map(asked).collect()), says("done")];
    let stage = AgentHarness::new(answers, vec![FakeTool::echo("echo")]);
    stage.answer("go").await;
    let results = stage.results();
    assert_eq!(results.len(), 52, "each call has its result");
    let refused: Vec<&str> = results.iter().filter(|(.., is_error)| *is_error).map(|(id, ..)| id.as_str()).collect();
    assert_eq!(refused, ["c51", "c52"]);
    assert!(results[50].1.contains("code: too_many_calls"), "{}", results[50].1);
}
