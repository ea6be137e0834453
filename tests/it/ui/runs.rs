//! The list of runs, and what is done to several of them at once.

use serde_json::{Value, json};

use super::visitor::{Visitor, served};
use crate::api::service::{ADMIN, Api, daily_of, on_both};

on_both! {
    list_of_runs_shows_those_that_fit_its_address_and_none_of_another_tenant
    runs_are_retried_as_they_were_shown_each_once
    runs_are_cancelled_and_those_of_others_are_not_there
}

/// May do all that the pages of runs do.
const SCOPES: &[&str] = &["runs:read", "runs:write", "tasks:read"];
/// Runs that are shown at once.
const MOST: usize = 200;

async fn task_named(api: &Api, tenant: &str, name: &str) -> String {
    let mut task = daily_of(tenant);
    task["name"] = json!(name);
    let made = api.admin("POST", "/v1/tasks", Some(task)).await.expect(201);
    made["id"].as_str().unwrap().to_owned()
}

async fn run_of(api: &Api, task: &str) -> String {
    let run = api.admin("POST", &format!("/v1/tasks/{task}/run"), None).await.expect(201);
    run["id"].as_str().unwrap().to_owned()
}

async fn cancel(api: &Api, run: &str) {
    api.admin("POST", &format!("/v1/runs/{run}/cancel"), None).await.expect(200);
}

async fn state_of(api: &Api, run: &str) -> Value {
    api.admin("GET", &format!("/v1/runs/{run}"), None).await.expect(200)["state"].clone()
}

/// Runs that were made by retries.
async fn retries(api: &Api) -> Vec<Value> {
    let page = api.admin("GET", "/v1/runs?limit=200", None).await.expect(200);
    page["items"].as_array().unwrap().iter().filter(|run| !run["retry_of"].is_null()).cloned().collect()
}

async fn list_of_runs_shows_those_that_fit_its_address_and_none_of_another_tenant(api: Api) {
    let base = served(&api).await;
    let nothing = Visitor::signed_in(&base, &api.token("ann", SCOPES).await).await.get("/ui/runs").await;
    nothing.has("There are no runs yet.");
    let hostile = "Mail <script>alert(1)</script>";
    let (mail, report) = (task_named(&api, "ann", hostile).await, task_named(&api, "ann", "Report").await);
    let foreign = run_of(&api, &task_named(&api, "bob", "Mail of bob").await).await;
    let (first, second) = (run_of(&api, &mail).await, run_of(&api, &report).await);
    cancel(&api, &second).await;

    let ann = Visitor::signed_in(&base, &api.token("ann", SCOPES).await).await;
    let all = ann.get("/ui/runs").await;
    assert_eq!(all.status, 200);
    for text in ["Mail &lt;script&gt;alert(1)&lt;", "cancelled by its owner", "filter the list first", &first, &second]
    {
        all.has(text);
    }
    for text in ["<script>alert", &foreign, "Mail of bob", "Retry these", "<th scope=\"col\">Tenant</th>"] {
        all.lacks(text);
    }
    for (query, shown, hidden) in [
        ("state=queued".to_owned(), &first, &second),
        ("q=mail".to_owned(), &first, &second),
        (format!("q={second}"), &second, &first),
        (format!("q=m:{first}"), &first, &second),
        (format!("task_id={report}"), &second, &first),
    ] {
        let list = ann.get(&format!("/ui/runs?{query}")).await;
        list.has(&format!("href=\"/ui/runs/{shown}\""));
        list.lacks(&format!("href=\"/ui/runs/{hidden}\""));
        list.has("Retry these");
    }
    // times as a form has them are those of UTC
    ann.get("/ui/runs?since=2026-11-21T00:00&until=2026-11-21T00:01").await.has(&first);
    for query in ["until=2026-11-21T00:00", "q=zzz", "state=expired"] {
        let none = ann.get(&format!("/ui/runs?{query}")).await;
        none.has("Nothing fits these filters.");
        none.lacks(&first);
    }
    ann.get("/ui/runs?task_id=x").await.has("must be a UUID");

    let admin = Visitor::signed_in(&base, ADMIN).await.get("/ui/runs?q=mail").await;
    for text in ["<th scope=\"col\">Tenant</th>", &first, &foreign] {
        admin.has(text);
    }
    let reader = Visitor::signed_in(&base, &api.token("ann", &["runs:read"]).await).await;
    reader.get("/ui/runs?q=mail").await.lacks("Retry these");
    let other = Visitor::signed_in(&base, &api.token("ann", &["tasks:read"]).await).await;
    assert_eq!(other.get("/ui/runs").await.status, 403);
}

