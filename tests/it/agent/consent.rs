//! Consent of people to calls: asked once, waited for, executed as agreed to or not at all.

use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;

use reveille::agent::{Agent, AgentResponse, ApprovalContext, CallingAgent, Suspension};
use reveille::base::invalid::ValidationErrors;
use reveille::domain::approval::matrix::Category;
use reveille::domain::approval::policy::{Policy, PolicyRules};
use reveille::domain::approval::{
    Approval, ApprovalChoice, ApprovalLevel, ApprovalOverride, ApprovalStatus, CallOutcome,
};
use reveille::domain::run::outcome::RunError;
use reveille::domain::run::stream::StreamEvent;
use reveille::domain::run::transcript::TranscriptMessage;
use reveille::domain::run::{ResultNotice, ResultNoticeKind};
use reveille::ports::tool::policy::ToolPolicy;
use reveille::ports::tool::registry::RegisteredTool;
use reveille::ports::tool::{Definition, Tool, ToolContext, ToolError, ToolOutput, ToolRegistry};
use serde_json::{Value, json};
use uuid::Uuid;

use super::harness::{AgentHarness, FakeTool, call, calls, passing, says, start};
use crate::support::computing::{HeldThreads, until_waiting};

type RecordedCalls = Arc<Mutex<Vec<(String, Value)>>>;

/// A tool that writes down what it is asked to do.
fn recording_tool(name: &'static str, deeds: &RecordedCalls) -> FakeTool {
    let deeds = deeds.clone();
    FakeTool::new(name, move |_, arguments| {
        deeds.lock().unwrap().push((name.to_owned(), arguments));
        async move { Ok(ToolOutput::text(format!("{name} is done"))) }
    })
    .with(|tool| {
        tool.category = Category::SideEffect;
        tool.idempotent = false;
        tool.summary = Some(format!("{name} to {{to}}"));
    })
}

fn read_tool() -> FakeTool {
    FakeTool::echo("look")
}

/// A turn of a look, a mail and a payment, then the answer.
fn stage(deeds: &RecordedCalls) -> AgentHarness {
    let turn = vec![
        call("l", "look", json!({ "at": "it" })),
        call("m", "mail", json!({ "to": "ann" })),
        call("p", "pay", json!({ "to": "bob", "amount": 5 })),
    ];
    AgentHarness::new(
        vec![calls(turn), says("all is done")],
        vec![read_tool(), recording_tool("mail", deeds), recording_tool("pay", deeds)],
    )
}

/// Hands the message on as a run does that may ask.
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

async fn final_answer(stage: &AgentHarness) -> String {
    match handle(stage).await {
        AgentResponse::Answered(result) => {
            stage.store.end();
            result.response
        }
        other => panic!("no answer: {other:?}"),
    }
}

/// Answers the question about a call.
fn decide(stage: &AgentHarness, call_id: &str, change: impl FnOnce(&mut Approval)) {
    let mut approvals = stage.store.approvals.lock().unwrap();
    change(approvals.iter_mut().find(|approval| approval.call_id == call_id).unwrap());
}

fn approve(approval: &mut Approval) {
    approval.status = ApprovalStatus::Approved;
    approval.decided_digest = Some(approval.digest.clone());
}

fn edit(arguments: Value) -> impl FnOnce(&mut Approval) {
    move |approval| {
        approval.status = ApprovalStatus::Edited;
        approval.decided_digest = Some(approval.proposal.digest(&approval.identity(), &arguments));
        approval.modifications = Some(arguments);
    }
}

fn recorded_calls(deeds: &RecordedCalls) -> Vec<(String, Value)> {
    deeds.lock().unwrap().clone()
}

