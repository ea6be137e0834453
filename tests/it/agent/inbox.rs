//! Questions that MCP servers have in the middle of a call: the run waits for a person, and the call goes on with the
//! answer, or is left alone.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use reveille::agent::{Agent, AgentResponse, ApprovalContext, Suspension};
use reveille::domain::approval::matrix::Category;
use reveille::domain::approval::{
    Approval, ApprovalChoice, ApprovalStatus, CallOutcome, Continuation, ContinuationKind, InputForm, OnExpiry,
    PartField, PartMode, QuestionKind, QuestionPart, ServerAnswer, ServerQuestion,
};
use reveille::domain::run::stream::StreamEvent;
use reveille::domain::run::transcript::TranscriptMessage;
use reveille::domain::run::{ResultNotice, ResultNoticeKind};
use reveille::ports::tool::access::ToolAccess;
use reveille::ports::tool::{NeededInput, Tool, ToolContext, ToolError, ToolFailure, ToolOutput, ToolRegistry};
use serde_json::{Value, json};

use super::harness::{AgentHarness, FakeTool, RUN, call, calls, passing, says, start};
use super::tool_life::governed;

/// A request as the server has got it.
#[derive(Debug, Clone, PartialEq)]
struct Request {
    arguments: Value,
    key: String,
    /// The answer that came with it, and of which round.
    answer: Option<(u32, ServerAnswer)>,
}

type Requests = Arc<Mutex<Vec<Request>>>;

fn requests(seen: &Requests) -> Vec<Request> {
    seen.lock().unwrap().clone()
}

/// The question of a server in this round.
fn needed(round: u32) -> ToolError {
    let fields = vec![PartField { name: "sure".into(), field: "sure".into() }];
    let part = QuestionPart { key: "sure".into(), message: "Deploy to prod?".into(), mode: PartMode::Form { fields } };
    needed_with(round, part)
}

fn needed_with(round: u32, part: QuestionPart) -> ToolError {
    let form = InputForm {
        question: part.message.clone(),
        description: String::new(),
        parameters: json!({
            "type": "object", "properties": { "sure": { "type": "boolean" } }, "additionalProperties": false,
        }),
        values: json!({}),
        lacks: Vec::new(),
    };
    let state = Some("cy1wcm9k".into());
    let continuation =
        Continuation { kind: ContinuationKind::Continue, round, request_state: state, answered: [].into() };
    let question = ServerQuestion { server: "github".into(), parts: vec![part], continuation };
    ToolError::NeedsInput(Box::new(NeededInput { form, question }))
}

/// A tool of a server that asks so often in the middle of a call, which is not to be repeated.
fn deploy(seen: &Requests, rounds: u32) -> FakeTool {
    let seen = seen.clone();
    FakeTool::new("deploy", move |context: ToolContext, arguments| {
        let going_on = context.continuation.as_deref();
        let answer = going_on.map(|going_on| (going_on.question.continuation.round, going_on.answer.clone()));
        let round = answer.as_ref().map_or(0, |(round, _)| *round);
        let is_declined = matches!(answer, Some((_, ServerAnswer::Decline)));
        seen.lock().unwrap().push(Request { arguments, key: context.idempotency_key.clone(), answer });
        async move {
            match is_declined || round >= rounds {
                true => Ok(ToolOutput::text(format!("ended after {round} answers"))),
                false => Err(needed(round + 1)),
            }
        }
    })
    .with(|tool| tool.idempotent = false)
}

/// One call of the tool, and the answer after it.
fn stage_of(tool: FakeTool) -> AgentHarness {
    let turn = vec![call("d", "deploy", json!({ "env": "prod" }))];
    AgentHarness::new(vec![calls(turn), says("all is done")], vec![tool])
}

fn with_tool(stage: AgentHarness, tool: FakeTool) -> AgentHarness {
    let tools: Vec<Arc<dyn Tool>> = vec![Arc::new(tool)];
    AgentHarness { agent: Agent { tools: Arc::new(ToolRegistry::new(tools).unwrap()), ..stage.agent }, ..stage }
}

async fn handle(stage: &AgentHarness) -> AgentResponse {
    let mut incoming = stage.incoming("go");
    incoming.approval_context = ApprovalContext { task_id: None, source: "trigger", rules: None };
    passing(&stage.clock, stage.agent.handle_message(&incoming)).await.unwrap()
}

