//! The page of a run: its rows and their details, its parts on demand, its live stream, and what can be done with it.

use chrono::TimeDelta;
use reveille::domain::run::outcome::RunFault;
use reveille::domain::run::transcript::{ModelCall, ModelTokens, ToolCall, TranscriptEntry, TranscriptMessage};
use reveille::domain::run::{RunState, Usage};
use reveille::store::{Finish, Lease};
use serde_json::{Value, json};
use uuid::Uuid;

use super::visitor::{Visitor, served};
use crate::api::service::{ADMIN, Api, daily_of, on_both};
use crate::approvals::harness;
use crate::support::world::claim_ready;

/// Markup, and a character that turns the text behind it.
const HOSTILE: &str = "<script>alert(1)</script>\u{202e}zq";
const HARMLESS: &str = "&lt;script&gt;alert(1)&lt;";
/// The longest page that a browser is sent, in bytes.
const PAGE_BYTES: usize = 100_000;

on_both! {
    run_is_told_by_its_rows_and_a_row_by_its_details
    run_that_has_failed_leads_to_its_first_failure
    run_that_waits_leads_to_the_question
    run_is_cancelled_and_run_again_from_its_page
}

/// A started run of ann, and the lease that a worker has on it.
async fn started(api: &Api) -> (Uuid, Lease) {
    let task = api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201);
    let place = format!("/v1/tasks/{}/run", task["id"].as_str().unwrap());
    let run = api.admin("POST", &place, Some(json!({ "input": HOSTILE }))).await.expect(201);
    let now = api.clock.now();
    let claim = claim_ready(&api.store, Uuid::from_u128(1), now, 1).await.pop().expect("the run");
    let starts = api.store.start_runs(&[claim.lease], now + TimeDelta::minutes(1)).await.unwrap();
    assert_eq!(starts.started.len(), 1);
    (run["id"].as_str().unwrap().parse().unwrap(), claim.lease)
}

fn asks(api: &Api, seq: i64, turn: i64, calls: &[&str]) -> TranscriptEntry {
    let tool_calls = calls.iter().map(|id| ToolCall::new(*id, "current_time", json!({ "zone": HOSTILE }))).collect();
    let message = TranscriptMessage::Assistant { text: None, tool_calls, provider_message: None, finish: None };
    let tokens = ModelTokens::of(30, 4);
    TranscriptEntry {
        usage: Usage { turns: 1, input_tokens: 30, output_tokens: 4, cost_micros: 1_500, ..Usage::default() },
        duration_ms: Some(1_200),
        model_call: Some(ModelCall { model: "main".into(), tokens }),
        ..TranscriptEntry::new(seq, turn, api.clock.now(), message)
    }
}

fn answers(api: &Api, seq: i64, turn: i64, call: &str, (content, is_error): (&str, bool)) -> TranscriptEntry {
    let message = TranscriptMessage::Tool {
        call_id: call.into(),
        name: "current_time".into(),
        notices: vec![],
        content: content.into(),
        is_error,
        reasons: vec!["a grant covers it".into()],
        fetched_at: None,
    };
    TranscriptEntry { duration_ms: Some(40), ..TranscriptEntry::new(seq, turn, api.clock.now(), message) }
}

async fn append(api: &Api, lease: Lease, entries: &[TranscriptEntry]) {
    api.store.append("ann", lease, entries).await.unwrap();
}

async fn finish(api: &Api, lease: Lease, error: Option<RunFault>) {
    let usage = Usage { turns: 2, tool_calls: 1, input_tokens: 30, output_tokens: 4, cost_micros: 1_500 };
    let (output, state) = match error {
        None => (Some(format!("Three mails {HOSTILE}")), RunState::Succeeded),
        Some(_) => (None, RunState::Failed),
    };
    let end = Finish { output, error, usage, execution_ms: 5, ..Finish::of(lease, None, state) };
    assert_eq!(api.store.finish_runs(&[end]).await.unwrap(), [] as [Uuid; 0]);
}

