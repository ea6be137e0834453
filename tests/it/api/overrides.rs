//! Overrides of the approval matrix over HTTP: checked against what there is, listed, taken back.

use serde_json::{Value, json};

use super::service::{Api, on_both};

on_both! {
    override_is_set_for_thirty_days_listed_and_taken_back
    override_that_would_decide_nothing_is_refused_with_its_field
    override_of_a_tool_whose_server_is_away_is_taken
    override_that_is_set_again_with_its_key_is_the_same
}

const PLACE: &str = "/v1/approval-overrides";

async fn override_is_set_for_thirty_days_listed_and_taken_back(api: Api) {
    let token = api.token("ann", &["approvals:read", "approvals:decide"]).await;
    let request = json!({ "tool": "http_request", "gate": "auto", "when": "args.method == 'POST'", "agent": "booker" });
    let set = api.ask("POST", PLACE, Some(&token), Some(request)).await.expect(201);
    let shown = json!({
        "id": set["id"], "tenant_id": "ann", "task_id": null, "agent": "booker", "tool": "http_request", "gate": "auto",
        "when": "args.method == 'POST'", "created_at": "2026-11-21T00:00:00Z", "created_by": set["created_by"],
        "expires_at": "2026-12-21T00:00:00Z",
    });
    assert_eq!(set, shown);
    for (path, items) in [
        (PLACE.to_owned(), json!([shown])),
        (format!("{PLACE}?agent=booker"), json!([shown])),
        (format!("{PLACE}?agent=other"), json!([])),
        (format!("{PLACE}?task_id={}", uuid::Uuid::max()), json!([])),
    ] {
        assert_eq!(api.ask("GET", &path, Some(&token), None).await.expect(200)["items"], items, "{path}");
    }
    let own = format!("{PLACE}/{}", set["id"].as_str().unwrap());
    api.ask("DELETE", &own, Some(&token), None).await.expect(204);
    api.ask("DELETE", &own, Some(&token), None).await.expect(404);
    assert_eq!(api.admin("GET", PLACE, None).await.expect(200)["items"], json!([]));
}

async fn override_that_would_decide_nothing_is_refused_with_its_field(api: Api) {
    let token = api.token("ann", &["*"]).await;
    let request = |more: Value| {
        let mut request = json!({ "tool": "http_request", "gate": "auto" });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        request
    };
    for (more, pointer, words) in [
        (json!({ "tool": "http_reqest" }), "/tool", "did you mean `http_request`?"),
        (json!({ "gate": "ask" }), "/gate", ""),
        (json!({ "when": "args.amount <" }), "/when", ""),
        (json!({ "when": "event.x == 1" }), "/when", "event"),
        (json!({ "agent": "boker" }), "/agent", "did you mean `booker`?"),
        (json!({ "agent": "booker", "task_id": uuid::Uuid::max() }), "/agent", "leave one of them out"),
        (json!({ "task_id": uuid::Uuid::max() }), "/task_id", "no such task"),
        (json!({ "expires_at": "2026-11-20T00:00:00Z" }), "/expires_at", "in the future"),
        (json!({ "expires_at": "2027-11-22T00:00:00Z" }), "/expires_at", "within 365 days"),
        (json!({ "tenant_id": "bob" }), "/tenant_id", ""),
        (json!({ "tolo": 1 }), "/tolo", ""),
    ] {
        let problem = api.ask("POST", PLACE, Some(&token), Some(request(more.clone()))).await.expect(422);
        let fault = &problem["errors"][0];
        assert_eq!(fault["pointer"], pointer, "{more}: {problem}");
        assert!(problem.to_string().contains(words), "{more}: {problem}");
    }
    let nobody = api.admin("POST", PLACE, Some(request(json!({})))).await.expect(422);
    assert_eq!(nobody["errors"][0]["pointer"], "/tenant_id", "an admin token names the tenant");
}

async fn override_of_a_tool_whose_server_is_away_is_taken(api: Api) {
    let token = api.token("ann", &["*"]).await;
    let set = async |tool: &str| {
        let request = json!({ "tool": tool, "gate": "auto" });
        api.ask("POST", PLACE, Some(&token), Some(request)).await
    };
    assert_eq!(set("github.search").await.expect(201)["tool"], "github.search");
    let problem = set("gitlab.search").await.expect(422);
    assert_eq!(problem["errors"][0]["pointer"], "/tool", "{problem}");
}

async fn override_that_is_set_again_with_its_key_is_the_same(api: Api) {
    let token = api.token("ann", &["*"]).await;
    let request = json!({ "tool": "http_request", "gate": "confirm" });
    let headers = [("idempotency-key", "k1")];
    let set = async || api.ask_with("POST", PLACE, Some(&token), Some(request.clone()), &headers).await.expect(201);
    let first = set().await;
    assert_eq!(set().await["id"], first["id"]);
    assert_eq!(api.admin("GET", PLACE, None).await.expect(200)["items"].as_array().unwrap().len(), 1);
}
