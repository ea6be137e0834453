//! Refusals when a task is saved, each fault at its place, and effects that an agent can't give itself by making tasks.

use std::sync::Arc;

use reveille::domain::approval::ApprovalLevel;
use reveille::domain::approval::matrix::Category;
use reveille::domain::approval::policy::Policy;
use reveille::domain::run::outcome::{RunError, RunOutcome};
use reveille::ports::tool::ToolRegistry;
use reveille::ports::tool::absence::ToolAbsence;
use reveille::ports::tool::policy::ToolPolicy;
use reveille::ports::tool::registry::RegisteredTool;
use serde_json::{Map, Value, json};

use super::harness::{answer, failure, faults, run};
use crate::agent::consent::override_of;
use crate::agent::harness::{AgentHarness, FakeTool};

fn stage() -> AgentHarness {
    let strict =
        json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "additionalProperties": false });
    let tools = vec![
        FakeTool::echo("echo").with(|tool| tool.parameters = strict),
        FakeTool::echo("send").with(|tool| tool.category = Category::SideEffect),
    ];
    AgentHarness::new(vec![], tools)
}

/// A harness in which the operator and the tenants say this of tools.
fn ruled(approvals: Value) -> AgentHarness {
    let mut stage = stage();
    stage.agent.policy = Policy::new(&serde_json::from_value(approvals).unwrap()).unwrap();
    stage
}

#[tokio::test]
async fn steps_of_a_pipeline_are_fifty_at_most() {
    let steps = |count: usize| {
        let steps: Vec<Value> = (0..count).map(|n| json!({ "name": format!("s{n}"), "filter": "true" })).collect();
        json!({ "steps": steps })
    };
    assert_eq!(faults(&stage(), steps(50)), []);
    assert!(faults(&stage(), steps(51))[0].1.contains("a list of 1 to 50 steps"));
}

#[tokio::test]
async fn texts_of_a_pipeline_that_insert_something_are_a_thousand_at_most() {
    let config = |texts: usize| {
        let plain = vec!["as it is"; 2_000];
        let kept = json!({ "name": "all", "value": [plain, vec!["{{ input }}"; texts - 1]] });
        json!({ "steps": [{ "name": "all", "store": kept }], "output": "{{ steps.all }}" })
    };
    assert_eq!(faults(&stage(), config(1_000)), []);
    let why = "at most 1000 texts of a pipeline may insert something, here 1001 do";
    assert_eq!(faults(&stage(), config(1_001)), [("/action/config".to_owned(), why.to_owned())]);
}

#[tokio::test]
async fn headers_of_an_http_step_are_thirty_at_most() {
    let config = |count: usize| {
        let headers: Map<String, Value> = (0..count).map(|n| (format!("x-{n}"), json!("v"))).collect();
        json!({ "steps": [{ "name": "s", "http": { "url": "http://127.0.0.1:9/", "headers": headers } }] })
    };
    assert_eq!(faults(&stage(), config(30)), []);
    let (place, why) = ("/action/config/steps/0/http/headers", "must be an object of at most 30 headers");
    assert_eq!(faults(&stage(), config(31)), [(place.to_owned(), why.to_owned())]);
}