async fn run_is_told_by_its_rows_and_a_row_by_its_details(api: Api) {
    let (run, lease) = started(&api).await;
    let long = format!("{HOSTILE}{}", "x".repeat(5_000));
    append(
        &api,
        lease,
        &[
            TranscriptEntry::new(0, 0, api.clock.now(), TranscriptMessage::user(HOSTILE)),
            asks(&api, 1, 1, &["a", "b"]),
            answers(&api, 2, 1, "a", (&long, false)),
            answers(&api, 3, 1, "b", ("noon", false)),
        ],
    )
    .await;
    finish(&api, lease, None).await;
    let base = served(&api).await;
    let ann = Visitor::signed_in(&base, &api.token("ann", &["runs:read", "tasks:read"]).await).await;
    let here = format!("/ui/runs/{run}");

    let page = ann.get(&here).await;
    assert_eq!(page.status, 200, "{}", page.text);
    for text in [
        "Run of Morning mail",
        "current_time",
        "2 calls at once",
        "main",
        "Three mails",
        HARMLESS,
        "Waited for a worker",
    ] {
        page.has(text);
    }
    page.lacks("<script>alert");
    page.lacks("data-live");

    let answer = ann.get(&format!("{here}?row=1")).await;
    for text in ["$0.0015", "Call of current_time", "aria-current=\"true\"", "1.2 s"] {
        answer.has(text);
    }
    let result = ann.get(&format!("{here}?row=2")).await;
    for text in ["a grant covers it", "&quot;zone&quot;", HARMLESS, "\u{27e6}U+202E\u{27e7}", "part=result"] {
        result.has(text);
    }
    result.lacks("<script>alert");
    let body = ann.get(&format!("{here}/rows/2/body?part=result")).await;
    assert_eq!(body.text, long.replace('\u{202e}', "\u{27e6}U+202E\u{27e7}"));
    assert_eq!(ann.get(&format!("{here}/rows/2/body?part=none")).await.status, 404);
    assert_eq!(ann.get(&format!("{here}/rows/9")).await.status, 404);
    let alone = ann.get(&format!("{here}/rows/3")).await;
    alone.has("noon");
    alone.lacks("<html");

    let said = ann.get(&format!("{here}?view=transcript")).await;
    said.has(HARMLESS);
    said.has("noon");
    said.lacks("<script>alert");
    let live = ann.get(&format!("{here}/live")).await;
    assert_eq!(live.status, 200);
    live.has("event: tool_result");
    live.has("event: execution_end");
    let input = ann.get(&format!("{here}/text/input")).await;
    assert_eq!(input.text, HOSTILE.replace('\u{202e}', "\u{27e6}U+202E\u{27e7}"));
    let whole: Value = serde_json::from_str(&ann.get(&format!("{here}/json")).await.text).unwrap();
    assert_eq!((&whole["run"]["id"], &whole["transcript"][3]["content"]), (&json!(run), &json!("noon")));
    ann.get(&format!("{here}/markdown")).await.has("## 3: tool `current_time`");

    // another tenant's run is not there, whatever of it is asked for
    let bob = Visitor::signed_in(&base, &api.token("bob", &["runs:read", "runs:write"]).await).await;
    for part in [
        "",
        "/rows",
        "/rows/1",
        "/rows/1/body?part=text",
        "/text/output",
        "/failure",
        "/end",
        "/live",
        "/markdown",
        "/json",
    ] {
        assert_eq!(bob.get(&format!("{here}{part}")).await.status, 404, "{part}");
    }
    assert_eq!(bob.post("/ui", &format!("{here}/retry"), &[]).await.status, 404);
    assert_eq!(ann.get("/ui/runs/none").await.status, 404);
}

async fn run_that_has_failed_leads_to_its_first_failure(api: Api) {
    let (run, lease) = started(&api).await;
    let mut entries = Vec::new();
    for turn in 0..150 {
        entries.push(asks(&api, turn * 2, turn + 1, &["a"]));
        entries.push(answers(&api, turn * 2 + 1, turn + 1, "a", ("late", turn == 120)));
    }
    append(&api, lease, &entries).await;
    finish(&api, lease, Some(RunFault::new("timeout", "it took too <b>long</b>"))).await;
    let base = served(&api).await;
    let admin = Visitor::signed_in(&base, ADMIN).await;
    let here = format!("/ui/runs/{run}");
    let page = admin.get(&here).await;
    page.has("it took too &lt;b&gt;long");
    page.has("The fault: ");
    page.lacks("First failure among these rows");
    let jump = admin.get(&format!("{here}/failure")).await;
    assert_eq!(jump.location.as_deref(), Some(format!("{here}?from=221&row=241#row-241").as_str()));
    let there = admin.get(&format!("{here}?from=221&row=241")).await;
    there.has("href=\"#row-241\"");
    there.has("row-end");
}

