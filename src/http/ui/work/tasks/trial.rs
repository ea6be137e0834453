//! A draft of a task tried out: what is wrong with it, when it would fire, and what its condition or its pipeline makes
//! of a sample. Nothing is saved.

use axum::http::Method;
use chrono::SecondsFormat;
use chrono_tz::Tz;
use serde_json::{Map, Value, json};

use crate::domain::trigger::zone::{parse_zone, shown_in};
use crate::http::in_process::CallError;
use crate::http::ui::frame::Visit;
use crate::http::ui::frame::instant::instant;
use crate::http::ui::work::tasks::trigger_words::trigger_words;

/// Fires that are shown.
const FIRES: usize = 5;

/// A draft, and the task that it changes.
pub struct TriedDraft<'a> {
    /// The stored task; `None`: the draft is of a new one.
    pub task: Option<&'a Value>,
    /// The body that would be sent to save it.
    pub body: &'a Value,
    /// The sample that its pipeline is tried with: fields of `/v1/pipelines/dry-run`.
    pub sample: &'a Map<String, Value>,
}

/// The trial: `{problem, faults, missing, trigger_words, fires, condition, pipeline}`; the last three are
/// `{answer}` or `{problem, faults}`, and null where the draft has no such thing or it is at fault.
pub async fn trial(visit: &Visit, draft: &TriedDraft<'_>) -> Value {
    let tried = match draft.id() {
        None => visit.try_out(Method::POST, &["v1", "tasks"], draft.body.clone()).await,
        Some(id) => visit.try_out(Method::PATCH, &["v1", "tasks", id], draft.body.clone()).await,
    };
    let (made, refusal) = match tried {
        Ok(made) => (made, Value::Null),
        Err(refused) => (Value::Null, refusal(refused)),
    };
    let trigger = draft.part("trigger", &made).filter(|_| !has_fault_at(&refusal, "/trigger"));
    let kind = trigger.and_then(|trigger| trigger["type"].as_str());
    let is_pipeline = draft.part("executor", &made).is_some_and(|executor| executor == "pipeline");
    let action = draft.part("action", &made).filter(|_| is_pipeline && !has_fault_at(&refusal, "/action"));
    let fires = match (kind, trigger) {
        (Some("schedule"), Some(trigger)) => fires(visit, draft, trigger).await,
        _ => Value::Null,
    };
    let condition = match (kind, trigger) {
        (Some("condition"), Some(trigger)) => condition(visit, draft, trigger).await,
        _ => Value::Null,
    };
    let pipeline = match action {
        Some(action) => pipeline(visit, draft, &action["config"]).await,
        None => Value::Null,
    };
    json!({
        "problem": refusal["problem"],
        "faults": refusal["faults"],
        "missing": made["missing"],
        "trigger_words": trigger.map(trigger_words),
        "fires": fires,
        "condition": condition,
        "pipeline": pipeline,
    })
}

impl TriedDraft<'_> {
    fn id(&self) -> Option<&str> {
        self.task?["id"].as_str()
    }

    /// A field as it would be: of what the trial made, else as it is written, else as it is stored.
    fn part<'p>(&'p self, field: &str, made: &'p Value) -> Option<&'p Value> {
        let stored = self.task.and_then(|task| task.get(field));
        made.get(field).or_else(|| self.body.get(field)).or(stored).filter(|value| !value.is_null())
    }

    /// A body for a trial, with the tenant for whom it is where the draft names one.
    fn with_tenant(&self, mut body: Map<String, Value>) -> Value {
        let named = self.task.and_then(|task| task.get("tenant_id")).or_else(|| self.body.get("tenant_id"));
        if let Some(tenant) = named {
            body.insert("tenant_id".into(), tenant.clone());
        }
        Value::Object(body)
    }
}

/// When it would fire: `[{at, local}]`. A trigger that stays as it is goes on as the task counts its instants.
async fn fires(visit: &Visit, draft: &TriedDraft<'_>, trigger: &Value) -> Value {
    if let (Some(id), Some(task)) = (draft.id(), draft.task)
        && task["trigger"] == *trigger
        && task["status"] == "active"
    {
        let told = visit.get(&["v1", "tasks", id, "explain"], &[]).await;
        return answered(told.map(|told| json!({ "fires": told["next"] })));
    }
    let asked = json!({ "trigger": trigger, "count": FIRES });
    let told = visit.post(&["v1", "schedules", "preview"], asked, None).await;
    answered(told.map(|told| {
        let zone = trigger["timezone"].as_str().unwrap_or("UTC");
        let fires = told["fires"].as_array().into_iter().flatten().map(|at| fire(at, zone));
        json!({ "fires": fires.collect::<Vec<Value>>(), "truncated": told["truncated"] })
    }))
}

