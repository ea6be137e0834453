//! Configured agents as tools: their fields, their own conversations, questions inside them, and how they end.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use reveille::agent::{Agent, AgentResponse, ApprovalContext, Suspension};
use reveille::domain::approval::matrix::Category;
use reveille::domain::approval::{Approval, ApprovalStatus, InputForm, QuestionKind};
use reveille::domain::run::outcome::RunError;
use reveille::domain::run::stream::StreamEvent;
use reveille::domain::run::tool_record::AgentCallStatus;
use reveille::domain::run::transcript::TranscriptMessage;
use reveille::domain::run::{ResultNotice, ResultNoticeKind};
use reveille::ports::tool::{Definition, Tool, ToolContext, ToolError, ToolOutput, ToolRegistry};
use serde_json::{Value, json};

use super::harness::{AgentHarness, FakeTool, call, calls, passing, says, start};

/// An agent that books tables with the tool `book`.
fn booker() -> Value {
    json!({
        "name": "BookTable", "description": "Book a table.", "instruction": "You book tables.", "tools": ["book"],
        "fields": [
            { "name": "party", "type": "integer", "required": true, "min": 1, "max": 12 },
            { "name": "room", "type": "string", "default": "hall" },
        ],
    })
}

type SeenCalls = Arc<Mutex<Vec<(Value, Vec<String>)>>>;

/// A tool that writes down its arguments and by which agents the call came.
fn book(seen: &SeenCalls) -> FakeTool {
    let seen = seen.clone();
    FakeTool::new("book", move |context: ToolContext, arguments| {
        seen.lock().unwrap().push((arguments, context.delegation_chain));
        async { Ok(ToolOutput::text("table 7")) }
    })
}

pub(super) fn asks_people(book: FakeTool) -> FakeTool {
    book.with(|tool| {
        tool.category = Category::SideEffect;
        tool.idempotent = false;
    })
}

/// Hands the message on as a run does that may ask.
pub(super) async fn handle(stage: &AgentHarness) -> Result<AgentResponse, RunError> {
    let mut incoming = stage.incoming("a table for tonight");
    incoming.approval_context = ApprovalContext { task_id: None, source: "trigger", rules: None };
    passing(&stage.clock, stage.agent.handle_message(&incoming)).await
}

pub(super) async fn suspended(stage: &AgentHarness) -> Suspension {
    let Ok(AgentResponse::Suspended(suspension)) = handle(stage).await else { panic!("it went on") };
    let asked = suspension.asks.iter().map(|(ask, _)| ask.clone());
    stage.store.approvals.lock().unwrap().extend(asked);
    suspension
}

pub(super) async fn answered(stage: &AgentHarness) -> reveille::domain::run::ReactLoopResult {
    match handle(stage).await {
        Ok(AgentResponse::Answered(result)) => result,
        other => panic!("no answer: {other:?}"),
    }
}

pub(super) fn settle(stage: &AgentHarness, kind: QuestionKind, change: impl FnOnce(&mut Approval)) {
    let mut approvals = stage.store.approvals.lock().unwrap();
    let open = |one: &&mut Approval| one.proposal.kind == kind && one.status == ApprovalStatus::Pending;
    change(approvals.iter_mut().find(open).expect("an open question"));
}

pub(super) fn approve(approval: &mut Approval) {
    approval.status = ApprovalStatus::Approved;
    approval.decided_digest = Some(approval.digest.clone());
}

fn answer(arguments: Value) -> impl FnOnce(&mut Approval) {
    move |question| {
        question.status = ApprovalStatus::Edited;
        question.decided_digest = Some(question.proposal.digest(&question.identity(), &arguments));
        question.modifications = Some(arguments);
    }
}

fn calls_booker(arguments: Value) -> Result<reveille::ports::llm::ModelAnswer, reveille::ports::llm::LlmError> {
    calls(vec![call("t", "BookTable", arguments)])
}