async fn run_that_waits_leads_to_the_question(api: Api) {
    let asking = harness::ask(&api, "ann", vec![harness::note()]).await;
    api.advance(90);
    let base = served(&api).await;
    let (here, approval) = (format!("/ui/runs/{}", asking.run), format!("/ui/approvals/{}", asking.approvals[0].id));
    let scopes = ["runs:read", "approvals:read", "deliveries:read"];
    let ann = Visitor::signed_in(&base, &api.token("ann", &scopes).await).await;
    let page = ann.get(&here).await;
    for text in ["It waits for a decision", &approval, "Send a note to the room lobby", "1 min 30 s", "data-live"] {
        page.has(text);
    }
    // the rows by themselves have the head as it is now
    let rows = ann.get(&format!("{here}/rows?from=0")).await;
    rows.has("It waits for a decision");
    rows.has("bar-wait");
    rows.lacks("<html");
    // a reader who may not see approvals and messages sees the run all the same
    let less = Visitor::signed_in(&base, &api.token("ann", &["runs:read"]).await).await;
    let page = less.get(&here).await;
    assert_eq!(page.status, 200);
    page.has("It waits for a decision");
    page.has("send_note");
    page.lacks("Send a note to the room lobby");
    page.lacks("/cancel\"");
}

async fn run_is_cancelled_and_run_again_from_its_page(api: Api) {
    let task = api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201);
    let place = format!("/v1/tasks/{}/run", task["id"].as_str().unwrap());
    let run = api.admin("POST", &place, None).await.expect(201);
    let here = format!("/ui/runs/{}", run["id"].as_str().unwrap());
    let base = served(&api).await;
    let ann = Visitor::signed_in(&base, &api.token("ann", &["runs:read", "runs:write", "tasks:read"]).await).await;
    ann.get(&here).await.has("Cancel");
    let cancelled = ann.post(&here, &format!("{here}/cancel"), &[]).await;
    assert_eq!((cancelled.status, cancelled.location), (303, Some(format!("{here}?done=cancelled"))));
    let page = ann.get(&format!("{here}?done=cancelled")).await;
    page.has("It was cancelled.");
    page.has(">Retry</button>");
    let again = ann.post(&here, &format!("{here}/retry"), &[]).await;
    let new = again.location.expect("the new run");
    assert!(again.status == 303 && new.ends_with("?done=run_again") && !new.starts_with(&here), "{new}");
    // the chain is told from both ends
    ann.get(&new).await.has(&here);
    ann.get(&here).await.has(new.trim_end_matches("?done=run_again"));
    assert_eq!(ann.post(&here, &format!("{}/retry", new.trim_end_matches("?done=run_again")), &[]).await.status, 409);
    // nobody does it without the permission, or without the form
    let reader = Visitor::signed_in(&base, &api.token("ann", &["runs:read"]).await).await;
    reader.get(&here).await.lacks(">Retry</button>");
    assert_eq!(reader.post(&here, &format!("{here}/retry"), &[]).await.status, 403);
    let foreign = ann.post(&here, &format!("{here}/retry"), &[("form_token", "another")]).await;
    assert_eq!(foreign.status, 403);
}

#[tokio::test]
async fn long_transcript_is_shown_and_exported_in_parts() {
    let api = Api::new().await;
    let (run, lease) = started(&api).await;
    let entries: Vec<TranscriptEntry> = (0..2_501)
        .flat_map(|turn| {
            let call = ["a"];
            [asks(&api, turn * 2, turn + 1, &call), answers(&api, turn * 2 + 1, turn + 1, "a", ("noon", false))]
        })
        .collect();
    for part in entries.chunks(1_000) {
        append(&api, lease, part).await;
    }
    let base = served(&api).await;
    let ann = Visitor::signed_in(&base, &api.token("ann", &["runs:read"]).await).await;
    let here = format!("/ui/runs/{run}");
    let page = ann.get(&here).await;
    page.has("id=\"row-199\"");
    page.lacks("id=\"row-200\"");
    page.has("data-more=\"200\"");
    assert!(page.text.len() < PAGE_BYTES, "{} bytes", page.text.len());
    let next = ann.get(&format!("{here}/rows?from=200")).await;
    next.has("id=\"row-399\"");
    next.lacks("id=\"row-199\"");
    let end = ann.get(&format!("{here}/end")).await;
    assert_eq!(end.location.as_deref(), Some(format!("{here}?from=4802#end").as_str()));
    let last = ann.get(&format!("{here}?from=4802")).await;
    last.has("id=\"row-5001\"");
    last.lacks("data-more");
    let said = ann.get(&format!("{here}?view=transcript&from=50")).await;
    said.has("id=\"row-99\"");
    said.lacks("id=\"row-100\"");
    assert!(said.text.len() < PAGE_BYTES, "{} bytes", said.text.len());
    // 5,000 entries are exported, and it is said that there are more
    let whole: Value = serde_json::from_str(&ann.get(&format!("{here}/json")).await.text).unwrap();
    assert_eq!((whole["transcript"].as_array().unwrap().len(), &whole["next_from"]), (5_000, &json!(5_000)));
    ann.get(&format!("{here}/markdown")).await.has("The rows from 5000 on are left out.");
}
