//! Dead letters over HTTP.

use serde_json::{Value, json};

use super::service::{Api, only};

#[tokio::test]
async fn dead_letter_is_shown_with_its_event_and_its_error() {
    let api = Api::new().await;
    let id = api.dead_letter("ann", "the filter broke").await;
    let ann = api.token("ann", &["dead_letters:read"]).await;
    let letter = api.ask("GET", &format!("/v1/dead-letters/{id}"), Some(&ann), None).await.expect(200);
    assert_eq!(
        (&letter["tenant_id"], &letter["error"], &letter["deliveries"], &letter["event"]["type"], &letter["text"]),
        (&json!("ann"), &json!("the filter broke"), &json!(5), &json!("mail.new"), &Value::Null)
    );
    let listed = api.ask("GET", "/v1/dead-letters", Some(&ann), None).await.expect(200);
    assert_eq!(listed, json!({ "items": [letter], "next_cursor": null }));
}

#[tokio::test]
async fn letters_are_listed_by_filter_and_page() {
    let api = Api::new().await;
    let mut ids = Vec::new();
    for error in ["first", "second", "third"] {
        ids.push(api.dead_letter("ann", error).await);
    }
    let first = api.admin("GET", "/v1/dead-letters?limit=2", None).await.expect(200);
    assert_eq!((&first["items"][0]["id"], &first["items"][1]["id"]), (&json!(ids[2]), &json!(ids[1])));
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = api.admin("GET", &format!("/v1/dead-letters?limit=2&cursor={cursor}"), None).await.expect(200);
    assert_eq!((&second["items"][0]["id"], &second["next_cursor"]), (&json!(ids[0]), &Value::Null));
    let found = api.admin("GET", "/v1/dead-letters?error=SECOND&source=mail&type=mail.*", None).await.expect(200);
    assert_eq!(found["items"][0]["id"], json!(ids[1]));
    api.admin("GET", "/v1/dead-letters?cursor=x", None).await.expect(400);
}

#[tokio::test]
async fn letter_is_replayed_or_dropped_once() {
    let api = Api::new().await;
    let (replayed, dropped) = (api.dead_letter("ann", "a").await, api.dead_letter("ann", "b").await);
    let path = format!("/v1/dead-letters/{replayed}/replay");
    assert_eq!(api.admin("POST", &path, None).await.expect(202), json!({ "count": 1 }));
    api.admin("POST", &path, None).await.expect(404);
    assert_eq!(api.store.event_backlog().await.unwrap().unread, 1);
    api.admin("DELETE", &format!("/v1/dead-letters/{dropped}"), None).await.expect(204);
    api.admin("DELETE", &format!("/v1/dead-letters/{dropped}"), None).await.expect(404);
    assert_eq!(api.admin("GET", "/v1/dead-letters", None).await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn entry_that_is_no_event_is_shown_to_admins_and_not_replayed() {
    let api = Api::new().await;
    let letter = reveille::store::NewDeadLetter {
        seq: 99,
        event: None,
        body: "not json",
        error: "it is not JSON",
        deliveries: 1,
    };
    api.store.dead_letter_event(letter).await.unwrap();
    let listed = api.admin("GET", "/v1/dead-letters", None).await.expect(200);
    let letter = &listed["items"][0];
    assert_eq!(
        (&letter["tenant_id"], &letter["event"], &letter["text"]),
        (&Value::Null, &Value::Null, &json!("not json"))
    );
    let id = letter["id"].as_str().unwrap();
    api.admin("POST", &format!("/v1/dead-letters/{id}/replay"), None).await.expect(409);
    let replayed = api.admin("POST", "/v1/dead-letters/replay", Some(json!({}))).await.expect(200);
    assert_eq!(replayed, json!({ "count": 0, "next_cursor": null }));
    let ann = api.token("ann", &["*"]).await;
    api.ask("GET", &format!("/v1/dead-letters/{id}"), Some(&ann), None).await.expect(404);
}

#[tokio::test]
async fn dead_letters_are_replayed_or_dropped_in_bulk_by_filter() {
    let api = Api::new().await;
    for n in 0..130 {
        api.dead_letter(if n % 2 == 0 { "ann" } else { "bob" }, if n < 100 { "timed out" } else { "no such thing" })
            .await;
    }
    let ask = async |deed: &str, body: Value| {
        let answer = api.admin("POST", &format!("/v1/dead-letters/{deed}"), Some(body)).await.expect(200);
        answer["count"].as_u64().unwrap()
    };
    assert_eq!(ask("replay", json!({ "error": "TIMED", "tenant_id": "ann", "limit": 7 })).await, 7);
    assert_eq!(ask("replay", json!({ "error": "timed", "type": "mail.*", "source": "mail" })).await, 93);
    assert_eq!(ask("drop", json!({ "error": "timed" })).await, 0);
    let bob = api.token("bob", &["dead_letters:write"]).await;
    let dropped = api.ask("POST", "/v1/dead-letters/drop", Some(&bob), Some(json!({}))).await.expect(200);
    assert_eq!(dropped, json!({ "count": 15, "next_cursor": null }));
    assert_eq!(ask("drop", json!({})).await, 15);
    assert_eq!(api.store.event_backlog().await.unwrap().unread, 100);
    let filter = reveille::store::StoredDeadLetterFilter { limit: 9, ..Default::default() };
    assert_eq!(api.store.list_dead_letters(&only("ann"), &filter).await.unwrap().rows, []);

    let faults = api.admin("POST", "/v1/dead-letters/drop", Some(json!({ "limit": 0, "source": 7 }))).await.expect(422);
    assert_eq!(faults["errors"].as_array().unwrap().len(), 2);
    api.admin("POST", "/v1/dead-letters/drop", Some(json!({ "sorce": "x" }))).await.expect(422);
}

#[tokio::test]
async fn bulk_request_goes_on_behind_what_an_earlier_one_has_looked_at() {
    let api = Api::new().await;
    api.dead_letter("ann", "the oldest").await;
    for seq in 97..100 {
        let letter =
            reveille::store::NewDeadLetter { seq, event: None, body: "{", error: "it is not JSON", deliveries: 1 };
        api.store.dead_letter_event(letter).await.unwrap();
    }
    let ask = async |deed: &str, body: Value| {
        let answer = api.admin("POST", &format!("/v1/dead-letters/{deed}"), Some(body)).await.expect(200);
        (answer["count"].as_u64().unwrap(), answer["next_cursor"].as_str().map(str::to_owned))
    };
    // those that are no events stay, and stand before the one that can be replayed
    let (none, next) = ask("replay", json!({ "limit": 2 })).await;
    assert_eq!(none, 0);
    let next = next.expect("there are two more");
    assert_eq!(ask("replay", json!({ "limit": 2, "cursor": next })).await, (1, None));
    assert_eq!(ask("drop", json!({ "limit": 3 })).await, (3, None), "all are dropped, and it says so");
    let faults = api.admin("POST", "/v1/dead-letters/drop", Some(json!({ "cursor": "x" }))).await.expect(422);
    assert_eq!(faults["errors"][0]["pointer"], json!("/cursor"));
}
