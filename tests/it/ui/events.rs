//! The pages of events: the log, one event with what it did, and publishing by hand.

use serde_json::{Value, json};

use super::visitor::{Visitor, served};
use crate::api::service::{ADMIN, Api, on_both};

on_both! {
    log_is_shown_newest_first_by_its_filters_and_to_its_tenant_alone
    page_of_an_event_says_which_tasks_match_and_which_part_of_another_does_not
    event_is_published_once_and_a_wrong_one_is_shown_again_as_it_was_typed
}

/// Publishes an event of a tenant.
async fn publish(api: &Api, tenant: &str, id: &str, more: Value) {
    let mut event = json!({ "tenant_id": tenant, "source": "shop", "type": "order", "id": id });
    event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    api.admin("POST", "/v1/events", Some(event)).await.expect(202);
}

async fn event_task(api: &Api, name: &str, trigger: Value) -> String {
    let mut of_shop = json!({ "type": "event", "source": "shop" });
    of_shop.as_object_mut().unwrap().extend(trigger.as_object().unwrap().clone());
    let task =
        json!({ "tenant_id": "ann", "name": name, "trigger": of_shop, "action": { "instruction": "Look at it" } });
    let made = api.admin("POST", "/v1/tasks", Some(task)).await.expect(201);
    made["id"].as_str().unwrap().to_owned()
}

async fn log_is_shown_newest_first_by_its_filters_and_to_its_tenant_alone(api: Api) {
    for (tenant, id) in [("ann", "first-1"), ("bob", "of-bob"), ("ann", "second-2")] {
        publish(&api, tenant, id, json!({})).await;
    }
    publish(&api, "ann", "third-3", json!({ "source": "mail", "data": { "from": "amazon" } })).await;
    let base = served(&api).await;
    let ann = Visitor::signed_in(&base, &api.token("ann", &["events:read"]).await).await;
    let page = ann.get("/ui/events").await;
    assert_eq!(page.status, 200);
    page.has("amazon");
    page.has("data-live=\"/ui/events/live\"");
    page.lacks("of-bob");
    page.lacks("/ui/events/publish\">Publish an event");
    let place = |id: &str| page.text.find(&format!(">{id}<")).unwrap_or_else(|| panic!("{id} is not in {}", page.text));
    assert!(place("third-3") < place("second-2") && place("second-2") < place("first-1"), "newest first");
    let of_shop = ann.get("/ui/events?source=shop&order=oldest").await;
    of_shop.lacks("third-3");
    of_shop.lacks("data-live");
    assert!(of_shop.text.find("first-1") < of_shop.text.find("second-2"), "oldest first");
    ann.get("/ui/events?source=none").await.has("Nothing fits these filters.");
    ann.get("/ui/events?since=2026-11-21T00:00").await.has("first-1");
    let before = ann.get("/ui/events?until=2026-11-21T00:00").await;
    before.has("Nothing fits these filters.");
    before.lacks("data-live");
    let admin = Visitor::signed_in(&base, ADMIN).await;
    admin.get("/ui/events").await.has("of-bob");
    admin.get("/ui/events?tenant_id=ann").await.lacks("of-bob");
    let found = admin.get("/ui/events/find?id=third&tenant_id=ann").await;
    assert_eq!(found.location.as_deref(), Some("/ui/events/third?tenant_id=ann"));
    admin.get("/ui/events/third?tenant_id=ann").await.has("third-3");

    let other = Visitor::signed_in(&base, &api.token("ann", &["tasks:read"]).await).await;
    for path in ["/ui/events", "/ui/events/first-1", "/ui/events/live"] {
        assert_eq!(other.get(path).await.status, 403, "{path}");
    }
}

