//! Deliveries: what was sent, how it went, and once more.

use chrono::TimeDelta;
use reveille::base::id::Scope;
use reveille::domain::notification::{Mark, MessageKind, NewDelivery};
use reveille::store::DeliveryFilter;
use serde_json::{Value, json};

use super::service::Api;
use crate::support::outbox::claim_due;

async fn post(api: &Api, tenant: &str, channel: &str, key: &str) -> String {
    let posted = NewDelivery {
        tenant_id: tenant.into(),
        recipient: tenant.into(),
        channel: channel.into(),
        fallback: Vec::new(),
        dedupe_key: key.into(),
        run_id: None,
        subject_ref: None,
        kind: MessageKind::Message,
        urgency: MessageKind::Message.urgency(),
        subject: Some("Hello".into()),
        text: Some("There you are".into()),
    };
    api.store.post_delivery(&posted).await.unwrap();
    let filter = DeliveryFilter { limit: 1, ..DeliveryFilter::default() };
    api.store.list_deliveries(&Scope::Every, &filter).await.unwrap()[0].id.to_string()
}

#[tokio::test]
async fn failed_delivery_is_sent_again_and_a_pending_one_left_as_it_is() {
    let api = Api::new().await;
    let id = post(&api, "ann", "email", "notice:x:1").await;
    let place = format!("/v1/deliveries/{id}/retry");
    let pending = api.admin("POST", &place, None).await.expect(202);
    assert_eq!(
        pending,
        json!({
            "id": id, "tenant_id": "ann", "recipient": "ann", "channel": "email", "fallback": [],
            "dedupe_key": "notice:x:1", "run_id": null, "kind": "message", "urgency": "normal",
            "subject": "Hello", "text": "There you are", "state": "pending", "attempts": 0,
            "next_at": "2026-11-21T00:00:00Z", "hold_reason": null, "digest_id": null, "last_error": null, "provider_id": null, "created_at": "2026-11-21T00:00:00Z",
            "sent_at": null, "delivered_at": null,
        })
    );
    mark(&api, Mark::Failed { error: "mailbox unknown".into(), fall_back: None }).await;
    let listed = api.admin("GET", "/v1/deliveries?state=failed", None).await.expect(200);
    assert_eq!((&listed["items"][0]["id"], &listed["items"][0]["last_error"]), (&json!(id), &json!("mailbox unknown")));
    api.advance(60);
    let again = api.admin("POST", &place, None).await.expect(202);
    assert_eq!(
        (&again["state"], &again["attempts"], &again["next_at"]),
        (&json!("pending"), &json!(0), &json!("2026-11-21T00:01:00Z"))
    );
    mark(&api, Mark::Delivered { provider_id: None }).await;
    let problem = api.admin("POST", &place, None).await.expect(409);
    assert_eq!(problem["type"], "urn:reveille:problem:conflict");
}

async fn mark(api: &Api, mark: Mark) {
    let until = api.clock.now() + TimeDelta::minutes(2);
    let claim = claim_due(&api.store, until, 1).await.unwrap().pop().expect("a due delivery");
    api.store.mark_delivery(&claim, &mark).await.unwrap();
}

#[tokio::test]
async fn deliveries_are_filtered_and_paged() {
    let api = Api::new().await;
    let first = post(&api, "ann", "email", "notice:x:1").await;
    let second = post(&api, "bob", "webhook", "notice:x:2").await;
    let third = post(&api, "ann", "webhook", "notice:x:3").await;
    let ids = async |query: &str| -> Vec<String> {
        let page: Value = api.admin("GET", &format!("/v1/deliveries{query}"), None).await.expect(200);
        page["items"].as_array().unwrap().iter().map(|d| d["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids("").await, [third.clone(), second.clone(), first.clone()]);
    assert_eq!(ids("?channel=webhook").await, [third.clone(), second]);
    assert_eq!(ids("?tenant_id=ann&state=pending").await, [third, first]);
}
