//! The editor of a task: its draft as JSON, tried out or saved.

use axum::extract::Path;
use axum::http::StatusCode;
use serde_json::{Map, Value, json};

use crate::http::ui::frame::{UiError, UiForm, UiResult, Visit};
use crate::http::ui::work::tasks::draft::{EDITABLE, STARTERS, starter, stored_draft};
use crate::http::ui::work::tasks::trial::{TriedDraft, refusal, trial};

const TEMPLATE: &str = "task_edit.html";
const REFUSED: StatusCode = StatusCode::UNPROCESSABLE_ENTITY;
/// Status of the API for a task that was deleted meanwhile.
const NOT_FOUND: u16 = 404;
/// Status of the API for a draft of an older version, and for a key that is taken.
const CONFLICT: u16 = 409;

/// A draft that was sent.
struct SentDraft {
    /// The body that saves it.
    body: Value,
    /// The sample for a trial of a pipeline.
    sample: Map<String, Value>,
}

/// `GET /ui/tasks/new`; `kind` chooses the draft to begin with.
pub async fn show_new(visit: Visit) -> UiResult {
    let (kind, text) = starter(visit.query("kind"));
    let page = json!({ "draft": text, "kind": kind, "tenant_id": visit.query("tenant_id") });
    shown(&visit, StatusCode::OK, None, page).await
}

/// `GET /ui/tasks/{id}/edit`.
pub async fn show_edit(visit: Visit, Path(id): Path<String>) -> UiResult {
    let task = visit.get(&["v1", "tasks", &id], &[]).await?;
    let page = json!({ "draft": stored_draft(&visit, &task).await?, "version": task["version"] });
    shown(&visit, StatusCode::OK, Some(&task), page).await
}

/// `POST /ui/tasks/new`: tries the draft out, or makes a task of it.
pub async fn send_new(form: UiForm) -> UiResult {
    take(&form, None).await
}

/// `POST /ui/tasks/{id}/edit`: tries the draft out, or changes the task.
pub async fn send_edit(Path(id): Path<String>, form: UiForm) -> UiResult {
    let task = form.visit.get(&["v1", "tasks", &id], &[]).await?;
    take(&form, Some(&task)).await
}

async fn take(form: &UiForm, task: Option<&Value>) -> UiResult {
    let mut page = json!({
        "draft": form.text("draft"),
        "sample": form.text("sample"),
        "tenant_id": form.text("tenant_id"),
        "version": form.text("version"),
    });
    let SentDraft { body, sample } = match read_draft(form, task).await? {
        Ok(sent) => sent,
        Err(faults) => {
            page["faults"] = faults;
            return shown(&form.visit, REFUSED, task, page).await;
        }
    };
    if form.text("do") == "save" {
        return save(form, task, body, page).await;
    }
    page["trial"] = trial(&form.visit, &TriedDraft { task, body: &body, sample: &sample }).await;
    shown(&form.visit, StatusCode::OK, task, page).await
}

/// Reads the texts of the form, or says what is wrong with them.
async fn read_draft(form: &UiForm, task: Option<&Value>) -> Result<Result<SentDraft, Value>, UiError> {
    let fault = |pointer: &str, message: &str| json!([{ "pointer": pointer, "message": message }]);
    let mut body = match form.json("draft").await? {
        Some(Ok(Value::Object(body))) => body,
        Some(Err(why)) => return Ok(Err(fault("", &format!("The draft is not JSON: {why}.")))),
        Some(Ok(_)) | None => return Ok(Err(fault("", "A task is a JSON object."))),
    };
    let sample = match form.json("sample").await? {
        None => Map::new(),
        Some(Ok(Value::Object(sample))) => sample,
        Some(Err(why)) => return Ok(Err(fault("", &format!("The sample is not JSON: {why}.")))),
        Some(Ok(_)) => return Ok(Err(fault("", "The sample is a JSON object, such as {\"event\": {\"data\": {}}}."))),
    };
    // the fields of the form stand for what the draft leaves out
    match task {
        None => {
            if let (Some(tenant), false) = (form.get("tenant_id"), body.contains_key("tenant_id")) {
                body.insert("tenant_id".into(), tenant.into());
            }
        }
        Some(_) => {
            if let (Ok(version), false) = (form.text("version").parse::<i64>(), body.contains_key("version")) {
                body.insert("version".into(), version.into());
            }
        }
    }
    Ok(Ok(SentDraft { body: Value::Object(body), sample }))
}