#[tokio::test]
async fn tool_step_runs_where_the_rules_of_its_tenant_let_the_call_through() {
    let steps = |n: u64| json!({ "steps": [{ "name": "s", "tool": { "name": "send", "args": { "n": n } } }] });
    let stage = ruled(json!({ "tenants": { "ann": { "send": { "gate": "auto", "when": "args.n < 3" } } } }));
    assert_eq!(faults(&stage, steps(1)), []);
    assert_eq!(answer(&stage, steps(1)["steps"].clone(), None).await, r#"{"n":1}"#);
    let refused = ruled(json!({ "tenants": { "ann": { "send": { "gate": "auto", "when": "args.n < 3" } } } }));
    assert_eq!(failure(run(&refused, steps(3), None).await), "fail tool_refused");
    let foreign = ruled(json!({ "tenants": { "bob": { "send": { "gate": "auto" } } } }));
    assert_eq!(failure(run(&foreign, steps(1), None).await), "fail tool_refused", "it is another tenant's rule");
}

#[tokio::test]
async fn tool_step_is_refused_where_the_rules_ask_for_what_the_matrix_lets_through() {
    let steps = json!({ "steps": [{ "name": "s", "tool": { "name": "echo", "args": { "n": 1 } } }] });
    let strict = ruled(json!({ "tools": { "echo": { "gate": "confirm" } } }));
    let told = faults(&strict, steps.clone());
    assert!(told[0].1.contains("needs a person's approval"), "{told:?}");
    let at_times = ruled(json!({ "tools": { "echo": { "gate": "confirm", "when": "args.n > 0" } } }));
    assert_eq!(faults(&at_times, steps.clone()), []);
    assert_eq!(failure(run(&at_times, steps, None).await), "fail tool_refused");
}

#[tokio::test]
async fn rules_of_a_pipeline_are_checked_at_their_places_and_hold_for_tool_steps() {
    let stage = AgentHarness::new(vec![], vec![FakeTool::echo("echo")]);
    let steps = json!([{ "name": "one", "tool": { "name": "echo", "args": { "n": 1 } } }]);
    let rules = json!({ "ehco": { "gate": "auto" }, "echo": { "gate": "confirm", "when": "args.n >" } });
    let found = faults(&stage, json!({ "steps": steps, "approvals": rules }));
    let places: Vec<&str> = found.iter().map(|(place, _)| place.as_str()).collect();
    assert_eq!(places, ["/action/config/approvals/ehco", "/action/config/approvals/echo/when"], "{found:?}");
    assert!(found[0].1.contains("did you mean `echo`"), "{found:?}");

    for (when, refused) in [("args.n == 1", true), ("args.n == 2", false)] {
        let rules = json!({ "echo": { "gate": "confirm", "when": when } });
        let ended = run(&stage, json!({ "steps": steps, "approvals": rules }), None).await;
        match refused {
            true => assert_eq!(failure(ended), "fail tool_refused"),
            false => assert!(matches!(ended, Ok(RunOutcome::Succeeded { .. })), "{ended:?}"),
        }
        stage.store.entries.lock().unwrap().clear();
    }
}

#[tokio::test]
async fn tool_step_is_refused_where_a_rule_of_its_task_can_not_be_read() {
    let steps = json!([{ "name": "s", "tool": { "name": "echo", "args": { "n": 1 } } }]);
    let (of_tool, of_all) = ("the rule of the task for `echo` can't be read", "the rules of the task can't be read");
    for (rules, why) in [
        (json!({ "echo": { "gate": "auto", "when": "args.n >" } }), Some(of_tool)),
        (json!({ "echo": { "gate": "deny" } }), Some(of_tool)),
        (json!("confirm"), Some(of_all)),
        (json!({ "send": { "gate": "deny" } }), None),
    ] {
        match (run(&stage(), json!({ "steps": steps, "approvals": rules }), None).await, why) {
            (Err(RunError::Fail { fault }), Some(why)) => {
                assert!(fault.code == "tool_refused" && fault.message.contains(why), "{rules}: {fault:?}");
            }
            (Ok(RunOutcome::Succeeded { .. }), None) => {}
            (ended, _) => panic!("{rules}: {ended:?}"),
        }
    }
}

#[tokio::test]
async fn step_of_a_tool_whose_server_is_away_is_not_saved_and_its_run_comes_to_it_again() {
    let mut stage = AgentHarness::new(vec![], vec![]);
    stage.agent.tools = Arc::new(ToolRegistry::new(vec![]).unwrap().with_servers(["github"]));
    let steps = json!({ "steps": [{ "name": "s", "tool": { "name": "github.search", "args": { "n": 1 } } }] });
    let place = "/action/config/steps/0/tool/name".to_owned();
    let why = "the MCP server has not listed `github.search`; is it up?".to_owned();
    assert_eq!(faults(&stage, steps.clone()), [(place, why)]);
    assert_eq!(failure(run(&stage, steps, None).await), "retry mcp_unavailable None");
    let agent = json!({ "name": "s", "agent": { "instruction": "Look.", "tools": ["github.search"] } });
    let rules = json!({ "github.search": { "gate": "confirm" } });
    assert_eq!(faults(&stage, json!({ "steps": [agent], "approvals": rules })), []);
}

#[tokio::test]
async fn step_of_a_tool_that_nobody_has_accepted_is_not_saved_and_its_run_comes_to_it_again() {
    let mut stage = AgentHarness::new(vec![], vec![]);
    let search = RegisteredTool::new(Arc::new(FakeTool::echo("github.search")), ToolPolicy::default()).unwrap();
    let of_server = ToolRegistry::new(vec![]).unwrap().with_servers(["github"]);
    stage.agent.tools = Arc::new(of_server.with_waiting([Arc::new(search)]));
    let steps = json!({ "steps": [{ "name": "s", "tool": { "name": "github.search", "args": { "n": 1 } } }] });
    let place = "/action/config/steps/0/tool/name".to_owned();
    assert_eq!(faults(&stage, steps.clone()), [(place, ToolAbsence::NotAccepted.message("github.search"))]);
    assert_eq!(failure(run(&stage, steps, None).await), "retry mcp_tool_not_accepted None");
}

#[tokio::test]
async fn tool_step_is_refused_where_an_override_asks() {
    let steps = json!({ "steps": [{ "name": "s", "tool": { "name": "echo", "args": { "n": 1 } } }] });
    let stage = stage();
    *stage.store.overrides.lock().unwrap() = vec![override_of("echo", ApprovalLevel::Confirm, None)];
    assert_eq!(failure(run(&stage, steps, None).await), "fail tool_refused");
}

#[test]
fn tool_that_demands_a_person_or_a_wait_is_no_step_whatever_the_rules_say() {
    let tools = vec![
        FakeTool::echo("pay").with(|tool| tool.requires_confirmation = true),
        FakeTool::echo("post").with(|tool| tool.undo_seconds = Some(10)),
    ];
    let mut stage = AgentHarness::new(vec![], tools);
    let auto = json!({ "gate": "auto" });
    let rules = json!({ "tools": { "pay": auto, "post": auto } });
    stage.agent.policy = Policy::new(&serde_json::from_value(rules).unwrap()).unwrap();
    for (tool, why) in [("pay", "needs a person's approval"), ("post", "can't wait")] {
        let told = faults(&stage, json!({ "steps": [{ "name": "s", "tool": { "name": tool } }] }));
        assert!(told.len() == 1 && told[0].1.contains(why), "{told:?}");
    }
}

/// The faults of one step among others, `place: part of the message`.
fn of_step(step: Value) -> Vec<(String, String)> {
    let steps = json!([{ "name": "before", "map": "1" }, step, { "name": "later", "map": "2" }]);
    faults(&stage(), json!({ "steps": steps }))
}

#[test]
fn every_fault_of_a_step_is_told_at_its_place() {
    let http = |more: Value| {
        let mut http = json!({ "url": "https://api.example.org/x" });
        http.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "name": "s", "http": http })
    };
    let each = |inner: Value| json!({ "name": "s", "for_each": { "items": "events", "do": inner } });
    for (step, place, why) in [
        (json!({ "name": "s", "htpp": {} }), "/htpp", "did you mean `http`?"),
        (json!({ "name": "s" }), "", "has no kind"),
        (json!({ "name": "s", "map": "1", "filter": "true" }), "/map", "one kind"),
        (json!({ "map": "1" }), "/name", "is missing"),
        (json!({ "name": "1s", "map": "1" }), "/name", "not begin with a digit"),
        (json!({ "name": "a b", "map": "1" }), "/name", "letters, digits"),
        (json!({ "name": "before", "map": "1" }), "/name", "another step is named `before`"),
        (json!({ "name": "s", "map": "1 +" }), "/map", "at character"),
        (json!({ "name": "s", "map": "evnt.x" }), "/map", "did you mean `event`?"),
        (json!({ "name": "s", "map": "steps.later" }), "/map", "no step `later` before this one"),
        (json!({ "name": "s", "map": "steps.befroe" }), "/map", "did you mean `before`?"),
        (json!({ "name": "s", "map": "item" }), "/map", "unknown name `item`"),
        (json!({ "name": "s", "map": 7 }), "/map", "CEL"),
        (json!({ "name": "s", "map": "1", "timeout_seconds": 0 }), "/timeout_seconds", "from 1 to 3600"),
        (json!({ "name": "s", "map": "1", "retry": 11 }), "/retry", "from 0 to 10"),
        (json!({ "name": "s", "map": "1", "retry": { "cuont": 1 } }), "/retry/cuont", "did you mean `count`?"),
        (json!({ "name": "s", "map": "1", "on_error": "ignore" }), "/on_error", "fail, continue, stop"),
        (http(json!({ "url": "{{ event.url }}" })), "/http/url", "whole address"),
        (http(json!({ "url": "https://{{ event.host }}/x" })), "/http/url", "can't be inserted"),
        (http(json!({ "url": "http://127.0.0.2/x" })), "/http/url", "not allowed"),
        (http(json!({ "url": "ftp://api.example.org/x" })), "/http/url", "scheme"),
        (http(json!({ "url": "https://api.example.org/{{ steps.later.id }}" })), "/http/url", "no step `later`"),
        (http(json!({ "method": "FETCH" })), "/http/method", "GET, HEAD"),
        (http(json!({ "body": {} })), "/http/body", "has no body"),
        (http(json!({ "method": "POST", "body": { "a": ["{{ nothing }}"] } })), "/http/body/a/0", "unknown name"),
        (http(json!({ "credential": "a b" })), "/http/credential", "`service/account`"),
        (http(json!({ "credential": "{{ input.x }}" })), "/http/credential", "may hold letters"),
        (http(json!({ "headers": { "Host": "x" } })), "/http/headers/Host", "writes this header itself"),
        (http(json!({ "headers": { "Idempotency-Key": "x" } })), "/http/headers/Idempotency-Key", "itself"),
        (http(json!({ "headers": { "a b": "x" } })), "/http/headers/a b", "no name of a header"),
        (http(json!({ "query": { "q": "{{ x }}" } })), "/http/query/q", "unknown name"),
        (http(json!({ "bdoy": {} })), "/http/bdoy", "did you mean `body`?"),
        (json!({ "name": "s", "tool": { "name": "ehco" } }), "/tool/name", "did you mean `echo`?"),
        (json!({ "name": "s", "tool": { "name": "send" } }), "/tool/name", "needs a person's approval"),
        (json!({ "name": "s", "tool": { "name": "echo", "args": { "n": "x" } } }), "/tool/args", "/n"),
        (json!({ "name": "s", "notify": { "message": "x", "channel": "emial" } }), "/notify/channel", "`email`"),
        (json!({ "name": "s", "notify": {} }), "/notify/message", "is missing"),
        (
            json!({ "name": "s", "http": { "url": "https://a.example.org/", "headers": { "Authorization": "Bearer x" } } }),
            "/http/headers/Authorization",
            "it holds a secret",
        ),
        (
            json!({ "name": "s", "http": { "url": "https://a.example.org/b/../c" } }),
            "/http/url",
            "can't be `.` or `..`",
        ),
        (json!({ "name": "s", "publish": { "source": "x" } }), "/publish/type", "is missing"),
        (json!({ "name": "s", "store": { "name": "x" } }), "/store", "exactly one of"),
        (json!({ "name": "s", "store": { "name": "x y", "value": 1 } }), "/store/name", "letters, digits"),
        (json!({ "name": "s", "store": { "name": "x", "expression": "(" } }), "/store/expression", "at character"),
        (json!({ "name": "s", "llm": { "prompt": "x", "model": "mian" } }), "/llm/model", "did you mean `main`?"),
        (json!({ "name": "s", "llm": {} }), "/llm/prompt", "is missing"),
        (json!({ "name": "s", "agent": { "name": "libarian", "instruction": "x" } }), "/agent/name", "`librarian`"),
        (json!({ "name": "s", "agent": { "instruction": "x", "tools": ["ehco"] } }), "/agent/tools/0", "`echo`"),
        (
            json!({ "name": "s", "agent": { "instruction": "x", "credentials": ["a b"] } }),
            "/agent/credentials/0",
            "service/account",
        ),
        (each(json!({ "for_each": {} })), "/for_each/do/for_each", "inside of another"),
        (each(json!({ "llm": { "prompt": "x" } })), "/for_each/do/llm", "can't stand inside"),
        (each(json!({ "map": "itme" })), "/for_each/do/map", "did you mean `item`?"),
        (json!({ "name": "s", "for_each": { "do": { "map": "1" } } }), "/for_each/items", "is missing"),
        (
            json!({ "name": "s", "for_each": { "items": "[1]", "concurrency": 11, "do": { "map": "1" } } }),
            "/for_each/concurrency",
            "from 1 to 10",
        ),
    ] {
        let told = of_step(step.clone());
        let expected = format!("/action/config/steps/1{place}");
        let fits = |(pointer, message): &(String, String)| *pointer == expected && message.contains(why);
        assert!(told.iter().any(fits), "{step}\nexpected {expected}: {why}\ntold {told:#?}");
    }
}

