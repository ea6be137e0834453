//! The loop: turns, tools all at once, failures as observations, limits, and how a run is stopped.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use reveille::agent::{Agent, AgentOverrides, AgentResponse, AppendError, Settings};
use reveille::domain::approval::matrix::Category;
use reveille::domain::run::outcome::{RunError, RunFault};
use reveille::domain::run::stream::StreamEvent;
use reveille::domain::run::transcript::{ModelCall, TranscriptMessage};
use reveille::domain::run::{ToolWarning, Usage};
use reveille::ports::llm::{LlmError, ModelAnswer, ModelTokens, Models, StopReason, ToolChoice};
use reveille::ports::tool::access::ToolLimits;
use reveille::ports::tool::{ToolContext, ToolError, ToolFailure, ToolOutput, ToolStatus};
use serde_json::{Value, json};

use super::harness::{
    AgentHarness, FakeModel, FakeTool, call, calls, models, passing, says, seconds, start, system_message,
};

fn output(text: impl Into<String>) -> Result<ToolOutput, ToolError> {
    Ok(ToolOutput::text(text))
}

/// A tool that takes as many seconds as it is told.
fn slow(name: &str) -> FakeTool {
    FakeTool::new(name, |context: ToolContext, arguments: Value| async move {
        context.clock.sleep(seconds(arguments["seconds"].as_u64().unwrap())).await;
        output(format!("after {} s", arguments["seconds"]))
    })
}

fn hangs(name: &str) -> FakeTool {
    FakeTool::new(name, |_, _| std::future::pending())
}

fn fails(name: &str, error: ToolError) -> FakeTool {
    FakeTool::new(name, move |_, _| {
        let error = error.clone();
        async move { Err(error) }
    })
}

#[tokio::test]
async fn message_goes_through_the_loop_and_all_of_it_is_in_transcript_result_and_stream() {
    let answers = vec![
        Ok(ModelAnswer {
            text: Some("Let me look.".into()),
            tool_calls: vec![call("c1", "echo", json!({ "n": 1 }))],
            stop: StopReason::ToolCalls,
            tokens: ModelTokens::of(200, 30),
            provider_message: None,
            failure: None,
        }),
        says("One."),
    ];
    let stage = AgentHarness::new(answers, vec![FakeTool::echo("echo")]);
    let result = stage.answer("Which number?").await;
    assert_eq!(
        serde_json::to_value(&result).unwrap(),
        json!({
            "response": "One.", "finish": "answer", "turns": 2, "duration_ms": 0, "tool_warnings": [],
            "token_usage": { "input_tokens": 300, "output_tokens": 40, "total": 340 },
            "tool_calls": [{
                "name": "echo", "args_summary": { "n": 1 }, "duration_ms": 0, "success": true,
                "result_chars": 7, "attribution": { "agent": "orchestrator", "turn": 1 },
            }],
        })
    );
    let usage = Usage { turns: 2, tool_calls: 1, input_tokens: 300, output_tokens: 40, cost_micros: 340 };
    assert_eq!(result.usage, usage);

    let system = system_message("echo");
    let conversation = vec![
        TranscriptMessage::system(system),
        TranscriptMessage::user("Which number?"),
        TranscriptMessage::Assistant {
            text: Some("Let me look.".into()),
            tool_calls: vec![call("c1", "echo", json!({ "n": 1 }))],
            provider_message: None,
            finish: None,
        },
        TranscriptMessage::Tool {
            call_id: "c1".into(),
            name: "echo".into(),
            notices: vec![],
            content: r#"{"n":1}"#.into(),
            is_error: false,
            reasons: vec!["the matrix says auto for read of low consequence".into()],
            fetched_at: Some(start()),
        },
        TranscriptMessage::Assistant {
            text: Some("One.".into()),
            tool_calls: vec![],
            provider_message: None,
            finish: None,
        },
    ];
    assert_eq!(stage.store.messages(), conversation);
    let requests = stage.model.requests.lock().unwrap();
    assert_eq!(requests[0].messages, conversation[..2]);
    assert_eq!(requests[1].messages, conversation[..4]);
    assert_eq!(requests[0].tools[0].name, "echo");

    let chunk = |turn, text: &str| StreamEvent::MessageChunk { turn, text: text.into() };
    let end = |turn, text: &str, (input, output)| {
        let model_call = Some(ModelCall { model: "main".into(), tokens: ModelTokens::of(input, output) });
        StreamEvent::MessageEnd { turn, text: text.into(), model_call }
    };
    let told = [
        StreamEvent::MessageStart { turn: 1 },
        chunk(1, "Let me look."),
        end(1, "Let me look.", (200, 30)),
        StreamEvent::ToolCallStart {
            turn: 1,
            tool: "echo".into(),
            args: json!({ "n": 1 }),
            id: "c1".into(),
            agent: None,
        },
        StreamEvent::ToolResult {
            turn: 1,
            tool: "echo".into(),
            id: "c1".into(),
            result: r#"{"n":1}"#.into(),
            error: false,
            agent: None,
        },
        StreamEvent::MessageStart { turn: 2 },
        chunk(2, "One."),
        end(2, "One.", (100, 10)),
    ];
    assert_eq!(*stage.told.lock().unwrap(), told);
}

