//! Budgets and the stop switch: shown to their tenant, ordered by the operator alone.

use axum::body::Body;
use axum::http::Request;
use chrono::TimeDelta;
use reveille::domain::run::transcript::{ModelCall, ModelTokens, TranscriptEntry, TranscriptMessage};
use reveille::domain::run::{RunState, Usage};
use reveille::store::Finish;
use serde_json::{Value, json};
use tower::ServiceExt;
use uuid::Uuid;

use super::visitor::ServedDashboard;
use crate::api::service::{Api, daily_of, on_both};
use crate::support::world::claim_ready;

on_both! {
    operator_sets_and_clears_the_budgets_of_a_tenant
    operator_sets_and_removes_the_limits_of_one_task
    limits_that_are_refused_are_shown_again_as_they_were_typed
    tenant_sees_its_own_budgets_and_changes_none
    switch_says_what_stops_before_it_stops_anything
    order_that_no_page_has_sent_changes_nothing
    tenants_are_listed_with_what_they_spent
}

async fn budgets_of(api: &Api, tenant: &str) -> Value {
    api.admin("GET", &format!("/v1/budgets?tenant_id={tenant}"), None).await.expect(200)
}

async fn halts(api: &Api) -> Value {
    api.admin("GET", "/v1/stats", None).await.expect(200)["halts"].clone()
}

const PAGE: &str = "/ui/budgets?tenant_id=ann";

/// A run of this tenant that has asked a model once.
async fn spend(api: &Api, tenant: &str) {
    let task = api.admin("POST", "/v1/tasks", Some(daily_of(tenant))).await.expect(201)["id"].clone();
    let task = task.as_str().unwrap();
    api.admin("POST", &format!("/v1/tasks/{task}/run"), None).await.expect(201);
    let now = api.clock.now();
    let claim = claim_ready(&api.store, Uuid::from_u128(1), now, 1).await.pop().expect("the run");
    api.store.start_runs(&[claim.lease], now + TimeDelta::minutes(1)).await.unwrap();
    let usage = Usage { turns: 1, tool_calls: 0, input_tokens: 200, output_tokens: 50, cost_micros: 1500 };
    let said = TranscriptMessage::Assistant { text: None, tool_calls: vec![], provider_message: None, finish: None };
    let call = ModelCall { model: "main".into(), tokens: ModelTokens::of(200, 50) };
    let entry = TranscriptEntry { usage, model_call: Some(call), ..TranscriptEntry::new(0, 1, now, said) };
    let end = Finish {
        usage,
        entries: vec![entry],
        ..Finish::of(claim.lease, Some(task.parse().unwrap()), RunState::Succeeded)
    };
    assert_eq!(api.store.finish_runs(&[end]).await.unwrap(), Vec::<Uuid>::new());
}

async fn operator_sets_and_clears_the_budgets_of_a_tenant(api: Api) {
    let site = ServedDashboard::of(api).await;
    let admin = site.admin().await;
    admin.get(PAGE).await.has("Budgets of ann");
    let typed = [("tenant_id", "ann"), ("run.turns", "5"), ("run.tokens", ""), ("tenant.cost_usd_per_day", "2.5")];
    let set = admin.post(PAGE, "/ui/budgets/set", &typed).await;
    assert_eq!((set.status, set.location.as_deref()), (303, Some("/ui/budgets?tenant_id=ann&done=saved")));
    let said = json!({ "run": { "turns": 5 }, "task": {}, "tenant": { "cost_usd_per_day": 2.5 } });
    assert_eq!(budgets_of(&site.api, "ann").await["overrides"], said);
    let shown = admin.get("/ui/budgets?tenant_id=ann&done=saved").await;
    shown.has("Your changes were saved.");
    shown.has("name=\"run.turns\" value=\"5\"");
    shown.has("name=\"tenant.cost_usd_per_day\" value=\"2.5\"");
    shown.has("$0 of $2.50");
    let cleared = admin.post(PAGE, "/ui/budgets/clear", &[("tenant_id", "ann")]).await;
    assert_eq!((cleared.status, cleared.location.as_deref()), (303, Some("/ui/budgets?tenant_id=ann&done=removed")));
    assert_eq!(budgets_of(&site.api, "ann").await["overrides"], json!({ "run": {}, "task": {}, "tenant": {} }));
}