async fn page_of_an_event_says_which_tasks_match_and_which_part_of_another_does_not(api: Api) {
    let fires = event_task(&api, "Fires", json!({ "event_type": "ord*" })).await;
    event_task(&api, "Refunds", json!({ "event_type": "refund" })).await;
    let hostile = "<script>alert(1)</script>\u{202e}";
    publish(&api, "ann", "o/1?a", json!({ "data": { "note": hostile, "amount": 50 }, "subject": hostile })).await;
    let base = served(&api).await;
    let ann = Visitor::signed_in(&base, &api.token("ann", &["events:read", "tasks:read"]).await).await;
    let list = ann.get("/ui/events").await;
    list.has("href=\"/ui/events/o%2F1%3Fa?source=shop&amp;tenant_id=ann\"");
    list.lacks("<script>alert");
    let page = ann.get("/ui/events/o%2F1%3Fa?source=shop&tenant_id=ann").await;
    assert_eq!(page.status, 200);
    page.has(&format!("/ui/tasks/{fires}"));
    page.has("It matches");
    page.has("It does not match: event_type.");
    page.has("does not fit");
    page.has("&lt;script&gt;alert(1)&lt;/script&gt;");
    page.lacks("<script>alert");
    page.lacks("\u{202e}");
    let alone = Visitor::signed_in(&base, &api.token("ann", &["events:read"]).await).await;
    let page = alone.get("/ui/events/o%2F1%3Fa").await;
    assert_eq!(page.status, 200, "the event is shown without what it did");
    page.has("tasks:read");
    page.has("amount");
    let bob = Visitor::signed_in(&base, &api.token("bob", &["*"]).await).await;
    for path in ["/ui/events/o%2F1%3Fa", "/ui/events/o%2F1%3Fa?tenant_id=ann", "/ui/events/none"] {
        assert_eq!(bob.get(path).await.status, 404, "{path}");
    }
}

async fn event_is_published_once_and_a_wrong_one_is_shown_again_as_it_was_typed(api: Api) {
    let base = served(&api).await;
    let scopes = ["events:read", "events:publish", "tasks:read"];
    let ann = Visitor::signed_in(&base, &api.token("ann", &scopes).await).await;
    let page = "/ui/events/publish";
    let typed = [("source", "shop"), ("type", ""), ("data", "{\"n\": <1>"), ("id", ""), ("subject", "a \"b\"")];
    let wrong = ann.post(page, page, &typed).await;
    assert_eq!(wrong.status, 422);
    for kept in ["/type", "is required", "/data", "must be JSON", "{&quot;n&quot;: &lt;1&gt;", "a &quot;b&quot;"] {
        wrong.has(kept);
    }
    let long = "x".repeat(513);
    let refused = ann.post(page, page, &[("source", "shop"), ("type", long.as_str())]).await;
    assert_eq!(refused.status, 422, "the API's faults are shown, too");
    refused.has("/type");
    let right = [("source", "shop"), ("type", "order"), ("data", "{\"n\": 1}"), ("id", "mine")];
    let taken = ann.post(page, page, &right).await;
    assert_eq!(taken.location.as_deref(), Some("/ui/events/mine?source=shop&done=published"));
    let shown = ann.get(taken.location.as_deref().unwrap()).await;
    shown.has("The event was published.");
    let events = api.admin("GET", "/v1/events", None).await.expect(200);
    assert_eq!(events["items"].as_array().unwrap().len(), 1);
    assert_eq!((&events["items"][0]["tenantid"], &events["items"][0]["data"]), (&json!("ann"), &json!({ "n": 1 })));

    let reader = Visitor::signed_in(&base, &api.token("ann", &["events:read"]).await).await;
    assert_eq!(reader.post(page, page, &right).await.status, 403);
    let admin = Visitor::signed_in(&base, ADMIN).await;
    admin.get(page).await.has("name=\"tenant_id\"");
    let unnamed = admin.post(page, page, &right).await;
    assert_eq!(unnamed.status, 422);
    unnamed.has("/tenant_id");
}

#[tokio::test]
async fn long_data_is_shown_by_its_beginning_and_whole_where_that_is_asked_for() {
    let api = Api::new().await;
    let data = format!("{}the end", "x".repeat(40_000));
    publish(&api, "ann", "long", json!({ "data": data })).await;
    let base = served(&api).await;
    let ann = Visitor::signed_in(&base, &api.token("ann", &["events:read"]).await).await;
    let page = ann.get("/ui/events/long").await;
    page.lacks("the end");
    page.has("href=\"/ui/events/long?whole=yes\"");
    ann.get("/ui/events/long?whole=yes").await.has("the end");
    assert!(ann.get("/ui/events").await.text.len() < 20_000, "a list has beginnings alone");
}
