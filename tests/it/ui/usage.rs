//! The page of usage: charts, and a table of the same figures, by each key.

use serde_json::json;

use super::visitor::{Visitor, served};
use crate::api::service::{ADMIN, Api, on_both};
use crate::api::usage::answered;

on_both! {
    usage_is_drawn_and_told_in_a_table_by_each_key
    tenant_sees_its_own_usage_and_range_and_permission_are_told
    names_of_tasks_in_usage_are_text
}

async fn usage_is_drawn_and_told_in_a_table_by_each_key(api: Api) {
    let (_, task) = answered(&api, "ann").await;
    let url = served(&api).await;
    let ann = Visitor::signed_in(&url, &api.token("ann", &["stats:read", "tasks:read"]).await).await;
    let by_day = ann.get("/ui/usage").await;
    assert_eq!(by_day.status, 200);
    for text in ["<svg class=\"chart\"", "<title>2026-11-21: 250</title>", "<title>2026-11-21: $0.00150</title>"] {
        by_day.has(text);
    }
    by_day.has("<td class=\"number\" data-label=\"Tokens read\">200</td>");
    by_day.has("<td class=\"number\" data-label=\"Cost\">$0.00150</td>");
    by_day.has("<title>2026-11-20: 0</title>");
    by_day.has("2026-10-23 to 2026-11-21");
    by_day.lacks("style=");
    let by_model = ann.get("/ui/usage?by=model").await;
    by_model.has("<title>main: 250</title>");
    let by_task = ann.get("/ui/usage?by=task&from=2026-11-21&until=2026-11-22").await;
    by_task.has(&format!("<a href=\"/ui/tasks/{task}\">Morning mail</a>"));
    let by_tool = ann.get("/ui/usage?by=tool").await;
    by_tool.has("<title>send_note: 1</title>");
    by_tool.has("<a href=\"/ui/tools/send_note\">send_note</a>");
    let of_none = ann.get(&format!("/ui/usage?task_id={}", uuid::Uuid::max())).await;
    of_none.has("Nothing fits these filters.");
}

async fn tenant_sees_its_own_usage_and_range_and_permission_are_told(api: Api) {
    answered(&api, "ann").await;
    let url = served(&api).await;
    let bob = Visitor::signed_in(&url, &api.token("bob", &["stats:read"]).await).await;
    let none = bob.get("/ui/usage").await;
    none.has("No run has used a model or a tool in these days.");
    none.has("reveille task run ID");
    none.lacks("<svg class=\"chart\"");
    // a tenant has no such filter
    bob.get("/ui/usage?tenant_id=ann").await.lacks("$0.00150");
    let operator = Visitor::signed_in(&url, ADMIN).await;
    operator.get("/ui/usage?by=tenant").await.has("<title>ann: 250</title>");
    operator.get("/ui/usage?tenant_id=bob").await.has("Nothing fits these filters.");
    let wrong = operator.get("/ui/usage?from=2026-01-01&until=2026-11-22").await;
    assert_eq!(wrong.status, 200);
    wrong.has("must be from 1 to 92 days before");
    operator.get("/ui/usage?by=hour").await.has("/by");
    let blind = Visitor::signed_in(&url, &api.token("ann", &["runs:read"]).await).await;
    let refused = blind.get("/ui/usage").await;
    assert_eq!(refused.status, 403);
    refused.has("stats:read");
}

async fn names_of_tasks_in_usage_are_text(api: Api) {
    let (_, task) = answered(&api, "ann").await;
    let name = json!({ "name": "<script>alert(1)</script> \u{202e}evil" });
    api.admin("PATCH", &format!("/v1/tasks/{task}"), Some(name)).await.expect(200);
    let url = served(&api).await;
    let shown = Visitor::signed_in(&url, ADMIN).await.get("/ui/usage?by=task").await;
    shown.has("&lt;script&gt;alert(1)");
    shown.lacks("<script>alert");
    shown.lacks("\u{202e}");
    // a reader who may not see tasks is told their ids
    let ann = Visitor::signed_in(&url, &api.token("ann", &["stats:read"]).await).await;
    let unnamed = ann.get("/ui/usage?by=task").await;
    unnamed.has(&task);
    unnamed.lacks("&lt;script&gt;");
}
