//! Tasks and tenants that an operator disables and enables, and the stop switch, over HTTP.

use serde_json::{Value, json};

use super::service::{Api, daily, daily_of, on_both};

on_both! {
    operator_s_disable_is_not_the_owner_s_to_undo
    enabled_task_goes_on_from_then_and_catches_nothing_up
    order_that_is_repeated_changes_nothing_and_is_recorded_once
    tokens_of_a_disabled_tenant_may_read_alone
    stop_is_shown_until_the_start
    order_names_all_or_one_tenant
}

async fn task_of(api: &Api, tenant: &str, body: Value) -> String {
    let token = api.token(tenant, &["*"]).await;
    let task = api.ask("POST", "/v1/tasks", Some(&token), Some(body)).await.expect(201);
    format!("/v1/tasks/{}", task["id"].as_str().unwrap())
}

async fn actions(api: &Api) -> Vec<(String, String)> {
    let entries = api.admin("GET", "/v1/audit", None).await.expect(200);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of = |entry: &Value| (text(&entry["action"]), text(&entry["body"]["reason"]));
    entries["items"].as_array().unwrap().iter().rev().map(of).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(action, reason)| ((*action).to_owned(), (*reason).to_owned())).collect()
}

async fn operator_s_disable_is_not_the_owner_s_to_undo(api: Api) {
    let place = task_of(&api, "ann", daily()).await;
    let ann = api.token("ann", &["*"]).await;
    let reason = json!({ "reason": "it costs too much" });
    let disabled = api.admin("POST", &format!("{place}/disable"), Some(reason)).await.expect(200);
    assert_eq!(disabled["status"], "disabled");
    assert_eq!((&disabled["status_reason"], &disabled["next_fire_at"]), (&json!("it costs too much"), &Value::Null));
    assert_eq!(disabled["disabled_by"], "token:admin");
    for (act, by) in [("resume", Some(&ann)), ("pause", Some(&ann)), ("resume", None)] {
        let path = format!("{place}/{act}");
        let problem = match by {
            Some(token) => api.ask("POST", &path, Some(token), None).await.expect(409),
            None => api.admin("POST", &path, None).await.expect(409),
        };
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.starts_with("the operator has disabled the task"), "{act}: {detail}");
    }
    // an edit mends what can't be read, and no order
    let other = json!({ "trigger": { "type": "schedule", "interval": "5m" } });
    let edited = api.ask("PATCH", &place, Some(&ann), Some(other)).await.expect(200);
    assert_eq!((&edited["status"], &edited["disabled_by"]), (&json!("disabled"), &json!("token:admin")));
    let explained = api.admin("GET", &format!("{place}/explain"), None).await.expect(200);
    assert_eq!(explained["sentences"][0], "The operator has disabled it: it costs too much.");
    assert_eq!(explained["needs"], json!(["The operator enables it."]));
    let enabled = api.admin("POST", &format!("{place}/enable"), None).await.expect(200);
    assert_eq!(
        (&enabled["status"], &enabled["status_reason"], &enabled["disabled_by"]),
        (&json!("active"), &Value::Null, &Value::Null)
    );
    assert!(enabled["next_fire_at"].is_string());
}

async fn enabled_task_goes_on_from_then_and_catches_nothing_up(api: Api) {
    let trigger = json!({ "type": "schedule", "interval": "1m", "catch_up": "all" });
    let mut task = daily();
    task["trigger"] = trigger;
    let place = task_of(&api, "ann", task).await;
    api.admin("POST", &format!("{place}/disable"), None).await.expect(200);
    api.advance(600);
    let enabled = api.admin("POST", &format!("{place}/enable"), None).await.expect(200);
    let next: chrono::DateTime<chrono::Utc> = enabled["next_fire_at"].as_str().unwrap().parse().unwrap();
    assert!(next > api.clock.now(), "{next}");
    let runs = api.admin("GET", "/v1/runs", None).await.expect(200);
    let states: Vec<&Value> = runs["items"].as_array().unwrap().iter().map(|run| &run["state"]).collect();
    assert_eq!(states, ["skipped"], "all that fell due meanwhile, as one record");
}

async fn order_that_is_repeated_changes_nothing_and_is_recorded_once(api: Api) {
    let place = task_of(&api, "ann", daily()).await;
    let why = |reason: &str| Some(json!({ "reason": reason }));
    let first = api.admin("POST", &format!("{place}/disable"), why("first")).await.expect(200);
    let second = api.admin("POST", &format!("{place}/disable"), why("second")).await.expect(200);
    assert_eq!(first, second);
    let first = api.admin("POST", &format!("{place}/enable"), None).await.expect(200);
    assert_eq!(api.admin("POST", &format!("{place}/enable"), None).await.expect(200), first);
    for (path, body) in [
        ("/v1/tenants/ann/disable", json!({ "reason": "first" })),
        ("/v1/tenants/ann/disable", json!({ "reason": "second" })),
        ("/v1/tenants/ann/enable", json!({})),
        ("/v1/tenants/ann/enable", json!({})),
        ("/v1/stop", json!({ "all": true, "reason": "first" })),
        ("/v1/stop", json!({ "all": true, "reason": "second" })),
        ("/v1/start", json!({ "all": true })),
        ("/v1/start", json!({ "all": true })),
    ] {
        api.admin("POST", path, Some(body)).await.expect(200);
    }
    let expected = [
        ("task.disabled", "first"),
        ("task.enabled", ""),
        ("tenant.disabled", "first"),
        ("tenant.enabled", ""),
        ("tenant.stopped", "first"),
        ("tenant.started", ""),
    ];
    assert_eq!(actions(&api).await, pairs(&expected));
}

