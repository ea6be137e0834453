//! The audit record as people read it: filtered, in pages, and each tenant's own alone.

use serde_json::json;

use super::visitor::ServedDashboard;
use crate::api::service::{Api, on_both};

on_both! {
    entries_are_shown_with_their_actors_and_filtered_by_what_was_done
    another_tenant_s_entries_are_not_listed
    filter_that_is_none_and_a_missing_permission_say_so
    long_record_comes_in_pages_of_fifty
}

async fn set_budget(api: &Api, tenant: &str, turns: u64) {
    let said = json!({ "run": { "turns": turns } });
    api.admin("PUT", &format!("/v1/budgets/{tenant}"), Some(said)).await.expect(200);
}

async fn entries_are_shown_with_their_actors_and_filtered_by_what_was_done(api: Api) {
    let site = ServedDashboard::of(api).await;
    let admin = site.admin().await;
    admin.get("/ui/audit").await.has("Nothing is on record yet.");
    set_budget(&site.api, "ann", 5).await;
    let reason = json!({ "all": true, "reason": "<script>alert(1)</script>" });
    site.api.admin("POST", "/v1/stop", Some(reason)).await.expect(200);
    let all = admin.get("/ui/audit").await;
    for text in [">budgets.set</a>", ">tenant.stopped</a>", "token:admin", "every tenant", "&lt;script&gt;"] {
        all.has(text);
    }
    all.lacks("<script>alert");
    let filtered = admin.get("/ui/audit?action=budgets.set").await;
    filtered.has(">budgets.set</a>");
    filtered.lacks(">tenant.stopped</a>");
    filtered.has("<b>action</b> budgets.set");
    let none = admin.get("/ui/audit?action=never.done").await;
    none.has("Nothing fits these filters.");
}

async fn another_tenant_s_entries_are_not_listed(api: Api) {
    let site = ServedDashboard::of(api).await;
    for tenant in ["ann", "bob"] {
        set_budget(&site.api, tenant, 5).await;
    }
    let ann = site.of_tenant("ann", &["audit:read"]).await.get("/ui/audit").await;
    assert_eq!(ann.text.matches("data-row").count(), 1);
    let narrowed = site.admin().await.get("/ui/audit?tenant_id=bob").await;
    assert_eq!(narrowed.text.matches("data-row").count(), 1);
    narrowed.has("<td data-label=\"Tenant\">bob</td>");
}

async fn filter_that_is_none_and_a_missing_permission_say_so(api: Api) {
    let site = ServedDashboard::of(api).await;
    let wrong = site.admin().await.get("/ui/audit?subject_id=x").await;
    assert_eq!(wrong.status, 200);
    wrong.has("must be a UUID");
    wrong.has("name=\"subject_id\" value=\"x\"");
    let narrow = site.of_tenant("ann", &["tasks:read"]).await.get("/ui/audit").await;
    assert_eq!(narrow.status, 403);
    narrow.has("audit:read");
}

async fn long_record_comes_in_pages_of_fifty(api: Api) {
    let site = ServedDashboard::of(api).await;
    for turns in 1..=51 {
        set_budget(&site.api, "ann", turns).await;
    }
    let admin = site.admin().await;
    let first = admin.get("/ui/audit?action=budgets.set").await;
    assert_eq!(first.text.matches("data-row").count(), 50);
    let (_, next) = first.text.split_once("<nav class=\"pager\"").expect("links to other pages");
    let (_, href) = next.split_once("href=\"").expect("a link");
    let href = href.split('"').next().unwrap().replace("&amp;", "&");
    assert!(href.starts_with("/ui/audit?action=budgets.set&cursor="), "{href}");
    let second = admin.get(&href).await;
    assert_eq!(second.text.matches("data-row").count(), 1);
    second.has("First page");
}