#[tokio::test]
async fn calls_without_consent_run_and_the_rest_of_the_turn_is_asked_as_one_batch() {
    let deeds = RecordedCalls::default();
    let stage = stage(&deeds);
    let suspension = suspend(&stage).await;
    let asked: Vec<(&str, &str, &str)> = suspension
        .asks
        .iter()
        .map(|(ask, _)| (ask.call_id.as_str(), ask.proposal.summary.as_str(), ask.proposal.reasons[0].as_str()))
        .collect();
    let why = "the matrix says confirm for side_effect of low consequence";
    assert_eq!(asked, [("m", "mail to ann", why), ("p", "pay to bob", why)]);
    assert_eq!(suspension.asks[0].0.batch_id, suspension.asks[1].0.batch_id);
    assert_eq!(suspension.asks[0].0.expires_at - suspension.asks[0].0.created_at, chrono::TimeDelta::minutes(30));
    assert_eq!((suspension.open, suspension.usage.turns), (vec![], 1));
    assert_eq!(stage.results(), [("l".into(), r#"{"at":"it"}"#.into(), false)]);
    assert_eq!(recorded_calls(&deeds), []);
    let told = stage.told.lock().unwrap().clone();
    let asks = told.iter().filter(|event| matches!(event, StreamEvent::ApprovalRequired { .. })).count();
    assert_eq!(asks, 2);
}

#[tokio::test]
async fn run_that_comes_back_without_an_answer_finds_its_questions_again() {
    let stage = stage(&RecordedCalls::default());
    let first = suspend(&stage).await;
    let second = suspend(&stage).await;
    assert_eq!(second.asks, []);
    assert_eq!(second.open, first.asks.iter().map(|(ask, _)| ask.open_question()).collect::<Vec<_>>());
    assert_eq!(stage.model.asked(), 1);
}

#[tokio::test]
async fn approved_call_runs_while_its_sibling_is_still_open_and_once_only() {
    let deeds = RecordedCalls::default();
    let stage = stage(&deeds);
    suspend(&stage).await;
    decide(&stage, "p", approve);
    let left = suspend(&stage).await;
    assert_eq!(left.open.len(), 1);
    assert_eq!(recorded_calls(&deeds), [("pay".to_owned(), json!({ "to": "bob", "amount": 5 }))]);
    decide(&stage, "m", approve);
    assert_eq!(final_answer(&stage).await, "all is done");
    let names: Vec<String> = recorded_calls(&deeds).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["pay", "mail"]);
    let outcome = stage.store.approvals.lock().unwrap()[1].outcome.clone();
    assert_eq!(outcome, Some(CallOutcome { is_error: false, text: "pay is done".into() }));
}

#[tokio::test]
async fn model_is_told_what_people_made_of_its_calls() {
    let deeds = RecordedCalls::default();
    let stage = stage(&deeds);
    suspend(&stage).await;
    decide(&stage, "m", edit(json!({ "to": "carl" })));
    decide(&stage, "p", |approval| {
        approval.status = ApprovalStatus::Cancelled;
        approval.comment = Some(" too much ".into());
    });
    final_answer(&stage).await;
    assert_eq!(recorded_calls(&deeds), [("mail".to_owned(), json!({ "to": "carl" }))]);
    let told = stage.results();
    let of = |id: &str| told.iter().find(|(call, ..)| call == id).map(|(_, text, error)| (text.as_str(), *error));
    assert_eq!(of("m"), Some(("mail is done", false)));
    let notices = stage.store.messages().into_iter().find_map(|message| match message {
        TranscriptMessage::Tool { call_id, notices, .. } if call_id == "m" => Some(notices),
        _ => None,
    });
    let text = "The user changed the arguments before approving: {\"to\":\"carl\"}\n\n".to_owned();
    assert_eq!(notices, Some(vec![ResultNotice { kind: ResultNoticeKind::Edited, text }]));
    // the page says what came of it, and not what the model is told
    let outcomes: Vec<CallOutcome> =
        stage.store.approvals.lock().unwrap().iter().filter_map(|approval| approval.outcome.clone()).collect();
    assert_eq!(outcomes, [CallOutcome { is_error: false, text: "mail is done".into() }]);
    assert_eq!(of("p"), Some(("User cancelled this action.\nTheir comment: too much", true)));
}

#[tokio::test]
async fn unanswered_question_is_a_rejection() {
    let deeds = RecordedCalls::default();
    let stage = stage(&deeds);
    suspend(&stage).await;
    for id in ["m", "p"] {
        decide(&stage, id, |approval| approval.status = ApprovalStatus::Expired);
    }
    final_answer(&stage).await;
    assert_eq!(recorded_calls(&deeds), []);
    let refused = "Nobody approved this action in time; it was not executed.";
    assert_eq!(stage.results()[1], ("m".into(), refused.into(), true));
}

#[tokio::test]
async fn call_that_began_before_a_crash_is_not_repeated_but_called_unknown() {
    let deeds = RecordedCalls::default();
    let stage = stage(&deeds);
    suspend(&stage).await;
    decide(&stage, "m", |approval| {
        approve(approval);
        approval.execution_started_at = Some(approval.created_at);
    });
    decide(&stage, "p", |approval| approval.status = ApprovalStatus::Cancelled);
    final_answer(&stage).await;
    assert_eq!(recorded_calls(&deeds), []);
    assert!(stage.results()[1].1.contains("code: outcome_unknown"), "{:?}", stage.results());
}

/// The harness with other tools, as after an upgrade.
fn with_tools(stage: AgentHarness, tools: Vec<FakeTool>) -> AgentHarness {
    let tools: Vec<Arc<dyn Tool>> = tools.into_iter().map(|tool| Arc::new(tool) as Arc<dyn Tool>).collect();
    AgentHarness { agent: Agent { tools: Arc::new(ToolRegistry::new(tools).unwrap()), ..stage.agent }, ..stage }
}

#[tokio::test]
async fn tool_that_has_changed_meanwhile_is_asked_about_again_and_not_run() {
    let deeds = RecordedCalls::default();
    let stage = stage(&deeds);
    let first = suspend(&stage).await;
    decide(&stage, "m", approve);
    decide(&stage, "p", |approval| approval.status = ApprovalStatus::Cancelled);
    let changed = recording_tool("mail", &deeds).with(|tool| tool.description = "Mails everybody".into());
    let stage = with_tools(stage, vec![read_tool(), changed, recording_tool("pay", &deeds)]);
    let second = suspend(&stage).await;
    assert_eq!(recorded_calls(&deeds), []);
    let (ask, replaces) = &second.asks[0];
    assert_eq!(*replaces, Some(first.asks[0].0.id));
    assert_ne!(ask.digest, first.asks[0].0.digest);
    assert_ne!(ask.batch_id, first.asks[0].0.batch_id);
    let why = ["the tool has changed since it was approved, so it is asked about again"];
    assert_eq!(ask.proposal.reasons, why);
    decide(&stage, "m", approve);
    final_answer(&stage).await;
    assert_eq!(recorded_calls(&deeds).len(), 1);
}

#[tokio::test]
async fn arguments_that_no_longer_fit_a_changed_schema_are_told_and_not_run() {
    let deeds = RecordedCalls::default();
    let stage = stage(&deeds);
    suspend(&stage).await;
    decide(&stage, "m", approve);
    decide(&stage, "p", |approval| approval.status = ApprovalStatus::Cancelled);
    let strict =
        recording_tool("mail", &deeds).with(|tool| tool.parameters = json!({ "type": "object", "required": ["room"] }));
    let stage = with_tools(stage, vec![read_tool(), strict, recording_tool("pay", &deeds)]);
    final_answer(&stage).await;
    assert_eq!(recorded_calls(&deeds), []);
    assert!(stage.results()[1].1.contains("code: invalid_parameters"), "{:?}", stage.results());
}

/// The harness with the tools that the MCP server `github` lists, and with others.
fn with_server(stage: AgentHarness, tools: Vec<FakeTool>) -> AgentHarness {
    let tools: Vec<Arc<dyn Tool>> = tools.into_iter().map(|tool| Arc::new(tool) as Arc<dyn Tool>).collect();
    let tools = Arc::new(ToolRegistry::new(tools).unwrap().with_servers(["github"]));
    AgentHarness { agent: Agent { tools, ..stage.agent }, ..stage }
}

/// The harness with a tool of the server that waits to be accepted.
fn with_waiting(stage: AgentHarness, tool: FakeTool) -> AgentHarness {
    let tool = Arc::new(RegisteredTool::new(Arc::new(tool), ToolPolicy::default()).unwrap());
    let tools = Arc::new(stage.agent.tools.and([]).with_waiting([tool]));
    AgentHarness { agent: Agent { tools, ..stage.agent }, ..stage }
}

/// A turn that opens an issue, by a server that is there, and pays, which may be repeated. Both are asked about.
async fn stage_with_server(deeds: &RecordedCalls) -> AgentHarness {
    let turn = vec![call("o", "github.open", json!({ "to": "ann" })), call("p", "pay", json!({ "to": "bob" }))];
    let stage = AgentHarness::new(vec![calls(turn), says("all is done")], vec![]);
    let stage = with_server(stage, vec![recording_tool("github.open", deeds), repeatable_payment(deeds)]);
    assert_eq!(suspend(&stage).await.asks.len(), 2);
    stage
}

fn repeatable_payment(deeds: &RecordedCalls) -> FakeTool {
    recording_tool("pay", deeds).with(|tool| tool.idempotent = true)
}

fn question_of(stage: &AgentHarness, call_id: &str) -> Approval {
    let approvals = stage.store.approvals.lock().unwrap();
    approvals.iter().find(|approval| approval.call_id == call_id).unwrap().clone()
}

/// The code with which the run goes back to the queue without using an attempt.
async fn held_up(stage: &AgentHarness) -> String {
    match passing(&stage.clock, stage.agent.handle_message(&stage.incoming("go"))).await {
        Err(RunError::Infrastructure { fault }) => fault.code,
        other => panic!("it was not held up: {other:?}"),
    }
}

#[tokio::test]
async fn approved_call_of_a_server_that_is_away_is_carried_out_once_the_server_is_back() {
    let deeds = RecordedCalls::default();
    let stage = stage_with_server(&deeds).await;
    decide(&stage, "o", approve);
    decide(&stage, "p", approve);
    let stage = with_server(stage, vec![repeatable_payment(&deeds)]);
    for _ in 0..2 {
        assert_eq!(held_up(&stage).await, "mcp_unavailable");
        assert_eq!(stage.results(), [("p".into(), "pay is done".into(), false)], "other results are kept");
    }
    assert_eq!(question_of(&stage, "o").execution_started_at, None, "the approval stands");
    let stage = with_server(stage, vec![recording_tool("github.open", &deeds), repeatable_payment(&deeds)]);
    assert_eq!(final_answer(&stage).await, "all is done");
    let names: Vec<String> = recorded_calls(&deeds).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["pay", "github.open"]);
}

#[tokio::test]
async fn question_about_a_call_of_a_server_that_is_away_stays_open_and_its_answer_counts() {
    let deeds = RecordedCalls::default();
    let stage = stage_with_server(&deeds).await;
    decide(&stage, "p", approve);
    let stage = with_server(stage, vec![repeatable_payment(&deeds)]);
    let left = suspend(&stage).await;
    assert_eq!((left.asks.len(), left.open), (0, vec![question_of(&stage, "o").open_question()]));
    decide(&stage, "o", |approval| approval.status = ApprovalStatus::Cancelled);
    assert_eq!(final_answer(&stage).await, "all is done");
    let refused = ("o".to_owned(), "User cancelled this action.".to_owned(), true);
    assert!(stage.results().contains(&refused), "{:?}", stage.results());
    let names: Vec<String> = recorded_calls(&deeds).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["pay"]);
}

