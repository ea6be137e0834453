//! The buttons of a task's page: pause, resume, run, backfill, disable, enable and delete.

use axum::extract::Path;
use axum::http::StatusCode;
use chrono::{DateTime, SecondsFormat, Utc};
use chrono_tz::Tz;
use serde_json::{Value, json};

use crate::domain::trigger::zone::{WallClock, parse_instant, parse_zone};
use crate::domain::trigger::{DstFold, DstGap};
use crate::http::ui::frame::refusal::shown_in_form;
use crate::http::ui::frame::removal::{self, Removal};
use crate::http::ui::frame::{UiForm, UiResult, Visit};
use crate::http::ui::work::tasks::page::{show_with, zone};
use crate::http::ui::work::tasks::trigger_words::trigger_words;

/// `POST /ui/tasks/{id}/pause`.
pub async fn pause_task(Path(id): Path<String>, form: UiForm) -> UiResult {
    done_with(&form, &id, "pause", form.filled(&["reason"]).into(), "paused").await
}

/// `POST /ui/tasks/{id}/resume`.
pub async fn resume_task(Path(id): Path<String>, form: UiForm) -> UiResult {
    done_with(&form, &id, "resume", form.filled(&["buffered_events"]).into(), "resumed").await
}

/// `POST /ui/tasks/{id}/disable`.
pub async fn disable_task(Path(id): Path<String>, form: UiForm) -> UiResult {
    done_with(&form, &id, "disable", form.filled(&["reason"]).into(), "disabled").await
}

/// `POST /ui/tasks/{id}/enable`.
pub async fn enable_task(Path(id): Path<String>, form: UiForm) -> UiResult {
    done_with(&form, &id, "enable", json!({}), "enabled").await
}

/// `POST /ui/tasks/{id}/run`.
pub async fn run_task(Path(id): Path<String>, form: UiForm) -> UiResult {
    let mut body = json!({});
    match form.json("input").await? {
        None => {}
        Some(Ok(input)) => body["input"] = input,
        Some(Err(why)) => {
            return refused_by_us(&form, &id, "run", vec![("/input", format!("is not JSON: {why}"))]).await;
        }
    }
    done_with(&form, &id, "run", body, "requested").await
}

/// `POST /ui/tasks/{id}/backfill`: instants are read on the clock of the task's zone.
pub async fn backfill_task(Path(id): Path<String>, form: UiForm) -> UiResult {
    let task = form.visit.get(&["v1", "tasks", &id], &[]).await?;
    let place = zone(&task);
    let (mut body, mut faults) = (json!({}), Vec::new());
    for (field, pointer) in [("from", "/from"), ("to", "/to")] {
        match typed_instant(form.text(field), place) {
            Ok(at) => body[field] = at.to_rfc3339_opts(SecondsFormat::Millis, true).into(),
            Err(why) => faults.push((pointer, why)),
        }
    }
    match faults.is_empty() {
        true => done_with(&form, &id, "backfill", body, "backfilled").await,
        false => refused_by_us(&form, &id, "backfill", faults).await,
    }
}

/// `GET /ui/tasks/{id}/delete`: asks once more.
pub async fn confirm_delete(visit: Visit, Path(id): Path<String>) -> UiResult {
    let task = visit.get(&["v1", "tasks", &id], &[]).await?;
    let name = task["name"].as_str().unwrap_or_default();
    let thing = match task["tenant_id"].as_str().filter(|_| visit.sees_all()) {
        Some(tenant) => format!("{name}, of {tenant}"),
        None => name.to_owned(),
    };
    let trigger = format!("Its trigger: {}.", trigger_words(&task["trigger"]));
    let removal = Removal {
        title: "Delete this task?",
        thing: &thing,
        consequences: &[
            trigger.as_str(),
            "It never fires again. Its runs stay as a record; those that have not been started are taken back.",
            "To stop it for a while, pause it.",
        ],
        action: &format!("/ui/tasks/{id}/delete"),
        label: "Delete the task",
        back: &format!("/ui/tasks/{id}"),
    };
    removal::ask(&visit, removal).await
}

/// `POST /ui/tasks/{id}/delete`.
pub async fn delete_task(Path(id): Path<String>, form: UiForm) -> UiResult {
    form.visit.delete(&["v1", "tasks", &id], &[]).await?;
    Ok(form.done("/ui/tasks", "deleted"))
}

/// Has the API do it and leads back to the task, or shows the task again with what is wrong.
async fn done_with(form: &UiForm, id: &str, action: &'static str, body: Value, word: &'static str) -> UiResult {
    match form.visit.post(&["v1", "tasks", id, action], body, form.key()).await {
        Ok(_) => Ok(form.done(&format!("/ui/tasks/{id}"), word)),
        Err(error) => {
            let (status, told) = shown_in_form(error)?;
            shown_again(form, status, id, action, told).await
        }
    }
}

async fn refused_by_us(form: &UiForm, id: &str, action: &'static str, faults: Vec<(&str, String)>) -> UiResult {
    let faults: Vec<Value> =
        faults.into_iter().map(|(pointer, message)| json!({ "pointer": pointer, "message": message })).collect();
    shown_again(form, StatusCode::UNPROCESSABLE_ENTITY, id, action, json!({ "faults": faults })).await
}

/// The page with everything that was typed in this form.
async fn shown_again(form: &UiForm, status: StatusCode, id: &str, action: &str, mut told: Value) -> UiResult {
    for (name, value) in form.own_fields() {
        told["typed"][name] = value.into();
    }
    show_with(&form.visit, status, id, json!({ action: told })).await
}

/// An instant as it was typed, on the clock of a zone.
fn typed_instant(text: &str, zone: &str) -> Result<DateTime<Utc>, String> {
    if text.is_empty() {
        return Err("is missing".into());
    }
    let clock = WallClock::new(parse_zone(zone).unwrap_or(Tz::UTC), DstGap::default(), DstFold::default());
    parse_instant(text, &clock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_typed_on_the_clock_of_the_task_s_zone() {
        let read = |text: &str, zone: &str| typed_instant(text, zone).map(|at| at.to_rfc3339());
        assert_eq!(read("2026-11-21T08:00", "Asia/Shanghai").as_deref(), Ok("2026-11-21T00:00:00+00:00"));
        assert_eq!(read("2026-11-21T08:00:07", "UTC").as_deref(), Ok("2026-11-21T08:00:07+00:00"));
        assert_eq!(read("2026-11-21T08:00:00+01:00", "gone").as_deref(), Ok("2026-11-21T07:00:00+00:00"));
        assert_eq!(read("", "UTC"), Err("is missing".into()));
        assert!(read("soon", "UTC").is_err());
    }
}