/// The suspension with its questions; they are stored, as the store would.
async fn suspend(stage: &AgentHarness) -> Suspension {
    let AgentResponse::Suspended(suspension) = handle(stage).await else { panic!("it went on") };
    let mut approvals = stage.store.approvals.lock().unwrap();
    for (ask, replaces) in &suspension.asks {
        approvals.retain(|known| Some(known.id) != *replaces);
        approvals.push(ask.clone());
    }
    suspension
}

/// The one question with which it is suspended.
async fn asked(stage: &AgentHarness) -> Approval {
    let mut asks = suspend(stage).await.asks;
    assert_eq!(asks.len(), 1, "{asks:?}");
    asks.remove(0).0
}

async fn final_answer(stage: &AgentHarness) -> String {
    match handle(stage).await {
        AgentResponse::Answered(result) => {
            stage.store.end();
            result.response
        }
        other => panic!("no answer: {other:?}"),
    }
}

/// Settles the open question.
fn settle(stage: &AgentHarness, change: impl FnOnce(&mut Approval)) {
    let mut approvals = stage.store.approvals.lock().unwrap();
    change(approvals.iter_mut().find(|one| one.status == ApprovalStatus::Pending).expect("an open question"));
}

fn answer(arguments: Value) -> impl FnOnce(&mut Approval) {
    move |question| {
        question.status = ApprovalStatus::Edited;
        question.decided_digest = Some(question.proposal.digest(&question.identity(), &arguments));
        question.modifications = Some(arguments);
    }
}

fn yes() -> impl FnOnce(&mut Approval) {
    answer(json!({ "sure": true }))
}

/// The call is approved; the server that asks is told no.
fn agree(question: &mut Approval) {
    question.status = ApprovalStatus::Approved;
    question.decided_digest = Some(question.digest.clone());
}

/// The words that the model reads before the result.
fn notices(stage: &AgentHarness) -> Vec<ResultNotice> {
    let of = |message| match message {
        TranscriptMessage::Tool { notices, .. } => Some(notices),
        _ => None,
    };
    stage.store.messages().into_iter().find_map(of).expect("a result")
}

fn answered_notice(text: &str) -> ResultNotice {
    ResultNotice { kind: ResultNoticeKind::Answered, text: format!("{text}\n\n") }
}

/// The one result.
fn result(stage: &AgentHarness) -> String {
    let results = stage.results();
    assert_eq!(results.len(), 1, "{results:?}");
    results[0].1.clone()
}

fn key(turn: i64, call: &str) -> String {
    ToolContext::key_of(RUN, turn, call)
}

#[tokio::test]
async fn run_waits_for_a_person_and_the_call_goes_on_with_the_answer() {
    let seen = Requests::default();
    let stage = stage_of(deploy(&seen, 1));
    let question = asked(&stage).await;
    let Approval { proposal, turn, call_id, .. } = &question;
    assert_eq!((proposal.kind, proposal.tool.as_str(), call_id.as_str()), (QuestionKind::Input, "deploy", "d"));
    assert_eq!((proposal.summary.as_str(), &proposal.arguments), ("Deploy to prod?", &json!({})));
    assert_eq!((proposal.version.as_str(), proposal.on_expiry), ("mcp:1.0.0", OnExpiry::Cancel));
    assert_eq!(proposal.options, [ApprovalChoice::Edit, ApprovalChoice::Cancel]);
    let server = proposal.server.as_ref().expect("the question of a server");
    assert_eq!((server.server.as_str(), server.continuation.round), ("github", 1));
    let told = stage.told.lock().unwrap().clone();
    let inputs = told.iter().filter(|event| matches!(event, StreamEvent::InputRequired { .. })).count();
    assert_eq!((inputs, stage.results()), (1, vec![]));

    // nobody has answered yet
    let again = suspend(&stage).await;
    assert_eq!((again.asks, again.open), (vec![], vec![question.open_question()]));
    settle(&stage, yes());
    assert_eq!(final_answer(&stage).await, "all is done");
    let arguments = json!({ "env": "prod" });
    let accepted = ServerAnswer::Accept(json!({ "sure": true }));
    let expected = [
        Request { arguments: arguments.clone(), key: key(*turn, "d"), answer: None },
        Request { arguments, key: key(*turn, "d|input|1"), answer: Some((1, accepted)) },
    ];
    assert_eq!(requests(&seen), expected);
    assert_eq!(stage.results(), [("d".into(), "ended after 1 answers".into(), false)]);
    assert_eq!(notices(&stage), [answered_notice("The user answered: {\"sure\":true}")]);
    let outcome = stage.store.approvals.lock().unwrap()[0].outcome.clone();
    assert_eq!(outcome, Some(CallOutcome { is_error: false, text: "ended after 1 answers".into() }));
}

