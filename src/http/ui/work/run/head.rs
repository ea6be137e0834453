//! The head of a run: its state, its times, its usage, its answer, and the people it waits for.

use axum::extract::Path;
use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::base::compute::steps_to_write;
use crate::http::address::address;
use crate::http::ui::frame::instant::instant;
use crate::http::ui::frame::text::readable;
use crate::http::ui::frame::{UiError, UiResult, Visit};
use crate::http::ui::work::events::line::href;
use crate::http::ui::work::run::blocks::wait_row;
use crate::http::ui::work::run::cut::{SHOWN_BYTES, cut_text};
use crate::http::ui::work::run::entry::{list, text};
use crate::http::ui::work::run::raw::whole_text;
use crate::http::ui::work::run::timeline::items_of;

/// Events of a run that its page names; the others are counted.
const EVENTS: usize = 10;

/// The part of a run that changes while it is executed, as it is at `now`. `approvals` and `deliveries` are parts of the
/// page, as [`Visit::part`] has them. Its texts may be long, so it is computed.
pub fn head(run: &Value, (approvals, deliveries): (&Value, &Value), may_write: bool, now: DateTime<Utc>) -> Value {
    let id = text(&run["id"]);
    let is_final = is_final(run);
    let mut head = json!({
        "id": id,
        "state": run["state"],
        "is_final": is_final,
        "reason": run["reason"],
        "error": run["error"],
        "finish": run["finish"],
        "attempt": run["attempt"],
        "usage": run["usage"],
        "scheduled_for": run["scheduled_for"],
        "created_at": run["created_at"],
        "started_at": run["started_at"],
        "finished_at": run["finished_at"],
        "output": long_text(&run["output"], id, "output"),
        "can_cancel": may_write && !is_final,
        "can_retry": may_write && is_final && run["task_id"].is_string() && run["trigger_type"] != "chat",
        "questions": questions(run, approvals),
        "deliveries": deliveries,
    });
    for (name, ms) in times(run, items_of(approvals), now) {
        head[name] = json!(ms);
    }
    head
}

/// Whether the run has ended.
pub fn is_final(run: &Value) -> bool {
    run["finished_at"].is_string() || run["state"] == "skipped"
}