#[tokio::test]
async fn approved_call_that_began_before_its_server_went_away_is_called_unknown() {
    let deeds = RecordedCalls::default();
    let stage = stage_with_server(&deeds).await;
    decide(&stage, "o", |approval| {
        approve(approval);
        approval.execution_started_at = Some(approval.created_at);
    });
    decide(&stage, "p", |approval| approval.status = ApprovalStatus::Cancelled);
    let stage = with_server(stage, vec![repeatable_payment(&deeds)]);
    assert_eq!(final_answer(&stage).await, "all is done");
    let unknown = stage.results().into_iter().any(|(id, text, _)| id == "o" && text.contains("code: outcome_unknown"));
    assert!(unknown, "{:?}", stage.results());
}

#[tokio::test]
async fn approved_call_of_a_changed_tool_is_not_made() {
    let deeds = RecordedCalls::default();
    let stage = stage_with_server(&deeds).await;
    decide(&stage, "p", approve);
    let stage = with_server(stage, vec![repeatable_payment(&deeds)]);
    let stage = with_waiting(stage, recording_tool("github.open", &deeds));
    let left = suspend(&stage).await;
    assert_eq!((left.asks.len(), left.open), (0, vec![question_of(&stage, "o").open_question()]));
    decide(&stage, "o", approve);
    assert_eq!(final_answer(&stage).await, "all is done");
    let told = stage.results().into_iter().any(|(id, text, _)| id == "o" && text.contains("code: mcp_tool_changed"));
    assert!(told, "{:?}", stage.results());
    let names: Vec<String> = recorded_calls(&deeds).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["pay"]);
}