/// Makes or changes the task, or shows the form again with what is wrong.
async fn save(form: &UiForm, task: Option<&Value>, body: Value, mut page: Value) -> UiResult {
    let visit = &form.visit;
    let id = task.and_then(|task| task["id"].as_str());
    let (saved, word) = match id {
        None => (visit.post(&["v1", "tasks"], body.clone(), form.key()).await, "created"),
        Some(id) => (visit.patch(&["v1", "tasks", id], body.clone()).await, "saved"),
    };
    let refused = match saved {
        Ok(made) => {
            let id = made["id"].as_str().unwrap_or_default();
            return Ok(form.done(&format!("/ui/tasks/{id}"), word));
        }
        Err(refused) if refused.status == NOT_FOUND => return Err(refused.into()),
        Err(refused) => refused,
    };
    let status = StatusCode::from_u16(refused.status).unwrap_or(REFUSED);
    if let (CONFLICT, Some(id)) = (refused.status, id) {
        let current = visit.get(&["v1", "tasks", id], &[]).await?;
        page["conflict"] = conflict(visit, id, &current, &body).await;
        // sent once more, the draft takes the place of what others have saved
        page["version"] = current["version"].clone();
        return shown(visit, status, Some(&current), page).await;
    }
    let told = refusal(refused);
    page["problem"] = told["problem"].clone();
    page["faults"] = told["faults"].clone();
    shown(visit, status, task, page).await
}

/// Changes by others meanwhile: `{version, at, act, fields: [{field, value}]}`; `act` is the newest one
/// on the record, which has the operator's orders, and `fields` are those in which the draft differs.
async fn conflict(visit: &Visit, id: &str, current: &Value, body: &Value) -> Value {
    let acts = visit.part(&["v1", "audit"], &[("subject_id", id.to_owned()), ("limit", "1".to_owned())]).await;
    json!({
        "version": current["version"],
        "at": current["updated_at"],
        "act": acts["answer"]["items"][0],
        "fields": differing_fields(current, body),
    })
}

fn differing_fields(current: &Value, body: &Value) -> Vec<Value> {
    let written = EDITABLE.into_iter().filter_map(|field| Some((field, body.get(field)?)));
    let differing = written.filter(|(field, value)| current[*field] != **value);
    differing.map(|(field, _)| json!({ "field": field, "value": current[field] })).collect()
}

async fn shown(visit: &Visit, status: StatusCode, task: Option<&Value>, mut page: Value) -> UiResult {
    let title = match task {
        None => "New task".to_owned(),
        Some(task) => format!("Edit {}", task["name"].as_str().unwrap_or_default()),
    };
    page["task"] = match task {
        None => Value::Null,
        Some(task) => json!({ "id": task["id"], "name": task["name"], "tenant_id": task["tenant_id"] }),
    };
    page["starters"] = STARTERS.iter().map(|(name, label, _)| json!({ "name": name, "label": label })).collect();
    visit.show_as(status, TEMPLATE, title, page).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_differ_are_told_with_what_others_have_saved() {
        let current = json!({ "name": "Theirs", "max_runs": 3, "metadata": {} });
        let body = json!({ "name": "Mine", "max_runs": 3, "output": null, "version": 2 });
        let expected = json!([{ "field": "name", "value": "Theirs" }]);
        assert_eq!(json!(differing_fields(&current, &body)), expected);
    }
}
