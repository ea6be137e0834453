//! Facts over HTTP: noted, listed, corrected, deleted, and refused with their field.

use serde_json::{Value, json};

use super::service::{Api, on_both};

on_both! {
    fact_is_noted_corrected_and_deleted
    facts_are_found_by_collection_and_text_page_by_page
    text_that_is_no_fact_is_refused_with_its_field
    fact_that_is_noted_again_with_its_key_is_the_same
}

const PLACE: &str = "/v1/facts";

async fn fact_is_noted_corrected_and_deleted(api: Api) {
    let token = api.token("ann", &["facts:read", "facts:write"]).await;
    let ask = async |method: &str, path: &str, body: Option<Value>| api.ask(method, path, Some(&token), body).await;
    let request = json!({ "text": " Prefers\nwindow seats. ", "collection": "preferences/travel" });
    let noted = ask("POST", PLACE, Some(request.clone())).await;
    let fact = noted.expect(201);
    let own = format!("{PLACE}/{}", fact["id"].as_str().unwrap());
    let shown = json!({
        "id": fact["id"], "tenant_id": "ann", "collection": "preferences/travel", "text": "Prefers window seats.",
        "origin": "person", "run_id": null, "turn": null, "noted_by": fact["noted_by"], "version": 1, "mentions": 1,
        "created_at": "2026-11-21T00:00:00Z", "noted_at": "2026-11-21T00:00:00Z", "last_used_at": "2026-11-21T00:00:00Z",
    });
    assert_eq!(fact, shown);
    let again = ask("POST", PLACE, Some(request)).await.expect(200);
    assert_eq!((&again["id"], &again["mentions"]), (&fact["id"], &json!(2)), "it was known");
    let corrected = ask("PATCH", &own, Some(json!({ "text": "Prefers aisle seats." }))).await.expect(200);
    assert_eq!((&corrected["version"], &corrected["collection"]), (&json!(2), &json!("preferences/travel")));
    let moved = ask("PATCH", &own, Some(json!({ "collection": "" }))).await.expect(200);
    assert_eq!((&moved["text"], &moved["collection"]), (&json!("Prefers aisle seats."), &json!("")), "{moved}");
    assert_eq!((&moved["version"], &moved["mentions"]), (&json!(2), &json!(1)), "a fact that is moved says the same");
    let whole = ask("GET", &own, None).await.expect(200);
    assert_eq!(whole["versions"][0]["text"], "Prefers window seats.", "{whole}");
    assert_eq!(whole["versions"].as_array().unwrap().len(), 1, "{whole}");
    let other = ask("POST", PLACE, Some(json!({ "text": "Likes tea." }))).await.expect(201);
    let other = other["id"].as_str().unwrap();
    let refused = ask("PATCH", &own, Some(json!({ "text": "Likes tea." }))).await.expect(409);
    assert_eq!(refused["detail"], format!("the fact {other} says the same"));
    ask("DELETE", &format!("{PLACE}/{other}"), None).await.expect(204);
    ask("DELETE", &own, None).await.expect(204);
    for (method, body) in [("GET", None), ("DELETE", None), ("PATCH", Some(json!({ "text": "x" })))] {
        assert_eq!(ask(method, &own, body).await.expect(404)["detail"], "there is no such fact");
    }
    for number in 0..3 {
        ask("POST", PLACE, Some(json!({ "text": format!("Fact {number}.") }))).await.expect(201);
    }
    assert_eq!(ask("DELETE", "/v1/tenants/ann/facts", None).await.expect(200), json!({ "deleted": 3 }));
    assert_eq!(ask("GET", PLACE, None).await.expect(200)["items"], json!([]));
}

