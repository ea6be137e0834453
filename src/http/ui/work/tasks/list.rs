//! The list of tasks.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::base::token::Permission;
use crate::domain::trigger::Trigger;
use crate::http::ui::frame::instant::instant;
use crate::http::ui::frame::{UiList, UiResult, Visit};
use crate::http::ui::work::tasks::strip::{PastMark, strip};
use crate::http::ui::work::tasks::trigger_words::trigger_words;

/// Width of the drawing in a row.
const WIDTH: f64 = 160.0;
/// Fires of a row after the next one.
const MORE: usize = 4;
/// Steps that the fires of one row may cost, so that a page of intricate schedules is there at once: some 0.1 ms.
const STEPS: u64 = 2_000;

/// `GET /ui/tasks`.
pub async fn show_tasks(visit: Visit) -> UiResult {
    let asked = UiList::of(&visit, &["status", "trigger_type", "q", "key"]);
    let mut list = asked.ask(&visit, &["v1", "tasks"], "/ui/tasks").await?;
    let (items, now) = (list["items"].take(), visit.now);
    let work = move || rows(&items, now);
    list["items"] = visit.state.compute_for(visit.caller.computes_for(), work).await?;
    let page = json!({ "list": list, "may_write": visit.holds(Permission::TasksWrite) });
    visit.show("tasks.html", "Tasks", page).await
}

fn rows(tasks: &Value, now: DateTime<Utc>) -> Value {
    tasks.as_array().into_iter().flatten().map(|task| row(task, now)).collect()
}

/// A task as its row shows it: without instruction and settings, which may be long.
fn row(task: &Value, now: DateTime<Utc>) -> Value {
    let last: Vec<PastMark> = PastMark::of(&task["last_run"]).into_iter().collect();
    json!({
        "id": task["id"],
        "tenant_id": task["tenant_id"],
        "key": task["key"],
        "name": task["name"],
        "executor": task["executor"],
        "status": task["status"],
        "status_reason": task["status_reason"],
        "trigger_words": trigger_words(&task["trigger"]),
        "last_run": task["last_run"],
        "next_fire_at": task["next_fire_at"],
        "next_poll_at": task["condition"]["next_poll_at"],
        "strip": short_strip(&last, &fires_ahead(task), now),
    })
}

/// The drawing of a row: what lies ahead is one mark of several outlines, because a page has many rows.
fn short_strip(last: &[PastMark], ahead: &[DateTime<Utc>], now: DateTime<Utc>) -> Value {
    let mut strip = strip(WIDTH, last, ahead, now);
    let marks = strip["ahead"].as_array().map(Vec::as_slice).unwrap_or_default();
    if marks.len() > 1 {
        let joined = |name: &str, between: &str| {
            let texts: Vec<&str> = marks.iter().filter_map(|mark| mark[name].as_str()).collect();
            texts.join(between)
        };
        strip["ahead"] = json!([{ "d": joined("d", ""), "title": joined("title", ", ") }]);
    }
    strip
}

/// The next fire, and those after it; without those that take too many steps to compute.
fn fires_ahead(task: &Value) -> Vec<DateTime<Utc>> {
    let Some(next) = instant(&task["next_fire_at"]) else { return Vec::new() };
    let trigger = serde_json::from_value(task["trigger"].clone());
    let following = match trigger {
        // counted from one of its instants, as an interval is from its first
        Ok(Trigger::Schedule(schedule)) if task["max_runs"].is_null() => {
            let timetable = schedule.compile(next).map(|timetable| timetable.with_budget(STEPS));
            timetable.map(|timetable| timetable.preview(next, MORE).instants).unwrap_or_default()
        }
        _ => Vec::new(),
    };
    std::iter::once(next).chain(following).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    #[test]
    fn fires_of_a_row_go_on_from_the_next_one() {
        let task = |trigger: Value| json!({ "trigger": trigger, "next_fire_at": "2026-11-21T08:03:00Z" });
        let told = |task: &Value| {
            let ahead = fires_ahead(task).into_iter().map(|at| at.format("%H:%M").to_string());
            ahead.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(told(&task(json!({ "type": "schedule", "interval": "5m" }))), "08:03 08:08 08:13 08:18 08:23");
        assert_eq!(told(&task(json!({ "type": "schedule", "cron": "0 * * * *" }))), "08:03 09:00 10:00 11:00 12:00");
        assert_eq!(told(&task(json!({ "type": "schedule", "at": "2026-11-21T08:03:00Z" }))), "08:03");
        let mut last = task(json!({ "type": "schedule", "interval": "5m" }));
        last["max_runs"] = json!(1);
        assert_eq!(told(&last), "08:03");
        assert_eq!(told(&json!({ "trigger": { "type": "event" }, "next_fire_at": null })), "");
    }

    #[test]
    fn row_has_no_instruction_and_shows_the_last_run_beside_what_lies_ahead() {
        let task = json!({
            "id": "t1", "name": "Mail", "status": "active", "action": { "instruction": "long" },
            "trigger": { "type": "schedule", "interval": "5m" }, "next_fire_at": "2026-11-21T08:05:00Z",
            "last_run": { "id": "r1", "state": "failed", "scheduled_for": "2026-11-21T08:00:00Z" },
        });
        let row = row(&task, at("2026-11-21T08:01:00Z"));
        assert_eq!((row.get("action"), &row["trigger_words"]), (None, &json!("every 5 min")));
        assert_eq!(row["strip"]["past"][0]["href"], "/ui/runs/r1");
        let ahead = row["strip"]["ahead"].as_array().unwrap();
        assert_eq!(ahead[0]["d"].as_str().unwrap().matches('M').count(), 5);
        assert_eq!(ahead[0]["title"].as_str().unwrap().matches("fires").count(), 5);
        assert_eq!(ahead.len(), 1, "of all outlines");
    }
}