#[tokio::test]
async fn approval_of_a_call_covers_what_comes_after_an_answer_and_is_asked_for_once() {
    let seen = Requests::default();
    let stage = stage_of(deploy(&seen, 2).with(|tool| tool.category = Category::SideEffect));
    let consent = asked(&stage).await;
    assert_eq!((consent.proposal.kind, requests(&seen)), (QuestionKind::Approval, vec![]));
    settle(&stage, agree);
    for round in 1..=2 {
        let question = asked(&stage).await;
        let server = question.proposal.server.expect("the question of a server");
        assert_eq!(server.continuation.round, round);
        settle(&stage, yes());
    }
    assert_eq!(final_answer(&stage).await, "all is done");
    let rounds: Vec<Option<u32>> =
        requests(&seen).iter().map(|one| one.answer.as_ref().map(|(round, _)| *round)).collect();
    assert_eq!(rounds, [None, Some(1), Some(2)]);
    // the page of each says what came of the call
    let approvals = stage.store.approvals.lock().unwrap().clone();
    let outcomes: Vec<_> = approvals.iter().map(|one| one.outcome.as_ref().map(|outcome| outcome.is_error)).collect();
    assert_eq!(outcomes, [Some(false), Some(false)]);
}

#[tokio::test]
async fn approval_of_a_call_that_is_stopped_at_its_question_says_how_it_ended() {
    let seen = Requests::default();
    let stage = stage_of(deploy(&seen, 1).with(|tool| tool.category = Category::SideEffect));
    asked(&stage).await;
    settle(&stage, agree);
    asked(&stage).await;
    settle(&stage, |question| question.status = ApprovalStatus::Cancelled);
    assert_eq!(final_answer(&stage).await, "all is done");
    let approvals = stage.store.approvals.lock().unwrap().clone();
    let consent = approvals.into_iter().find(|one| one.proposal.kind == QuestionKind::Approval).expect("an approval");
    let stopped = CallOutcome { is_error: true, text: "User cancelled this action.".into() };
    assert_eq!(consent.outcome, Some(stopped));
}

#[tokio::test]
async fn call_that_rules_let_through_is_judged_again_and_then_a_person_is_asked() {
    let seen = Requests::default();
    let stage = stage_of(deploy(&seen, 1));
    asked(&stage).await;
    settle(&stage, yes());
    let stricter = json!({ "tools": { "deploy": { "gate": "confirm" } } });
    let policy = reveille::domain::approval::Policy::new(&serde_json::from_value(stricter).unwrap()).unwrap();
    let stage = AgentHarness { agent: Agent { policy, ..stage.agent }, ..stage };
    // the run has waited already, and takes no other place
    stage.store.refuses_questions.store(true, Ordering::Relaxed);
    assert_eq!((asked(&stage).await.proposal.kind, requests(&seen).len()), (QuestionKind::Approval, 1));
    settle(&stage, agree);
    assert_eq!(final_answer(&stage).await, "all is done");
    assert_eq!(requests(&seen).len(), 2);
}

#[tokio::test]
async fn server_is_told_that_a_person_declined() {
    let seen = Requests::default();
    let stage = stage_of(deploy(&seen, 3));
    asked(&stage).await;
    settle(&stage, agree);
    assert_eq!(final_answer(&stage).await, "all is done");
    assert_eq!(requests(&seen)[1].answer, Some((1, ServerAnswer::Decline)));
    assert_eq!(notices(&stage), [answered_notice("The user declined to answer the server.")]);
}

#[tokio::test]
async fn person_who_was_sent_to_an_address_says_that_it_is_done() {
    let seen = Requests::default();
    let kept = seen.clone();
    let tool = FakeTool::new("deploy", move |context: ToolContext, arguments| {
        let answer = context.continuation.as_deref().map(|going_on| (1, going_on.answer.clone()));
        let has_answer = answer.is_some();
        kept.lock().unwrap().push(Request { arguments, key: context.idempotency_key.clone(), answer });
        let mode = PartMode::Url { url: "https://example.com/pay".into(), host: "example.com".into() };
        let part = QuestionPart { key: "pay".into(), message: "Pay first.".into(), mode };
        async move { if has_answer { Ok(ToolOutput::text("paid")) } else { Err(needed_with(1, part)) } }
    });
    let stage = stage_of(tool);
    asked(&stage).await;
    settle(&stage, answer(json!({})));
    assert_eq!(final_answer(&stage).await, "all is done");
    assert_eq!(requests(&seen)[1].answer, Some((1, ServerAnswer::Accept(json!({})))));
    assert_eq!(notices(&stage), [answered_notice("The user said that what the server asked for is done.")]);
}