async fn facts_are_found_by_collection_and_text_page_by_page(api: Api) {
    for (tenant, text, collection) in [
        ("ann", "Prefers window seats.", "preferences/travel"),
        ("ann", "Likes TEA.", "preferences"),
        ("bob", "Likes tea.", "hobbies"),
    ] {
        let request = json!({ "tenant_id": tenant, "text": text, "collection": collection });
        api.admin("POST", PLACE, Some(request)).await.expect(201);
    }
    let texts = async |query: &str| {
        let page = api.admin("GET", &format!("{PLACE}?{query}"), None).await.expect(200);
        page["items"].as_array().unwrap().iter().map(|fact| fact["text"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(texts("tenant_id=ann").await, ["Likes TEA.", "Prefers window seats."]);
    assert_eq!(texts("tenant_id=ann&collection=preferences/travel").await, ["Prefers window seats."]);
    assert_eq!(texts("tenant_id=ann&q=tEa").await, ["Likes TEA."]);
    for query in ["q=tea", "collection=hobbies"] {
        let refused = api.admin("GET", &format!("{PLACE}?{query}"), None).await.expect(422);
        assert_eq!(refused["errors"][0]["pointer"], "/tenant_id", "{refused}");
    }
    let first = api.admin("GET", &format!("{PLACE}?limit=2"), None).await.expect(200);
    assert_eq!(texts(&format!("cursor={}", first["next_cursor"].as_str().unwrap())).await, ["Prefers window seats."]);
}

async fn text_that_is_no_fact_is_refused_with_its_field(api: Api) {
    let token = api.token("ann", &["facts:read", "facts:write"]).await;
    let length = |count: usize| "x".repeat(count);
    for (request, pointer, words) in [
        (json!({}), "/text", ""),
        (json!({ "text": " \n" }), "/text", "must be a sentence"),
        (json!({ "text": length(1_001) }), "/text", "1000 characters"),
        (json!({ "text": "x", "collection": "Not a path" }), "/collection", "`preferences/travel`"),
        (json!({ "text": "x", "collection": length(101) }), "/collection", "100 characters"),
        (json!({ "text": "x", "tenant_id": "bob" }), "/tenant_id", ""),
        (json!({ "text": "x", "kind": "y" }), "/kind", ""),
    ] {
        let problem = api.ask("POST", PLACE, Some(&token), Some(request)).await.expect(422);
        let fault = &problem["errors"][0];
        assert_eq!(fault["pointer"], pointer, "{problem}");
        assert!(fault["message"].as_str().unwrap().contains(words), "{problem}");
    }
    for (query, pointer) in [("collection=A", "/collection"), ("kind=y", "/kind")] {
        let problem = api.ask("GET", &format!("{PLACE}?{query}"), Some(&token), None).await.expect(400);
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    let q = format!("{PLACE}?q={}", length(201));
    assert_eq!(api.ask("GET", &q, Some(&token), None).await.expect(400)["errors"][0]["pointer"], "/q");
    api.ask("POST", PLACE, Some(&token), Some(json!({ "text": length(1_000), "collection": length(100) })))
        .await
        .expect(201);
    api.ask("GET", &format!("{PLACE}?q={}", length(200)), Some(&token), None).await.expect(200);
}

async fn fact_that_is_noted_again_with_its_key_is_the_same(api: Api) {
    let token = api.token("ann", &["facts:write"]).await;
    let request = json!({ "text": "Lives in Vienna." });
    let once =
        async || api.ask_with("POST", PLACE, Some(&token), Some(request.clone()), &[("idempotency-key", "k")]).await;
    let (first, second) = (once().await, once().await);
    let first = first.expect(201);
    let second = second.expect(201);
    assert_eq!(first, second, "counted once");
    let audit =
        api.admin("GET", &format!("/v1/audit?subject_id={}", first["id"].as_str().unwrap()), None).await.expect(200);
    assert_eq!(audit["items"].as_array().unwrap().len(), 1, "{audit}");
    let own = format!("{PLACE}/{}", first["id"].as_str().unwrap());
    let empty = api.ask("PATCH", &own, Some(&token), Some(json!({}))).await.expect(422);
    assert_eq!(empty["errors"][0]["pointer"], "/text", "{empty}");
}