#[tokio::test]
async fn call_of_a_changed_tool_that_began_before_a_crash_is_called_unknown() {
    let deeds = RecordedCalls::default();
    let stage = stage_with_server(&deeds).await;
    decide(&stage, "o", |approval| {
        approve(approval);
        approval.execution_started_at = Some(approval.created_at);
    });
    decide(&stage, "p", |approval| approval.status = ApprovalStatus::Cancelled);
    let stage =
        with_waiting(with_server(stage, vec![repeatable_payment(&deeds)]), recording_tool("github.open", &deeds));
    assert_eq!(final_answer(&stage).await, "all is done");
    let unknown = stage.results().into_iter().any(|(id, text, _)| id == "o" && text.contains("code: outcome_unknown"));
    assert!(unknown, "{:?}", stage.results());
}

#[tokio::test]
async fn call_under_a_standing_grant_is_not_asked() {
    let deeds = RecordedCalls::default();
    let stage = stage(&deeds);
    stage.store.granted.lock().unwrap().push("mail".into());
    let suspension = suspend(&stage).await;
    assert_eq!(suspension.asks.len(), 1);
    assert_eq!(recorded_calls(&deeds), [("mail".to_owned(), json!({ "to": "ann" }))]);
}

#[tokio::test]
async fn operator_s_rules_decide_and_others_are_asked_about() {
    let deeds = RecordedCalls::default();
    let rules = json!({ "tools": { "pay": { "gate": "auto", "when": "args.amount < 10" } } });
    let policy = Policy::new(&serde_json::from_value(rules).unwrap()).unwrap();
    let stage = stage(&deeds);
    let stage = AgentHarness { agent: Agent { policy, ..stage.agent }, ..stage };
    let suspension = suspend(&stage).await;
    assert_eq!(recorded_calls(&deeds), [("pay".to_owned(), json!({ "to": "bob", "amount": 5 }))]);
    let asked: Vec<&str> = suspension.asks.iter().map(|(ask, _)| ask.call_id.as_str()).collect();
    assert_eq!(asked, ["m"]);
}