#[tokio::test]
async fn call_that_is_cancelled_or_that_nobody_answers_is_left_alone() {
    let cancelled = "User cancelled this action.\nTheir comment: not today";
    for (status, told) in [
        (ApprovalStatus::Cancelled, cancelled),
        (ApprovalStatus::Expired, "Nobody answered in time; nothing was done."),
    ] {
        let seen = Requests::default();
        let stage = stage_of(deploy(&seen, 1));
        asked(&stage).await;
        settle(&stage, |question| {
            question.status = status;
            question.comment = (status == ApprovalStatus::Cancelled).then(|| "not today".into());
        });
        assert_eq!(final_answer(&stage).await, "all is done");
        assert_eq!(result(&stage), told);
        assert_eq!(requests(&seen).len(), 1, "{status:?}: nothing is sent");
    }
}

#[tokio::test]
async fn next_round_takes_the_place_of_the_one_before_and_the_last_is_the_fifth() {
    let seen = Requests::default();
    let stage = stage_of(deploy(&seen, 99));
    let mut before = None;
    let mut turn = 0;
    for round in 1..=5 {
        let mut asks = suspend(&stage).await.asks;
        let (question, replaces) = asks.remove(0);
        assert_eq!((asks.len(), replaces), (0, before), "round {round}");
        // the run has its place among those that wait
        stage.store.refuses_questions.store(true, Ordering::Relaxed);
        (before, turn) = (Some(question.id), question.turn);
        settle(&stage, yes());
    }
    assert_eq!(final_answer(&stage).await, "all is done");
    let told = result(&stage);
    assert!(told.contains("code: mcp_needs_input") && told.contains("asked a person 5 times"), "{told}");
    let keys: Vec<String> = requests(&seen).into_iter().map(|request| request.key).collect();
    let ids = ["d", "d|input|1", "d|input|2", "d|input|3", "d|input|4", "d|input|5"];
    assert_eq!(keys, ids.map(|id| key(turn, id)));
}

#[tokio::test]
async fn answer_is_not_sent_to_a_tool_that_has_changed_since_the_question() {
    for (begun, code) in [(None, "mcp_tool_changed"), (Some(start()), "outcome_unknown")] {
        let seen = Requests::default();
        let stage = stage_of(deploy(&seen, 1));
        asked(&stage).await;
        settle(&stage, |question| {
            yes()(question);
            question.execution_started_at = begun;
        });
        let stage = with_tool(stage, deploy(&seen, 1).with(|tool| tool.description = "Deploys everything".into()));
        assert_eq!(final_answer(&stage).await, "all is done");
        let told = result(&stage);
        assert!(told.contains(&format!("code: {code}")), "{told}");
        assert_eq!(requests(&seen).len(), 1, "{code}");
    }
}

#[tokio::test]
async fn call_with_an_answer_that_began_before_a_crash_is_unknown_unless_it_may_be_repeated() {
    for may_be_repeated in [false, true] {
        let seen = Requests::default();
        let stage = stage_of(deploy(&seen, 1).with(|tool| tool.idempotent = may_be_repeated));
        asked(&stage).await;
        settle(&stage, |question| {
            yes()(question);
            question.execution_started_at = Some(start());
        });
        assert_eq!(final_answer(&stage).await, "all is done");
        let (told, count) = (result(&stage), requests(&seen).len());
        assert_eq!(
            (told.contains("code: outcome_unknown"), count),
            (!may_be_repeated, 1 + may_be_repeated as usize),
            "{told}"
        );
    }
}

