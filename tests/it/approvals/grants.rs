//! Standing grants: given with an approval, as narrow as they were asked for, listed, revoked.

use serde_json::{Value, json};

use super::harness::{ask, note};
use crate::api::service::{Api, on_both};
use reveille::domain::approval::matrix::{Category, Consequence};

on_both! {
    grant_is_given_with_an_approval_listed_and_revoked
    page_gives_a_grant_where_it_is_ticked
    irreversible_call_is_never_allowed_for_good
}

async fn grant_is_given_with_an_approval_listed_and_revoked(api: Api) {
    let asked = ask(&api, "ann", vec![note()]).await;
    let body = json!({
        "decision": "approve", "digest": asked.approvals[0].digest,
        "grant": { "days": 7, "uses": 3, "args": ["room"] },
    });
    let token = api.token("ann", &["approvals:read", "approvals:decide"]).await;
    let path = format!("/v1/approvals/{}/decision", asked.approvals[0].id);
    let done = api.ask("POST", &path, Some(&token), Some(body)).await.expect(200);
    let grants = api.ask("GET", &format!("/v1/grants?task_id={}", asked.task), Some(&token), None).await.expect(200);
    let grant = &grants["items"][0];
    assert_eq!(grant["id"], done["grant_id"]);
    assert_eq!(
        json!([grant["tool"], grant["args"], grant["uses_left"], grant["expires_at"], grant["revoked_at"]]),
        json!(["send_note", { "room": "lobby" }, 3, "2026-11-28T00:00:00Z", null])
    );
    let place = format!("/v1/grants/{}", grant["id"].as_str().unwrap());
    let bob = api.token("bob", &["*"]).await;
    api.ask("DELETE", &place, Some(&bob), None).await.expect(404);
    for _ in 0..2 {
        api.ask("DELETE", &place, Some(&token), None).await.expect(204);
    }
    let after = api.ask("GET", "/v1/grants", Some(&token), None).await.expect(200);
    assert_eq!(after["items"][0]["revoked_at"], "2026-11-21T00:00:00Z");
}

async fn page_gives_a_grant_where_it_is_ticked(api: Api) {
    let asked = ask(&api, "ann", vec![note(), note()]).await;
    asked.open(&api).await.expect(200).shows("Always allow this");
    asked.send(&api, &[("do", "approve:0")]).await.expect(303);
    assert_eq!(api.admin("GET", "/v1/grants", None).await.expect(200)["items"], json!([]));
    let ticked = [("do", "approve:1"), ("1.grant", "yes"), ("1.g1", "yes"), ("1.days", "7")];
    asked.send(&api, &ticked).await.expect(303);
    let grants = api.admin("GET", "/v1/grants", None).await.expect(200);
    let grant = &grants["items"][0];
    assert_eq!(
        json!([grant["args"], grant["created_by"], grant["expires_at"]]),
        json!([{ "text": "The build is broken" }, "recipient:ann", "2026-11-28T00:00:00Z"])
    );
}

async fn irreversible_call_is_never_allowed_for_good(api: Api) {
    let mut grave = note();
    grave.consequence = Consequence::High;
    let mut deletes = note();
    deletes.category = Category::Delete;
    let asked = ask(&api, "ann", vec![grave, deletes, note()]).await;
    let decide = |index: usize, word: &str, grant: Value| {
        let body = json!({ "decision": word, "digest": asked.approvals[index].digest, "grant": grant });
        let path = format!("/v1/approvals/{}/decision", asked.approvals[index].id);
        let api = &api;
        async move { api.admin("POST", &path, Some(body)).await.expect(422)["errors"].clone() }
    };
    for index in [0, 1] {
        assert_eq!(decide(index, "approve", json!({})).await[0]["pointer"], "/grant");
    }
    for (grant, pointer) in [
        (json!({ "days": 0 }), "/grant/days"),
        (json!({ "uses": 0 }), "/grant/uses"),
        (json!({ "args": ["room", "rom"] }), "/grant/args/1"),
        (json!({ "day": 1 }), "/grant/day"),
        (json!(7), "/grant"),
    ] {
        assert_eq!(decide(2, "approve", grant).await[0]["pointer"], pointer);
    }
    assert_eq!(decide(2, "cancel", json!({})).await[0]["pointer"], "/grant");
    let page = asked.open(&api).await.expect(200);
    assert_eq!(page.html.matches("<summary>Always allow this</summary>").count(), 1);
    // a form that was made up gives none either
    asked.send(&api, &[("do", "approve:0"), ("0.grant", "yes")]).await.expect(422);
    assert_eq!(asked.statuses(&api).await, ["pending", "pending", "pending"]);
    assert_eq!(api.admin("GET", "/v1/grants", None).await.expect(200)["items"], json!([]));
}