async fn operator_sets_and_removes_the_limits_of_one_task(api: Api) {
    let site = ServedDashboard::of(api).await;
    let admin = site.admin().await;
    let task = site.api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201)["id"].clone();
    let task = task.as_str().unwrap();
    let typed = [("tenant_id", "ann"), ("task_id", task), ("tokens_per_day", "5000")];
    assert_eq!(admin.post(PAGE, "/ui/budgets/tasks/set", &typed).await.status, 303);
    let own = budgets_of(&site.api, "ann").await["task_overrides"].clone();
    assert_eq!((&own[0]["task_id"], &own[0]["budget"]["tokens_per_day"]), (&json!(task), &json!(5000)));
    let shown = admin.get(&format!("{PAGE}&task_id={task}")).await;
    for text in ["Morning mail", "own limits", "0 of 5,000", "name=\"tokens_per_day\" value=\"5000\""] {
        shown.has(text);
    }
    // a task of another tenant is not there
    let foreign = [("tenant_id", "bob"), ("task_id", task), ("turns", "5")];
    assert_eq!(admin.post(PAGE, "/ui/budgets/tasks/set", &foreign).await.status, 404);
    let removed = admin.post(PAGE, "/ui/budgets/tasks/clear", &[("tenant_id", "ann"), ("task_id", task)]).await;
    assert_eq!(removed.status, 303);
    assert_eq!(budgets_of(&site.api, "ann").await["task_overrides"], json!([]));
}

async fn limits_that_are_refused_are_shown_again_as_they_were_typed(api: Api) {
    let site = ServedDashboard::of(api).await;
    let admin = site.admin().await;
    let typed = [("tenant_id", "ann"), ("run.turns", "0"), ("tenant.tokens_per_day", "900")];
    let refused = admin.post(PAGE, "/ui/budgets/set", &typed).await;
    assert_eq!(refused.status, 422);
    for text in ["/run/turns", "name=\"run.turns\" value=\"0\"", "name=\"tenant.tokens_per_day\" value=\"900\""] {
        refused.has(text);
    }
    let typed = [("tenant_id", "ann"), ("task.tokens_per_day", "<b>many")];
    let hostile = admin.post(PAGE, "/ui/budgets/set", &typed).await;
    assert_eq!(hostile.status, 422);
    hostile.has("/task/tokens_per_day");
    hostile.has("value=\"&lt;b&gt;many\"");
    hostile.lacks("<b>many");
    let of_task = admin.post(PAGE, "/ui/budgets/tasks/set", &[("tenant_id", "ann"), ("turns", "7")]).await;
    assert_eq!(of_task.status, 422);
    of_task.has("/task_id");
    of_task.has("name=\"turns\" value=\"7\"");
    assert_eq!(budgets_of(&site.api, "ann").await["overrides"], json!({ "run": {}, "task": {}, "tenant": {} }));
}

async fn tenant_sees_its_own_budgets_and_changes_none(api: Api) {
    let site = ServedDashboard::of(api).await;
    let said = json!({ "tenant": { "tokens_per_day": 123456 } });
    site.api.admin("PUT", "/v1/budgets/ann", Some(said.clone())).await.expect(200);
    let ann = site.of_tenant("ann", &["*"]).await;
    let own = ann.get("/ui/budgets").await;
    own.has("0 of 123,456 tokens");
    own.lacks("Save the limits");
    own.lacks("/ui/budgets/switch");
    let bob = site.of_tenant("bob", &["*"]).await;
    bob.get("/ui/budgets").await.lacks("123,456");
    assert_eq!(bob.get(PAGE).await.status, 404);
    let typed = [("tenant_id", "ann"), ("tenant.tokens_per_day", "1")];
    assert_eq!(ann.post("/ui/budgets", "/ui/budgets/set", &typed).await.status, 403);
    assert_eq!(ann.post("/ui/budgets", "/ui/budgets/clear", &[("tenant_id", "ann")]).await.status, 403);
    assert_eq!(budgets_of(&site.api, "ann").await["overrides"]["tenant"], said["tenant"]);
    let narrow = site.of_tenant("ann", &["tasks:read"]).await.get("/ui/budgets").await;
    assert_eq!(narrow.status, 403);
    narrow.has("stats:read");
}