#[tokio::test]
async fn repetitions_of_a_call_with_an_answer_have_one_key() {
    let keys = Arc::new(Mutex::new(Vec::new()));
    let kept = keys.clone();
    let tool = FakeTool::new("deploy", move |context: ToolContext, _| {
        let has_answer = context.continuation.is_some();
        let mut keys = kept.lock().unwrap();
        keys.push(context.idempotency_key.clone());
        let count = keys.len();
        async move {
            match (has_answer, count) {
                (false, _) => Err(needed(1)),
                (true, ..=2) => Err(ToolError::for_model(ToolFailure::ResourceError, "busy", "not now")),
                (true, _) => Ok(ToolOutput::text("deployed")),
            }
        }
    });
    let stage = stage_of(tool);
    let turn = asked(&stage).await.turn;
    settle(&stage, yes());
    assert_eq!(final_answer(&stage).await, "all is done");
    assert_eq!(*keys.lock().unwrap(), ["d", "d|input|1", "d|input|1"].map(|id| key(turn, id)));
    assert_eq!(result(&stage), "deployed");
}

#[tokio::test]
async fn result_that_came_of_an_answer_is_kept_for_no_other_call() {
    let seen = Requests::default();
    let tool = deploy(&seen, 1).with(|tool| tool.idempotent = true);
    let turn = |id: &str| calls(vec![call(id, "deploy", json!({ "env": "prod" }))]);
    let answers = vec![turn("d1"), turn("d2"), says("all is done")];
    let stage = governed(answers, vec![tool], json!({ "deploy": { "cache": true } }), ToolAccess::default());
    for _ in 0..2 {
        asked(&stage).await;
        settle(&stage, yes());
    }
    assert_eq!(final_answer(&stage).await, "all is done");
    assert_eq!(requests(&seen).len(), 4, "each call asks for itself");
}

#[tokio::test]
async fn nobody_is_asked_where_as_many_runs_wait_as_may() {
    let seen = Requests::default();
    let stage = stage_of(deploy(&seen, 1));
    stage.store.refuses_questions.store(true, Ordering::Relaxed);
    assert_eq!(final_answer(&stage).await, "all is done");
    let told = result(&stage);
    assert!(told.contains("code: too_many_suspended") && told.contains("the server asks a person"), "{told}");
    assert_eq!(requests(&seen).len(), 1);
}

#[tokio::test]
async fn call_of_a_configured_agent_waits_and_goes_on_with_the_answer() {
    let seen = Requests::default();
    let agent = json!({ "name": "Helper", "instruction": "You deploy.", "tools": ["deploy"] });
    let answers = vec![
        calls(vec![call("h", "Helper", json!({ "task_instruction": "deploy" }))]),
        calls(vec![call("d", "deploy", json!({ "env": "prod" }))]),
        says("deployed"),
        says("all is done"),
    ];
    let stage = AgentHarness::with_agents(answers, vec![deploy(&seen, 1)], json!([agent]));
    let question = asked(&stage).await;
    assert_eq!((question.call_id.as_str(), &question.proposal.delegation_chain[..]), ("d", &["Helper".to_owned()][..]));
    settle(&stage, yes());
    assert_eq!(final_answer(&stage).await, "all is done");
    let accepted = ServerAnswer::Accept(json!({ "sure": true }));
    let answers: Vec<_> = requests(&seen).into_iter().map(|request| request.answer).collect();
    assert_eq!(answers, [None, Some((1, accepted))]);
}

#[tokio::test]
async fn question_of_a_server_that_is_away_stays_open_and_its_answer_waits_for_the_server() {
    let seen = Requests::default();
    let turn = vec![call("d", "github.deploy", json!({ "env": "prod" }))];
    let named = || deploy(&seen, 1).with(|tool| tool.name = "github.deploy".into());
    let with = |stage: AgentHarness, tools: Vec<FakeTool>| {
        let tools = tools.into_iter().map(|tool| Arc::new(tool) as Arc<dyn Tool>).collect();
        let tools = Arc::new(ToolRegistry::new(tools).unwrap().with_servers(["github"]));
        AgentHarness { agent: Agent { tools, ..stage.agent }, ..stage }
    };
    let stage = with(AgentHarness::new(vec![calls(turn), says("all is done")], vec![]), vec![named()]);
    let question = asked(&stage).await;
    let stage = with(stage, vec![]);
    assert_eq!(suspend(&stage).await.open, [question.open_question()]);
    settle(&stage, yes());
    let held_up = passing(&stage.clock, stage.agent.handle_message(&stage.incoming("go"))).await;
    assert!(held_up.is_err(), "it is tried again later: {held_up:?}");
    let stage = with(stage, vec![named()]);
    assert_eq!(final_answer(&stage).await, "all is done");
    assert_eq!(requests(&seen).len(), 2);
}