async fn runs_are_retried_as_they_were_shown_each_once(api: Api) {
    let base = served(&api).await;
    let task = task_named(&api, "ann", "Mail").await;
    let (queued, first) = (run_of(&api, &task).await, run_of(&api, &task).await);
    let second = run_of(&api, &task).await;
    cancel(&api, &first).await;
    cancel(&api, &second).await;
    let ann = Visitor::signed_in(&base, &api.token("ann", SCOPES).await).await;

    let refused = ann.get("/ui/runs/bulk/retry").await;
    assert_eq!(refused.status, 422);
    refused.has("Choose what it is about");
    let page = "/ui/runs/bulk/retry?q=mail";
    let preview = ann.get(page).await;
    preview.has("2 runs will be run again");
    preview.has("Left out");
    preview.has("it has not ended, so it can’t be retried yet");
    for (run, is_hit) in [(&first, true), (&second, true), (&queued, false)] {
        assert_eq!(preview.text.contains(&format!("name=\"run\" value=\"{run}\"")), is_hit, "{run}");
    }
    assert_eq!(retries(&api).await.len(), 0, "a page changes nothing");

    // those that were chosen, and of the same form sent again nothing new
    for _ in 0..2 {
        let done = ann.post(page, page, &[("run", first.as_str()), ("key", "one form")]).await;
        assert_eq!(done.status, 200);
        done.has("1 run is run again.");
        let made = retries(&api).await;
        assert_eq!((made.len(), &made[0]["retry_of"]), (1, &json!(first)));
        done.has(made[0]["id"].as_str().unwrap());
    }
    let mixed = ann.post(page, page, &[("run", queued.as_str()), ("run", second.as_str())]).await;
    mixed.has("1 run is run again. With 1 it could not be done.");
    mixed.has("the run is queued, so it can&#39;t be retried yet");
    assert_eq!(retries(&api).await.len(), 2);

    for (fields, status) in [
        (&[][..], 422),
        (&[("run", first.as_str()), ("form_token", "another")][..], 403),
        (&[("run", first.as_str()), ("form_token", "")][..], 403),
    ] {
        assert_eq!(ann.post(page, page, fields).await.status, status, "{fields:?}");
    }
    let reader = Visitor::signed_in(&base, &api.token("ann", &["runs:read"]).await).await;
    let preview = reader.get(page).await;
    preview.has("Your token does not permit to change runs");
    preview.lacks("Retry the chosen runs");
    reader.post(page, page, &[("run", first.as_str())]).await.has("With 1 it could not be done.");
    assert_eq!(retries(&api).await.len(), 2);
}

async fn runs_are_cancelled_and_those_of_others_are_not_there(api: Api) {
    let base = served(&api).await;
    let task = task_named(&api, "ann", "Mail").await;
    let (first, ended) = (run_of(&api, &task).await, run_of(&api, &task).await);
    cancel(&api, &ended).await;
    let foreign = run_of(&api, &task_named(&api, "bob", "Mail").await).await;
    let ann = Visitor::signed_in(&base, &api.token("ann", SCOPES).await).await;
    let page = format!("/ui/runs/bulk/cancel?task_id={task}");
    let preview = ann.get(&page).await;
    preview.has("1 run will be cancelled");
    preview.has("it has ended, so it can’t be cancelled");
    preview.lacks(&foreign);
    assert_eq!(state_of(&api, &first).await, "queued");
    let chosen = [("run", first.as_str()), ("run", foreign.as_str()), ("run", "<x>")];
    let done = ann.post(&page, &page, &chosen).await;
    done.has("1 run is cancelled, or asked to end. With 2 it could not be done.");
    done.has("There is no such run.");
    done.lacks("<x>");
    done.has(&format!("href=\"/ui/runs?task_id={task}\""));
    assert_eq!((state_of(&api, &first).await, state_of(&api, &foreign).await), (json!("cancelled"), json!("queued")));
    ann.get(&page).await.has("There is nothing to cancel among these runs.");
}

#[tokio::test]
async fn page_of_many_runs_shows_the_newest_and_says_that_there_are_more() {
    let api = Api::new().await;
    let base = served(&api).await;
    let task = task_named(&api, "ann", "Mail").await;
    let oldest = run_of(&api, &task).await;
    api.advance(1);
    for _ in 0..MOST {
        run_of(&api, &task).await;
    }
    let ann = Visitor::signed_in(&base, &api.token("ann", SCOPES).await).await;
    let preview = ann.get("/ui/runs/bulk/cancel?q=mail").await;
    preview.has("There are more.");
    preview.has("200 runs will be cancelled");
    preview.lacks(&oldest);
    assert_eq!(preview.text.matches("name=\"run\"").count(), MOST);
    // pages of the list have fifty
    let list = ann.get("/ui/runs").await;
    assert_eq!(list.text.matches("<tr data-row>").count(), 50);
    list.has("rel=\"next\"");
}