#[tokio::test]
async fn rules_that_take_long_are_judged_on_computing_threads() {
    let deeds = RecordedCalls::default();
    let list = json!(vec![0; 50]);
    let when = format!("{list}.all(a, {list}.all(b, a == b)) && args.amount < 10");
    let rules = json!({ "tools": { "pay": { "gate": "auto", "when": when } } });
    let policy = Policy::new(&serde_json::from_value(rules).unwrap()).unwrap();
    let stage = stage(&deeds);
    let stage = AgentHarness { agent: Agent { policy, ..stage.agent }, ..stage };
    pays_once_threads_are_free(&stage, &deeds).await;
}

#[tokio::test]
async fn condition_of_an_override_is_compiled_on_computing_threads() {
    let deeds = RecordedCalls::default();
    let stage = stage(&deeds);
    let when = Some("args.amount < 10".into());
    *stage.store.overrides.lock().unwrap() =
        vec![ApprovalOverride { when, ..override_of("pay", ApprovalLevel::Auto, None) }];
    pays_once_threads_are_free(&stage, &deeds).await;
}

/// The payment of the turn waits for a computing thread, and is done then; the mail needs a person.
async fn pays_once_threads_are_free(stage: &AgentHarness, deeds: &RecordedCalls) {
    let computing = stage.agent.compute.clone();
    let threads = HeldThreads::all(&computing).await;
    let meanwhile = async {
        until_waiting(&computing, 1).await;
        assert_eq!(recorded_calls(deeds), []);
        drop(threads);
    };
    // no time has to pass for it
    let incoming = stage.incoming("go");
    let (handled, ()) = tokio::join!(stage.agent.handle_message(&incoming), meanwhile);
    assert!(matches!(handled, Ok(AgentResponse::Suspended(_))), "the other call needs a person: {handled:?}");
    assert_eq!(recorded_calls(deeds), [("pay".to_owned(), json!({ "to": "bob", "amount": 5 }))]);
}

/// A payment that looks at the balance first.
struct CheckedPayment {
    pay: FakeTool,
    balance: Arc<Mutex<i64>>,
}

impl Tool for CheckedPayment {
    fn definition(&self) -> &Definition {
        self.pay.definition()
    }

    fn call<'a>(&'a self, context: &'a ToolContext, arguments: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        self.pay.call(context, arguments)
    }

    fn precheck<'a>(&'a self, _: &'a ToolContext, _: &'a Value) -> Option<BoxFuture<'a, Result<Value, ToolError>>> {
        let balance = *self.balance.lock().unwrap();
        Some(async move { Ok(json!({ "balance": balance })) }.boxed())
    }
}

#[tokio::test]
async fn check_of_a_tool_is_shown_and_a_difference_is_asked_about_again() {
    let (deeds, balance) = (RecordedCalls::default(), Arc::new(Mutex::new(100)));
    let stage = AgentHarness::new(vec![calls(vec![call("p", "pay", json!({ "to": "bob" }))]), says("paid")], vec![]);
    let careful: Arc<dyn Tool> =
        Arc::new(CheckedPayment { pay: recording_tool("pay", &deeds), balance: balance.clone() });
    let stage = AgentHarness {
        agent: Agent { tools: Arc::new(ToolRegistry::new(vec![careful]).unwrap()), ..stage.agent },
        ..stage
    };
    assert_eq!(suspend(&stage).await.asks[0].0.proposal.precheck, Some(json!({ "balance": 100 })));
    decide(&stage, "p", approve);
    *balance.lock().unwrap() = 3;
    let again = suspend(&stage).await;
    assert_eq!(again.asks[0].0.proposal.precheck, Some(json!({ "balance": 3 })));
    assert_eq!(recorded_calls(&deeds), []);
    decide(&stage, "p", approve);
    assert_eq!(final_answer(&stage).await, "paid");
    assert_eq!(recorded_calls(&deeds).len(), 1);
}