/// A fire with what the clock of the zone shows then.
fn fire(at: &Value, zone: &str) -> Value {
    let clock = parse_zone(zone).unwrap_or(Tz::UTC);
    let local = instant(at).map(|at| shown_in(at, clock).to_rfc3339_opts(SecondsFormat::Secs, false));
    json!({ "at": at, "local": local, "timezone": zone })
}

/// One poll, and what the expressions make of it.
async fn condition(visit: &Visit, draft: &TriedDraft<'_>, trigger: &Value) -> Value {
    let mut body = Map::from_iter([("trigger".to_owned(), trigger.clone())]);
    body.extend(draft.sample.get("previous").map(|previous| ("previous".to_owned(), previous.clone())));
    answered(visit.post(&["v1", "conditions", "test"], draft.with_tenant(body), None).await)
}

/// The result of each step with the sample.
async fn pipeline(visit: &Visit, draft: &TriedDraft<'_>, config: &Value) -> Value {
    let mut body = draft.sample.clone();
    body.insert("config".into(), config.clone());
    answered(visit.post(&["v1", "pipelines", "dry-run"], draft.with_tenant(body), None).await)
}

fn answered(told: Result<Value, CallError>) -> Value {
    told.map_or_else(refusal, |answer| json!({ "answer": answer }))
}

/// Why the API refused something: `{problem, faults}`.
pub fn refusal(CallError { status, problem }: CallError) -> Value {
    let detail = problem["detail"].as_str().filter(|detail| !detail.is_empty());
    let words = detail.map_or_else(|| format!("The service answered {status}."), str::to_owned);
    json!({ "problem": words, "faults": problem["errors"] })
}

fn has_fault_at(refusal: &Value, pointer: &str) -> bool {
    let faults = refusal["faults"].as_array().into_iter().flatten();
    faults
        .filter_map(|fault| fault["pointer"].as_str())
        .any(|place| place.strip_prefix(pointer).is_some_and(|below| below.is_empty() || below.starts_with('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_is_found_at_its_field_and_below_it_alone() {
        let refused = refusal(CallError {
            status: 422,
            problem: json!({ "detail": "2 faults", "errors": [{ "pointer": "/trigger/cron", "message": "m" }] }),
        });
        assert_eq!(refused["problem"], "2 faults");
        assert!(has_fault_at(&refused, "/trigger") && has_fault_at(&refused, "/trigger/cron"));
        assert!(!has_fault_at(&refused, "/trig") && !has_fault_at(&refused, "/action"));
        assert_eq!(refusal(CallError { status: 503, problem: Value::Null })["problem"], "The service answered 503.");
    }

    #[test]
    fn part_of_a_draft_is_what_it_would_be_then_what_is_written_then_what_is_stored() {
        let (task, body) = (json!({ "executor": "own", "trigger": 1, "tenant_id": "ann" }), json!({ "trigger": 2 }));
        let draft = TriedDraft { task: Some(&task), body: &body, sample: &Map::new() };
        let nothing = Value::Null;
        assert_eq!(draft.part("trigger", &json!({ "trigger": 3 })), Some(&json!(3)));
        assert_eq!(draft.part("trigger", &nothing), Some(&json!(2)));
        assert_eq!(draft.part("executor", &nothing), Some(&json!("own")));
        assert_eq!(draft.part("action", &nothing), None);
        assert_eq!(draft.with_tenant(Map::new()), json!({ "tenant_id": "ann" }));
    }

    #[test]
    fn fire_is_told_on_the_clock_of_its_zone() {
        let told = fire(&json!("2026-11-21T00:00:00Z"), "Asia/Shanghai");
        assert_eq!(
            (&told["at"], &told["local"]),
            (&json!("2026-11-21T00:00:00Z"), &json!("2026-11-21T08:00:00+08:00"))
        );
    }
}
