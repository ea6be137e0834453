//! A form that publishes one event.

use axum::http::StatusCode;
use serde_json::{Map, Value, json};

use crate::http::ui::frame::refusal::shown_in_form;
use crate::http::ui::frame::{UiForm, UiResult, Visit};
use crate::http::ui::work::events::line::href;

/// Fields of the form that are sent as they are, where they are given.
const TEXTS: [&str; 5] = ["tenant_id", "source", "type", "id", "subject"];
/// Fields without which nothing is asked of the API.
const REQUIRED: [&str; 2] = ["source", "type"];

/// The form; the address may have its first fields.
pub async fn show(visit: Visit) -> UiResult {
    let given = ["source", "type", "tenant_id"].map(|name| (name.to_owned(), Value::from(visit.query(name))));
    let page = json!({ "given": Map::<String, Value>::from_iter(given), "faults": [] });
    visit.show("publish.html", "Publish an event", page).await
}

/// Publishes the event of the form, once however often it is sent.
pub async fn publish(form: UiForm) -> UiResult {
    let data = form.json("data").await?;
    let event = match event_of(|name| form.get(name), data) {
        Ok(event) => event,
        Err(faults) => return again(&form, StatusCode::UNPROCESSABLE_ENTITY, "", json!(faults)).await,
    };
    match form.visit.post(&["v1", "events"], event, form.key()).await {
        Ok(taken) => {
            let id = taken["ids"][0].as_str().unwrap_or_default();
            Ok(form.done(&href(id, form.get("source"), form.get("tenant_id")), "published"))
        }
        // a quota that is used up
        Err(refused) if refused.status == 429 => {
            let problem = refused.problem["detail"].as_str().unwrap_or_default();
            again(&form, StatusCode::TOO_MANY_REQUESTS, problem, Value::Null).await
        }
        Err(refused) => {
            let (status, told) = shown_in_form(refused)?;
            again(&form, status, told["problem"].as_str().unwrap_or_default(), told["faults"].clone()).await
        }
    }
}

/// The form with all that was typed and what is wrong with it.
async fn again(form: &UiForm, status: StatusCode, problem: &str, faults: Value) -> UiResult {
    let given = form.own_fields().map(|(name, value)| (name.to_owned(), Value::from(value)));
    let faults = if faults.is_array() { faults } else { json!([]) };
    let page = json!({ "given": Value::Object(given.collect()), "problem": problem, "faults": faults });
    form.visit.show_as(status, "publish.html", "Publish an event", page).await
}

/// The event of a form in the short form of the API, or the faults that stop it from being asked.
fn event_of<'f>(
    get: impl Fn(&str) -> Option<&'f str>,
    data: Option<Result<Value, String>>,
) -> Result<Value, Vec<Value>> {
    let fault = |name: &str, message: String| json!({ "pointer": format!("/{name}"), "message": message });
    let missing = REQUIRED.into_iter().filter(|name| get(name).is_none());
    let mut faults: Vec<Value> = missing.map(|name| fault(name, "is required".to_owned())).collect();
    let mut event: Map<String, Value> =
        TEXTS.into_iter().filter_map(|name| Some((name.to_owned(), Value::from(get(name)?)))).collect();
    match data {
        None => {}
        Some(Ok(data)) => drop(event.insert("data".to_owned(), data)),
        Some(Err(why)) => {
            faults.push(fault("data", format!("must be JSON, such as {{\"n\": 1}} or \"a text\": {why}")));
        }
    }
    if faults.is_empty() { Ok(Value::Object(event)) } else { Err(faults) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(fields: &[(&'static str, &'static str)], data: Result<Value, String>) -> Result<Value, Vec<Value>> {
        event_of(|name| fields.iter().find(|(given, _)| *given == name).map(|(_, value)| *value), Some(data))
    }

    #[test]
    fn form_is_an_event_in_the_short_form() {
        let given = event(&[("source", "mail"), ("type", "new"), ("more", "x")], Ok(json!({ "n": 1 })));
        assert_eq!(given, Ok(json!({ "source": "mail", "type": "new", "data": { "n": 1 } })));
    }

    #[test]
    fn everything_that_is_wrong_is_told_at_once() {
        let faults = event(&[("source", "mail")], Err("key must be a string at line 1".into())).unwrap_err();
        let pointers: Vec<&str> = faults.iter().map(|fault| fault["pointer"].as_str().unwrap()).collect();
        assert_eq!(pointers, ["/type", "/data"]);
        assert!(faults[1]["message"].as_str().unwrap().contains("line 1"), "{faults:?}");
    }
}
