//! Usage as a client meets it: sums by each key, pages, whose they are, and the whole result of a run.

use chrono::TimeDelta;
use reveille::domain::run::transcript::{ModelCall, ModelTokens, TranscriptEntry, TranscriptMessage};
use reveille::domain::run::{RunFault, RunFinish, RunState, ToolAttribution, ToolRecord, Usage};
use reveille::store::{Finish, RunClaim};
use serde_json::{Value, json};
use uuid::Uuid;

use super::service::{Api, daily_of, on_both};
use crate::support::world::claim_ready;

on_both!(
    sums_of_usage_are_read_by_each_key_and_each_tenant_sees_its_own
    run_shows_its_result_whole_with_every_call_of_a_tool
    run_that_was_ended_for_its_answer_shows_what_was_found_and_no_answer
);

const USAGE: Usage = Usage { turns: 1, tool_calls: 2, input_tokens: 200, output_tokens: 50, cost_micros: 1500 };

/// A run of this tenant that is under way; its id, and its task's.
async fn started(api: &Api, tenant: &str) -> (RunClaim, String) {
    let task = api.admin("POST", "/v1/tasks", Some(daily_of(tenant))).await.expect(201)["id"].clone();
    let task = task.as_str().unwrap().to_owned();
    api.admin("POST", &format!("/v1/tasks/{task}/run"), None).await.expect(201);
    let now = api.clock.now();
    let claim = claim_ready(&api.store, Uuid::from_u128(1), now, 1).await.pop().expect("the run");
    api.store.start_runs(&[claim.lease], now + TimeDelta::minutes(1)).await.unwrap();
    (claim, task)
}

fn entry(api: &Api, seq: i64, message: TranscriptMessage, usage: Usage) -> TranscriptEntry {
    let at = api.clock.now();
    TranscriptEntry { usage, ..TranscriptEntry::new(seq, 1, at, message) }
}

/// A run of this tenant that has answered after two calls of tools, of which one failed; its id, and its task's.
pub async fn answered(api: &Api, tenant: &str) -> (String, String) {
    let (claim, task) = started(api, tenant).await;
    let entry = |seq, message, usage| entry(api, seq, message, usage);
    let said = TranscriptMessage::Assistant { text: None, tool_calls: vec![], provider_message: None, finish: None };
    let call = ModelCall { model: "main".into(), tokens: ModelTokens::of(200, 50) };
    let called = |seq: i64, tool: &str, success: bool| {
        let message = TranscriptMessage::Tool {
            call_id: tool.into(),
            name: tool.into(),
            content: "cut".into(),
            is_error: !success,
            reasons: vec![],
            fetched_at: None,
            notices: vec![],
        };
        let by = ToolAttribution { agent: Some("orchestrator".into()), step: None, turn: 1 };
        let record = ToolRecord::new((tool, true), &json!({ "n": seq }), 40, (success, 9_000), by);
        TranscriptEntry { tool_record: Some(record), ..entry(seq, message, Usage::default()) }
    };
    let verdict = TranscriptMessage::verdict(vec!["U-0001: not certain".into()], vec![]);
    let entries = vec![
        TranscriptEntry { model_call: Some(call), duration_ms: Some(300), ..entry(0, said, USAGE) },
        called(1, "look", true),
        called(2, "send_note", false),
        entry(3, verdict, Usage::default()),
    ];
    let end = Finish {
        usage: USAGE,
        entries,
        output: Some("Three mails".into()),
        finish: Some(RunFinish::Answer),
        execution_ms: 512,
        ..Finish::of(claim.lease, Some(task.parse().unwrap()), RunState::Succeeded)
    };
    assert_eq!(api.store.finish_runs(&[end]).await.unwrap(), Vec::<Uuid>::new());
    (claim.lease.run_id.to_string(), task)
}

fn keys(answer: &Value) -> Vec<&str> {
    answer["items"].as_array().unwrap().iter().map(|sum| sum["key"].as_str().unwrap()).collect()
}