async fn tokens_of_a_disabled_tenant_may_read_alone(api: Api) {
    let place = task_of(&api, "ann", daily()).await;
    let (ann, bob) = (api.token("ann", &["*"]).await, api.token("bob", &["*"]).await);
    let halted = api.admin("POST", "/v1/tenants/ann/disable", Some(json!({ "reason": "no" }))).await.expect(200);
    assert_eq!(halted["halts"][0]["kind"], "tenant_disabled");
    for (method, path, body) in [
        ("POST", "/v1/tasks".to_owned(), Some(daily())),
        ("PATCH", place.clone(), Some(json!({ "name": "New" }))),
        ("DELETE", place.clone(), None),
        ("POST", format!("{place}/run"), None),
        ("POST", "/v1/events".to_owned(), Some(json!({ "source": "mail", "type": "new" }))),
    ] {
        let problem = api.ask(method, &path, Some(&ann), body).await.expect(403);
        let expected = json!({
            "type": "urn:reveille:problem:tenant_disabled", "title": "The tenant is disabled", "status": 403,
            "detail": "the operator has disabled this tenant: its tokens may read, and change nothing",
        });
        assert_eq!(problem, expected, "{method} {path}");
    }
    api.ask("GET", &place, Some(&ann), None).await.expect(200);
    let shown = api.ask("GET", "/v1/tenants/ann", Some(&ann), None).await.expect(200);
    assert_eq!((&shown["halts"][0]["reason"], &shown["halts"][0]["by"]), (&json!("no"), &json!("token:admin")));
    api.ask("POST", "/v1/tasks", Some(&bob), Some(daily())).await.expect(201);
    api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201);
    api.admin("POST", "/v1/tenants/ann/enable", None).await.expect(200);
    api.ask("DELETE", &place, Some(&ann), None).await.expect(204);
}

async fn stop_is_shown_until_the_start(api: Api) {
    let ann = api.token("ann", &["*"]).await;
    let stopped = json!({ "tenant_id": "bob", "reason": "it runs wild" });
    api.admin("POST", "/v1/stop", Some(stopped)).await.expect(200);
    let all = api.admin("POST", "/v1/stop", Some(json!({ "all": true }))).await.expect(200);
    let halts: Vec<_> =
        all["halts"].as_array().unwrap().iter().map(|halt| (&halt["tenant_id"], &halt["kind"])).collect();
    assert_eq!(halts, [(&Value::Null, &json!("stopped")), (&json!("bob"), &json!("stopped"))]);
    assert_eq!(api.admin("GET", "/v1/stats", None).await.expect(200)["halts"], all["halts"]);
    let own = api.ask("GET", "/v1/stats", Some(&ann), None).await.expect(200);
    assert_eq!(own["halts"].as_array().unwrap().len(), 1, "that of all, and none of another tenant: {own}");
    let ready = api.ask("GET", "/readyz", None, None).await.expect(200);
    assert_eq!((&ready["ready"], &ready["work_stopped"]), (&json!(true), &json!(true)));
    // a stopped tenant may still write: what it asks for waits
    api.ask("POST", "/v1/tasks", Some(&ann), Some(daily())).await.expect(201);
    let left = api.admin("POST", "/v1/start", Some(json!({ "all": true }))).await.expect(200);
    assert_eq!(left["halts"].as_array().unwrap().len(), 1, "a tenant that was stopped by its name stays so");
    let none = api.admin("POST", "/v1/start", Some(json!({ "tenant_id": "bob" }))).await.expect(200);
    assert_eq!(none, json!({ "tenant_id": "bob", "halts": [], "more_halts": 0 }));
    assert_eq!(api.ask("GET", "/readyz", None, None).await.expect(200)["work_stopped"], false);
}

async fn order_names_all_or_one_tenant(api: Api) {
    for body in [json!({}), json!({ "all": true, "tenant_id": "ann" }), json!({ "all": false })] {
        api.admin("POST", "/v1/stop", Some(body.clone())).await.expect(422);
        api.admin("POST", "/v1/start", Some(body)).await.expect(422);
    }
    api.admin("POST", "/v1/stop", Some(json!({ "tenant_id": "*" }))).await.expect(422);
    let long = json!({ "all": true, "reason": "x".repeat(501) });
    api.admin("POST", "/v1/stop", Some(long)).await.expect(422);
    assert_eq!(api.admin("GET", "/v1/stats", None).await.expect(200)["halts"], json!([]));
}