#[tokio::test]
async fn call_that_may_still_be_stopped_waits() {
    let deeds = RecordedCalls::default();
    let stage = stage(&deeds);
    suspend(&stage).await;
    decide(&stage, "p", |approval| approval.status = ApprovalStatus::Cancelled);
    decide(&stage, "m", |approval| {
        approve(approval);
        approval.hold_until = Some(approval.created_at + chrono::TimeDelta::hours(2));
    });
    assert_eq!(suspend(&stage).await.open.len(), 1);
    assert_eq!(recorded_calls(&deeds), []);
    stage.clock.advance(chrono::TimeDelta::hours(3));
    final_answer(&stage).await;
    assert_eq!(recorded_calls(&deeds).len(), 1);
    let messages = stage.store.messages();
    assert!(matches!(messages.last(), Some(TranscriptMessage::Assistant { tool_calls, .. }) if tool_calls.is_empty()));
}

/// A turn of a mail that needs no consent and can be stopped for a minute, and of a payment that needs one.
fn stage_with_undo(deeds: &RecordedCalls) -> AgentHarness {
    let turn = vec![call("m", "mail", json!({ "to": "ann" })), call("p", "pay", json!({ "to": "bob" }))];
    let mail = recording_tool("mail", deeds).with(|tool| {
        tool.category = Category::Internal;
        tool.undo_seconds = Some(60);
    });
    AgentHarness::new(vec![calls(turn), says("all is done")], vec![mail, recording_tool("pay", deeds)])
}

#[tokio::test]
async fn call_that_needs_no_consent_is_held_where_its_tool_can_be_stopped() {
    let deeds = RecordedCalls::default();
    let stage = stage_with_undo(&deeds);
    let suspension = suspend(&stage).await;
    let (mail, pay) = (&suspension.asks[0].0, &suspension.asks[1].0);
    assert_eq!((mail.call_id.as_str(), pay.call_id.as_str(), mail.batch_id), ("m", "p", pay.batch_id));
    assert_eq!((mail.status, pay.status), (ApprovalStatus::Approved, ApprovalStatus::Pending));
    assert_eq!(mail.decided_by.as_deref(), Some("policy"));
    assert_eq!(mail.decided_digest.as_ref(), Some(&mail.digest));
    assert_eq!(mail.hold_until, Some(mail.created_at + chrono::TimeDelta::seconds(60)));
    assert_eq!((&mail.proposal.options[..], mail.proposal.approvers), (&[ApprovalChoice::Cancel][..], 0));
    assert_eq!(
        mail.proposal.reasons,
        [
            "the matrix says auto for internal of low consequence",
            "`mail` is held for 60 s before it runs, so that it may be stopped"
        ]
    );
    assert_eq!(recorded_calls(&deeds), []);
    let told = stage.told.lock().unwrap().clone();
    let asks = told.iter().filter(|event| matches!(event, StreamEvent::ApprovalRequired { .. })).count();
    assert_eq!(asks, 1, "of the mail nobody is asked");
    // a resume in its time finds it, and holds it on
    assert_eq!(suspend(&stage).await.open.len(), 2);
    stage.clock.advance(chrono::TimeDelta::seconds(61));
    assert_eq!(suspend(&stage).await.open, [pay.open_question()]);
    assert_eq!(recorded_calls(&deeds), [("mail".to_owned(), json!({ "to": "ann" }))]);
    decide(&stage, "p", |approval| approval.status = ApprovalStatus::Cancelled);
    assert_eq!(final_answer(&stage).await, "all is done");
    assert_eq!(recorded_calls(&deeds).len(), 1, "once");
}

#[tokio::test]
async fn held_call_that_was_stopped_is_not_done_and_the_model_is_told() {
    let deeds = RecordedCalls::default();
    let stage = stage_with_undo(&deeds);
    suspend(&stage).await;
    for id in ["m", "p"] {
        decide(&stage, id, |approval| approval.status = ApprovalStatus::Cancelled);
    }
    final_answer(&stage).await;
    assert_eq!(recorded_calls(&deeds), []);
    assert!(
        stage.results().contains(&("m".into(), "User cancelled this action.".into(), true)),
        "{:?}",
        stage.results()
    );
}

#[tokio::test]
async fn call_under_a_standing_grant_is_held_as_well() {
    let deeds = RecordedCalls::default();
    let pay = recording_tool("pay", &deeds).with(|tool| tool.undo_seconds = Some(60));
    let stage = AgentHarness::new(vec![calls(vec![call("p", "pay", json!({ "to": "bob" }))]), says("paid")], vec![pay]);
    stage.store.granted.lock().unwrap().push("pay".into());
    let suspension = suspend(&stage).await;
    let held = &suspension.asks[0].0;
    assert_eq!((held.status, held.decided_by.as_deref()), (ApprovalStatus::Approved, Some("policy")));
    assert_eq!(held.proposal.reasons[1], "a standing grant covers it");
    assert_eq!(recorded_calls(&deeds), []);
    stage.clock.advance(chrono::TimeDelta::seconds(60));
    assert_eq!(final_answer(&stage).await, "paid");
    assert_eq!(recorded_calls(&deeds).len(), 1);
}

