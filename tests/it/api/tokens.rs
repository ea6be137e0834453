//! Tokens: shown once, never stronger than their maker, dead as soon as they are revoked.

use serde_json::{Value, json};

use super::service::{Api, at};

#[tokio::test]
async fn token_is_shown_once_and_works_until_it_is_revoked() {
    let api = Api::new().await;
    let draft = json!({ "tenant_id": "ann", "name": "phone", "scopes": ["tasks:read", "runs:read", "tasks:read"] });
    let made = api.admin("POST", "/v1/tokens", Some(draft)).await.expect(201);
    let text = made["token"].as_str().unwrap().to_owned();
    assert!(text.starts_with("rv_tenant_"));
    let mut shown = made.clone();
    shown.as_object_mut().unwrap().remove("token");
    assert_eq!(
        shown,
        json!({
            "id": made["id"], "kind": "tenant", "tenant_id": "ann", "name": "phone",
            "scopes": ["tasks:read", "runs:read"], "created_at": "2026-11-21T00:00:00Z",
            "expires_at": null, "revoked_at": null,
        })
    );
    assert_eq!(api.admin("GET", "/v1/tokens", None).await.expect(200)["items"], json!([shown]));

    api.ask("GET", "/v1/tasks", Some(&text), None).await.expect(200);
    let place = format!("/v1/tokens/{}", made["id"].as_str().unwrap());
    api.admin("DELETE", &place, None).await.expect(204);
    api.ask("GET", "/v1/tasks", Some(&text), None).await.expect(401);
    api.advance(10);
    api.admin("DELETE", &place, None).await.expect(204);
    let listed = api.admin("GET", "/v1/tokens", None).await.expect(200);
    assert_eq!(listed["items"][0]["revoked_at"], "2026-11-21T00:00:00Z");
}

#[tokio::test]
async fn token_never_exceeds_the_scopes_and_expiry_of_its_creator() {
    let api = Api::new().await;
    let end = at("2026-11-22T00:00:00Z");
    let (_, ann) = api.token_until("ann", &["tokens:write", "tasks:read"], Some(end)).await;
    let make = async |draft: Value| api.ask("POST", "/v1/tokens", Some(&ann), Some(draft)).await;
    for (draft, pointer) in [
        (json!({ "name": "x", "scopes": ["*"] }), "/scopes/0"),
        (json!({ "name": "x", "scopes": ["tasks:read", "tasks:write"] }), "/scopes/1"),
        (json!({ "name": "x", "scopes": ["tasks:raed"] }), "/scopes/0"),
        (json!({ "name": "x", "scopes": [] }), "/scopes"),
        (json!({ "name": " ", "scopes": ["tasks:read"] }), "/name"),
        (json!({ "name": "x", "scopes": ["tasks:read"], "tenant_id": "bob" }), "/tenant_id"),
        (json!({ "name": "x", "scopes": ["tasks:read"], "expires_at": "2026-11-23T00:00:00Z" }), "/expires_at"),
        (json!({ "name": "x", "scopes": ["tasks:read"], "expires_at": "2026-11-20T00:00:00Z" }), "/expires_at"),
        (json!({ "name": "x", "scopes": ["tasks:read"], "kind": "admin" }), "/kind"),
    ] {
        let problem = make(draft.clone()).await.expect(422);
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{draft}: {problem}");
    }
    let made = make(json!({ "name": "x", "scopes": ["tasks:read"] })).await.expect(201);
    assert_eq!((&made["kind"], &made["tenant_id"]), (&json!("tenant"), &json!("ann")));
    assert_eq!(made["expires_at"], "2026-11-22T00:00:00Z", "what is made with a token that ends, ends with it");
}

#[tokio::test]
async fn admin_who_names_nobody_makes_an_admin_token() {
    let api = Api::new().await;
    let made = api.admin("POST", "/v1/tokens", Some(json!({ "name": "ops", "scopes": ["tasks:read"] }))).await;
    let made = made.expect(201);
    assert_eq!((&made["kind"], &made["tenant_id"]), (&json!("admin"), &Value::Null));
    let text = made["token"].as_str().unwrap();
    api.ask("GET", "/v1/tasks", Some(text), None).await.expect(200);
    api.ask("GET", "/v1/tokens", Some(text), None).await.expect(403);
}

#[tokio::test]
async fn tenant_sees_and_revokes_its_own_tokens_only() {
    let api = Api::new().await;
    let (bobs, _) = api.token_until("bob", &["*"], None).await;
    let (own, ann) = api.token_until("ann", &["*"], None).await;
    let listed = api.ask("GET", "/v1/tokens", Some(&ann), None).await.expect(200);
    let ids: Vec<&str> = listed["items"].as_array().unwrap().iter().map(|t| t["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [own.to_string()]);
    api.ask("DELETE", &format!("/v1/tokens/{bobs}"), Some(&ann), None).await.expect(404);
    api.ask("DELETE", &format!("/v1/tokens/{own}"), Some(&ann), None).await.expect(204);
    api.ask("GET", "/v1/tokens", Some(&ann), None).await.expect(401);
}

#[test]
fn blank_or_short_admin_token_is_a_fault() {
    use reveille::base::invalid::ValidationErrors;
    use reveille::base::secret::Secret;
    use reveille::http::Settings;
    let faults = |token: &str| {
        let mut faults = ValidationErrors::new();
        Settings { admin_token: Some(Secret::new(token)), ..Settings::default() }.check(&mut faults);
        faults.0.into_iter().map(|fault| fault.pointer).collect::<Vec<_>>()
    };
    for blank in ["", "   ", "nineteen characters"] {
        assert_eq!(faults(blank), ["/server/admin_token"], "{blank:?}");
    }
    assert_eq!(faults("just twenty letters."), [] as [String; 0]);
}
