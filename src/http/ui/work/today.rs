//! Today: what needs a person now, what failed, what fires next, and what was spent.
//!
//! The parts are asked of the API all at once. One that the reader may not see, or that can't be read now, says so in
//! its place.

use axum::Router;
use axum::routing::get;
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use crate::http::HttpState;
use crate::http::ui::frame::instant::instant;
use crate::http::ui::frame::meter::day_bars;
use crate::http::ui::frame::names::task_names;
use crate::http::ui::frame::{UiResult, Visit};
use crate::http::ui::people::credentials::linked;

/// Rows of a part.
const ROWS: usize = 10;
/// Paused and disabled tasks among which those are looked for that have a reason: the newest.
const HALTED: usize = 50;
/// A failure that is older is no news.
const NEWS: TimeDelta = TimeDelta::hours(24);

/// The page.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    Router::new().route("/ui", get(show_today))
}

async fn show_today(visit: Visit) -> UiResult {
    let since = visit.now - NEWS;
    let (waiting, failures, (fires, tasks), (stats, spend)) = tokio::join!(
        async { tokio::join!(approvals(&visit), waiting_tools(&visit), broken(&visit), halted_tasks(&visit)) },
        async { tokio::join!(failed_runs(&visit, since), dead_letters(&visit, since), undelivered(&visit, since)) },
        async { tokio::join!(next_fires(&visit), any_task(&visit)) },
        async { tokio::join!(visit.part(&["v1", "stats"], &[]), spend(&visit)) },
    );
    let ((approvals, tools, broken, halted), (failed, letters, undelivered)) = (waiting, failures);
    let names = task_names(&visit, rows_of(&approvals)).await;
    let is_new = tasks["answer"]["items"].as_array().is_some_and(Vec::is_empty) && rows_of(&failed).next().is_none();
    let of_tenants = halts(&stats, false);
    let page = json!({
        "is_new": is_new,
        "since": since.format("%Y-%m-%dT%H:%M").to_string(),
        "halted": halts(&stats, true),
        "halts": of_tenants.iter().take(ROWS).collect::<Vec<_>>(),
        "more_halts": of_tenants.len().saturating_sub(ROWS),
        "approvals": approvals,
        "tools": tools,
        "broken": broken,
        "still": halted,
        "failed": failed,
        "letters": letters,
        "undelivered": undelivered,
        "fires": fires,
        "spend": spend,
        "names": names,
    });
    visit.show("today.html", "Today", page).await
}

async fn approvals(visit: &Visit) -> Value {
    let query = [("status", "pending".to_owned()), ("limit", ROWS.to_string())];
    counted(visit.part(&["v1", "approvals"], &query).await)
}

/// Tools of MCP servers whose definitions the operator has yet to accept: `[{name, description}]`.
async fn waiting_tools(visit: &Visit) -> Value {
    let mut part = visit.part(&["v1", "tools"], &[]).await;
    keep(&mut part, |tool| tool["reason"] == "not_accepted");
    for tool in rows_mut(&mut part).into_iter().flatten() {
        *tool = json!({ "name": tool["name"], "description": tool["description"] });
    }
    first(counted(part))
}

/// Credentials whose owners have to connect an account again.
async fn broken(visit: &Visit) -> Value {
    let query = [("status", "needs_consent".to_owned()), ("limit", ROWS.to_string())];
    let mut part = visit.part(&["v1", "credentials"], &query).await;
    for credential in rows_mut(&mut part).into_iter().flatten() {
        *credential = linked(visit, credential);
    }
    counted(part)
}

/// Tasks that were paused or disabled for a reason: because they kept failing, because a credential is missing, because
/// a part of them can't be read, or as somebody has said.
async fn halted_tasks(visit: &Visit) -> Value {
    let query = |status: &str| [("status", status.to_owned()), ("limit", HALTED.to_string())];
    let (paused, disabled) = (query("paused"), query("disabled"));
    let path = ["v1", "tasks"];
    let (mut paused, disabled) = tokio::join!(visit.part(&path, &paused), visit.part(&path, &disabled));
    let more: Vec<Value> = rows_of(&disabled).cloned().collect();
    if let Some(rows) = rows_mut(&mut paused) {
        rows.extend(more);
        rows.retain(|task| task["status_reason"].is_string());
        rows.sort_by(|a, b| b["updated_at"].as_str().cmp(&a["updated_at"].as_str()));
        rows.iter_mut().for_each(|task| *task = halted_row(task));
    }
    first(counted(paused))
}

