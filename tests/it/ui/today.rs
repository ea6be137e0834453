//! Today: what waits, what failed and what comes next, of the reader's own; and the stop switch in red.

use chrono::TimeDelta;
use reveille::domain::run::{RunFault, RunState};
use reveille::store::Finish;
use serde_json::json;
use uuid::Uuid;

use super::visitor::ServedDashboard;
use crate::api::service::{Api, daily_of, on_both};
use crate::approvals::harness::{ask, note};
use crate::support::world::claim_ready;

on_both! {
    today_shows_what_waits_what_failed_and_what_comes_of_the_reader_s_own
    part_without_its_permission_says_so_and_the_others_are_shown
    new_service_says_what_to_do_next_until_there_is_a_task
    stop_switch_is_told_of_with_its_reason_as_text
    task_that_stands_still_is_told_of_with_its_reason_and_to_its_tenant_alone
}

/// A run of this tenant that has failed with this message.
async fn failed_run(api: &Api, tenant: &str, message: &str) -> String {
    let mut task = daily_of(tenant);
    task["name"] = json!("Nightly report");
    let task = api.admin("POST", "/v1/tasks", Some(task)).await.expect(201)["id"].clone();
    let task = task.as_str().unwrap().to_owned();
    let run = api.admin("POST", &format!("/v1/tasks/{task}/run"), None).await.expect(201)["id"].clone();
    let now = api.clock.now();
    let claims = claim_ready(&api.store, Uuid::from_u128(1), now, 100).await;
    let claim = claims.into_iter().find(|claim| run == claim.lease.run_id.to_string()).expect("the run");
    api.store.start_runs(&[claim.lease], now + TimeDelta::minutes(1)).await.unwrap();
    let error = Some(RunFault::new("llm_auth", message));
    let end = Finish { error, ..Finish::of(claim.lease, Some(task.parse().unwrap()), RunState::Failed) };
    assert_eq!(api.store.finish_runs(&[end]).await.unwrap(), Vec::<Uuid>::new());
    run.as_str().unwrap().to_owned()
}

async fn today_shows_what_waits_what_failed_and_what_comes_of_the_reader_s_own(api: Api) {
    let site = ServedDashboard::of(api).await;
    let run = failed_run(&site.api, "ann", "the key was refused").await;
    let asked = ask(&site.api, "ann", vec![note()]).await;
    site.api.dead_letter("ann", "the filter broke").await;
    let mut of_ann = vec![
        format!("/ui/approvals/{}", asked.approvals[0].id),
        format!("/ui/runs/{run}"),
        format!("/ui/tasks/{}", asked.task),
    ];
    let texts = ["Send a note to the room lobby", "the key was refused", "Nightly report", "the filter broke"];
    of_ann.extend(texts.map(str::to_owned));
    // the next fire, at eight in Shanghai
    of_ann.push("2026-11-22 00:00:00 UTC".to_owned());
    let ann = site.of_tenant("ann", &["*"]).await.get("/ui").await;
    assert_eq!(ann.status, 200);
    of_ann.iter().for_each(|text| ann.has(text));
    ann.lacks("All work is stopped");
    ann.lacks("Nothing runs here yet");
    let bob = site.of_tenant("bob", &["*"]).await.get("/ui").await;
    of_ann.iter().for_each(|text| bob.lacks(text));
    // an admin sees whose each is
    let admin = site.admin().await.get("/ui").await;
    of_ann.iter().for_each(|text| admin.has(text));
    admin.has("github.merge");
    admin.has("<td data-label=\"Tenant\">ann</td>");
    // a day later the failure is no news
    site.api.advance(24 * 60 * 60 + 1);
    let later = site.of_tenant("ann", &["*"]).await.get("/ui").await;
    later.lacks("the key was refused");
    later.lacks("the filter broke");
}