#[test]
fn valid_pipelines_are_accepted() {
    let steps = json!([
        { "name": "one", "http": { "url": "https://api.example.org/{{ event.data.id }}" }, "retry": 2, "timeout_seconds": 5 },
        { "name": "two", "for_each": { "items": "steps.one.body.list", "do": { "tool": {
            "name": "echo", "args": { "n": "{{ item }}" } }, "on_error": "continue" } }, "on_error": "stop" },
        { "name": "three", "llm": { "prompt": "{{ steps.two | tojson }}" } },
    ]);
    assert_eq!(faults(&stage(), json!({ "steps": steps, "output": "{{ steps.three }}" })), []);
}

#[test]
fn pipeline_has_steps_not_too_many_and_one_llm() {
    let told = |config| faults(&stage(), config).into_iter().map(|(place, _)| place).collect::<Vec<_>>();
    assert_eq!(told(json!({})), ["/action/config/steps"]);
    assert_eq!(told(json!({ "steps": [] })), ["/action/config/steps"]);
    let many: Vec<Value> = (0..51).map(|n| json!({ "name": format!("s{n}"), "map": "1" })).collect();
    assert_eq!(told(json!({ "steps": many })), ["/action/config/steps"]);
    let llm = |name: &str| json!({ "name": name, "llm": { "prompt": "x" } });
    assert_eq!(told(json!({ "steps": [llm("a"), llm("b")] })), ["/action/config/steps/1/llm"]);
    assert_eq!(told(json!({ "steps": [llm("a")], "outptu": 1 })), ["/action/config/outptu"]);
    assert_eq!(told(json!({ "steps": [llm("a")], "output": "{{ steps.b }}" })), ["/action/config/output"]);
    let budget = json!({ "turns": 0 });
    assert_eq!(told(json!({ "steps": [llm("a")], "budget": budget })), ["/action/config/budget/turns"]);
    assert_eq!(told(json!({ "steps": ["x"] })), ["/action/config/steps/0"]);
}