/// A task that stands still, without instruction and settings, which may be long.
fn halted_row(task: &Value) -> Value {
    const SHOWN: [&str; 6] = ["id", "name", "tenant_id", "status", "status_reason", "updated_at"];
    SHOWN.iter().map(|name| ((*name).to_owned(), task[*name].clone())).collect()
}

async fn failed_runs(visit: &Visit, since: DateTime<Utc>) -> Value {
    let query = [("state", "failed".to_owned()), ("since", since.to_rfc3339()), ("limit", ROWS.to_string())];
    counted(visit.part(&["v1", "runs"], &query).await)
}

async fn dead_letters(visit: &Visit, since: DateTime<Utc>) -> Value {
    let mut part = visit.part(&["v1", "dead-letters"], &[("limit", ROWS.to_string())]).await;
    keep_news(&mut part, "dead_lettered_at", since);
    counted(part)
}

/// Messages that were refused or given up, and those of which nobody can say whether they arrived.
async fn undelivered(visit: &Visit, since: DateTime<Utc>) -> Value {
    let query = |state: &str| [("state", state.to_owned()), ("limit", ROWS.to_string())];
    let (failed, unknown) = (query("failed"), query("unknown"));
    let path = ["v1", "deliveries"];
    let (mut failed, unknown) = tokio::join!(visit.part(&path, &failed), visit.part(&path, &unknown));
    let more: Vec<Value> = rows_of(&unknown).cloned().collect();
    if let Some(rows) = rows_mut(&mut failed) {
        rows.extend(more);
        rows.sort_by(|a, b| b["created_at"].as_str().cmp(&a["created_at"].as_str()));
    }
    if failed["answer"].is_object() && unknown["answer"]["next_cursor"].is_string() {
        failed["answer"]["next_cursor"] = unknown["answer"]["next_cursor"].clone();
    }
    keep_news(&mut failed, "created_at", since);
    first(counted(failed))
}

async fn next_fires(visit: &Visit) -> Value {
    counted(visit.part(&["v1", "schedules", "upcoming"], &[("limit", ROWS.to_string())]).await)
}

async fn any_task(visit: &Visit) -> Value {
    visit.part(&["v1", "tasks"], &[("limit", "1".to_owned())]).await
}

/// Use of today, and of a tenant its budgets: `{answer: {tokens, cost_usd, bars}}`, or a `problem`.
async fn spend(visit: &Visit) -> Value {
    let today = [("by", "day".to_owned()), ("from", visit.now.date_naive().to_string())];
    let usage = visit.part(&["v1", "stats", "usage"], &today).await;
    if usage["answer"].is_null() {
        return usage;
    }
    let day = &usage["answer"]["items"][0];
    let number = |name: &str| day[name].as_f64().unwrap_or_default();
    let bars = match visit.caller.scope.tenant() {
        None => Vec::new(),
        Some(_) => bars(&visit.part(&["v1", "budgets"], &[]).await["answer"]),
    };
    json!({ "answer": {
        "tokens": number("input_tokens") + number("output_tokens"),
        "cost_usd": number("cost_usd"),
        "turns": number("turns"),
        "tool_calls": number("tool_calls"),
        "bars": bars,
    } })
}

/// The budgets of the tenant's day that hold, each as a bar.
fn bars(budgets: &Value) -> Vec<Value> {
    let bars = day_bars(&budgets["today"], &budgets["limits"]["tenant"]);
    bars.into_iter().filter(|bar| bar["limit"].is_number()).collect()
}

/// The halts of every tenant, or those of single ones.
fn halts(stats: &Value, of_all: bool) -> Vec<Value> {
    let halts = stats["answer"]["halts"].as_array().into_iter().flatten();
    halts.filter(|halt| halt["tenant_id"].is_null() == of_all).cloned().collect()
}

fn rows_of(part: &Value) -> impl Iterator<Item = &Value> {
    part["answer"]["items"].as_array().into_iter().flatten()
}