/// The rules of one who has a say.
fn rules(written: Value) -> Option<Arc<PolicyRules>> {
    let written = serde_json::from_value(written).unwrap();
    let mut faults = ValidationErrors::new();
    let rules = PolicyRules::compile(&written, "/approvals", &mut faults);
    faults.into_result(Some(Arc::new(rules))).unwrap()
}

#[tokio::test]
async fn agent_s_own_rules_outweigh_the_operator_s_and_a_task_s_outweigh_them() {
    let deeds = RecordedCalls::default();
    let operator = json!({ "tools": { "mail": { "gate": "confirm" }, "pay": { "gate": "auto" } } });
    let stage = stage(&deeds);
    let policy = Policy::new(&serde_json::from_value(operator).unwrap()).unwrap();
    let stage = AgentHarness { agent: Agent { policy, ..stage.agent }, ..stage };
    let mut incoming = stage.incoming("go");
    let own = rules(json!({ "mail": { "gate": "auto" }, "pay": { "gate": "auto" } }));
    incoming.agent = Some(CallingAgent { name: "booker".into(), rules: own });
    let task = rules(json!({ "pay": { "gate": "confirm", "when": "args.amount > 1" } }));
    incoming.approval_context = ApprovalContext { task_id: None, source: "trigger", rules: task };
    let AgentResponse::Suspended(suspension) =
        passing(&stage.clock, stage.agent.handle_message(&incoming)).await.unwrap()
    else {
        panic!("it went on")
    };
    assert_eq!(recorded_calls(&deeds), [("mail".to_owned(), json!({ "to": "ann" }))]);
    assert_eq!(
        suspension.asks[0].0.proposal.reasons,
        [
            "the matrix says confirm for side_effect of low consequence",
            "the operator says auto for `pay`",
            "the agent says auto for `pay`",
            "the task says confirm for `pay` where args.amount > 1",
        ]
    );
}

#[tokio::test]
async fn agent_s_own_rules_never_lower_what_the_tool_demands() {
    let deeds = RecordedCalls::default();
    let pay = recording_tool("pay", &deeds).with(|tool| tool.requires_confirmation = true);
    let stage = AgentHarness::new(vec![calls(vec![call("p", "pay", json!({}))]), says("no")], vec![pay]);
    let mut incoming = stage.incoming("go");
    incoming.agent = Some(CallingAgent { name: "booker".into(), rules: rules(json!({ "pay": { "gate": "auto" } })) });
    let answered = passing(&stage.clock, stage.agent.handle_message(&incoming)).await.unwrap();
    let AgentResponse::Suspended(suspension) = answered else { panic!("it went on") };
    assert_eq!(recorded_calls(&deeds), []);
    let said = ["the agent says auto for `pay`", "`pay` always asks for confirmation"];
    assert_eq!(suspension.asks[0].0.proposal.reasons[1..], said);
}

/// The stored transcript and questions, as the databases keep them: without a NUL.
fn as_kept(stage: &AgentHarness) {
    let clean = |text: String| text.replace("\\u0000", "\u{FFFD}");
    for approval in stage.store.approvals.lock().unwrap().iter_mut() {
        let kept = clean(serde_json::to_string(&approval.proposal).unwrap());
        approval.proposal = serde_json::from_str(&kept).unwrap();
    }
    for entry in stage.store.entries.lock().unwrap().iter_mut() {
        if let TranscriptMessage::Assistant { tool_calls, .. } = &mut entry.message {
            for call in tool_calls {
                call.args = serde_json::from_str(&clean(call.args.to_string())).unwrap();
            }
        }
    }
}

#[tokio::test]
async fn arguments_with_a_nul_are_asked_about_once() {
    let deeds = RecordedCalls::default();
    let turn = vec![call("p", "pay", json!({ "to": "bo\0b" }))];
    let stage = AgentHarness::new(vec![calls(turn), says("paid")], vec![recording_tool("pay", &deeds)]);
    assert_eq!(suspend(&stage).await.asks.len(), 1);
    as_kept(&stage);
    decide(&stage, "p", approve);
    assert_eq!(final_answer(&stage).await, "paid");
    assert_eq!(recorded_calls(&deeds), [("pay".to_owned(), json!({ "to": "bo\u{FFFD}b" }))]);
}

#[tokio::test]
async fn check_result_with_a_nul_equals_itself_at_the_next_check() {
    let deeds = RecordedCalls::default();
    let pay = recording_tool("pay", &deeds);
    let stage = AgentHarness::new(vec![calls(vec![call("p", "pay", json!({ "to": "bob" }))]), says("paid")], vec![]);
    let odd: Arc<dyn Tool> = Arc::new(NulPayment(pay));
    let stage = AgentHarness {
        agent: Agent { tools: Arc::new(ToolRegistry::new(vec![odd]).unwrap()), ..stage.agent },
        ..stage
    };
    suspend(&stage).await;
    as_kept(&stage);
    decide(&stage, "p", approve);
    assert_eq!(final_answer(&stage).await, "paid");
    assert_eq!(recorded_calls(&deeds).len(), 1);
}

