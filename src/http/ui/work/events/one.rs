//! One event: its data, the tasks that it matched and those that it did not, each with the reason.

use axum::extract::Path;
use serde_json::{Map, Value, json};

use crate::http::address::address;
use crate::http::ui::frame::{UiResult, Visit};
use crate::http::ui::work::events::data::shown;

/// Attributes that have their own places on the page.
const PLACED: [&str; 9] = ["specversion", "id", "source", "type", "tenantid", "subject", "time", "data", "data_base64"];

/// The page of an event; `source` and `tenant_id` tell it from others with its id.
pub async fn show(visit: Visit, Path(id): Path<String>) -> UiResult {
    let named = ["source", "tenant_id"].map(|name| Some((name, visit.query(name)?.to_owned())));
    let query: Vec<(&str, String)> = named.into_iter().flatten().collect();
    let path = ["v1", "events", id.as_str(), "explain"];
    let (event, explained) = tokio::join!(visit.get(&path[..3], &query), visit.part(&path, &query));
    let mut event = event?;
    let data = event.as_object_mut().and_then(|fields| fields.remove("data").or_else(|| fields.remove("data_base64")));
    let (text, is_cut) = shown(&visit, data).await?;
    let page = json!({
        "more": more(&event),
        "event": event,
        "data": text,
        "whole": is_cut.then(|| whole_href(&id, &query)),
        "explained": explained,
    });
    visit.show("event.html", format!("Event {}", page["event"]["id"].as_str().unwrap_or(&id)), page).await
}

/// Attributes without a place of their own, in order.
fn more(event: &Value) -> Value {
    let fields = event.as_object().into_iter().flatten();
    let others = fields.filter(|(name, _)| !PLACED.contains(&name.as_str()));
    Value::Object(others.map(|(name, value)| (name.clone(), value.clone())).collect::<Map<_, _>>())
}

fn whole_href(id: &str, query: &[(&str, String)]) -> String {
    let whole: Vec<(&str, String)> = query.iter().cloned().chain([("whole", "yes".to_owned())]).collect();
    address(&["ui", "events", id], &whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_that_have_no_place_are_shown_after_the_others() {
        let event = json!({ "id": "1", "source": "s", "traceparent": "00-1", "dataschema": "x" });
        assert_eq!(more(&event), json!({ "dataschema": "x", "traceparent": "00-1" }));
    }
}
