//! The tool that tries a condition: one poll, what its expressions make of it, and nothing that stays.

use serde_json::{Value, json};
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::harness::McpHost;
use crate::api::service::{Api, on_both};

on_both! {
    condition_is_tried_with_one_poll_and_nothing_is_saved
}

async fn condition_is_tried_with_one_poll_and_nothing_is_saved(api: Api) {
    let shop = MockServer::start().await;
    let price = json!({ "price": 480, "note": "cheap" });
    Mock::given(any()).respond_with(ResponseTemplate::new(200).set_body_json(&price)).mount(&shop).await;
    let ann = McpHost::new(api.app.clone(), &api.token("ann", &["tasks:write"]).await);
    let trying = async |expression: &str| {
        let trigger = json!({
            "type": "condition", "poll": { "http": { "url": shop.uri() } }, "interval": "30m", "expression": expression,
        });
        ann.done("test_condition", json!({ "trigger": trigger, "previous": { "price": 510 } })).await
    };
    let holds = trying("value.price < 500 && value.price < previous.price").await;
    assert_eq!((&holds["verdict"], &holds["value"], holds.get("error")), (&json!(true), &price, None), "{holds:#}");
    assert_eq!(shop.received_requests().await.expect("requests").len(), 1);
    assert_eq!(trying("value.price > 500").await["verdict"], false);
    let wrong = trying("value.note < 500").await;
    assert!(wrong["verdict"].is_null() && wrong["next_steps"].to_string().contains("no verdict"), "{wrong:#}");
    for list in ["/v1/tasks", "/v1/runs"] {
        let listed: Value = api.admin("GET", list, None).await.expect(200);
        assert_eq!(listed["items"], json!([]), "{list}");
    }
}
