//! Messages to people: the list of deliveries, and a page for each with what it is about and its other ways.

use axum::Router;
use axum::extract::Path;
use axum::routing::{get, post};
use serde_json::{Value, json};

use crate::base::token::Permission;
use crate::domain::notification::{DeliveryState, MessageKind};
use crate::http::HttpState;
use crate::http::ui::frame::{UiForm, UiList, UiResult, Visit};

/// Address of the list.
const HREF: &str = "/ui/deliveries";
/// The filters of the list, by their names in the API.
const FILTERS: [&str; 4] = ["state", "channel", "run_id", "digest_id"];
/// Deliveries, or questions, that stand beside a delivery.
const BESIDE: usize = 50;

/// The pages.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    Router::new()
        .route(HREF, get(show_deliveries))
        .route("/ui/deliveries/{id}", get(show_delivery))
        .route("/ui/deliveries/{id}/retry", post(retry_delivery))
}

async fn show_deliveries(visit: Visit) -> UiResult {
    let list = UiList::of(&visit, &FILTERS);
    let view = list.ask(&visit, &["v1", "deliveries"], HREF).await?;
    visit.show("deliveries.html", "Deliveries", json!({ "list": view, "states": DeliveryState::WORDS })).await
}

async fn show_delivery(visit: Visit, Path(id): Path<String>) -> UiResult {
    let delivery = visit.get(&["v1", "deliveries", &id], &[]).await?;
    let (others, told, questions) =
        tokio::join!(other_ways(&visit, &delivery), told_by(&visit, &delivery), questions(&visit, &delivery));
    let page = json!({
        "can_retry": visit.holds(Permission::DeliveriesWrite) && can_be_sent_again(&delivery),
        "retry": format!("{HREF}/{id}/retry"),
        "others": others,
        "told": told,
        "questions": questions,
        "delivery": delivery,
    });
    visit.show("delivery.html", "Delivery", page).await
}

async fn retry_delivery(Path(id): Path<String>, form: UiForm) -> UiResult {
    form.visit.post(&["v1", "deliveries", &id, "retry"], json!({}), form.key()).await?;
    Ok(form.done(&format!("{HREF}/{id}"), "retried"))
}

/// Whether the API sends it once more.
fn can_be_sent_again(delivery: &Value) -> bool {
    let state = delivery["state"].as_str().and_then(DeliveryState::parse);
    matches!(state, Some(DeliveryState::Failed | DeliveryState::Unknown))
}

/// The deliveries of this message on other channels.
async fn other_ways(visit: &Visit, delivery: &Value) -> Value {
    let Some(run_id) = delivery["run_id"].as_str() else { return Value::Null };
    let query = [("run_id", run_id.to_owned()), ("limit", BESIDE.to_string())];
    let mut part = visit.part(&["v1", "deliveries"], &query).await;
    if let Some(items) = part.pointer_mut("/answer/items").and_then(Value::as_array_mut) {
        let is_other = |other: &Value| other["id"] != delivery["id"] && other["dedupe_key"] == delivery["dedupe_key"];
        items.retain(is_other);
    }
    part
}

/// The messages that a digest tells.
async fn told_by(visit: &Visit, delivery: &Value) -> Value {
    match delivery["id"].as_str() {
        Some(id) if delivery["kind"] == MessageKind::Digest.as_str() => {
            let query = [("digest_id", id.to_owned()), ("limit", BESIDE.to_string())];
            visit.part(&["v1", "deliveries"], &query).await
        }
        _ => Value::Null,
    }
}

/// The questions of the run that a message asks for answers to.
async fn questions(visit: &Visit, delivery: &Value) -> Value {
    let asks = delivery["kind"].as_str().and_then(MessageKind::parse).is_some_and(MessageKind::asks);
    match delivery["run_id"].as_str() {
        Some(run_id) if asks => {
            let query = [("run_id", run_id.to_owned()), ("limit", BESIDE.to_string())];
            visit.part(&["v1", "approvals"], &query).await
        }
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_failed_or_may_not_have_arrived_are_sent_again() {
        let again =
            DeliveryState::ALL.into_iter().filter(|state| can_be_sent_again(&json!({ "state": state.as_str() })));
        assert_eq!(again.collect::<Vec<_>>(), [DeliveryState::Failed, DeliveryState::Unknown]);
        assert!(!can_be_sent_again(&json!({ "state": "lost" })));
    }
}