/// The times of a run in milliseconds: how long it waited for a worker, was executed, and waited for people; `null`
/// where that is not known yet.
fn times(run: &Value, approvals: &[Value], now: DateTime<Utc>) -> [(&'static str, Option<i64>); 3] {
    let asked = instant(&run["scheduled_for"]).max(instant(&run["created_at"]));
    let queued = asked.zip(instant(&run["started_at"]));
    let queued = queued.map(|(asked, started)| (started - asked).num_milliseconds().max(0));
    let mut waits: Vec<_> = approvals.iter().map(|approval| wait_row(approval, now)).collect();
    waits.sort_by_key(|wait| wait.start);
    // questions that were open at once are waited for once
    let (mut waited, mut reached) = (0, DateTime::UNIX_EPOCH);
    for wait in &waits {
        waited += (wait.end - wait.start.max(reached)).num_milliseconds().max(0);
        reached = reached.max(wait.end);
    }
    let waited = (!approvals.is_empty()).then_some(waited);
    [("queued_ms", queued), ("executed_ms", run["result"]["duration_ms"].as_i64()), ("waited_ms", waited)]
}

/// The questions of a run, each with the page on which it is answered; with their words where the reader may see them.
fn questions(run: &Value, approvals: &Value) -> Vec<Value> {
    let told = items_of(approvals);
    let question = |named: &Value| {
        let id = text(&named["id"]);
        let whole = told.iter().find(|one| one["id"] == named["id"]).unwrap_or(&Value::Null);
        let is_input = named["kind"] == "input";
        json!({
            "id": id,
            "kind": named["kind"],
            "status": named["status"],
            "tool": named["tool"],
            "summary": whole["action_summary"],
            "decided_by": whole["decided_by"],
            "decided_at": whole["decided_at"],
            "expires_at": whole["expires_at"],
            "comment": whole["comment"],
            "href": address(&["ui", if is_input { "inbox" } else { "approvals" }, id], &[]),
        })
    };
    list(&run["approvals"]).iter().map(question).collect()
}

/// The part of a run that stays as it is while the run is executed: its cause, its input and its fire. Its texts may be
/// long, so it is computed.
pub fn about(run: &Value) -> Value {
    let id = text(&run["id"]);
    json!({
        "tenant": run["tenant_id"],
        "fire_key": run["fire_key"],
        "trigger": run["trigger_type"],
        "missed": run["missed"],
        "blocked_by": run["blocked_by"],
        "events": events(run),
        "more_events": list(&run["event_ids"]).len().saturating_sub(EVENTS),
        "input": long_text(&run["input"], id, "input"),
        "cause": long_text(&run["cause"], id, "cause"),
    })
}

/// The first events of a run, each with its page: `[{id, href}]`.
fn events(run: &Value) -> Vec<Value> {
    let tenant = run["tenant_id"].as_str();
    let event = |id: &Value| json!({ "id": id, "href": href(text(id), None, tenant) });
    list(&run["event_ids"]).iter().take(EVENTS).map(event).collect()
}

/// A text as far as a page shows it: `{shown, is_cut, bytes, href}`; `null` where there is none.
fn long_text(value: &Value, id: &str, part: &str) -> Value {
    let whole = readable(value);
    if whole.is_empty() {
        return Value::Null;
    }
    let cut = cut_text(&whole, SHOWN_BYTES);
    json!({
        "shown": cut.shown,
        "is_cut": cut.is_cut,
        "bytes": whole.len(),
        "href": format!("/ui/runs/{id}/text/{part}"),
    })
}

/// The whole text of a part of a run, as far as it is shown at all.
pub async fn show_text(visit: Visit, Path((id, part)): Path<(String, String)>) -> UiResult {
    let run = visit.get(&["v1", "runs", &id], &[]).await?;
    match part.as_str() {
        "output" | "input" | "cause" => {
            let whole = visit.compute(steps_to_write(&run), move || readable(&run[part.as_str()])).await?;
            whole_text(&visit, whole).await
        }
        _ => Err(UiError::not_found()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_delay_is_apart_from_work_and_questions_that_were_open_at_once_count_once() {
        let now = "2026-11-21T00:10:00Z".parse().unwrap();
        let run = json!({ "scheduled_for": "2026-11-21T00:00:00Z", "created_at": "2026-11-21T00:00:01Z",
            "started_at": "2026-11-21T00:00:03.5Z", "result": { "duration_ms": 70 } });
        let wait = |from: &str, to: &str| {
            json!({ "created_at": format!("2026-11-21T{from}Z"), "status": "approved",
            "decided_at": format!("2026-11-21T{to}Z") })
        };
        let waits = [wait("00:01:00", "00:02:00"), wait("00:01:30", "00:02:30"), wait("00:05:00", "00:05:01")];
        let expected = [("queued_ms", Some(2_500)), ("executed_ms", Some(70)), ("waited_ms", Some(91_000))];
        assert_eq!(times(&run, &waits, now), expected);
        let queued = json!({ "scheduled_for": "2026-11-21T00:00:00Z", "started_at": null });
        assert!(times(&queued, &[], now).iter().all(|(_, ms)| ms.is_none()));
    }

    #[test]
    fn events_and_questions_of_a_run_lead_to_their_pages_and_many_events_are_counted() {
        let ids: Vec<String> = (0..=EVENTS).map(|n| format!("e/{n}")).collect();
        let run = json!({ "tenant_id": "ann", "event_ids": ids,
            "approvals": [{ "id": "7", "kind": "input" }, { "id": "8", "kind": "approval" }] });
        let about = about(&run);
        assert_eq!((about["events"].as_array().map(Vec::len), &about["more_events"]), (Some(EVENTS), &json!(1)));
        assert_eq!(about["events"][0], json!({ "id": "e/0", "href": "/ui/events/e%2F0?tenant_id=ann" }));
        let questions = questions(&run, &Value::Null);
        let hrefs: Vec<&str> = questions.iter().map(|question| text(&question["href"])).collect();
        assert_eq!(hrefs, ["/ui/inbox/7", "/ui/approvals/8"]);
    }

    #[test]
    fn long_text_is_cut_with_a_link_to_all_of_it() {
        let text = long_text(&json!("x".repeat(SHOWN_BYTES + 1)), "7", "output");
        assert_eq!((&text["is_cut"], &text["bytes"]), (&json!(true), &json!(SHOWN_BYTES + 1)));
        assert_eq!(text["href"], "/ui/runs/7/text/output");
        assert_eq!(long_text(&json!("short"), "7", "output")["is_cut"], false);
        assert_eq!(long_text(&Value::Null, "7", "input"), Value::Null);
    }
}