async fn sums_of_usage_are_read_by_each_key_and_each_tenant_sees_its_own(api: Api) {
    let (_, task) = answered(&api, "ann").await;
    answered(&api, "bob").await;
    let ann = api.token("ann", &["stats:read"]).await;
    let own = api.ask("GET", "/v1/stats/usage", Some(&ann), None).await.expect(200);
    let sum = json!({
        "key": "2026-11-21", "turns": 1, "model_ms": 300, "input_tokens": 200, "output_tokens": 50, "cache_read_tokens": 0,
        "cache_write_tokens": 0, "reasoning_tokens": 0, "cost_usd": 0.0015, "tool_calls": 2, "tool_failures": 1, "tool_ms": 80,
        "result_chars": 18_000,
    });
    assert_eq!(own, json!({ "items": [sum], "next_cursor": null }));
    let ask = async |query: &str| api.admin("GET", &format!("/v1/stats/usage?{query}"), None).await.expect(200);
    assert_eq!(ask("tenant_id=ann").await, own);
    assert_eq!(ask(&format!("task_id={task}")).await, own);
    assert_eq!(ask("from=2026-11-21&until=2026-11-22").await["items"][0]["input_tokens"], 400);
    assert_eq!(ask("until=2026-11-21").await["items"], json!([]));
    assert_eq!(keys(&ask("by=tenant").await), ["ann", "bob"]);
    assert_eq!(keys(&ask("by=model").await), ["main"]);
    assert_eq!(keys(&ask("by=task&tenant_id=ann").await), [task]);
    let largest = ask("by=tool&order=largest&limit=1").await;
    let next = largest["next_cursor"].as_str().expect("another page");
    let rest = ask(&format!("by=tool&order=largest&limit=1&cursor={next}")).await;
    assert_eq!((keys(&largest), keys(&rest), &rest["next_cursor"]), (vec!["look"], vec!["send_note"], &Value::Null));
    let first = ask("by=tool&limit=1").await;
    let next = first["next_cursor"].as_str().expect("another page");
    let second = ask(&format!("by=tool&limit=1&cursor={next}")).await;
    assert_eq!((keys(&first), keys(&second), &second["next_cursor"]), (vec!["look"], vec!["send_note"], &Value::Null));
    assert_eq!(second["items"][0]["tool_failures"], 2);
    api.ask("GET", "/v1/stats/usage?tenant_id=bob", Some(&ann), None).await.expect(404);
    for (query, pointer) in [
        ("by=hour", "/by"),
        ("from=2026-01-01", "/from"),
        ("until=soon", "/until"),
        ("by=task&cursor=eA", "/cursor"),
        ("order=small", "/order"),
    ] {
        let problem = api.admin("GET", &format!("/v1/stats/usage?{query}"), None).await.expect(400);
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
}

async fn run_shows_its_result_whole_with_every_call_of_a_tool(api: Api) {
    let (run, _) = answered(&api, "ann").await;
    let shown = api.admin("GET", &format!("/v1/runs/{run}"), None).await.expect(200);
    let call = |name: &str, n: i64, success: bool| {
        json!({
            "name": name, "args_summary": { "n": n }, "duration_ms": 40, "success": success, "result_chars": 9_000,
            "attribution": { "agent": "orchestrator", "turn": 1 },
        })
    };
    assert_eq!(
        shown["result"],
        json!({
            "response": "Three mails", "finish": "answer", "turns": 1, "duration_ms": 512,
            "token_usage": { "input_tokens": 200, "output_tokens": 50, "total": 250 },
            "tool_calls": [call("look", 1, true), call("send_note", 2, false)],
            "tool_warnings": [{ "tool": "U-0001", "message": "not certain" }],
        })
    );
    let bob = api.token("bob", &["runs:read"]).await;
    api.ask("GET", &format!("/v1/runs/{run}"), Some(&bob), None).await.expect(404);
}

async fn run_that_was_ended_for_its_answer_shows_what_was_found_and_no_answer(api: Api) {
    let (claim, task) = started(&api, "ann").await;
    let flagged = TranscriptMessage::verdict(vec![], vec!["C-0100: Promise nothing.".into()]);
    let end = Finish {
        usage: USAGE,
        entries: vec![entry(&api, 0, flagged, USAGE)],
        error: Some(RunFault::new("answer_flagged", "C-0100: Promise nothing.")),
        ..Finish::of(claim.lease, Some(task.parse().unwrap()), RunState::Failed)
    };
    assert_eq!(api.store.finish_runs(&[end]).await.unwrap(), Vec::<Uuid>::new());
    let shown = api.admin("GET", &format!("/v1/runs/{}", claim.lease.run_id), None).await.expect(200);
    assert_eq!((&shown["state"], &shown["error"]["code"]), (&json!("failed"), &json!("answer_flagged")));
    assert_eq!(shown["result"]["tool_warnings"], json!([{ "tool": "C-0100", "message": "Promise nothing." }]));
    assert_eq!((&shown["output"], &shown["result"]["response"]), (&Value::Null, &json!("")));
    let path = format!("/v1/runs/{}/transcript", claim.lease.run_id);
    let transcript = api.admin("GET", &path, None).await.expect(200);
    let entry = &transcript["items"][0];
    assert_eq!((&entry["role"], &entry["pass"]), (&json!("verdict"), &json!(false)), "{transcript}");
}
