//! Budgets as a client meets them: shown to their tenant, said by an admin.

use serde_json::{Value, json};

use super::service::{Api, daily_of, on_both};

on_both!(
    admin_says_for_one_tenant_what_its_runs_may_spend
    admin_says_for_one_task_what_its_runs_may_spend
    numbers_that_are_no_budgets_are_refused_with_their_place
);

const BUDGETS: &str = "/v1/budgets/ann";

async fn admin_says_for_one_tenant_what_its_runs_may_spend(api: Api) {
    let ann = api.token("ann", &["*"]).await;
    let nothing = json!({ "tokens": 0, "cost_usd": 0.0, "reserved_tokens": 0, "reserved_cost_usd": 0.0 });
    let none = json!({ "run": {}, "task": {}, "tenant": {} });
    let before = api.ask("GET", "/v1/budgets", Some(&ann), None).await.expect(200);
    assert_eq!((&before["tenant_id"], &before["limits"], &before["overrides"]), (&json!("ann"), &none, &none));
    assert_eq!((&before["today"], &before["tasks"]), (&nothing, &json!([])));
    let said = json!({ "run": { "turns": 5 }, "tenant": { "cost_usd_per_day": 2.5 } });
    let after = api.admin("PUT", BUDGETS, Some(said)).await.expect(200);
    let limits = json!({ "run": { "turns": 5 }, "task": {}, "tenant": { "cost_usd_per_day": 2.5 } });
    assert_eq!((&after["limits"], &after["overrides"]), (&limits, &limits));
    assert_eq!(api.ask("GET", "/v1/budgets", Some(&ann), None).await.expect(200), after);
    assert_eq!(api.admin("GET", "/v1/budgets?tenant_id=ann", None).await.expect(200), after);
    let problem = api.admin("GET", "/v1/budgets", None).await.expect(422);
    assert_eq!(problem["errors"][0]["pointer"], "/tenant_id", "{problem}");
    // a tenant has no say in it
    api.ask("PUT", BUDGETS, Some(&ann), Some(json!({ "run": { "turns": 50 } }))).await.expect(403);
    api.ask("DELETE", BUDGETS, Some(&ann), None).await.expect(403);
    api.admin("DELETE", BUDGETS, None).await.expect(204);
    assert_eq!(api.ask("GET", "/v1/budgets", Some(&ann), None).await.expect(200), before);
    let audit = api.admin("GET", "/v1/audit", None).await.expect(200);
    let actions: Vec<&Value> = audit["items"].as_array().unwrap().iter().map(|entry| &entry["action"]).collect();
    assert_eq!(actions, ["budgets.reset", "budgets.set"]);
}

async fn admin_says_for_one_task_what_its_runs_may_spend(api: Api) {
    let task = api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201);
    let id = task["id"].as_str().unwrap();
    let place = format!("{BUDGETS}/tasks/{id}");
    let ann = api.token("ann", &["*"]).await;
    let said = json!({ "turns": 50, "cost_usd_per_day": 2.5 });
    let after = api.admin("PUT", &place, Some(said)).await.expect(200);
    let budget = json!({
        "turns": 50, "wall_time": null, "tokens": null, "cost_usd": null, "tokens_per_day": null,
        "cost_usd_per_day": 2.5,
    });
    assert_eq!(after["task_overrides"], json!([{ "task_id": id, "budget": budget }]));
    assert_eq!(after["overrides"], json!({ "run": {}, "task": {}, "tenant": {} }));
    // its tenant sees it, and has no say in it
    assert_eq!(api.ask("GET", "/v1/budgets", Some(&ann), None).await.expect(200), after);
    api.ask("PUT", &place, Some(&ann), Some(json!({ "turns": 500 }))).await.expect(403);
    api.ask("DELETE", &place, Some(&ann), None).await.expect(403);
    let problem = api.admin("PUT", &place, Some(json!({ "turns": 0 }))).await.expect(422);
    assert_eq!(problem["errors"][0]["pointer"], "/turns", "{problem}");
    let elsewhere = format!("{BUDGETS}/tasks/{}", uuid::Uuid::max());
    for nowhere in [elsewhere, format!("{BUDGETS}/tasks/x"), format!("/v1/budgets/bob/tasks/{id}")] {
        api.admin("PUT", &nowhere, Some(json!({ "turns": 5 }))).await.expect(404);
    }
    api.admin("DELETE", &place, None).await.expect(204);
    let shown = api.ask("GET", "/v1/budgets", Some(&ann), None).await.expect(200);
    assert_eq!(shown["task_overrides"], json!([]));
    let audit = api.admin("GET", &format!("/v1/audit?subject_id={id}"), None).await.expect(200);
    let actions: Vec<&Value> = audit["items"].as_array().unwrap().iter().map(|entry| &entry["action"]).collect();
    assert_eq!(actions[..2], ["budgets.reset", "budgets.set"]);
}

async fn numbers_that_are_no_budgets_are_refused_with_their_place(api: Api) {
    for (body, pointer) in [
        (json!({ "run": { "turns": 0 } }), "/run/turns"),
        (json!({ "tenant": { "cost_usd_per_day": -1.0 } }), "/tenant/cost_usd_per_day"),
        (json!({ "task": { "tokens_per_day": 1.5 } }), "/task/tokens_per_day"),
    ] {
        let problem = api.admin("PUT", BUDGETS, Some(body)).await.expect(422);
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
}