#[tokio::test]
async fn agent_answers_in_a_conversation_of_its_own_with_its_own_tools_and_is_accounted_for() {
    let seen = SeenCalls::default();
    let answers = vec![
        calls_booker(json!({ "party": "4", "task_instruction": "quiet" })),
        calls(vec![call("b", "book", json!({ "for": 4 }))]),
        says("Table 7 is booked."),
        says("Done."),
    ];
    let other = FakeTool::echo("other");
    let stage = AgentHarness::with_agents(answers, vec![book(&seen), other], json!([booker()]));
    let result = stage.answer("a table for tonight").await;
    assert_eq!((result.response.as_str(), result.turns), ("Done.", 4));
    assert_eq!(*seen.lock().unwrap(), [(json!({ "for": 4 }), vec!["BookTable".to_owned()])]);

    let record = &result.tool_calls[0];
    assert_eq!(result.tool_calls.len(), 1, "the agent's own calls are its own");
    assert_eq!((record.name.as_str(), record.result_status), ("BookTable", Some(AgentCallStatus::Completed)));
    let own: i64 = result.token_usage.total;
    let inner = record.token_attribution.expect("tokens").total;
    assert!(inner > 0 && inner < own, "{inner} of {own}");

    // what it was told, by what and with which tools
    let entries = stage.store.entries.lock().unwrap().clone();
    let inner: Vec<_> = entries.iter().filter(|entry| entry.delegation.is_some()).collect();
    let delegation = inner[0].delegation.as_ref().unwrap();
    assert_eq!((delegation.agent(), delegation.turn, delegation.call_id.as_str()), ("BookTable", 1, "t"));
    let texts: Vec<String> = inner.iter().filter_map(|entry| text_of(&entry.message)).collect();
    assert!(texts[0].starts_with("You book tables.") && texts[0].contains("Your tools: book."), "{}", texts[0]);
    assert!(texts[0].contains("Your answer goes to the agent that has called you."), "{}", texts[0]);
    assert!(texts[1].starts_with("[Agent Call] BookTable\nquiet") && texts[1].contains(r#"{"party":4,"room":"hall"}"#));
    let turns: Vec<i64> = entries.iter().map(|entry| entry.turn).collect();
    assert_eq!(turns, [0, 0, 1, 1, 1, 2, 2, 3, 1, 4], "each turn has a number of its own");

    // watchers hear of its calls by its name, and not its words
    let told = stage.told.lock().unwrap().clone();
    let agent_of = |event: &StreamEvent| match event {
        StreamEvent::ToolCallStart { tool, agent, .. } => Some((tool.clone(), agent.clone())),
        _ => None,
    };
    let started: Vec<_> = told.iter().filter_map(agent_of).collect();
    assert_eq!(started, [("BookTable".into(), None), ("book".into(), Some("BookTable".into()))]);
    let ends = told.iter().filter(|event| matches!(event, StreamEvent::MessageEnd { .. })).count();
    assert_eq!(ends, 2);
}

#[tokio::test]
async fn run_waits_for_the_server_whose_tool_a_called_agent_names() {
    let mut agent = booker();
    agent["tools"] = json!(["github.search"]);
    let answers = vec![calls_booker(json!({ "party": 4 })), says("Table 7."), says("Done.")];
    let mut stage = AgentHarness::with_agents(answers, vec![], json!([agent]));
    let offering = |stage: &AgentHarness, search: Option<FakeTool>| {
        let agents = stage.agent.agents.iter().map(|agent| Arc::clone(agent) as Arc<dyn Tool>);
        let tools = agents.chain(search.map(|tool| Arc::new(tool) as Arc<dyn Tool>)).collect();
        Arc::new(ToolRegistry::new(tools).unwrap().with_servers(["github"]))
    };
    stage.agent.tools = offering(&stage, None);
    match handle(&stage).await {
        Err(RunError::Infrastructure { fault }) => assert_eq!(fault.code, "mcp_unavailable"),
        other => panic!("it was not held up: {other:?}"),
    }
    stage.agent.tools = offering(&stage, Some(FakeTool::echo("github.search")));
    assert_eq!(answered(&stage).await.response, "Done.");
    assert_eq!(stage.model.asked(), 3, "no turn is made again");
}

fn text_of(message: &TranscriptMessage) -> Option<String> {
    match message {
        TranscriptMessage::System { text, .. } | TranscriptMessage::User { text, .. } => Some(text.clone()),
        _ => None,
    }
}

#[tokio::test]
async fn missing_field_is_asked_for_and_the_agent_goes_on_with_the_answer() {
    let seen = SeenCalls::default();
    let answers =
        || vec![calls_booker(json!({ "party": 13, "task_instruction": "quiet" })), says("Booked."), says("Done.")];
    let stage = AgentHarness::with_agents(answers(), vec![book(&seen)], json!([booker()]));
    let suspension = suspended(&stage).await;
    let question = &suspension.asks[0].0;
    assert_eq!((question.proposal.kind, question.turn, question.call_id.as_str()), (QuestionKind::Input, 1, "t"));
    assert_eq!(question.proposal.arguments, json!({ "room": "hall", "task_instruction": "quiet" }));
    assert_eq!(question.proposal.parameters["required"], json!(["party"]));
    assert!(stage.told.lock().unwrap().iter().any(|event| matches!(event, StreamEvent::InputRequired { .. })));
    // it is not asked twice
    let Ok(AgentResponse::Suspended(again)) = handle(&stage).await else { panic!("it went on") };
    assert_eq!((again.asks.len(), again.open), (0, vec![question.open_question()]));

    settle(&stage, QuestionKind::Input, answer(json!({ "party": 4, "room": "garden", "task_instruction": "quiet" })));
    assert_eq!(answered(&stage).await.response, "Done.");
    let entries = stage.store.entries.lock().unwrap().clone();
    let mut text =
        entries.iter().filter(|entry| entry.delegation.is_some()).filter_map(|entry| text_of(&entry.message));
    assert!(text.next_back().unwrap().contains(r#"{"party":4,"room":"garden"}"#));
    let notice = entries.iter().find_map(|entry| match &entry.message {
        TranscriptMessage::Tool { notices, .. } => notices.first().cloned(),
        _ => None,
    });
    let text = "The user answered: {\"party\":4,\"room\":\"garden\"}\n\n".to_owned();
    assert_eq!(notice, Some(ResultNotice { kind: ResultNoticeKind::Answered, text }));

    // one who can't answer, and one who does not
    for (status, words) in
        [(ApprovalStatus::Cancelled, "cancelled this action"), (ApprovalStatus::Expired, "Nobody answered")]
    {
        let stage = AgentHarness::with_agents(answers(), vec![book(&seen)], json!([booker()]));
        suspended(&stage).await;
        settle(&stage, QuestionKind::Input, |question| question.status = status);
        assert_eq!(answered(&stage).await.response, "Booked.");
        let (_, content, is_error) = stage.results().remove(0);
        assert!(is_error && content.contains(words), "{content}");
    }
}

#[tokio::test]
async fn caller_is_told_of_an_agent_that_was_stopped_at_its_limit_of_turns() {
    let told = ResultNotice::other("The agent was stopped at its limit of turns; this is as far as it came.\n\n");
    for (max_turns, expected) in [(1, vec![told]), (2, vec![])] {
        let answers = vec![
            calls_booker(json!({ "party": 4 })),
            calls(vec![call("b", "book", json!({}))]),
            says("Table 7, if it is free."),
            says("Done."),
        ];
        let mut agent = booker();
        agent["max_turns"] = json!(max_turns);
        let stage = AgentHarness::with_agents(answers, vec![book(&SeenCalls::default())], json!([agent]));
        assert_eq!(stage.answer("a table for tonight").await.response, "Done.");
        let requests = stage.model.requests.lock().unwrap();
        let Some(TranscriptMessage::Tool { name, notices, content, .. }) = requests[3].messages.last() else {
            panic!("{:?}", requests[3].messages)
        };
        assert_eq!((name.as_str(), notices), ("BookTable", &expected), "{max_turns}");
        assert!(content.contains("Table 7, if it is free."), "{content}");
    }
}

#[tokio::test]
async fn agent_whose_fields_have_changed_meanwhile_ends_its_run() {
    for asks_first in [true, false] {
        let seen = SeenCalls::default();
        let arguments = if asks_first { json!({}) } else { json!({ "party": 4 }) };
        let answers = vec![calls_booker(arguments), calls(vec![call("b", "book", json!({}))])];
        let stage = AgentHarness::with_agents(answers, vec![asks_people(book(&seen))], json!([booker()]));
        suspended(&stage).await;
        match asks_first {
            true => settle(&stage, QuestionKind::Input, answer(json!({ "party": 4 }))),
            false => settle(&stage, QuestionKind::Approval, approve),
        }
        let mut changed = booker();
        changed["fields"][0]["max"] = json!(6);
        let other = AgentHarness::with_agents(vec![], vec![asks_people(book(&seen))], json!([changed]));
        let stage = AgentHarness { agent: other.agent, ..stage };
        let Err(RunError::Fail { fault }) = handle(&stage).await else { panic!("it went on") };
        assert_eq!(fault.code, "schema_changed", "{}", fault.message);
        assert!(seen.lock().unwrap().is_empty());
    }
}

#[tokio::test]
async fn question_inside_an_agent_suspends_all_of_it_and_it_goes_on_at_the_innermost_call() {
    let seen = SeenCalls::default();
    let outer = json!({
        "name": "Evening", "description": "Plan an evening.", "instruction": "You plan.", "tools": ["BookTable"],
        "approval": true,
    });
    let answers = vec![
        calls(vec![call("e", "Evening", json!({})), call("l", "look", json!({}))]),
        calls_booker(json!({ "party": 2 })),
        calls(vec![call("b", "book", json!({ "for": 2 }))]),
        says("Table 7."),
        says("Dinner at 7."),
        says("All is planned."),
    ];
    let tools = vec![asks_people(book(&seen)), FakeTool::echo("look")];
    let stage = AgentHarness::with_agents(answers, tools, json!([booker(), outer]));
    // first the agent itself has to be agreed to
    let asked = suspended(&stage).await;
    assert_eq!(asked.asks[0].0.proposal.tool, "Evening");
    settle(&stage, QuestionKind::Approval, approve);
    // then the call that it comes to, two agents further in
    let asked = suspended(&stage).await;
    let inner = &asked.asks[0].0;
    assert_eq!((inner.proposal.tool.as_str(), inner.call_id.as_str(), inner.turn), ("book", "b", 3));
    assert_eq!(inner.proposal.delegation_chain, ["Evening", "BookTable"]);
    assert_eq!(stage.model.asked(), 3);
    let Ok(AgentResponse::Suspended(again)) = handle(&stage).await else { panic!("it went on") };
    assert_eq!((again.open, stage.model.asked()), (vec![inner.open_question()], 3), "no model is asked meanwhile");
    settle(&stage, QuestionKind::Approval, approve);
    assert_eq!(answered(&stage).await.response, "All is planned.");
    assert_eq!(*seen.lock().unwrap(), [(json!({ "for": 2 }), vec!["Evening".to_owned(), "BookTable".to_owned()])]);
    let told = stage.told.lock().unwrap().clone();
    let by = told.iter().filter_map(|event| match event {
        StreamEvent::ToolCallStart { tool, agent, .. } if tool == "book" => agent.clone(),
        _ => None,
    });
    assert!(by.clone().count() > 0 && by.clone().all(|agent| agent == "BookTable"), "each call by whoever made it");
}

#[tokio::test]
async fn call_that_would_make_one_run_too_many_wait_is_an_observation_and_no_question() {
    let seen = SeenCalls::default();
    let answers = || {
        vec![
            calls_booker(json!({ "party": 2 })),
            calls(vec![call("b", "book", json!({}))]),
            says("No table."),
            calls_booker(json!({})),
            says("Nothing is booked."),
        ]
    };
    let stage = AgentHarness::with_agents(answers(), vec![asks_people(book(&seen))], json!([booker()]));
    stage.store.refuses_questions.store(true, Ordering::Relaxed);
    // a call inside the agent is refused, and then one of the agent that lacks a field
    assert_eq!(answered(&stage).await.response, "Nothing is booked.");
    let results = stage.results();
    let refused: Vec<_> = results.iter().filter(|(_, _, is_error)| *is_error).map(|(call, ..)| call.as_str()).collect();
    assert_eq!(refused, ["b", "t"], "{results:?}");
    for (_, content, _) in results.iter().filter(|(_, _, is_error)| *is_error) {
        assert!(content.contains("too_many_suspended") && content.contains("suspended_agents"), "{content}");
    }
    assert!(seen.lock().unwrap().is_empty());
    // one that is asked about already is not held against the limit
    let stage = AgentHarness::with_agents(answers(), vec![asks_people(book(&seen))], json!([booker()]));
    suspended(&stage).await;
    stage.store.refuses_questions.store(true, Ordering::Relaxed);
    let Ok(AgentResponse::Suspended(again)) = handle(&stage).await else { panic!("it went on") };
    assert_eq!((again.asks.len(), again.open.len()), (0, 1));
    // one whose question was not put, because others were parked at the same instant, is refused when it goes on
    let stage = AgentHarness::with_agents(answers(), vec![asks_people(book(&seen))], json!([booker()]));
    suspended(&stage).await;
    stage.store.approvals.lock().unwrap().clear();
    stage.store.refuses_questions.store(true, Ordering::Relaxed);
    assert_eq!(answered(&stage).await.response, "Nothing is booked.");
}

#[tokio::test]
async fn agents_call_each_other_at_most_three_deep() {
    let agent = json!({ "name": "Again", "instruction": "You call yourself.", "description": "Again." });
    let again = || calls(vec![call("a", "Again", json!({}))]);
    let answers = vec![again(), again(), again(), again(), says("3"), says("2"), says("1"), says("0")];
    let stage = AgentHarness::with_agents(answers, vec![], json!([agent]));
    assert_eq!(stage.answer("go").await.response, "0");
    let refused = stage.results().into_iter().find(|(_, _, is_error)| *is_error).expect("a refusal");
    assert!(refused.1.contains("code: too_deep"), "{}", refused.1);
    let depths = stage.store.entries.lock().unwrap().clone();
    assert_eq!(depths.iter().filter_map(|entry| Some(entry.delegation.as_ref()?.chain.len())).max(), Some(3));
}

#[tokio::test]
async fn agents_of_one_turn_answer_at_once_and_one_that_fails_or_takes_too_long_is_an_observation() {
    let slow = FakeTool::new("wait", |_: ToolContext, _| async {
        std::future::pending::<()>().await;
        Ok::<_, ToolError>(ToolOutput::text(""))
    })
    .with(|tool| tool.timeout = Some(Duration::from_secs(600)));
    let agents = json!([
        { "name": "Quick", "instruction": "x", "tools": [] },
        { "name": "Slow", "instruction": "x", "tools": ["wait"], "timeout_seconds": 5 },
    ]);
    let answers = vec![
        calls(vec![
            call("q", "Quick", json!({})),
            call("s", "Slow", json!({})),
            call("t", "Slow", json!({ "task_instruction": "again" })),
            call("o", "Quick", json!({ "odd": 1 })),
        ]),
        says("done"),
        calls(vec![call("w", "wait", json!({}))]),
        calls(vec![call("w", "wait", json!({}))]),
        says("All were asked."),
    ];
    let stage = AgentHarness::with_agents(answers, vec![slow], agents);
    let result = stage.answer("go").await;
    let by_call =
        |id: &str| result.tool_calls.iter().find(|record| record.args_summary == json!({}) && record.name == id);
    let slow = by_call("Slow").expect("a record");
    assert_eq!((slow.success, slow.result_status), (false, Some(AgentCallStatus::Error)));
    assert!((5_000..6_000).contains(&slow.duration_ms), "{}", slow.duration_ms);
    assert!(result.duration_ms < 6_000, "both at once: {}", result.duration_ms);
    assert!(by_call("Quick").expect("a record").success);
    let results = stage.results();
    let told = |id: &str| results.iter().find(|(call, ..)| call == id).expect("a result").1.clone();
    assert!(told("s").contains("the agent has not answered within 5 s"), "{}", told("s"));
    assert!(told("o").contains("has no field `odd`"), "{}", told("o"));
}

#[tokio::test]
async fn agent_that_names_no_tools_has_those_of_its_caller_and_none_that_the_caller_may_not_use() {
    let agents =
        json!([{ "name": "Helper", "instruction": "x" }, { "name": "Other", "instruction": "x", "tools": ["b", "c"] }]);
    let answers = vec![
        calls(vec![call("h", "Helper", json!({}))]),
        says("helped"),
        calls(vec![call("o", "Other", json!({}))]),
        says("helped"),
        says("done"),
    ];
    let tools = vec![FakeTool::echo("a"), FakeTool::echo("b"), FakeTool::echo("c")];
    let stage = AgentHarness::with_agents(answers, tools, agents);
    let mut incoming = stage.incoming("go");
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let limits = reveille::ports::tool::access::ToolLimits {
        allow: Some(names(&["a", "c", "Helper", "Other"])),
        deny: names(&["c"]),
    };
    incoming.overrides.tools = Arc::new(limits);
    passing(&stage.clock, stage.agent.handle_message(&incoming)).await.unwrap();
    let entries = stage.store.entries.lock().unwrap().clone();
    let tools: Vec<String> = entries
        .iter()
        .filter(|entry| entry.delegation.is_some())
        .filter_map(|entry| {
            text_of(&entry.message)?.lines().find(|line| line.starts_with("Your tools")).map(str::to_owned)
        })
        .collect();
    assert_eq!(tools, ["Your tools: a, Helper, Other.", "Your tools: b."]);
}

#[tokio::test]
async fn run_calls_as_many_agents_as_it_may_and_none_beyond() {
    let agent = json!({ "name": "Quick", "instruction": "x", "tools": [] });
    let turn = |from: usize, to: usize| {
        let one = |n: usize| call(&format!("c{n}"), "Quick", json!({ "task_instruction": n.to_string() }));
        calls((from..to).map(one).collect())
    };
    let mut answers = vec![turn(0, 50)];
    answers.extend((0..50).map(|_| says("ok")));
    answers.push(turn(50, 100));
    answers.extend((0..50).map(|_| says("ok")));
    answers.extend([turn(100, 101), says("done")]);
    let stage = AgentHarness::with_agents(answers, vec![], json!([agent]));
    assert_eq!(stage.answer("go").await.response, "done");
    let refused: Vec<_> = stage.results().into_iter().filter(|(_, _, is_error)| *is_error).collect();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].0 == "c100" && refused[0].1.contains("code: too_many_agents"), "{refused:?}");
}

/// A tool that may not be repeated and that needs a room, which a person names.
struct BookingTool(FakeTool);

impl Tool for BookingTool {
    fn definition(&self) -> &Definition {
        self.0.definition()
    }

    fn may_need_input(&self) -> bool {
        true
    }

    fn input(&self, arguments: &Value) -> Option<InputForm> {
        let parameters = json!({
            "type": "object", "required": ["room"], "properties": { "room": { "type": "string" } },
        });
        let form = InputForm {
            question: "Which room?".into(),
            description: String::new(),
            parameters,
            values: json!({}),
            lacks: Vec::new(),
        };
        arguments.get("room").is_none().then_some(form)
    }

    fn call<'a>(&'a self, context: &'a ToolContext, arguments: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        self.0.call(context, arguments)
    }
}

#[tokio::test]
async fn tool_that_may_not_be_repeated_is_carried_out_once_with_what_a_person_has_supplied() {
    let seen = SeenCalls::default();
    for (begun, is_error) in [(None, false), (Some(start()), true)] {
        let stage = AgentHarness::new(vec![calls(vec![call("b", "book", json!({}))]), says("Done.")], vec![]);
        let tool = BookingTool(book(&seen).with(|tool| tool.idempotent = false));
        let tools = Arc::new(ToolRegistry::new(vec![Arc::new(tool)]).unwrap());
        let stage = AgentHarness { agent: Agent { tools, ..stage.agent }, ..stage };
        assert_eq!(suspended(&stage).await.asks[0].0.proposal.summary, "Which room?");
        settle(&stage, QuestionKind::Input, |question| {
            answer(json!({ "room": "hall" }))(question);
            // before a death, perhaps
            question.execution_started_at = begun;
        });
        assert_eq!(answered(&stage).await.response, "Done.");
        let (_, content, failed) = stage.results().remove(0);
        assert_eq!(failed, is_error, "{content}");
        assert_eq!(*seen.lock().unwrap(), [(json!({ "room": "hall" }), vec![])], "once, and never again");
    }
}
