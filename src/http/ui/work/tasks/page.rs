//! The page of a task.

use axum::extract::Path;
use axum::http::StatusCode;
use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::base::token::Permission;
use crate::http::ui::frame::instant::instant;
use crate::http::ui::frame::{UiError, UiResult, Visit};
use crate::http::ui::work::tasks::action_view::action_view;
use crate::http::ui::work::tasks::explanation::explanation;
use crate::http::ui::work::tasks::long_texts::long_texts;
use crate::http::ui::work::tasks::strip::{PastMark, strip};
use crate::http::ui::work::tasks::trigger_words::trigger_words;

/// Width of the drawing.
const WIDTH: f64 = 640.0;
/// Newest runs that are shown.
const PAST: usize = 20;
/// Next fires that are shown.
const AHEAD: usize = 10;

/// `GET /ui/tasks/{id}`; with `at`, why it did not fire then.
pub async fn show_task(visit: Visit, Path(id): Path<String>) -> UiResult {
    show_with(&visit, StatusCode::OK, &id, Value::Null).await
}

/// The page, with forms that were refused: by the name of each its fields as they were typed, `problem` and `faults`.
///
/// # Errors
/// There is no such task, or it can't be shown.
pub async fn show_with(visit: &Visit, status: StatusCode, id: &str, forms: Value) -> UiResult {
    let (name, page) = task_page(visit, id, forms).await?;
    visit.show_as(status, "task.html", name, page).await
}

async fn task_page(visit: &Visit, id: &str, forms: Value) -> Result<(String, Value), UiError> {
    let (path, asked) = (["v1", "tasks", id], [("task_id", id.to_owned()), ("limit", PAST.to_string())]);
    let (task, why, runs) = tokio::join!(
        visit.get(&path, &[]),
        explanation(visit, id, visit.query("at")),
        visit.part(&["v1", "runs"], &asked),
    );
    let (task, why) = (task?, why?);
    let ahead = fires_ahead(visit, &task, &why["next"]).await;
    let past: Vec<PastMark> =
        runs["answer"]["items"].as_array().into_iter().flatten().filter_map(PastMark::of).collect();
    let mut action = action_view(&task);
    let texts = long_texts(&task, &mut action);
    let page = json!({
        "trigger_words": trigger_words(&task["trigger"]),
        "zone": zone(&task),
        "strip": strip(WIDTH, &past, &ahead, visit.now),
        "ahead": ahead,
        "runs": runs,
        "why": why,
        "action": action,
        "texts": texts,
        "forms": forms,
        "may_write": visit.holds(Permission::TasksWrite),
        "task": task,
    });
    Ok((page["task"]["name"].as_str().unwrap_or_default().to_owned(), page))
}

/// The next fires of an active task. The API tells the first ones by the task itself, and those that follow by its
/// trigger, counted from the last one that it told.
async fn fires_ahead(visit: &Visit, task: &Value, next: &Value) -> Vec<DateTime<Utc>> {
    let told = next.as_array().into_iter().flatten().filter_map(|next| instant(&next["at"]));
    let mut fires: Vec<DateTime<Utc>> = told.collect();
    let trigger = &task["trigger"];
    // a rule that counts its instants would count them anew
    let counts = trigger["rrule"].as_str().is_some_and(|rule| rule.to_ascii_uppercase().contains("COUNT"));
    let Some(last) = fires.last().copied().filter(|_| task["max_runs"].is_null() && !counts) else { return fires };
    let asked = json!({ "trigger": trigger, "from": last, "count": AHEAD.saturating_sub(fires.len()).max(1) });
    if let Ok(preview) = visit.post(&["v1", "schedules", "preview"], asked, None).await {
        fires.extend(preview["fires"].as_array().into_iter().flatten().filter_map(instant));
    }
    fires
}

/// The zone on whose clock instants of this task are typed.
pub fn zone(task: &Value) -> &str {
    task["trigger"]["timezone"].as_str().unwrap_or("UTC")
}