async fn part_without_its_permission_says_so_and_the_others_are_shown(api: Api) {
    let site = ServedDashboard::of(api).await;
    failed_run(&site.api, "ann", "the key was refused").await;
    let today = site.of_tenant("ann", &["tasks:read"]).await.get("/ui").await;
    assert_eq!(today.status, 200);
    today.has("Nightly report");
    today.lacks("the key was refused");
    for lacking in ["approvals:read", "runs:read", "dead_letters:read", "deliveries:read", "credentials:read"] {
        today.has(&format!("this needs a token with `{lacking}`"));
    }
}

async fn new_service_says_what_to_do_next_until_there_is_a_task(api: Api) {
    let site = ServedDashboard::of(api).await;
    let ann = site.of_tenant("ann", &["*"]).await;
    let new = ann.get("/ui").await;
    for step in ["Nothing runs here yet", "reveille task create --tenant ann", "reveille check --ask", "href=\"/docs\""]
    {
        new.has(step);
    }
    site.api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201);
    let used = ann.get("/ui").await;
    used.lacks("Nothing runs here yet");
    used.has("Morning mail");
}

async fn stop_switch_is_told_of_with_its_reason_as_text(api: Api) {
    let site = ServedDashboard::of(api).await;
    let ann = site.of_tenant("ann", &["*"]).await;
    ann.get("/ui").await.lacks("All work is stopped");
    let reason = "<script>alert(1)</script> pay \u{202e}now";
    site.api.admin("POST", "/v1/stop", Some(json!({ "all": true, "reason": reason }))).await.expect(200);
    for visitor in [&ann, &site.admin().await] {
        let stopped = visitor.get("/ui").await;
        stopped.has("All work is stopped");
        stopped.has("&lt;script&gt;alert(1)&lt;/script&gt; pay \u{27e6}U+202E\u{27e7}now");
        stopped.lacks("<script>alert");
        stopped.lacks("\u{202e}");
    }
    site.admin().await.get("/ui").await.has("/ui/budgets/switch?order=start");
    ann.get("/ui").await.lacks("/ui/budgets/switch");
}

async fn task_that_stands_still_is_told_of_with_its_reason_and_to_its_tenant_alone(api: Api) {
    let site = ServedDashboard::of(api).await;
    let made = site.api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201);
    let place = format!("/v1/tasks/{}/pause", made["id"].as_str().unwrap());
    let ann = site.of_tenant("ann", &["*"]).await;
    ann.get("/ui").await.has("No task was paused or disabled for a reason.");
    site.api.admin("POST", &place, Some(json!({ "reason": "<b>its inbox is full</b>" }))).await.expect(200);
    let page = ann.get("/ui").await;
    page.has("&lt;b&gt;its inbox is full&lt;/b&gt;");
    page.has("href=\"/ui/tasks?status=paused\"");
    site.of_tenant("bob", &["*"]).await.get("/ui").await.lacks("its inbox is full");
}

#[tokio::test]
async fn credential_that_is_broken_is_told_of_until_it_is_saved_anew() {
    let site = ServedDashboard::of(Api::new().await).await;
    let credential = json!({ "document": "a canary", "hosts": ["api.example.org"], "inject": { "as": "bearer" } });
    let place = "/v1/credentials/google/work?tenant_id=ann";
    site.api.admin("PUT", place, Some(credential.clone())).await.expect(200);
    let ann = site.of_tenant("ann", &["*"]).await;
    ann.get("/ui").await.has("Every credential can be used.");
    site.api.plant("update credentials set status = 'needs_consent', status_reason = 'it was revoked'").await;
    let broken = ann.get("/ui").await;
    broken.has("href=\"/ui/credentials/google/work\"");
    ann.get("/ui/credentials?status=needs_consent").await.has("google/work");
    ann.get("/ui/credentials?status=active").await.lacks("google/work");
    broken.has("it was revoked");
    broken.lacks("a canary");
    site.api.admin("PUT", place, Some(credential)).await.expect(200);
    ann.get("/ui").await.lacks("it was revoked");
}