/// A payment whose look finds a text with a NUL.
struct NulPayment(FakeTool);

impl Tool for NulPayment {
    fn definition(&self) -> &Definition {
        self.0.definition()
    }

    fn call<'a>(&'a self, context: &'a ToolContext, arguments: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        self.0.call(context, arguments)
    }

    fn precheck<'a>(&'a self, _: &'a ToolContext, _: &'a Value) -> Option<BoxFuture<'a, Result<Value, ToolError>>> {
        Some(async { Ok(json!({ "name": "b\0b" })) }.boxed())
    }
}

/// An override that was set for the tenant, or for one of its agents.
pub fn override_of(tool: &str, gate: ApprovalLevel, agent: Option<&str>) -> ApprovalOverride {
    ApprovalOverride {
        id: Uuid::from_u128(5),
        tenant_id: "ann".into(),
        task_id: None,
        agent: agent.map(str::to_owned),
        tool: tool.into(),
        gate,
        when: None,
        created_at: start(),
        created_by: "token:t".into(),
        expires_at: start(),
    }
}

#[tokio::test]
async fn override_that_was_set_outweighs_the_rules_of_those_for_whom_it_holds() {
    let deeds = RecordedCalls::default();
    let stage = stage(&deeds);
    *stage.store.overrides.lock().unwrap() = vec![
        override_of("mail", ApprovalLevel::Auto, None),
        override_of("pay", ApprovalLevel::Auto, Some("booker")),
        override_of("pay", ApprovalLevel::Confirm, Some("other")),
    ];
    let mut incoming = stage.incoming("go");
    let own = rules(json!({ "pay": { "gate": "confirm" } }));
    incoming.agent = Some(CallingAgent { name: "booker".into(), rules: own });
    let task = rules(json!({ "mail": { "gate": "confirm" } }));
    incoming.approval_context = ApprovalContext { task_id: None, source: "trigger", rules: task };
    let AgentResponse::Suspended(suspension) =
        passing(&stage.clock, stage.agent.handle_message(&incoming)).await.unwrap()
    else {
        panic!("it went on")
    };
    assert_eq!(recorded_calls(&deeds), [("pay".to_owned(), json!({ "to": "bob", "amount": 5 }))]);
    let reasons = &suspension.asks[0].0.proposal.reasons;
    assert_eq!(reasons[1..], ["the tenant says auto for `mail`", "the task says confirm for `mail`"], "{reasons:?}");
}

#[tokio::test]
async fn overrides_are_read_once_for_the_calls_of_a_turn_and_again_behind_a_look_of_a_tool() {
    let deeds = RecordedCalls::default();
    let plain = stage(&deeds);
    suspend(&plain).await;
    assert_eq!(*plain.store.override_reads.lock().unwrap(), ["look mail pay"]);

    let turn = vec![call("m", "mail", json!({ "to": "ann" })), call("p", "pay", json!({ "to": "bob" }))];
    let stage = AgentHarness::new(vec![calls(turn)], vec![]);
    let careful = CheckedPayment { pay: recording_tool("pay", &deeds), balance: Arc::default() };
    let tools: Vec<Arc<dyn Tool>> = vec![Arc::new(careful), Arc::new(recording_tool("mail", &deeds))];
    let stage =
        AgentHarness { agent: Agent { tools: Arc::new(ToolRegistry::new(tools).unwrap()), ..stage.agent }, ..stage };
    suspend(&stage).await;
    let mut reads = stage.store.override_reads.lock().unwrap().clone();
    reads.sort();
    assert_eq!(reads, ["mail pay", "pay"], "a look may take long, and an override be taken back meanwhile");
}

#[tokio::test]
async fn questions_of_a_turn_stand_in_the_order_of_its_calls_whichever_is_judged_first() {
    let deeds = RecordedCalls::default();
    let stage = stage(&deeds);
    *stage.store.answered_last.lock().unwrap() = Some("mail".into());
    let mut asks = suspend(&stage).await.asks;
    let judged: Vec<String> = asks.iter().map(|(approval, _)| approval.proposal.tool.clone()).collect();
    assert_eq!(judged, ["pay", "mail"], "the mail is judged last");
    asks.sort_by_key(|(approval, _)| approval.id);
    let shown: Vec<&str> = asks.iter().map(|(approval, _)| approval.proposal.tool.as_str()).collect();
    assert_eq!(shown, ["mail", "pay"]);
}