async fn switch_says_what_stops_before_it_stops_anything(api: Api) {
    let site = ServedDashboard::of(api).await;
    let admin = site.admin().await;
    let page = "/ui/budgets/switch?order=stop";
    let before = admin.get(page).await;
    for text in ["Stop all work", "No run, turn, call or poll of any tenant begins.", "Fires are recorded as skipped"] {
        before.has(text);
    }
    assert_eq!(halts(&site.api).await, json!([]), "it is read, and stops nothing");
    let order = [("order", "stop"), ("reason", "too loud")];
    let stopped = admin.post(page, "/ui/budgets/switch", &order).await;
    assert_eq!((stopped.status, stopped.location.as_deref()), (303, Some("/ui/budgets?done=stopped")));
    let held = halts(&site.api).await;
    assert_eq!((&held[0]["tenant_id"], &held[0]["reason"]), (&Value::Null, &json!("too loud")));
    let shown = admin.get("/ui/budgets").await;
    shown.has("every tenant");
    shown.has("too loud");
    let page = "/ui/budgets/switch?order=start";
    assert_eq!(admin.post(page, "/ui/budgets/switch", &[("order", "start")]).await.status, 303);
    assert_eq!(halts(&site.api).await, json!([]));
    // one tenant alone
    let page = "/ui/budgets/switch?order=disable&tenant_id=ann";
    admin.get(page).await.has("Disable the tenant ann");
    let disabled = admin.post(page, "/ui/budgets/switch", &[("order", "disable"), ("tenant_id", "ann")]).await;
    assert_eq!(disabled.location.as_deref(), Some("/ui/budgets?tenant_id=ann&done=disabled"));
    assert_eq!(halts(&site.api).await[0]["tenant_id"], "ann");
    let page = "/ui/budgets/switch?order=enable&tenant_id=ann";
    admin.post(page, "/ui/budgets/switch", &[("order", "enable"), ("tenant_id", "ann")]).await;
    assert_eq!(halts(&site.api).await, json!([]));
    for nowhere in ["/ui/budgets/switch", "/ui/budgets/switch?order=delete", "/ui/budgets/switch?order=disable"] {
        assert_eq!(admin.get(nowhere).await.status, 404, "{nowhere}");
    }
    let long = "x".repeat(501);
    let refused = admin
        .post("/ui/budgets/switch?order=stop", "/ui/budgets/switch", &[("order", "stop"), ("reason", &long)])
        .await;
    assert_eq!(refused.status, 422);
    refused.has("/reason");
    refused.has(&long);
}

async fn order_that_no_page_has_sent_changes_nothing(api: Api) {
    let site = ServedDashboard::of(api).await;
    let ann = site.of_tenant("ann", &["*"]).await;
    assert_eq!(ann.get("/ui/budgets/switch?order=stop").await.status, 403);
    assert_eq!(ann.post("/ui/budgets", "/ui/budgets/switch", &[("order", "stop")]).await.status, 403);
    let bare = Request::post("/ui/budgets/switch").header("content-type", "application/x-www-form-urlencoded");
    let answer = site.api.app.clone().oneshot(bare.body(Body::from("order=stop")).unwrap()).await.unwrap();
    assert!(!answer.status().is_success());
    assert_eq!(halts(&site.api).await, json!([]));
}

async fn tenants_are_listed_with_what_they_spent(api: Api) {
    let site = ServedDashboard::of(api).await;
    let admin = site.admin().await;
    admin.get("/ui/budgets").await.has("No tenant has used a model or a tool");
    spend(&site.api, "ann").await;
    let listed = admin.get("/ui/budgets").await;
    for text in ["href=\"/ui/budgets?tenant_id=ann\"", ">250<", "$0.00150"] {
        listed.has(text);
    }
    assert_eq!(admin.get("/ui/budgets?tenant_id=no+such%2Ftenant%00").await.status / 100, 4);
    admin.get("/ui/budgets?tenant_id=carl").await.has("No task has spent anything today.");
}