#[tokio::test]
async fn calls_of_a_turn_run_at_the_same_time_and_their_results_keep_the_calls_order() {
    let asked = vec![
        call("long", "slow", json!({ "seconds": 8 })),
        call("short", "slow", json!({ "seconds": 2 })),
        call("middle", "slow", json!({ "seconds": 5 })),
    ];
    let stage = AgentHarness::new(vec![calls(asked), says("done")], vec![slow("slow")]);
    stage.answer("go").await;
    assert!((8_000..8_500).contains(&stage.elapsed()), "{}", stage.elapsed());
    let ids: Vec<String> = stage.results().into_iter().map(|(id, ..)| id).collect();
    assert_eq!(ids, ["long", "short", "middle"]);
}

#[tokio::test]
async fn call_that_hangs_ends_at_its_own_limit_and_holds_nobody_else_up() {
    let once = |prop: FakeTool| prop.with(|tool| tool.idempotent = false);
    let asked =
        vec![call("1", "hangs", json!({})), call("2", "brisk", json!({})), call("3", "echo", json!({ "a": 1 }))];
    let brisk = once(hangs("brisk")).with(|tool| tool.timeout = Some(seconds(3)));
    let stage =
        AgentHarness::new(vec![calls(asked), says("done")], vec![once(hangs("hangs")), brisk, FakeTool::echo("echo")]);
    let result = stage.answer("go").await;
    assert!((30_000..30_500).contains(&stage.elapsed()), "{}", stage.elapsed());
    let told = |seconds, id: &str| {
        format!("Operation failed.\ntype: timeout\ncode: timeout\nmessage: no result within {seconds} s\ncall: {id}")
    };
    let expected =
        [("1".into(), told(30, "1"), true), ("2".into(), told(3, "2"), true), ("3".into(), r#"{"a":1}"#.into(), false)];
    let mut results = stage.results();
    results.sort(); // what can't be repeated is stored when it is done, not in turn
    assert_eq!(results, expected);
    let success: Vec<bool> = result.tool_calls.iter().map(|record| record.success).collect();
    assert_eq!(success, [false, false, true]);
}

#[tokio::test]
async fn repeatable_call_that_times_out_gets_more_time_each_time_and_the_same_key() {
    let tries: Arc<Mutex<Vec<(String, u64)>>> = Arc::default();
    let noted = tries.clone();
    let tool = FakeTool::new("slow", move |context: ToolContext, _| {
        noted.lock().unwrap().push((context.idempotency_key.clone(), context.time_limit.as_secs()));
        async move {
            context.clock.sleep(seconds(100)).await;
            output("at last")
        }
    });
    let stage = AgentHarness::new(vec![calls(vec![call("1", "slow", json!({}))]), says("done")], vec![tool]);
    let result = stage.answer("go").await;
    assert_eq!(stage.results(), [("1".into(), "at last".into(), false)]);
    let again = [30, 60].map(|limit| format!("timeout: no result within {limit} s; trying again"));
    let warned: Vec<&str> = result.tool_warnings.iter().map(|warning| warning.message.as_str()).collect();
    assert_eq!(warned, again);
    let tries = tries.lock().unwrap();
    assert_eq!(tries.iter().map(|(_, limit)| *limit).collect::<Vec<_>>(), [30, 60, 120]);
    assert!(tries.iter().all(|(key, _)| *key == tries[0].0));
    // 30 + 1 + 60 + 1.5 + 100
    assert!((192_500..193_500).contains(&stage.elapsed()), "{}", stage.elapsed());
}

#[tokio::test]
async fn failed_tool_is_an_observation_and_never_the_end() {
    let tools = vec![
        fails("refuses", ToolError::for_model(ToolFailure::PermissionDenied, "no_access", "this room is closed")),
        FakeTool::new("breaks", |_, _| async { panic!("a bug") }),
        FakeTool::echo("strict").with(|tool| tool.parameters = json!({ "type": "object", "required": ["to"] })),
        FakeTool::echo("gone").with(|tool| tool.status = ToolStatus::Removed),
    ];
    let asked = vec![
        call("1", "refuses", json!({})),
        call("2", "breaks", json!({})),
        call("3", "strict", json!({})),
        call("4", "gone", json!({})),
        call("6", "refusess", json!({})),
        call("7", "strict", json!("{broken")),
    ];
    let stage = AgentHarness::new(vec![calls(asked), says("I did what I could.")], tools);
    assert_eq!(stage.answer("go").await.response, "I did what I could.");
    let told: String = stage.results().iter().map(|(_, text, error)| format!("{text} ({error})\n\n")).collect();
    insta::assert_snapshot!(told, @r#"
    Operation failed.
    type: permission_denied
    code: no_access
    message: this room is closed
    call: 1 (true)

    Operation failed.
    type: internal_error
    code: panicked
    message: the tool broke down
    call: 2 (true)

    Operation failed.
    type: invalid_parameters
    code: invalid_parameters
    message: "to" is a required property
    call: 3 (true)

    Operation failed.
    type: not_found
    code: tool_removed
    message: the tool `gone` has been removed
    call: 4 (true)

    Operation failed.
    type: not_found
    code: unknown_tool
    message: there is no tool `refusess`; did you mean `refuses`?; available: refuses, breaks, strict
    call: 6 (true)

    Operation failed.
    type: invalid_parameters
    code: invalid_parameters
    message: the arguments must be a JSON object
    call: 7 (true)
    "#);
}

#[tokio::test]
async fn tool_may_end_the_run() {
    let abort = ToolError::Abort { code: "budget".into(), message: "the month's budget is used up".into() };
    let stage = AgentHarness::new(vec![calls(vec![call("1", "pay", json!({}))])], vec![fails("pay", abort)]);
    assert_eq!(stage.handle("go").await, Err(RunError::fail("budget", "the month's budget is used up")));
}

#[tokio::test]
async fn deprecated_tool_works_and_is_warned_of() {
    let old = FakeTool::echo("old").with(|tool| tool.status = ToolStatus::Deprecated);
    let stage = AgentHarness::new(vec![calls(vec![call("1", "old", json!({}))]), says("done")], vec![old]);
    let result = stage.answer("go").await;
    assert_eq!(stage.results(), [("1".into(), "{}".into(), false)]);
    let on_record = ToolWarning { tool: "old".into(), message: "the tool is deprecated".into() };
    assert_eq!(result.tool_warnings, [on_record]);
    let stored = stage.store.entries.lock().unwrap().iter().find_map(|entry| entry.tool_record.clone());
    assert_eq!(stored.expect("a record").warnings, ["the tool is deprecated"]);
    let requests = stage.model.requests.lock().unwrap();
    assert!(requests.iter().all(|request| request.tools.is_empty()), "it is offered to no model");
    assert!(matches!(&requests[0].messages[0], TranscriptMessage::System { text, .. } if !text.contains("old")));
    let warning = StreamEvent::ToolWarning { turn: None, tool: "old".into(), message: "the tool is deprecated".into() };
    assert!(stage.told.lock().unwrap().contains(&warning));
}

#[tokio::test]
async fn deprecated_tool_is_offered_only_to_tasks_that_name_it_and_never_in_the_hint_of_an_unknown_one() {
    let old = || FakeTool::echo("old").with(|tool| tool.status = ToolStatus::Deprecated);
    let stage = AgentHarness::new(
        vec![calls(vec![call("1", "odl", json!({}))]), says("done")],
        vec![FakeTool::echo("new"), old()],
    );
    stage.answer("go").await;
    let told = &stage.results()[0].1;
    assert!(told.contains("available: new") && !told.contains("old"), "{told}");
    let names = |stage: &AgentHarness| -> Vec<String> {
        stage.model.requests.lock().unwrap()[0].tools.iter().map(|tool| tool.name.clone()).collect()
    };
    assert_eq!(names(&stage), ["new"]);
    let stage = AgentHarness::new(vec![says("done")], vec![FakeTool::echo("new"), old()]);
    let mut incoming = stage.incoming("go");
    incoming.overrides.tools = Arc::new(ToolLimits { allow: Some(vec!["old".into()]), deny: vec![] });
    passing(&stage.clock, stage.agent.handle_message(&incoming)).await.unwrap();
    assert_eq!(names(&stage), ["old"]);
}

#[tokio::test]
async fn overflow_that_nothing_shortens_is_tried_once_more_and_then_given_up() {
    let overflow = || Err(LlmError::Overflow { message: "too long".into() });
    let stage = AgentHarness::new(vec![overflow(), says("done")], vec![]);
    assert_eq!(stage.answer("go").await.response, "done");
    let stage = AgentHarness::new(vec![overflow(), overflow(), says("never")], vec![]);
    let alone = "The message or instruction does not fit the model's context window beside the agent's own prompt and \
                 tools, please shorten it";
    assert_eq!(stage.handle("go").await, Err(RunError::fail("context_overflow", alone)));
    assert_eq!(stage.model.asked(), 2);
    // the results are cut, and then there is nothing more to shorten
    let long = || FakeTool::new("long", |_, _| async { output("x".repeat(5000)) });
    let asked = || calls(vec![call("1", "long", json!({}))]);
    let stage = AgentHarness::new(vec![asked(), overflow(), overflow(), says("done")], vec![long()]);
    assert_eq!(stage.answer("go").await.response, "done");
    let stage = AgentHarness::new(vec![asked(), overflow(), overflow(), overflow(), says("never")], vec![long()]);
    let sentence = "Conversation too long, please start a new conversation";
    assert_eq!(stage.handle("go").await, Err(RunError::fail("context_overflow", sentence)));
    assert_eq!(stage.model.asked(), 4);
    let settings = Settings { max_overflow_recovery_attempts: 0, ..Settings::default() };
    let stage = AgentHarness::with_settings(vec![overflow(), says("never")], vec![], settings);
    assert_eq!(stage.handle("go").await, Err(RunError::fail("context_overflow", alone)));
    assert_eq!(stage.model.asked(), 1);
}

#[tokio::test]
async fn answer_that_was_withheld_or_never_begun_fails_the_run() {
    let answer = |stop| {
        Ok(ModelAnswer {
            text: None,
            tool_calls: vec![],
            stop,
            tokens: ModelTokens::default(),
            provider_message: None,
            failure: None,
        })
    };
    for (stop, code) in [(StopReason::Refused, "llm_refused"), (StopReason::Length, "llm_truncated")] {
        let stage = AgentHarness::new(vec![answer(stop)], vec![]);
        match stage.handle("go").await {
            Err(RunError::Fail { fault }) => assert_eq!(fault.code, code),
            other => panic!("{stop:?}: {other:?}"),
        }
        let told = stage.store.messages();
        assert_eq!(told[2..], [TranscriptMessage::Unusable { code: code.into() }], "such an answer is none");
    }
}

#[tokio::test]
async fn long_result_is_cut_and_counted_whole() {
    let settings = Settings { context_token_limit: 10_000, ..Settings::default() };
    let long = FakeTool::new("long", |_, _| async { output("line\n".repeat(10_000)) });
    let stage = AgentHarness::with_settings(
        vec![calls(vec![call("1", "long", json!({}))]), says("done")],
        vec![long],
        settings,
    );
    let result = stage.answer("go").await;
    assert_eq!(result.tool_calls[0].result_chars, 50_000);
    // 30 % of 10,000 tokens of 4 characters, back to the last line break
    let kept = format!("{}\n[...truncated]", "line\n".repeat(2_400).trim_end());
    assert_eq!(stage.results()[0].1, kept);
}

#[tokio::test]
async fn conversation_too_long_is_trimmed_then_its_results_cut_then_all_but_the_last_dropped_then_given_up() {
    let overflow = || Err(LlmError::Overflow { message: "too long".into() });
    let mut answers: Vec<_> = (0..15)
        .map(|n| calls((0..2).map(|m| call(&format!("{n}{m}"), "long", json!({ "n": [n, m] }))).collect()))
        .collect();
    answers.extend([overflow(), overflow(), overflow(), overflow()]);
    let settings = Settings { max_turns: 20, ..Settings::default() };
    let long = FakeTool::new("long", |_, _| async { output("x".repeat(5000)) });
    let mut stage = AgentHarness::with_settings(answers, vec![long], settings);
    stage.agent.context.refocus_every_rounds = 0;
    let failed = stage.handle("go").await;
    let sentence = "Conversation too long, please start a new conversation";
    assert_eq!(failed, Err(RunError::fail("context_overflow", sentence)));

    let requests = stage.model.requests.lock().unwrap();
    let shown: Vec<(usize, usize)> = requests[15..]
        .iter()
        .map(|request| {
            let longest = request.messages.iter().map(|message| match message {
                TranscriptMessage::Tool { content, .. } => content.len(),
                _ => 0,
            });
            (request.messages.len(), longest.max().unwrap())
        })
        .collect();
    // whole; system, task and the last 40 (pairs whole); results of 2,000 and the mark; the last 5 (pairs whole)
    assert_eq!(shown, [(47, 5000), (44, 5000), (44, 2015), (8, 2015)]);
    assert!(
        requests[15..]
            .iter()
            .all(|request| matches!(&request.messages[1], TranscriptMessage::User { text, .. } if text == "go"))
    );
}

#[tokio::test]
async fn recovered_conversation_goes_on_and_its_transcript_stays_whole() {
    let overflow = Err(LlmError::Overflow { message: "too long".into() });
    let answers = vec![calls(vec![call("1", "long", json!({}))]), overflow, says("done")];
    let long = FakeTool::new("long", |_, _| async { output("x".repeat(5000)) });
    let stage = AgentHarness::new(answers, vec![long]);
    assert_eq!(stage.answer("go").await.response, "done");
    assert_eq!(stage.model.asked(), 3, "the trim changes nothing and is passed over");
    assert_eq!(stage.results()[0].1.len(), 5000);
}

#[tokio::test]
async fn failing_model_is_followed_by_the_next_and_watchers_hear_that_the_turn_begins_anew() {
    let stage = AgentHarness::new(vec![], vec![]);
    let broken = FakeModel::of(vec![Err(LlmError::Auth { message: "401".into() })]);
    let spare = FakeModel::of(vec![says("I am the spare.")]);
    let models = models(vec![("main", broken), ("spare", spare)], &stage.agent.settings, &stage.clock);
    let agent = Agent { models, ..stage.agent.clone() };
    match agent.handle_message(&stage.incoming("hello")).await.unwrap() {
        AgentResponse::Answered(result) => assert_eq!(result.response, "I am the spare."),
        other => panic!("{other:?}"),
    }
    let starts = |event: &&StreamEvent| **event == StreamEvent::MessageStart { turn: 1 };
    assert_eq!(stage.told.lock().unwrap().iter().filter(starts).count(), 2);
}

#[tokio::test]
async fn error_of_the_model_says_whether_the_run_may_be_tried_again() {
    let message = || "m".to_owned();
    let table = [
        (LlmError::RateLimited { retry_after: Some(seconds(90)), message: message() }, "llm_rate_limited", true),
        (LlmError::Timeout { message: message() }, "llm_timeout", true),
        (LlmError::Transient { retry_after: None, message: message() }, "llm_unavailable", true),
        (LlmError::Auth { message: message() }, "llm_auth", false),
        (LlmError::NoModel { message: message() }, "llm_no_model", false),
        (LlmError::Rejected { message: message() }, "llm_rejected", false),
    ];
    for (error, code, heals) in table {
        let after = error.retry_after();
        let fault = RunFault::new(code, format!("the model did not answer: {error}"));
        let stage = AgentHarness::new(vec![Err(error.clone()), Err(error.clone()), Err(error)], vec![]);
        let expected = if heals { RunError::Retry { fault, after } } else { RunError::Fail { fault } };
        assert_eq!(stage.handle("go").await, Err(expected));
    }
}

#[tokio::test]
async fn model_that_is_not_there_fails_the_run_with_what_to_do() {
    let stage = AgentHarness::new(vec![], vec![]);
    let mut incoming = stage.incoming("go");
    incoming.overrides = AgentOverrides { model: Some("none".into()), ..AgentOverrides::default() };
    let unknown = RunError::fail("unknown_model", "there is no model `none` in [llm.models]");
    assert_eq!(stage.agent.handle_message(&incoming).await, Err(unknown));
    let models = Models::new(vec![], "main", vec![], stage.agent.settings.retry(), &stage.clock);
    let agent = Agent { models, ..stage.agent.clone() };
    let missing = RunError::fail("llm_not_configured", "no model is configured; set [llm.models.main]");
    assert_eq!(agent.handle_message(&stage.incoming("go")).await, Err(missing));
}

#[tokio::test]
async fn unanswerable_message_is_refused_before_anything_is_done() {
    let settings = Settings { context_token_limit: 1000, ..Settings::default() };
    let stage = AgentHarness::with_settings(vec![], vec![], settings);
    for (text, reason) in [(" \n ".to_owned(), "empty_message"), ("x".repeat(4001), "message_too_long")] {
        assert_eq!(stage.handle(&text).await, Ok(AgentResponse::Refused { reason: reason.into() }));
    }
    assert_eq!((stage.store.messages(), stage.model.asked()), (vec![], 0));
}

#[tokio::test]
async fn task_s_own_persona_turns_and_tools_win_over_the_configuration() {
    let asked = calls(vec![call("1", "b", json!({}))]);
    let stage = AgentHarness::new(vec![asked, says("done")], vec![FakeTool::echo("a"), FakeTool::echo("b")]);
    let mut incoming = stage.incoming("go");
    incoming.overrides = AgentOverrides {
        system_prompt: Some("You are a poet.".into()),
        model: Some("main".into()),
        max_turns: Some(1),
        tools: Arc::new(ToolLimits { allow: Some(vec!["a".into()]), deny: vec![] }),
        credentials: vec![],
    };
    passing(&stage.clock, stage.agent.handle_message(&incoming)).await.unwrap();
    let requests = stage.model.requests.lock().unwrap();
    assert!(
        matches!(&requests[0].messages[0], TranscriptMessage::System { text, .. } if text.starts_with("You are a poet.\n\n"))
    );
    assert_eq!(requests[0].tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["a"]);
    assert_eq!(requests[1].tool_choice, ToolChoice::None, "one turn, then the forced answer");
    assert!(stage.results()[0].1.contains("there is no tool `b`"), "{}", stage.results()[0].1);
}

#[tokio::test]
async fn cancel_ends_the_wait_for_a_model_or_a_tool_at_once() {
    let cancelled = Err(RunError::Cancelled { reason: "no longer needed".into() });
    let thinking = AgentHarness::new(vec![], vec![]);
    let asked = calls(vec![call("1", "hangs", json!({}))]);
    let working = AgentHarness::new(vec![asked], vec![hangs("hangs")]);
    for stage in [thinking, working] {
        let incoming = stage.incoming("go");
        let mut handling = Box::pin(stage.agent.handle_message(&incoming));
        assert!(futures::poll!(&mut handling).is_pending());
        stage.stop.cancel("no longer needed");
        assert_eq!(handling.await, cancelled);
    }
}

#[tokio::test]
async fn run_is_handed_back_between_turns_and_its_running_calls_are_waited_for() {
    let asked = calls(vec![call("1", "slow", json!({ "seconds": 5 }))]);
    let stage = AgentHarness::new(vec![asked, says("never asked for")], vec![slow("slow")]);
    let incoming = stage.incoming("go");
    let mut handling = Box::pin(stage.agent.handle_message(&incoming));
    assert!(futures::poll!(&mut handling).is_pending());
    stage.stop.hand_back();
    assert_eq!(passing(&stage.clock, handling).await, Err(RunError::HandBack));
    assert_eq!(stage.results(), [("1".into(), "after 5 s".into(), false)], "the checkpoint has the result");
    assert_eq!(stage.model.asked(), 1);
}

#[tokio::test]
async fn run_is_handed_back_while_a_model_thinks_without_waiting_for_it() {
    let stage = AgentHarness::new(vec![], vec![]);
    let incoming = stage.incoming("go");
    let mut handling = Box::pin(stage.agent.handle_message(&incoming));
    assert!(futures::poll!(&mut handling).is_pending());
    stage.stop.hand_back();
    assert_eq!(handling.await, Err(RunError::HandBack));
}

#[tokio::test]
async fn tools_stop_when_the_lease_is_lost() {
    let ran = Arc::new(AtomicUsize::new(0));
    let counted = ran.clone();
    let tool = FakeTool::new("count", move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { output("") }
    });
    let tool = tool.with(|definition| definition.category = Category::Internal);
    let stage = AgentHarness::new(vec![calls(vec![call("1", "count", json!({}))])], vec![tool]);
    *stage.store.failures.lock().unwrap() = vec![Some(AppendError::LeaseLost)].into();
    assert_eq!(stage.handle("go").await, Err(RunError::LeaseLost));
    assert_eq!(ran.load(Ordering::SeqCst), 0, "the intent comes before the deed");
}

#[tokio::test]
async fn definitions_of_tools_are_in_memory_once_for_all_requests() {
    let answers = vec![calls(vec![call("1", "read", json!({}))]), says("done")];
    let stage = AgentHarness::new(answers, vec![FakeTool::echo("read")]);
    stage.answer("go").await;
    let requests = stage.model.requests.lock().unwrap();
    let registered = &stage.agent.tools.find("read").unwrap().parameters;
    assert_eq!(requests.len(), 2);
    assert!(requests.iter().all(|request| Arc::ptr_eq(&request.tools[0].parameters, registered)));
    // another run's request has the text that the first one's wrote
    let written = requests[0].tools.written("wire", |tool| json!(tool.name));
    let again = stage.agent.offers.select(&stage.agent.tools, &["read"]).written("wire", |_| panic!("written twice"));
    assert_eq!(written.map(|text| text.get().to_owned()), again.map(|text| text.get().to_owned()));
}