/// The rows of a part that could be read.
fn rows_mut(part: &mut Value) -> Option<&mut Vec<Value>> {
    part.pointer_mut("/answer/items")?.as_array_mut()
}

/// Leaves only these rows in a part.
fn keep(part: &mut Value, is_kept: impl Fn(&Value) -> bool) {
    if let Some(rows) = rows_mut(part) {
        rows.retain(is_kept);
    }
}

/// Leaves only rows in a part that are not older; where some were, there are no others behind them.
fn keep_news(part: &mut Value, field: &str, since: DateTime<Utc>) {
    let before = rows_of(part).count();
    keep(part, |row| instant(&row[field]).is_some_and(|at| at >= since));
    if rows_of(part).count() < before {
        end(part);
    }
}

/// No rows follow those of a part.
fn end(part: &mut Value) {
    if let Some(next) = part.pointer_mut("/answer/next_cursor") {
        *next = Value::Null;
    }
}

/// Says how many rows a part has, and whether there are more.
fn counted(mut part: Value) -> Value {
    if part["answer"].is_object() {
        part["answer"]["count"] = json!(rows_of(&part).count());
        part["answer"]["more"] = json!(part["answer"]["next_cursor"].is_string());
    }
    part
}

/// The first rows of a part whose count is known.
fn first(mut part: Value) -> Value {
    if let Some(rows) = rows_mut(&mut part) {
        rows.truncate(ROWS);
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(instants: &[&str], next: Option<&str>) -> Value {
        let items: Vec<Value> = instants.iter().map(|at| json!({ "created_at": at })).collect();
        json!({ "answer": { "items": items, "next_cursor": next } })
    }

    #[test]
    fn rows_that_are_no_news_are_left_out_and_end_the_count() {
        let since = "2026-11-21T00:00:00Z".parse().unwrap();
        let mut news = part(&["2026-11-21T09:00:00Z", "2026-11-21T00:00:00Z"], Some("c"));
        keep_news(&mut news, "created_at", since);
        let news = counted(news);
        assert_eq!((&news["answer"]["count"], &news["answer"]["more"]), (&json!(2), &json!(true)));
        let mut old = part(&["2026-11-21T09:00:00Z", "2026-11-20T23:59:59Z", "never"], Some("c"));
        keep_news(&mut old, "created_at", since);
        let old = counted(old);
        assert_eq!((&old["answer"]["count"], &old["answer"]["more"]), (&json!(1), &json!(false)));
    }

    #[test]
    fn part_that_can_not_be_read_stays_as_it_is() {
        let problem = json!({ "problem": "this needs a token with `runs:read`" });
        let mut shown = problem.clone();
        keep(&mut shown, |_| false);
        keep_news(&mut shown, "created_at", DateTime::UNIX_EPOCH);
        let shown = first(counted(shown));
        assert_eq!(shown["problem"], problem["problem"]);
        assert!(shown["answer"].is_null());
    }

    #[test]
    fn halts_of_every_tenant_stand_apart() {
        let all = json!({ "tenant_id": null, "kind": "stopped" });
        let one = json!({ "tenant_id": "ann", "kind": "stopped" });
        let stats = json!({ "answer": { "halts": [all, one] } });
        assert_eq!((halts(&stats, true), halts(&stats, false)), (vec![all], vec![one]));
        assert!(halts(&json!({ "problem": "no" }), true).is_empty());
    }

    #[test]
    fn row_of_a_task_that_stands_still_has_its_reason_and_not_its_work() {
        let task = json!({ "id": "7", "status": "paused", "status_reason": "it kept failing", "action": { "a": 1 } });
        let row = halted_row(&task);
        assert_eq!((&row["status_reason"], row.get("action")), (&json!("it kept failing"), None));
    }

    #[test]
    fn bars_show_the_budgets_that_hold() {
        let budgets = json!({
            "limits": { "tenant": { "tokens_per_day": 1000 } }, "today": { "tokens": 250, "cost_usd": 1.5 },
        });
        let [bar] = &bars(&budgets)[..] else { panic!("one bar") };
        assert_eq!((&bar["kind"], &bar["meter"]["percent"]), (&json!("tokens"), &json!(25)));
        assert!(bars(&Value::Null).is_empty());
    }
}
